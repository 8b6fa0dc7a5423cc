"""The searches for a question's variants, each of which may fail alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import FusionSettings, LimitSettings, Settings
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import SearchResult
from qtmiddleware.retrieval.searching import RunningCall, search_variants
from qtmiddleware.runtime.steps import Embed, Outcome, Search, Together
from qtmiddleware.types import Deadline, Degradation, Trace, Variant

ENGINE = qtm.QueryMiddleware().engine
VARIANTS = (
    Variant("rewrite", "one"),
    Variant("sub_query", "two", 0.5),
    Variant("sub_query", "three", 0.5),
)


def rows(name: str) -> list[dict[str, Any]]:
    return [{"id": name, "score": 0.5}]


class Played:
    """The flow of the variants' searches, answered from a script; keeps the steps it asked for."""

    def __init__(
        self,
        *answers: Sequence[Outcome],
        embeds: bool = False,
        width: int | None = 50,
        sub_query_top_k: int | None = None,
    ) -> None:
        self.trace, self.degradations = Trace(), list[Degradation]()
        self.steps: list[Together] = []
        settings = Settings(
            limits=LimitSettings(max_concurrency=3),
            fusion=FusionSettings(sub_query_top_k=sub_query_top_k),
        )
        embedder = object() if embeds else None
        call = Call("q", (), settings, Learned(), ENGINE, embedder=embedder)
        self.deadline = Deadline.after(60.0)
        flow = search_variants(
            VARIANTS,
            call,
            search_width=width,
            deadline=self.deadline,
            trace=self.trace,
            degradations=self.degradations,
        )
        self.lists = self._played(flow, answers)

    def _played(self, flow: Any, answers: Sequence[Sequence[Outcome]]) -> list[SearchResult]:
        step = next(flow)
        for answer in answers:
            self.steps.append(step)
            for leaf in step.steps:
                if isinstance(leaf, Search):
                    with RunningCall(leaf):
                        pass
            try:
                step = flow.send(answer)
            except StopIteration as stop:
                return list(stop.value)
        raise AssertionError(f"more was asked for: {step}")

    @property
    def kinds(self) -> list[str]:
        return [found.ranking.variant.text for found in self.lists]


def good(*names: str) -> list[Outcome]:
    return [Outcome(rows(name), seconds=0.001) for name in names]


def test_nothing_to_search_asks_for_nothing() -> None:
    call = Call("q", (), Settings(), Learned(), ENGINE)
    flow = search_variants(
        (), call, search_width=None, deadline=Deadline(), trace=Trace(), degradations=[]
    )
    with pytest.raises(StopIteration) as stop:
        next(flow)
    assert stop.value.value == []


def test_all_are_searched_in_one_step_within_the_limits() -> None:
    played = Played(good("a", "b", "c"))
    (together,) = played.steps
    searches = [step for step in together.steps if isinstance(step, Search)]
    assert [(step.text, step.top_k, step.vector) for step in searches] == [
        ("one", 50, None), ("two", 50, None), ("three", 50, None),
    ]  # fmt: skip
    assert (together.limit, together.deadline) == (3, played.deadline)
    assert played.kinds == ["one", "two", "three"]
    assert [list(found.ranking.keys) for found in played.lists] == [
        [("__default__", name)] for name in "abc"
    ]
    assert (played.degradations, played.trace.searches) == ([], 3)


def test_sub_queries_may_bring_fewer_than_the_others() -> None:
    (together,) = Played(good("a", "b", "c"), sub_query_top_k=2).steps
    assert [step.top_k for step in together.steps if isinstance(step, Search)] == [50, 2, 2]


@pytest.mark.parametrize(
    ("outcome", "reason", "detail"),
    [
        (Outcome(error=KeyError("secret")), "failed", "KeyError"),
        (Outcome(late=True), "timeout", ""),
        (Outcome(42), "failed", "ResponseShapeError"),
    ],
)
def test_one_that_fails_is_told_and_left_out(outcome: Outcome, reason: str, detail: str) -> None:
    first, _, last = good("a", "b", "c")
    played = Played([first, outcome, last])
    assert played.kinds == ["one", "three"]
    assert played.degradations == [Degradation("search.sub_query", reason, detail)]
    assert ("search.sub_query", "degraded", reason) in [
        (it.name, it.status, it.detail) for it in played.trace.stages
    ]


def test_a_search_that_found_nothing_has_not_failed() -> None:
    played = Played([Outcome([]), Outcome(None), *good("c")])
    assert played.kinds == ["one", "two", "three"]
    assert played.degradations == []


def test_vectors_are_had_in_one_batch_before_the_searches() -> None:
    vectors = [[1.0], [2.0], [3.0]]
    played = Played([Outcome(vectors)], good("a", "b", "c"), embeds=True, width=None)
    first, second = played.steps
    (embed,) = first.steps
    assert isinstance(embed, Embed)
    assert list(embed.texts) == ["one", "two", "three"]
    searches = [step for step in second.steps if isinstance(step, Search)]
    assert [step.vector for step in searches] == vectors
    assert {step.top_k for step in searches} == {None}


@pytest.mark.parametrize(
    "outcome",
    [Outcome(error=RuntimeError()), Outcome(late=True), Outcome([[1.0]]), Outcome(None)],
    ids=["error", "late", "too few", "None"],
)
def test_without_vectors_nothing_is_searched(outcome: Outcome) -> None:
    played = Played([outcome], embeds=True)
    assert played.lists == []
    assert [it.stage for it in played.degradations] == ["embed"]
    assert played.trace.searches == 0
