"""Stores: where passages are kept with their vectors."""

from __future__ import annotations

from qtmiddleware.stores.sqlite import SQLiteStore

__all__ = ["SQLiteStore"]
