"""The leading candidates scored once more by a reranker, each beside the user's own question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ModelError, QtMiddlewareError, is_raised_here
from qtmiddleware.retrieval.fusion import FusedList
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import read_texts, to_number
from qtmiddleware.runtime.steps import Flow, Outcome, Rerank, Together
from qtmiddleware.types import Deadline, Degradation, Trace

STAGE: Final = "rerank"


def rerank(
    fused: FusedList,
    request: Request,
    deadline: Deadline,
    trace: Trace,
    degradations: list[Degradation],
) -> Flow[tuple[FusedList, list[float | None]]]:
    """Returns *fused* with its leading candidates in the reranker's order, and their scores in that order.

    Every candidate stays. One without text cannot be scored: it keeps its place and has ``None``.
    Where the reranker fails or is late, *fused* is as it was and there are no scores. Where a model
    has to be read first, the reranker's own timeout does not count, only the *deadline*: those
    seconds come once, and would take the first question's.
    """
    options = request.settings.rerank
    candidates = fused.items[: options.rerank_top_k]
    texts = read_texts([it.item for it in candidates], request.settings.keyword_evidence.text_field)
    places = [place for place, text in enumerate(texts) if text]
    if len(places) < 2:
        if len(candidates) > 1:
            trace.note(STAGE, "no candidate has a text; order kept")
        return fused, []
    timeout = (
        deadline if request.reranker_is_unloaded else deadline.sooner(options.timeout_ms / 1e3)
    )
    step = Rerank(request.original, [texts[place] or "" for place in places])
    (outcome,) = yield Together((step,), timeout, 1)
    scores = _read_scores(outcome, len(places), trace, degradations)
    if scores is None:
        return fused, []
    items = list(fused.items)
    rerank_scores: list[float | None] = [None] * len(candidates)
    best_first = sorted(zip(scores, places, strict=True), key=lambda pair: -pair[0])
    for place, (score, better) in zip(places, best_first, strict=True):
        items[place], rerank_scores[place] = fused.items[better], score
    return FusedList(items, fused.method), rerank_scores


def _read_scores(
    outcome: Outcome, count: int, trace: Trace, degradations: list[Degradation]
) -> list[float] | None:
    """The reranker's scores, ``None`` where they cannot be used, which is noted."""
    if outcome.ok:
        try:
            scores = check_scores(outcome.value, count)
        except ModelError as error:
            outcome.error = error
        else:
            trace.stage(STAGE, outcome.seconds, began=outcome.began)
            return scores
    detail = outcome.detail
    if isinstance(outcome.error, QtMiddlewareError) and is_raised_here(outcome.error):
        # Mostly why a model cannot be had.
        detail = str(outcome.error)
        trace.note(STAGE, detail)
    trace.stage(STAGE, outcome.seconds, "degraded", outcome.reason, began=outcome.began)
    degradations.append(Degradation(STAGE, outcome.reason, detail))
    return None


def check_scores(scores: Any, count: int) -> list[float]:
    """Returns *scores*, a list, tuple or array, as *count* finite floats.

    Raises `ModelError` ``unparsable`` where they are anything else: another number of them, NaN,
    texts, rows.
    """
    given = scores.tolist() if hasattr(scores, "tolist") else scores
    if isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) == count:
        numbers = [number for score in given if (number := to_number(score)) is not None]
        if len(numbers) == count:
            return numbers
    raise ModelError(
        "unparsable", f"the reranker must return one finite number for each of {count} passages"
    )
