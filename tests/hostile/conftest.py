"""The real browser of the reports' tests, and the command line's."""

from __future__ import annotations

import sys
from pathlib import Path

# Where the helpers of the reports' tests name one another.
sys.path.insert(0, str(Path(__file__).parents[1] / "reporting"))

from tests.cli.conftest import built, folder, qtm, service
from tests.reporting.conftest import browser, opened

__all__ = ["browser", "built", "folder", "opened", "qtm", "service"]
