"""The model's part alone: what it makes of one question or of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qtmiddleware.config.settings import Settings
from qtmiddleware.providers.llms.governed import GovernedModel
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.pipeline import transform
from qtmiddleware.retrieval.request import Memory, Request, validate_query
from qtmiddleware.runtime.drivers import Bulkhead
from qtmiddleware.runtime.steps import Flow, gather_flows
from qtmiddleware.types import Transformation
from qtmiddleware.wrapping.options import AskOptions


@dataclass(frozen=True, slots=True)
class Transforming:
    """How questions are transformed: the *settings* in force, the *model*, its threads and what is remembered."""

    settings: Settings
    model: GovernedModel
    memory: Memory = field(repr=False)
    options: AskOptions = field(repr=False)
    bulkhead: Bulkhead = field(repr=False)

    def one(self, query: str) -> Flow[Transformation]:
        """The flow for one question; raises `InvalidQuery` for one that cannot be asked."""
        return transform(self._request(query, shares=True))

    def many(self, queries: Sequence[str]) -> Flow[list[Transformation]]:
        """The flow for many, as many at once as may be in flight; each takes its time when its turn comes."""
        # All of them before the first is asked: a bad one costs nothing.
        asked = [validate_query(query, "query", self.settings) for query in queries]
        limit = self.settings.limits.max_concurrency
        # Equal ones once: those in step with one another must not wait for each other.
        distinct = list(dict.fromkeys(asked))
        made: dict[str, Transformation] = {}
        for start in range(0, len(distinct), limit):
            batch = distinct[start : start + limit]
            flows = [transform(self._request(query, shares=False)) for query in batch]
            made.update(zip(batch, (yield from gather_flows(flows, limit=limit)), strict=True))
        return [made[query] for query in asked]

    def _request(self, query: str, *, shares: bool) -> Request:
        history = read_history(self.options.get("history"))
        return Request(
            original=validate_query(query, "query", self.settings),
            history=history.messages,
            history_problem=history.problem,
            settings=self.settings,
            memory=self.memory,
            model=self.model.name,
            shares=shares,
            reason_to_wait=self.model.reason_to_wait,
            bulkhead=self.bulkhead,
        )
