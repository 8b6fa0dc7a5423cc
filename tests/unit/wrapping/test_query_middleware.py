"""A middleware: its settings, options and parts, and what it transforms without a search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from threading import Event
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import ask_systems, compare
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    QUERY,
    Way,
    scripted,
    search,
    transforming,
)
from tests.support.waiting import PATIENCE


def plain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


# --- settings -------------------------------------------------------------------------------------


def candidates(number: int) -> dict[str, Any]:
    return {"keywordEvidence": {"candidates": number}}


@pytest.mark.parametrize("way", [Way("sync"), Way("async")], ids=repr)
def test_the_call_goes_before_the_decorator(way: Way) -> None:
    searched = way.wrap(config=candidates(20))

    def ask(**options: Any) -> int:
        searched.calls.clear()
        searched.retrieve(QUERY, **options)
        return searched.calls[0][1]

    assert ask() == 20
    assert ask(config=candidates(22)) == 22
    assert ask(config={"keyword_evidence": {"candidates": 23}}) == 23
    assert ask(config={"limits": {"maxConcurrency": 2}}) == 20
    assert ask(config="off") == 4
    with pytest.raises(qtm.ConfigError, match="preset must be one of"):
        ask(config="of")
    assert ask() == 20


# --- options --------------------------------------------------------------------------------------

middleware: Final[Any] = qtm.middleware
TAKERS: Final[dict[str, Callable[..., Any]]] = {
    "decorator": lambda **options: middleware(plain, **options),
    "wrap": qtm.QueryMiddleware().wrap,
    "compare": lambda **options: compare(plain, {"q": "a"}, {"q": {"a": 1}}, **options),
    "ask_systems": lambda **options: ask_systems(plain, "a question", **options),
}


@pytest.mark.parametrize(
    ("taker", "name", "advice"),
    [
        ("decorator", "topk_arg", "top_k_arg"),
        ("wrap", "zzz", "its options are embed, embed_many, kind"),
        ("compare", "topk", "its options are"),
        ("ask_systems", "argumnts", "its options are"),
    ],
)
def test_an_unknown_option_is_refused_with_what_to_write(
    taker: str, name: str, advice: str
) -> None:
    args = (plain,) if taker == "wrap" else ()
    with pytest.raises(TypeError) as caught:
        TAKERS[taker](*args, **{name: "sk-strayed0123456789"})
    assert f"has no option '{name}'; " in str(caught.value)
    assert advice in str(caught.value)
    assert "strayed" not in str(caught.value)


@pytest.mark.parametrize(
    "client", [42, "gpt-4o-mini", object(), ScriptedModel], ids=lambda it: type(it).__name__
)
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(qtm.ConfigError) as caught:
        qtm.QueryMiddleware(client=client)
    assert caught.value.path == "client"


LIMITS: Final = [
    {"id": "old", "score": 0.9, "text": "The limit is 40 euros.", "metadata": {"year": 2024}},
    {"id": "new", "score": 0.89, "text": "The limit is 50 euros.", "metadata": {"year": 2025}},
    {"id": "other", "score": 0.5, "text": "Bring a bag.", "metadata": {"year": 2024}},
]


def test_the_clock_decides_what_last_year_is_in_its_own_time_zone() -> None:
    midnight = datetime(2025, 12, 31, 23, tzinfo=UTC)
    ahead = midnight.astimezone(timezone(timedelta(hours=2)))
    for now, first in ((midnight, "old"), (ahead, "new")):
        wrapped = qtm.middleware(clock=lambda now=now: now)(lambda query: LIMITS)
        assert wrapped("the limit last year")[0]["id"] == first
    unset = qtm.QueryMiddleware(clock=lambda: "2025")  # type: ignore[arg-type, return-value]
    found = unset.wrap(lambda query: LIMITS).retrieve("the current limit last year")
    assert [(it.stage, it.reason) for it in found.degradations] == [("clock", "failed")]


# --- what calls that override settings share ------------------------------------------------------


def test_a_caller_with_little_time_opens_no_breaker() -> None:
    release = Event()
    limits = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
    qm = qtm.QueryMiddleware(
        {"transformationType": "rewrite", "breaker": {"failures": 1}, "limits": limits},
        client=lambda messages: str(release.wait(PATIENCE)),
    )
    found = qm.wrap(plain).retrieve(QUERY, config={"limits": {"llmTimeoutMs": 20}})
    assert [it.reason for it in found.degradations] == ["timeout"]
    assert (qm.health()["model"]["failures"], qm.health()["model"]["breaker"]) == (0, "closed")
    release.set()


# --- transform ------------------------------------------------------------------------------------


@pytest.fixture(params=["transform", "atransform"])
def transform(request: pytest.FixtureRequest) -> Any:
    def ask(qm: qtm.QueryMiddleware, *args: Any, **kwargs: Any) -> Any:
        if request.param == "transform":
            return qm.transform(*args, **kwargs)
        return asyncio.run(qm.atransform(*args, **kwargs))

    return ask


def test_a_follow_up_is_transformed_with_its_history(transform: Any) -> None:
    model = ScriptedModel(scripted)
    qm = qtm.QueryMiddleware(transforming("all"), client=model)
    made = transform(qm, FOLLOW_UP, history=HISTORY)
    assert made.standalone == "What does Jaco eat?"
    assert sorted(prompt.mode for prompt in model.prompts) == ["decompose", "rewrite", "stepback"]
    assert all(prompt.history for prompt in model.prompts)


@pytest.mark.parametrize("bad", ["", None, 7])
def test_a_question_that_is_none_is_refused_before_any_call(bad: Any, transform: Any) -> None:
    model = ScriptedModel(scripted)
    with pytest.raises(qtm.InvalidQuery):
        transform(qtm.QueryMiddleware(transforming("rewrite"), client=model), ["What is it?", bad])
    assert model.prompts == []
