"""How fast text is cut into chunks: real prose, and the monotonous texts that are hardest on a search for boundaries.

    python benchmarks/chunking_speed.py [--megabytes 10] [--size 800] [--overlap 200]

Text comes in pieces of 64 KB, as a file would; a figure is million characters a second of processor
time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from qtmiddleware.kit.documents.chunking import cut_into_chunks

PROSE = Path(__file__).resolve().parents[2] / "shared" / "docs" / "Understanding_Climate_Change.txt"
MONOTONOUS = {
    "no boundary at all": "x",
    "full stops": "a.",
    "initials": "a. ",
    "lines": "\n",
    "Chinese": "漢字。",
}
PIECE = 65_536


def pieces(unit: str, characters: int) -> Iterator[str]:
    """*unit* again and again, about *characters* in all."""
    piece = "x" + unit * max(1, PIECE // len(unit))
    for _ in range(max(1, characters // len(piece))):
        yield piece


def main() -> None:
    """Measure and print one line for each text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=10)
    parser.add_argument("--size", type=int, default=800)
    parser.add_argument("--overlap", type=int, default=200)
    args = parser.parse_args()
    units = {"prose": PROSE.read_text("utf-8-sig")} if PROSE.is_file() else {}
    for name, unit in (units | MONOTONOUS).items():
        start, count, end = time.process_time(), 0, 0
        for chunk in cut_into_chunks(
            pieces(unit, args.megabytes * 1_000_000), size=args.size, overlap=args.overlap
        ):
            count, end = count + 1, chunk.end
        speed = end / 1e6 / (time.process_time() - start)
        print(f"{name:20} {count:8} chunks {speed:8.1f} million characters/s")


if __name__ == "__main__":
    main()
