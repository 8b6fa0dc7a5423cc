"""The exit codes of ``qtm``."""

from __future__ import annotations

from typing import Final

FAILED: Final = 1
"""What was asked for could not be done."""

USAGE: Final = 2
"""The arguments, the config or a question cannot be used as they are."""

INTERRUPTED: Final = 130
"""Ctrl-C."""
