"""The candidates judged once more, each beside the user's own question."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from qtmiddleware.errors import ModelError, QtMiddlewareError
from qtmiddleware.retrieval.merging import Combined, picked
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.responses import text_of
from qtmiddleware.retrieval.scores import checked_scores
from qtmiddleware.runtime.steps import Flow, Outcome, Rerank, Together
from qtmiddleware.types import Deadline, Degradation, Trace

STAGE: Final = "rerank"


def reranked(
    made: Combined, request: Request, budget: Deadline, trace: Trace, trouble: list[Degradation]
) -> Flow[Combined]:
    """*made* with its leading candidates in the reranker's order; as it is where the reranker fails or is late.

    Every candidate stays. One without text cannot be judged and keeps its place. Where a model has to be read first,
    its own timeout does not count, only the *budget*: those seconds come once, and would take the first question's.
    """
    options, fused = request.settings.rerank, made.candidates
    count = min(len(fused.keys), options.rerank_top_k)
    texts = [text_of(made.shape, item, request.settings.keyword_evidence.text_field) for item in fused.items[:count]]
    places = [at for at, text in enumerate(texts) if text]
    if len(places) < 2:
        if count > 1:
            trace.note(STAGE, "no text in the metadata; order kept")
        return made
    patience = budget if request.awaits_model else budget.sooner(options.timeout_ms / 1e3)
    step = Rerank(request.original, [texts[at] or "" for at in places])
    (outcome,) = yield Together((step,), patience, 1)
    scores = _scores(outcome, len(places), trace, trouble)
    if scores is None:
        return made
    best_first = sorted(range(len(places)), key=lambda at: -scores[at])
    order, judged = list(range(len(fused.keys))), [None] * count  # type: list[int], list[float | None]
    for place, at in zip(places, best_first, strict=True):
        order[place], judged[place] = places[at], scores[at]
    return replace(made, candidates=picked(fused, order, [fused.scores[at] for at in order]), judged=tuple(judged))


def _scores(outcome: Outcome, count: int, trace: Trace, trouble: list[Degradation]) -> list[float] | None:
    """The scores that came, ``None`` where they cannot be used."""
    if outcome.ok:
        try:
            scores = checked_scores(outcome.value, count)
        except ModelError as error:
            outcome.error = error
        else:
            trace.stage(STAGE, outcome.seconds)
            return scores
    if isinstance(outcome.error, QtMiddlewareError):
        # Words of our own, which quote nobody: mostly why a model cannot be had.
        trace.note(STAGE, str(outcome.error))
    trace.stage(STAGE, outcome.seconds, "degraded", outcome.reason)
    trouble.append(Degradation(STAGE, outcome.reason, outcome.detail))
    return None
