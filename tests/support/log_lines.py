"""The lines of a query log, each of them whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def log_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a log file, oldest first; blank lines aside, fails at one that is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
