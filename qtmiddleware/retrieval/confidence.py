"""Compute the confidence in a search result by comparing it with results of earlier questions.

The confidence is the weighted mean of three signals:

==============  ======================================================================
``best_score``  The function's score for its first passage.
``lead``        The difference between the first score and the tenth, or the last if there are
                fewer.
``coverage``    The fraction of the question's content words that occur in at least one of
                the first three passages.
==============  ======================================================================

Each signal is converted to its percentile among the signals of earlier questions, because every
function has its own scale of scores. `python -m benchmarks.confidence` measures how well the
signals work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import isfinite
from typing import Final

from qtmiddleware.retrieval.gate import NEAR, Percentiles, get_complete_scores
from qtmiddleware.retrieval.keyword_evidence import are_reciprocal_ranks
from qtmiddleware.retrieval.question_words import (
    find_words,
    load_word_rules,
    measure_joint_coverage,
    parse_question,
)
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.types import Standing

WEIGHTS: Final = {"best_score": 2.0, "lead": 1.0, "coverage": 1.0}
"""The weight of each signal in the confidence."""
LEAST_SEEN: Final = 20
"""How many earlier questions are needed to compute a confidence."""
FENCE: Final = 2.0
"""A best score is low if it is below median - `FENCE` x (upper quartile - median).

Median and quartile are those of earlier best scores. Evenly spread scores are never so low, so no
fixed fraction of questions is flagged.
"""
EARLIEST: Final = 4
"""A best score must also be low among the earliest of the remembered ones: one in `EARLIEST`."""
LEAST_COVERAGE: Final = 1 / 3
"""A result is unsure if its best score is low and its coverage is at most this fraction."""
# How many characters of a passage are read. A longer text takes time and contains almost any word.
_READ: Final = 2_000
LATER_PAGE: Final = Standing(
    None, problem="the call selects a page, whose scores are no measure of the question"
)
_NO_PASSAGES: Final = Standing(0.0, is_unsure=True, problem="the function returned no passages")
_NO_SIGNALS: Final = Standing(None, problem="the passages have neither scores nor texts")


class Standings:
    """Compares new results with a function's latest results. Thread-safe."""

    def __init__(self) -> None:
        self._percentiles = {name: Percentiles() for name in WEIGHTS}
        self._lock = make_lock()

    def copy(self) -> Standings:
        """Return an object that starts with the results that this one remembers."""
        standings = Standings()
        with self._lock:
            standings._percentiles = deepcopy(self._percentiles)
        return standings

    def measure_confidence(
        self,
        signals: Mapping[str, float],
        *,
        passage_count: int,
        scores: Sequence[float | None] = (),
    ) -> Standing:
        """Return the confidence in a result, and remember its *signals* unless it is empty."""
        if not passage_count:
            return _NO_PASSAGES
        if not signals:
            return _NO_SIGNALS
        with self._lock:
            # A result is compared only with earlier ones.
            seen = min(len(self._percentiles[name]) for name in signals)
            is_low = seen >= LEAST_SEEN and self._is_best_score_low(signals.get("best_score"))
            observed = {
                name: self._percentiles[name].record(signal) for name, signal in signals.items()
            }
        if seen < LEAST_SEEN:
            problem = f"needs {LEAST_SEEN} earlier questions of this function, and {seen} were seen"
            return Standing(None, signals, {}, seen, problem=problem)
        total_weight = sum(WEIGHTS[name] for name in observed)
        confidence = (
            sum(WEIGHTS[name] * percentile for name, percentile in observed.items()) / total_weight
        )
        is_unsure = (
            is_low
            and signals.get("coverage", 1.0) <= LEAST_COVERAGE
            and not are_reciprocal_ranks([score for score in scores if score is not None])
        )
        return Standing(confidence, signals, observed, seen, is_unsure=is_unsure)

    def _is_best_score_low(self, best_score: float | None) -> bool:
        scores = self._percentiles["best_score"]
        if best_score is None or best_score >= _find_fence(scores.ordered):
            return False
        # Among the latest may be many of one user, whose high scores say nothing about others.
        earliest = sorted(scores.list_earliest(max(LEAST_SEEN, len(scores) // EARLIEST)))
        return best_score < _find_fence(earliest)


def _find_fence(ordered: Sequence[float]) -> float:
    """Return the limit below which a best score is low among the best scores *ordered*."""
    middle, upper = (ordered[int(part * len(ordered))] for part in (0.5, 0.75))
    return middle - FENCE * (upper - middle)


def measure_confidence_signals(
    scores: Sequence[float | None], coverage: float | None, *, lower_is_better: bool
) -> dict[str, float]:
    """Return the signals that can be measured, by name. Higher is better in each."""
    signals: dict[str, float] = {}
    near_scores = get_complete_scores(scores[:NEAR])
    if near_scores and isfinite(near_scores[0]) and isfinite(near_scores[-1]):
        signals["best_score"] = -near_scores[0] if lower_is_better else near_scores[0]
        if len(near_scores) > 1:
            signals["lead"] = abs(near_scores[0] - near_scores[-1])
    if coverage is not None:
        signals["coverage"] = coverage
    return signals


def measure_leading_coverage(
    keywords: str, texts: Sequence[str | None], language: str
) -> float | None:
    """Return the fraction of the content words of *keywords* that the first three *texts* contain.

    Returns ``None`` if there are no keywords or no texts. *language* is the code of the question's
    language; ``""`` if unknown.
    """
    rules = load_word_rules(language)
    question = parse_question(keywords, rules)
    if not question.terms or not any(texts):
        return None
    read_parts = [(text or "")[:_READ] for text in texts]
    return measure_joint_coverage(question, find_words(question, read_parts, rules))
