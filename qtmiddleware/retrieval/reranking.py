"""Rerank the first candidates with a reranker, a model that scores passages for a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from qtmiddleware.errors import ModelError, QtMiddlewareError, is_raised_by_package
from qtmiddleware.retrieval.fusion import FusedList
from qtmiddleware.retrieval.plan import Plan
from qtmiddleware.retrieval.responses import convert_to_float
from qtmiddleware.runtime.io import Outcome
from qtmiddleware.runtime.services import Services

STAGE: Final = "rerank"


async def rerank_candidates(fused_list: FusedList, plan: Plan, services: Services) -> FusedList:
    """Return *fused_list* with its first candidates reranked.

    - No candidate is removed. A candidate without text keeps its position and has the score
      ``None``.
    - If the reranker fails or is late, *fused_list* is returned unchanged.
    """
    candidates = fused_list.items[: plan.settings.rerank.rerank_top_k]
    texts = [candidate.passage.text for candidate in candidates]
    places = [place for place, text in enumerate(texts) if text]
    if len(places) < 2:
        if len(candidates) > 1:
            plan.trace.note(STAGE, "no candidate has a text; order kept")
        return fused_list
    candidate_texts = [texts[place] or "" for place in places]
    (outcome,) = await services.gather(
        [partial(services.rerank, plan.call.original, candidate_texts)], plan.deadline
    )
    scores = _read_rerank_scores(outcome, len(places), plan)
    if scores is None:
        return fused_list
    items = list(fused_list.items)
    rerank_scores: list[float | None] = [None] * len(candidates)
    # Only candidates with a text trade places. The others stay where they are.
    best_first = sorted(zip(scores, places, strict=True), key=lambda pair: -pair[0])
    for place, (score, best_place) in zip(places, best_first, strict=True):
        items[place] = fused_list.items[best_place]
        rerank_scores[place] = score
    return replace(fused_list, items=items, rerank_scores=rerank_scores)


def _read_rerank_scores(
    outcome: Outcome[Any], passage_count: int, plan: Plan
) -> list[float] | None:
    if outcome.has_succeeded:
        try:
            scores = check_rerank_scores(outcome.value, passage_count)
        except ModelError as error:
            outcome.error = error
        else:
            plan.trace.record_stage(STAGE, outcome.seconds, began=outcome.began)
            return scores
    detail = outcome.detail
    if isinstance(outcome.error, QtMiddlewareError) and is_raised_by_package(outcome.error):
        # The package's own errors say how to fix the problem, such as which package to install.
        detail = str(outcome.error)
        plan.trace.note(STAGE, detail)
    plan.record_failed_stage(STAGE, outcome, detail)
    return None


def check_rerank_scores(scores: Any, passage_count: int) -> list[float]:
    """Check a reranker's *scores*, and return them as floats.

    *scores* must be a list, tuple or array of *passage_count* finite numbers.

    Raises:
        ModelError: *scores* has another length or other values, such as NaN or text. The error's
            reason is ``unparsable``.
    """
    values = scores.tolist() if hasattr(scores, "tolist") else scores
    if (
        isinstance(values, Sequence)
        and not isinstance(values, str | bytes)
        and len(values) == passage_count
    ):
        numbers = [number for score in values if (number := convert_to_float(score)) is not None]
        if len(numbers) == passage_count:
            return numbers
    raise ModelError(
        "unparsable",
        f"the reranker must return one finite number for each of {passage_count} passages",
    )
