"""The searches for a question's variants, each of which may fail alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import FusionSettings, LimitSettings, Settings
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.plan import Plan
from qtmiddleware.retrieval.running_call import RunningCall
from qtmiddleware.retrieval.searching import search_variants
from qtmiddleware.runtime.io import IO
from qtmiddleware.runtime.observing import NOT_OBSERVED
from qtmiddleware.runtime.services import ModelOnly, Search, run
from qtmiddleware.types import Deadline, Degradation, Trace, Variant

ENGINE = qtm.QueryMiddleware().engine
VARIANTS = (
    Variant("rewrite", "one"),
    Variant("sub_query", "two", 0.5),
    Variant("sub_query", "three", 0.5),
)
NAMES = {"one": "a", "two": "b", "three": "c"}


def rows(name: str) -> list[dict[str, Any]]:
    return [{"id": name, "score": 0.5}]


def found(text: str) -> Any:
    return rows(NAMES[text])


def hanging(*_: Any) -> Any:
    sleep(0.3)


class Function(ModelOnly):
    """A wrapped function that answers with *respond*, and an embedder; keeps its searches."""

    def __init__(self, respond: Callable[[str], Any], embed: Callable[..., Any]) -> None:
        super().__init__(None)
        self._respond, self._embed = respond, embed
        self.searches: list[Search] = []

    async def search(self, search: Search, io: IO) -> Any:  # type: ignore[override]
        self.searches.append(search)
        with RunningCall(search):
            return self._respond(search.text or "")

    async def embed(self, texts: Sequence[str], io: IO) -> Any:  # type: ignore[override]
        return self._embed(texts)


class Searched:
    """The variants, searched by a function that answers with *respond*."""

    def __init__(
        self,
        respond: Callable[[str], Any] = found,
        *,
        variants: Sequence[Variant] = VARIANTS,
        embed: Callable[..., Any] | None = None,
        width: int | None = 50,
        sub_query_top_k: int | None = None,
        seconds: float = 60.0,
    ) -> None:
        self.trace = Trace()
        self.function = Function(respond, embed or hanging)
        settings = Settings(
            limits=LimitSettings(max_concurrency=3),
            fusion=FusionSettings(sub_query_top_k=sub_query_top_k),
        )
        embedder = embed and object()
        plan = Plan(Call("q", (), settings, Learned(), ENGINE, embedder=embedder), self.trace)
        plan.deadline, plan.search_width = Deadline.after(seconds), width
        self.degradations = plan.degradations
        flow = partial(search_variants, variants, plan)
        self.lists = run(lambda services: flow(services.within(NOT_OBSERVED, 3)), self.function)

    @property
    def kinds(self) -> list[str]:
        return [result.ranking.variant.text for result in self.lists]

    def widths(self) -> dict[str | None, int | None]:
        return {search.text: search.top_k for search in self.function.searches}


def test_nothing_to_search_asks_for_nothing() -> None:
    searched = Searched(variants=())
    assert (searched.lists, searched.function.searches) == ([], [])


def test_all_are_searched_with_the_width_and_come_back_in_order() -> None:
    searched = Searched()
    assert searched.widths() == {"one": 50, "two": 50, "three": 50}
    assert searched.kinds == ["one", "two", "three"]
    assert [list(result.ranking.keys) for result in searched.lists] == [
        [("__default__", name)] for name in "abc"
    ]
    assert (searched.degradations, searched.trace.searches) == ([], 3)


def test_sub_queries_may_bring_fewer_than_the_others() -> None:
    assert Searched(sub_query_top_k=2).widths() == {"one": 50, "two": 2, "three": 2}


def failing(text: str) -> Any:
    if text == "two":
        raise KeyError("secret")
    return found(text)


@pytest.mark.parametrize(
    ("respond", "reason", "detail"),
    [
        (failing, "failed", "KeyError"),
        (lambda text: hanging() if text == "two" else found(text), "timeout", ""),
        (lambda text: 42 if text == "two" else found(text), "failed", "ResponseShapeError"),
    ],
)
def test_one_that_fails_is_told_and_left_out(
    respond: Callable[[str], Any], reason: str, detail: str
) -> None:
    searched = Searched(respond, seconds=0.15 if reason == "timeout" else 60.0)
    assert searched.kinds == ["one", "three"]
    assert searched.degradations == [Degradation("search.sub_query", reason, detail)]
    assert ("search.sub_query", "degraded", reason) in [
        (stage.name, stage.status, stage.detail) for stage in searched.trace.stages
    ]


def test_a_search_that_found_nothing_has_not_failed() -> None:
    searched = Searched(lambda text: {"one": [], "two": None}.get(text, rows("c")))
    assert searched.kinds == ["one", "two", "three"]
    assert searched.degradations == []


def test_vectors_are_had_in_one_batch_before_the_searches() -> None:
    batches: list[list[str]] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        batches.append(list(texts))
        return [[float(len(batches[0]))] for _ in texts]

    searched = Searched(embed=embed, width=None)
    assert batches == [["one", "two", "three"]]
    assert [search.vector for search in searched.function.searches] == [[3.0]] * 3
    assert set(searched.widths().values()) == {None}


def refused(_: Any) -> Any:
    raise RuntimeError


@pytest.mark.parametrize(
    "embed",
    [refused, hanging, lambda _: [[1.0]], lambda _: None],
    ids=["error", "late", "too few", "None"],
)
def test_without_vectors_nothing_is_searched(embed: Callable[..., Any]) -> None:
    searched = Searched(embed=embed, seconds=0.1 if embed is hanging else 60.0)
    assert (searched.lists, searched.function.searches) == ([], [])
    assert [degradation.stage for degradation in searched.degradations] == ["embed"]
    assert searched.trace.searches == 0
