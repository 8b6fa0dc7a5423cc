"""The leading candidates scored once more by a reranker, each beside the user's own question."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import ModelError, QtMiddlewareError
from qtmiddleware.retrieval.fusion import Fused
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import read_text
from qtmiddleware.runtime.steps import Flow, Outcome, Rerank, Together
from qtmiddleware.types import Deadline, Degradation, Trace

STAGE: Final = "rerank"


def rerank(
    fused: Fused, request: Request, deadline: Deadline, trace: Trace, degradations: list[Degradation]
) -> Flow[tuple[Fused, list[float | None]]]:
    """Returns *fused* with its leading candidates in the reranker's order, and their scores in that order.

    Every candidate stays. One without text cannot be scored: it keeps its place and has ``None``. Where the reranker
    fails or is late, *fused* is as it was and there are no scores. Where a model has to be read first, the reranker's
    own timeout does not count, only the *deadline*: those seconds come once, and would take the first question's.
    """
    options = request.settings.rerank
    count = min(len(fused.keys), options.rerank_top_k)
    texts = [read_text(item, request.settings.keyword_evidence.text_field) for item in fused.items[:count]]
    places = [place for place, text in enumerate(texts) if text]
    if len(places) < 2:
        if count > 1:
            trace.note(STAGE, "no text in the metadata; order kept")
        return fused, []
    timeout = deadline if request.reranker_is_unloaded else deadline.sooner(options.timeout_ms / 1e3)
    step = Rerank(request.original, [texts[place] or "" for place in places])
    (outcome,) = yield Together((step,), timeout, 1)
    scores = _read_scores(outcome, len(places), trace, degradations)
    if scores is None:
        return fused, []
    order, scores_in_order = list(range(len(fused.keys))), [None] * count  # type: list[int], list[float | None]
    best_first = sorted(range(len(places)), key=lambda at: -scores[at])
    for place, at in zip(places, best_first, strict=True):
        order[place], scores_in_order[place] = places[at], scores[at]
    return fused.reorder(order, [fused.scores[at] for at in order]), scores_in_order


def _read_scores(outcome: Outcome, count: int, trace: Trace, degradations: list[Degradation]) -> list[float] | None:
    """The reranker's scores, ``None`` where they cannot be used, which is noted."""
    if outcome.ok:
        try:
            scores = check_scores(outcome.value, count)
        except ModelError as error:
            outcome.error = error
        else:
            trace.stage(STAGE, outcome.seconds)
            return scores
    if isinstance(outcome.error, QtMiddlewareError):
        # Words of our own, which quote nobody: mostly why a model cannot be had.
        trace.note(STAGE, str(outcome.error))
    trace.stage(STAGE, outcome.seconds, "degraded", outcome.reason)
    degradations.append(Degradation(STAGE, outcome.reason, outcome.detail))
    return None


def check_scores(scores: Any, count: int) -> list[float]:
    """Returns *scores*, a list, tuple or array, as *count* finite floats.

    Raises `ModelError` ``unparsable`` where they are anything else: another number of them, NaN, texts, rows.
    """
    given = scores.tolist() if hasattr(scores, "tolist") else scores
    if isinstance(given, Sequence) and not isinstance(given, str | bytes) and len(given) == count:
        numbers = [number for score in given if (number := _to_number(score)) is not None]
        if len(numbers) == count:
            return numbers
    raise ModelError("unparsable", f"the reranker did not give one finite number for each of {count} passages")


def _to_number(score: Any) -> float | None:
    """*score* as a finite float, ``None`` where it is no such number."""
    if isinstance(score, str | bytes):
        return None
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None
