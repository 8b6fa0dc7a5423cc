"""What a reader of a comparison must know that no figure says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qtmiddleware.evaluation.dataset import Dataset
from qtmiddleware.evaluation.runs import Run


def doubts(dataset: Dataset, runs: Mapping[str, Mapping[str, Run]]) -> Iterator[str]:
    """Sentences on what makes the figures of *runs*, by system and question, mean less than they seem to."""
    count = len(dataset.questions)
    if hopeless := sum(not is_answerable(grades) for grades in dataset.qrels.values()):
        yield f"{hopeless} of {count} questions have no relevant passage in their judgements; they count 0 everywhere."
    if not any(_found_judged(dataset, found) for found in runs.values()):
        yield "Nothing that any system found is judged: see that the judgements use the ids that the search returns."
    for name, found in runs.items():
        if degraded := sum(run.degraded for run in found.values()):
            yield (
                f"{name}: {degraded} of {count} answers are degraded, mostly as the model did not reply. They count "
                "with what was found without it, and their time and price are too low."
            )


def _found_judged(dataset: Dataset, found: Mapping[str, Run]) -> bool:
    return any(not dataset.qrels[asked].keys().isdisjoint(run.ids) for asked, run in found.items())


def is_answerable(grades: Mapping[str, int]) -> bool:
    """Whether any passage is relevant by these *grades*."""
    return any(grade > 0 for grade in grades.values())
