"""Parameters of which some need what the everyday environment does without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def mark_thorough(names: Iterable[str], beginning: str) -> list[Any]:
    """*names* as parameters, those with this *beginning* marked thorough."""
    return [
        pytest.param(it, marks=pytest.mark.thorough) if it.startswith(beginning) else it
        for it in names
    ]
