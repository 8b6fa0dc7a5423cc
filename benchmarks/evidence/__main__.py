"""What the free rules and the tier `words` gain and harm with other embedding models.

    python -m benchmarks.evidence --data ../shared/data --recordings ../shared/recordings \\
        --vectors ../shared/vectors/e5 > benchmarks/results/evidence-e5.md

The vectors were made beforehand, so nothing is embedded. A set's file has one vector per passage
and one per text that is searched, by its SHA-256. Some large sets have vectors for the passages
that `pools.json` names only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PRESETS: Final = ("rules", "words")
DEPTH: Final = 10
HEAD: Final = """# The question's words with another embedding model

Written by `{command}`.
*Gain* is in points of nDCG@10 over the plain search, *worse* the share of the questions that
score lower. `rules` is asked all questions that have vectors, `words` those that were recorded.
"""


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from benchmarks.evidence.places import find_places
    from benchmarks.quality.report import mean, table

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("data", "recordings", "vectors"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    command = " ".join(
        f"--{name} {getattr(options, name)}" for name in ("data", "recordings", "vectors")
    )
    print(HEAD.format(command=f"python -m benchmarks.evidence {command}"))
    rows: list[list[str]] = []
    for group in ("small", "large"):
        found: dict[str, list[tuple[float, float]]] = {preset: [] for preset in PRESETS}
        for place in find_places(options.data, options.recordings):
            vectors = options.vectors / f"{place.name}.npz"
            if place.group != group or not vectors.is_file():
                continue
            cells = []
            for preset, gains in _measure_gains(place, vectors).items():
                if not gains:
                    cells.append("")
                    continue
                both = 100 * mean(gains), mean([gain < -1e-9 for gain in gains])
                found[preset].append(both)
                cells.append(f"{both[0]:+.1f} ({both[1]:.1%} of {len(gains)})")
            rows.append([place.name, *cells])
        means = [[mean(list(column)) for column in zip(*it, strict=True)] for it in found.values()]
        rows.append(
            [f"**{group}, mean**", *(f"**{gain:+.1f} ({worse:.1%})**" for gain, worse in means)]
        )
    print(table(["set", *(f"{preset}: gain (worse)" for preset in PRESETS)], rows))


def _measure_gains(place: Any, vectors: Path) -> dict[str, list[float]]:
    """Return what each preset gains for each question of one set."""
    from benchmarks.quality.sets import records
    from qtmiddleware import QueryMiddleware
    from qtmiddleware.config.reading import read_preset
    from qtmiddleware.kit.evaluation import Dataset
    from qtmiddleware.kit.evaluation.recorded import RecordedModel

    data = Dataset.load(place.folder)
    search, known = _read_search(data, vectors)
    replies = records(place.recording) if place.recording else {}
    questions = [question for question in data.questions if known(question.text)]
    model = RecordedModel(replies.values(), [question.to_record() for question in questions])
    gains: dict[str, list[float]] = {}
    for preset in PRESETS:
        settings = {**read_preset(preset)[1], "escalation": {"mode": "always"}}
        wrapped: Any = QueryMiddleware(settings, client=model).wrap(search)
        gains[preset] = []
        for question in questions:
            if preset == "rules" or question.id in replies:
                plain = [passage["id"] for passage in search(question.text)]
                found = wrapped.retrieve(question.text, top_k=DEPTH, history=question.history)
                ids = [match.id for match in found.matches]
                grades = data.qrels[question.id]
                gains[preset].append(_compute_ndcg(ids, grades) - _compute_ndcg(plain, grades))
    return gains


def _read_search(data: Any, vectors: Path) -> tuple[Callable[..., Any], Callable[[str], bool]]:
    """Return a search over the passages of *data*, and whether a text can be searched."""
    import numpy as np

    stored = np.load(vectors)
    pools = json.loads((vectors.parents[1] / "pools.json").read_text(encoding="utf-8"))
    pool = set(pools.get(vectors.stem, ()))
    passages = [passage for passage in data.passages if not pool or passage.id in pool]
    matrix = stored["passages"].astype(np.float32)
    rows = {
        key.tobytes(): vector
        for keys, values in (("hyde_keys", "hyde_vectors"), ("keys", "vectors"))
        for key, vector in zip(stored[keys], stored[values].astype(np.float32), strict=True)
    }

    def search(query: str, top_k: int = DEPTH) -> list[dict[str, Any]]:
        scores = matrix @ rows[_hash(query)]
        return [
            {
                "id": passages[place].id,
                "score": float(scores[place]),
                "text": passages[place].text,
                "metadata": dict(passages[place].metadata),
            }
            for place in np.argsort(-scores, kind="stable")[:top_k]
        ]

    return search, lambda text: _hash(text) in rows


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _compute_ndcg(ids: Sequence[str], grades: Mapping[str, int]) -> float:
    from math import log2

    def sum_gains(ranked: Sequence[int]) -> float:
        return sum(max(0, grade) / log2(rank + 2) for rank, grade in enumerate(ranked[:DEPTH]))

    ideal = sum_gains(sorted(grades.values(), reverse=True))
    return sum_gains([grades.get(id_, 0) for id_ in ids]) / ideal if ideal else 0.0


if __name__ == "__main__":
    main()
