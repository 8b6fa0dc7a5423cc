"""How fast the rules are, as `benchmarks/preprocess_speed.py` measures it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from statistics import median

from benchmarks import preprocess_speed
from benchmarks.speed.overhead import interpreter_of
from benchmarks.speed.report import Row, at_most, below_peer
from qtmiddleware.preprocessing import preprocess

GROUP = "Preprocessing a plain question"


def rows(rounds: int) -> tuple[list[Row], Mapping[str, str]]:
    """The lines of this group and spaCy's version."""
    spacy_python = interpreter_of("spacy")
    found: list[Row] = []
    versions: dict[str, str] = {}
    for file in preprocess_speed.DEFAULT:
        if not file.exists():
            print(f"{file} is not there: its questions are not measured", file=sys.stderr)
            continue
        texts = (json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines())
        ascii_only = [text for text in texts if text.isascii()]
        place = "/".join(file.parent.parts[-2:])
        # The bar is for a plain question: each by itself, then the one in the middle.
        plain = preprocess_speed.sampled(ascii_only)
        floor, ours = (median(preprocess_speed.each(it, plain)) for it in (preprocess_speed.floor, preprocess))
        found.append(at_most(GROUP, f"{place}, median plain question, beside lower().split()", ours, floor, 6.0))
        spacy = preprocess_speed.measure_spacy(str(spacy_python) if spacy_python.exists() else None, plain, rounds)
        if spacy is not None:
            versions["spaCy"] = spacy[0]
            # Both in one sweep over the same plain questions.
            (swept,) = preprocess_speed.measure([preprocess], plain, rounds)
            found.append(below_peer(GROUP, f"{place}, mean plain question, beside spaCy", swept, spacy[1], 3.0))
        floor, ours = preprocess_speed.measure([preprocess_speed.floor, preprocess], ascii_only, rounds)
        what = f"{place}, mean of all {len(ascii_only)} ASCII questions"
        found.append(Row(GROUP, what, ours, floor, ours / floor, "us"))
    return found, versions
