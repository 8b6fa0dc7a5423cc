"""What the metadata of the candidates adds to the free rules, beside what a perfect filter would.

    python -m benchmarks.metadata --data ../shared/data

A search by cosine over all-MiniLM-L6-v2 returns passages with their metadata, and the middleware
goes around it with its defaults. A question that carries a ``date`` was asked on that day. The
perfect filter keeps the passages that have, in the fields that a question names (listed here by
hand), the values of a passage that answers it; "All" is any value. The constants were chosen on the
set with a star. The result goes to ``benchmarks/results/metadata.md``.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from benchmarks.quality.report import RESULTS, mean, table
from benchmarks.quality.sets import prepared_with
from benchmarks.searches import build_searches
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.measures import evaluate
from qtmiddleware.retrieval import keyword_evidence
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

CHOSEN_ON: Final = "policies_by_year"
DATED: Final = (CHOSEN_ON, "release_notes")
SETS: Final = (
    *DATED,
    "catalogue_es",
    "acronyms",
    "gym_faq",
    "camper_rental",
    "remote_policy",
    "runbooks",
)
MEASURE: Final = "nDCG@10"
SYSTEMS: Final = (
    "function alone",
    "rules without metadata",
    "rules",
    "rules behind a perfect filter",
)

# The fields that each of the first twenty questions names, by their first letters; the other ten
# name none.
_NAMED: Final = {
    "policies_by_year": "y yc yc yc yc ycd ycd yc y y y y yc ycd yc yc y yc ycd y".split(),  # noqa: SIM905
    "release_notes": "v v c d v v v vc dc dc v v v v c dc dc v d d".split(),  # noqa: SIM905
}

HEAD: Final = f"""# Metadata as evidence

Written by `python -m benchmarks.metadata`: {MEASURE}, all-MiniLM-L6-v2, exact cosine, no model. The sets are small
invented collections; the weight was chosen on the one with a star, but the rules were written by somebody who had read
the questions of both dated sets. *Worse* counts the questions that score lower
than by the rules without metadata. A perfect filter keeps the passages with the right values in the fields that a
question names, which nobody knows in practice.
"""


@dataclass(frozen=True)
class Measured:
    """One set: what each system scores for each question."""

    name: str
    scores: Mapping[str, Sequence[float]]

    def count_worse(self, system: str) -> int:
        """How many questions score lower than by the rules without metadata."""
        before = self.scores[SYSTEMS[1]]
        return sum(
            after < score - 1e-9 for after, score in zip(self.scores[system], before, strict=True)
        )


def main() -> None:
    """Measure every set and write the table."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    measured = [measure(options.data / "small" / name) for name in SETS]
    text = f"{HEAD}\n{describe(measured)}"
    (RESULTS / "metadata.md").write_text(text, encoding="utf-8")
    print(text)


def measure(folder: Path) -> Measured:
    """Return what each system scores on the set in *folder*."""
    name, data = folder.name, Dataset.load(folder)
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    dates = {row["_id"]: row.get("date") for row in map(json.loads, filter(str.strip, lines))}
    metadata = {passage.id: passage.metadata for passage in data.passages}
    with prepared_with(data, f"small-{name}", ScriptedModel({})) as one:
        search = build_searches(one, with_metadata=True)["vectors, cosine"]
        asked_at = {"now": datetime.now(UTC)}
        wrapped: Any = QueryMiddleware(clock=lambda: asked_at["now"]).wrap(search)
        runs: dict[str, dict[str, list[str]]] = {system: {} for system in SYSTEMS}
        for place, question in enumerate(data.questions):
            day = dates[question.id]
            asked_at["now"] = (
                datetime.fromisoformat(day).replace(tzinfo=UTC) if day else datetime.now(UTC)
            )
            runs[SYSTEMS[0]][question.id] = [match["id"] for match in search(question.text)]
            before = find_without(wrapped, question.text, top_k=50)
            runs[SYSTEMS[1]][question.id] = find_without(wrapped, question.text, top_k=10)
            found = wrapped.retrieve(question.text, top_k=10)
            runs[SYSTEMS[2]][question.id] = [match.id for match in found.matches]
            letters = _NAMED[name][place] if name in _NAMED and place < len(_NAMED[name]) else ""
            judged = data.qrels[question.id]
            kept = {id_ for id_ in before if _passes(letters, id_, judged, metadata)}
            base = before if letters else runs[SYSTEMS[1]][question.id]
            runs[SYSTEMS[3]][question.id] = [id_ for id_ in base if not letters or id_ in kept][:10]
        scores = {}
        for system, run in runs.items():
            found_scores = evaluate(data.qrels, run)
            scores[system] = [found_scores[MEASURE][question.id] for question in data.questions]
    return Measured(name, scores)


def find_without(wrapped: Any, text: str, top_k: int) -> list[str]:
    """Return the ids that the rules without metadata find."""
    with patch.object(keyword_evidence, "collect_metadata_evidence", lambda *_: None):
        return [match.id for match in wrapped.retrieve(text, top_k=top_k).matches]


def _passes(
    letters: str, passage: str, judged: Mapping[str, int], metadata: Mapping[str, Any]
) -> bool:
    """Whether a *passage* has the values of one that answers the question, in the fields with these first *letters*."""
    own = metadata[passage]
    return any(
        all(own[field] in (right[field], "All") for field in right if field[0] in letters)
        for right in (metadata[id_] for id_, grade in judged.items() if grade > 1)
    )


def describe(measured: Sequence[Measured]) -> str:
    """Return the table, and the aim over the sets that dates and versions decide."""
    rows = []
    for one in measured:
        means = [mean(one.scores[system]) for system in SYSTEMS]
        star = " *" if one.name == CHOSEN_ON else ""
        rows.append(
            [
                one.name + star,
                *(f"{value:.3f}" for value in means),
                str(one.count_worse(SYSTEMS[2])),
            ]
        )
    dated = [one for one in measured if one.name in DATED]
    means = [mean([value for one in dated for value in one.scores[system]]) for system in SYSTEMS]
    worse = sum(one.count_worse(SYSTEMS[2]) for one in dated)
    count = sum(len(one.scores[SYSTEMS[2]]) for one in dated)
    share = (means[2] - means[1]) / (means[3] - means[1]) if means[3] > means[1] else 0.0
    aim = f"{share:.0%} of what a perfect filter gives; {worse} of {count} questions are worse"
    return f"{table(['set', *SYSTEMS, 'worse'], rows)}\n\nOver {' and '.join(DATED)}: {aim}.\n"


if __name__ == "__main__":
    main()
