"""The flow: what is asked and searched, when, how often, and what is told about it."""

from __future__ import annotations

import asyncio
import json
import warnings
from threading import Barrier, Event, Semaphore
from time import sleep
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    QUERY,
    REPLIES,
    WIDE,
    Way,
    every_way,
    ids,
    kinds,
    scripted,
    search,
    transforming,
)

REWRITE = REPLIES["rewrite"]["rewrite"]
SUBS = REPLIES["decompose"]["sub_queries"]


# --- what happens at the same time ----------------------------------------------------------------


class Meeting:
    """A model and a search that only go on when as many as expected have come to their *place*."""

    name = "meeting"

    def __init__(self, counts: dict[str, int], places: dict[str, str]) -> None:
        self.barriers = {name: Barrier(count, timeout=20) for name, count in counts.items()}
        self.tasks = {name: asyncio.Barrier(count) for name, count in counts.items()}
        self.places = places

    def meet(self, key: str) -> None:
        if place := self.places.get(key):
            self.barriers[place].wait()

    async def ameet(self, key: str) -> None:
        if place := self.places.get(key):
            async with asyncio.timeout(20):
                await self.tasks[place].wait()

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self.meet(prompt.mode)
        return Reply(json.dumps(scripted(prompt)))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        await self.ameet(prompt.mode)
        return Reply(json.dumps(scripted(prompt)))

    def search(self, query: str, top_k: int = 4) -> Any:
        self.meet(query)
        return search(query, top_k)

    async def asearch(self, query: str, top_k: int = 4) -> Any:
        await self.ameet(query)
        return search(query, top_k)

    def ask(self, way: str, kind: str, *queries: dict[str, Any], **options: Any) -> list[Any]:
        """What is retrieved, one question after the other."""
        qm = qtm.QueryMiddleware(transforming(kind), **{"client": self, **options})

        async def ask_all() -> list[Any]:
            wrapped = qm.wrap(self.asearch)
            return [await wrapped.aretrieve(**query) for query in queries]

        if way == "async":
            return asyncio.run(ask_all())
        wrapped = qm.wrap(self.search)
        return [wrapped.retrieve(**query) for query in queries]


both_ways = pytest.mark.parametrize("way", ["sync", "async"])


@both_ways
@pytest.mark.parametrize("history", [(), HISTORY], ids=["alone", "in a conversation"])
def test_the_questions_own_search_and_all_three_prompts_run_at_the_same_time(
    way: str, history: Any
) -> None:
    places = dict.fromkeys((QUERY, "rewrite", "stepback", "decompose"), "all")
    asked = {"query": QUERY, "history": history}
    (found,) = Meeting({"all": 4}, places).ask(way, "all", asked)
    assert (found.status, found.trace.llm_calls) == ("full", 3)


@both_ways
def test_variants_are_searched_while_the_questions_own_search_runs(way: str) -> None:
    meeting = Meeting({"searches": 2}, {QUERY: "searches", REWRITE: "searches"})
    # The first call of a function, a later one, and one whose transformation is remembered.
    configs: list[dict[str, Any]] = [{}, {"cache": {"enabled": False}}, {}]
    queries = [{"query": QUERY, "config": config} for config in configs]
    retrievals = meeting.ask(way, "rewrite", *queries, client=ScriptedModel(scripted))
    assert [(it.status, it.trace.searches, it.trace.llm_calls) for it in retrievals] == [
        ("full", 2, 1),
        ("full", 2, 1),
        ("full", 2, 0),
    ]
    for trace in (it.trace for it in retrievals):
        stages = {stage.name: stage for stage in trace.stages}
        end = stages["search.original"].started_ms + stages["search.original"].ms
        # Each waited for the other, so the account shows them side by side.
        assert stages["search.variants"].started_ms < end
        if "transform.rewrite" in stages:
            model = stages["transform.rewrite"]
            assert model.started_ms + model.ms < end


@every_way
def test_the_own_error_of_the_question_is_raised_although_its_variants_were_found(way: Way) -> None:
    found_rewrite = Event()

    def respond(query: str, top_k: int) -> Any:
        if query == REWRITE:
            found_rewrite.set()
            return search(query, top_k)
        if way.name != "async":
            assert found_rewrite.wait(20)
        raise ConnectionError("the index is down")

    searched = way.wrap(respond, config=transforming("rewrite"))
    with pytest.raises(ConnectionError, match="the index is down"):
        searched.retrieve(QUERY)


@every_way
def test_once_a_function_was_unreadable_no_variant_is_searched(way: Way) -> None:
    searched = way.wrap(lambda query, top_k: object(), config=transforming("decompose"))
    with pytest.warns(qtm.SetupWarning):
        searched.retrieve(QUERY)
    searched.calls.clear()
    retrieval = searched.retrieve(QUERY)
    assert searched.calls == [(QUERY, 4)]
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("response", "unreadable")]


class Odd(list[Any]):
    """A response that is taken for a list and then breaks."""

    def __iter__(self) -> Any:
        raise RuntimeError("this list cannot be read twice")


def refuse(query: str, top_k: int) -> Any:
    if top_k > 4:
        raise ValueError("top_k must be at most 4")
    return search(query, top_k)


def fail_for_variants(query: str, top_k: int) -> Any:
    if query in SUBS:
        raise ConnectionError
    return search(query, top_k)


@every_way
@pytest.mark.parametrize(
    "respond",
    [search, refuse, fail_for_variants, lambda *_: object(), lambda *asked: Odd(search(*asked))],
    ids=["plain", "refuses", "variants fail", "unreadable", "breaks"],
)
@pytest.mark.parametrize("kind", ["none", "decompose"])
def test_every_call_of_the_function_is_counted(way: Way, kind: str, respond: Any) -> None:
    searched = way.wrap(respond, config=transforming(kind))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qtm.SetupWarning)
        trace = searched.retrieve(QUERY).trace
    assert trace.searches == len(searched.calls)


@every_way
def test_no_more_than_the_limit_is_done_at_once(way: Way) -> None:
    running = Semaphore(2)
    too_many = []

    def respond(query: str, top_k: int) -> Any:
        too_many.extend([query] * (not running.acquire(blocking=False)))
        sleep(0.005)
        running.release()
        return search(query, top_k)

    config = transforming("multi_query", limits={"maxConcurrency": 2})
    found = way.wrap(respond, config=config).retrieve(QUERY)
    assert (len(found.variants), too_many) == (4, [])


def test_a_plain_function_is_awaited_in_a_loop_that_is_not_asyncios_too() -> None:
    trio = pytest.importorskip("trio")
    wrapped = qtm.QueryMiddleware().wrap(search)
    found = trio.run(wrapped.aretrieve, QUERY, 3)
    assert (found.status, found.response) == ("full", wrapped(QUERY, 3))


# --- conversations --------------------------------------------------------------------------------


@every_way
def test_a_follow_up_is_searched_in_its_standalone_form_in_place_of_the_users_words(
    way: Way,
) -> None:
    script = {"standalone": "Which dry food does Jaco eat?"}
    searched = way.wrap(config=transforming("rewrite"), script=script)
    found = searched.retrieve(FOLLOW_UP, top_k=2, history=HISTORY)
    assert (found.original_query, ids(found)[0]) == (FOLLOW_UP, "food")
    assert sorted(searched.texts) == sorted([FOLLOW_UP, script["standalone"]])
    assert [it.variant.kind for it in found.rankings] == ["standalone"]
    (prompt,) = searched.model.prompts
    assert [turn.content for turn in prompt.history] == [turn["content"] for turn in HISTORY]
    louder = {"fusion": {"weights": {"originalInConversation": 0.5}}}
    both = searched.retrieve(FOLLOW_UP, history=HISTORY, config=louder)
    voices = [(it.variant.kind, it.variant.weight) for it in both.rankings]
    assert voices == [("original", 0.5), ("standalone", 1.0)]


FORMS = {
    "standalone": "Which dry food does Jaco eat?",
    "rewrite": "Brand of dry dog food for Jaco",
    "step_back": "How are dogs fed?",
    "sub_queries": [],
    "hyde": "Jaco eats dry food twice a day, in the morning and in the evening.",
}


NOTED = ("standalone", "not searched: the hypothetical passage is used instead")


@pytest.mark.parametrize(
    ("changed", "limits", "searched", "note"),
    [
        ({}, {}, ["original", "hyde"], True),
        ({}, {"maxSearches": 1}, ["original", "hyde"], True),
        (
            {},
            {"maxSearches": 20},
            ["original", "standalone", "rewrite", "hyde", "step_back"],
            False,
        ),
        ({"hyde": "The match was lost in extra time."}, {}, ["original", "joined"], False),
    ],
    ids=["led", "one search", "a budget for all", "a passage about something else"],
)
def test_a_follow_up_is_led_by_its_hypothetical_passage_beside_the_users_words(
    changed: dict[str, str], limits: dict[str, int], searched: list[str], note: bool
) -> None:
    script = {**FORMS, **changed}
    way = Way("sync").wrap(config=transforming("combined", limits=limits), script=script)
    found = way.retrieve(FOLLOW_UP, top_k=2, history=HISTORY)
    assert set(kinds(found)) == set(searched)
    assert (NOTED in found.trace.notes) == note
    assert changed.get("hyde", "-") not in way.texts
    assert (ids(found)[0], found.status) == ("food", "full")
    if note:
        voices = [(it.variant.kind, it.variant.weight) for it in found.rankings]
        assert voices == [("original", 1.0), ("hyde", 1.0)]


# --- what is searched -----------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize(
    ("apply_to", "text"),
    [("keywords", QUERY), ("text", "jaco health concerns"), ("both", "jaco health concerns")],
)
def test_what_the_stripped_query_is_used_for_is_set(apply_to: str, text: str, way: Way) -> None:
    searched = way.wrap(config={"preprocess": {"applyTo": apply_to}})
    retrieval = searched.retrieve(QUERY)
    weighs = apply_to != "text"
    assert searched.calls == [(text, WIDE if weighs else 4)]
    assert retrieval.original_query == QUERY
    assert retrieval.variants == (qtm.Variant("original", text),)
    assert any(stage.name == "keyword_evidence" for stage in retrieval.trace.stages) == weighs
    nothing_else = {"preprocess": {"applyTo": apply_to}, "keywordEvidence": {"enabled": False}}
    searched = way.wrap(config=nothing_else)
    way.call(searched.wrapped, QUERY)
    assert searched.calls == [(text, 4)]


@every_way
@pytest.mark.parametrize(
    ("kept", "query", "note"),
    [
        (("id", "score"), QUERY, "no candidate has a text; order kept"),
        (("id", "score", "metadata"), "Kubernetes?", "no keyword in any candidate; order kept"),
    ],
)
def test_evidence_without_text_or_keyword_keeps_the_order_and_says_so(
    way: Way, kept: tuple[str, ...], query: str, note: str
) -> None:
    def respond(query: str, top_k: int) -> Any:
        return [{name: row[name] for name in kept} for row in search(query, top_k)]

    found = way.wrap(respond).retrieve(query, top_k=8)
    assert ids(found) == [row["id"] for row in search(query, 8)]
    assert ("keyword_evidence", note) in found.trace.notes
    assert found.status == "full"


@pytest.mark.parametrize("vectors", [[[1.0]], None, "raises"])
def test_variants_without_vectors_are_not_searched_and_it_is_told(vectors: Any) -> None:
    searched = []

    def find(vector: list[float], top_k: int = 4) -> Any:
        searched.append(vector)
        return search(QUERY, top_k)

    def embed(texts: list[str]) -> Any:
        if QUERY not in texts and vectors == "raises":
            raise RuntimeError
        return [[1.0]] if QUERY in texts else vectors

    qm = qtm.QueryMiddleware(transforming("decompose"), client=ScriptedModel(scripted))
    found = qm.wrap(find, embed_many=embed).retrieve(QUERY)
    assert (searched, len(found.response)) == ([[1.0]], 4)
    assert ("embed", "failed") in [(it.stage, it.reason) for it in found.degradations]


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@every_way
@pytest.mark.parametrize(
    "place",
    ["state.prepare_query", "state.find_skip_reason", "ranking.fuse_rankings", "flow.build_result"],
)
def test_what_fails_inside_leaves_the_plain_result_and_its_matches(
    place: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"qtmiddleware.retrieval.{place}", fails)
    searched = way.wrap(config={"preprocess": {"applyTo": "text"}})
    found = searched.retrieve(QUERY, top_k=3)
    assert found.response == search(QUERY, 3)
    assert [(match.id, match.score) for match in found.matches] == [
        (it["id"], it["score"]) for it in search(QUERY, 3)
    ]
    assert found.variants == (qtm.Variant("original", QUERY),)
    assert (found.status, [it.stage for it in found.degradations]) == ("degraded", ["middleware"])
