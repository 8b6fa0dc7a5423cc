"""Write the golden orders, or say what would change in them."""

from __future__ import annotations

import argparse
import difflib
import sys

import tests.golden
from tests.golden.cases import CASES, load
from tests.golden.orders import format_lines, measure
from tests.golden.vectors import StoredVectors, embed


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=tests.golden.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    has_moved = False
    for case in CASES:
        vectors = StoredVectors(case.path("npz"), make=None if options.check else embed)
        file, text = case.path("json"), format_lines(measure(case, vectors))
        if options.check:
            kept = file.read_text(encoding="utf-8")
            has_moved = has_moved or kept != text
            sys.stdout.writelines(
                difflib.unified_diff(
                    kept.splitlines(True), text.splitlines(True), f"{file.name}, kept", "now", n=0
                )
            )
        else:
            file.write_text(text, encoding="utf-8")
            vectors.save(load(case).texts())
    return int(has_moved)


if __name__ == "__main__":
    sys.exit(main())
