"""The public data sets that lie beside the repository, too large to be part of it, and two small ones that stand in.

Laws of any data are tried on `DEMO`, the set the package ships, and `PRIVATE`, that of the
benchmarks, wherever the tests run, and on all of them where they lie there; figures of one data set
are skipped without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

import qtmiddleware.kit.demo

SHARED: Final = Path(__file__).parents[3] / "shared"

DEMO: Final = Path(qtmiddleware.kit.demo.__file__).parent / "data"

PRIVATE: Final = Path(__file__).parents[2] / "benchmarks" / "data" / "orrisdale"

RECORDED: Final = [
    *((folder / "queries.jsonl", folder / "recordings.jsonl") for folder in (DEMO, PRIVATE)),
    *(
        (SHARED / "data" / file.stem / "queries.jsonl", file)
        for file in sorted((SHARED / "recordings").glob("*.jsonl"))
    ),
]
"""The questions and the recorded replies of each data set that has some."""

needs_shared_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"the data sets are not in {SHARED.name}/ beside the repository"
)
