"""Write the golden orders."""

from __future__ import annotations

from tests.golden.cases import CASES, load
from tests.golden.orders import format_lines, measure
from tests.golden.vectors import StoredVectors, embed

for case in CASES:
    vectors = StoredVectors(case.path("npz"), make=embed)
    case.path("json").write_text(format_lines(measure(case, vectors)), encoding="utf-8")
    vectors.save(load(case).texts())
