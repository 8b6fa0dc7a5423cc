"""The public data sets that lie beside the repository, where they do; they are too large to be part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"

needs_shared_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the data sets are not in {SHARED.name}/ beside the repository"
)
