"""The field's measures, as trec_eval computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import MissingExtra

if TYPE_CHECKING:
    from qtmiddleware.evaluation.dataset import Qrels

MEASURES: Final = ("nDCG@10", "R@10", "MRR@10", "P@5", "AP")
"""What is measured of the first passages."""
DEEP: Final = ("R@100",)
"""What is measured of the first hundred."""
TOP_K: Final = 10
"""So many passages a system is asked for: as far as the measures of the first look."""
DEPTH: Final = 100
"""So many it is asked for once more where the first hundred are measured."""


@dataclass(frozen=True, slots=True)
class PerQuery:
    """Every measure of every judged question: *values* by measure, then by the question's id, each from 0 to 1."""

    values: Mapping[str, Mapping[str, float]] = field(repr=False)

    @property
    def means(self) -> dict[str, float]:
        """The mean of each measure over all judged questions; 0 where there are none."""
        return {name: sum(found.values()) / len(found) if found else 0.0 for name, found in self.values.items()}


def evaluate(qrels: Qrels, run: Mapping[str, Sequence[str]], measures: Sequence[str] = MEASURES) -> PerQuery:
    """Measure *run*, the ids each question found, best first, against the judgements.

    A judged question that found nothing, or is not in *run*, counts 0; an unjudged one is not counted. An id that comes
    twice counts where it first stands. Measures: nDCG@10 (gain = grade, Järvelin and Kekäläinen 2002), R@10, MRR@10,
    P@5, AP (its mean over the questions is MAP) and R@100. Raises `MissingExtra` without ir-measures.
    """
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtra("ir-measures", "eval") from error
    values = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    scored = {question: _scored(run[question]) for question in qrels if run.get(question)}
    if scored:
        # As objects: its parser of names uses what newer Pythons no longer have.
        found_as = {
            "nDCG@10": ir_measures.nDCG @ 10,
            "R@10": ir_measures.R @ 10,
            "MRR@10": ir_measures.RR @ 10,
            "P@5": ir_measures.P @ 5,
            "AP": ir_measures.AP,
            "R@100": ir_measures.R @ 100,
        }
        names: dict[Any, str] = {found_as[name]: name for name in measures}
        judged = {question: dict(qrels[question]) for question in scored}
        for found in ir_measures.iter_calc(list(names), judged, scored):
            values[names[found.measure]][found.query_id] = float(found.value)
    return PerQuery(values)


def _scored(ids: Sequence[str]) -> dict[str, float]:
    """A falling score for each rank, as trec_eval orders by score and breaks ties by id, not by place."""
    return {id_: -float(rank) for rank, id_ in enumerate(dict.fromkeys(ids))}
