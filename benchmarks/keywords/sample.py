"""Draws the questions whose keywords two readers wrote down: 300 of the public sets, always the same ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

SEED: Final = 20261122

SIZES: Final = {
    "query_sets/query_wellformedness.jsonl": 85,
    "nq_small/queries.jsonl": 35,
    "covid_faq/queries.jsonl": 30,
    "anthropic_docs/queries.jsonl": 25,
    "codebase_small/queries.jsonl": 25,
    "hotpotqa_small/queries.jsonl": 20,
    "strategyqa_dev/queries.jsonl": 20,
    "canard_dev/queries.jsonl": 20,
    "covidqa/queries.jsonl": 15,
    "xquad/en/queries.jsonl": 5,
    "xquad/de/queries.jsonl": 10,
    "xquad/es/queries.jsonl": 10,
}
"""How many questions of each file, below the folder of the data sets."""


def draw(data: Path) -> dict[str, str]:
    """The questions below *data*, by the name of their file and their line in it, counted from 1."""
    drawn = {}
    for name, size in SIZES.items():
        rows = [
            json.loads(line)["text"]
            for line in (data / name).read_text(encoding="utf-8").splitlines()
        ]
        for place in sorted(random.Random(f"{SEED} {name}").sample(range(len(rows)), size)):
            drawn[f"{name.removesuffix('.jsonl')}:{place + 1}"] = rows[place]
    return drawn
