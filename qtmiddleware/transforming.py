"""The model's part alone: what it makes of one question or of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from qtmiddleware.lockstep import side_by_side
from qtmiddleware.pipeline import transform
from qtmiddleware.request import Memory, Request, conversation, validated
from qtmiddleware.settings import Settings
from qtmiddleware.steps import Flow
from qtmiddleware.types import Transformation
from qtmiddleware.wrap_options import AskOptions


@dataclass(frozen=True, slots=True)
class Transforming:
    """How questions are transformed: the *settings* in force, the *model*'s name and what is remembered."""

    settings: Settings
    model: str
    memory: Memory = field(repr=False)
    options: AskOptions = field(repr=False)

    def one(self, query: str) -> Flow[Transformation]:
        """The flow for one question; raises `InvalidQuery` for one that cannot be asked."""
        request = Request(
            original=validated(query, "query", self.settings),
            history=conversation(self.options.get("history")),
            settings=self.settings,
            memory=self.memory,
            model=self.model,
        )
        return transform(request)

    def many(self, queries: Sequence[str]) -> Iterator[Flow[list[Transformation]]]:
        """As many questions at once as may be in flight; the time of a batch begins when it is made."""
        # All of them before the first is asked: a bad one costs nothing.
        asked = [validated(query, "query", self.settings) for query in queries]
        limit = self.settings.limits.max_concurrency
        for start in range(0, len(asked), limit):
            yield side_by_side([self.one(query) for query in asked[start : start + limit]], limit=limit)
