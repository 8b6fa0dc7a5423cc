"""The flow: what is asked and searched, when, how often, and what is told about it."""

from __future__ import annotations

import asyncio
import json
import warnings
from threading import Barrier, Event
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
    """A model and a search that only go on when as many as expected have come, in threads or on a loop."""

    name = "meeting"

    def __init__(self, *, round_of: dict[str, int]) -> None:
        self.barriers = {name: Barrier(count, timeout=20) for name, count in round_of.items()}
        self.tasks = {name: asyncio.Barrier(count) for name, count in round_of.items()}
        self.round: dict[str, str] = {}
        self.waits = frozenset({QUERY, FOLLOW_UP})

    def place(self, mode: str) -> str:
        return self.round.get(mode) or list(self.barriers)[-1]

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self.barriers[self.place(prompt.mode)].wait()
        return Reply(json.dumps(scripted(prompt)))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        async with asyncio.timeout(20):
            await self.tasks[self.place(prompt.mode)].wait()
        return Reply(json.dumps(scripted(prompt)))

    def search(self, query: str, top_k: int = 4) -> Any:
        if query in self.waits:
            self.barriers[self.place("search")].wait()
        return search(query, top_k)

    async def asearch(self, query: str, top_k: int = 4) -> Any:
        if query in self.waits:
            async with asyncio.timeout(20):
                await self.tasks[self.place("search")].wait()
        return search(query, top_k)


MEETINGS: dict[str, tuple[str, dict[str, int], dict[str, str], tuple[dict[str, str], ...], int]] = {
    "the original's search and the question": (
        "rewrite",
        {"all": 2},
        {"search": "all", "rewrite": "all"},
        (),
        1,
    ),
    "the original's search and all three questions": (
        "all",
        {"all": 4},
        {"search": "all", "rewrite": "all", "stepback": "all", "decompose": "all"},
        (),
        3,
    ),
    "first the standalone form, then all three questions": (
        "all",
        {"first": 2, "last": 3},
        {"search": "first", "standalone": "first"},
        HISTORY,
        4,
    ),
}


@pytest.mark.parametrize("name", MEETINGS)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_what_can_be_done_at_the_same_time_is(name: str, way: str) -> None:
    kind, counts, places, history, calls = MEETINGS[name]
    meeting = Meeting(round_of=counts)
    meeting.round = places
    qm = qtm.QueryMiddleware(transforming(kind), client=meeting)
    query = FOLLOW_UP if history else QUERY
    if way == "sync":
        retrieval = qm.wrap(meeting.search).retrieve(query, history=history)
    else:
        retrieval = asyncio.run(qm.wrap(meeting.asearch).aretrieve(query, history=history))
    assert retrieval.trace.llm_calls == calls
    assert retrieval.status == "full"


@pytest.mark.parametrize("way", ["sync", "async"])
def test_variants_are_searched_while_the_questions_own_search_runs(way: str) -> None:
    meeting = Meeting(round_of={"searches": 2})
    meeting.waits = frozenset({QUERY, REWRITE})
    qm = qtm.QueryMiddleware(transforming("rewrite"), client=ScriptedModel(scripted))
    # The first call of a function, a later one, and one whose transformation is remembered.
    configs = [{}, {"cache": {"enabled": False}}, {}]

    async def retrieve_all() -> list[qtm.Retrieval]:
        wrapped = qm.wrap(meeting.asearch)
        return [await wrapped.aretrieve(QUERY, config=config) for config in configs]

    if way == "async":
        retrievals = asyncio.run(retrieve_all())
    else:
        wrapped = qm.wrap(meeting.search)
        retrievals = [wrapped.retrieve(QUERY, config=config) for config in configs]
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
def test_variants_of_a_new_function_that_refuses_as_many_are_searched_as_the_caller_asked(
    way: Way,
) -> None:
    def respond(query: str, top_k: int) -> Any:
        if top_k > 4:
            raise ValueError("top_k must be at most 4")
        return search(query, top_k)

    searched = way.wrap(respond, config=transforming("decompose"))
    first = searched.retrieve(QUERY)
    assert first.status == "full"
    assert {text for text, top_k in searched.calls if top_k == 4} == {QUERY, *SUBS}
    searched.calls.clear()
    assert searched.retrieve(QUERY).response == first.response
    assert sorted(searched.calls) == sorted((text, 4) for text in (QUERY, *SUBS))


@every_way
def test_once_a_function_was_unreadable_no_variant_is_searched(way: Way) -> None:
    searched = way.wrap(lambda query, top_k: object(), config=transforming("decompose"))
    with pytest.warns(qtm.SetupWarning):
        searched.retrieve(QUERY)
    searched.calls.clear()
    retrieval = searched.retrieve(QUERY)
    assert searched.calls == [(QUERY, 4)]
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("response", "unreadable")]


COUNTED: dict[str, Any] = {
    "a plain answer": {},
    "a function that refuses as many passages": {"refuses": True},
    "variants that fail": {"fails": frozenset(SUBS)},
    "a response that cannot be read": {"unreadable": True},
    "a rewrite that fails inside the middleware": {"breaks": True},
}


@every_way
@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("kind", ["none", "decompose"])
def test_every_call_of_the_function_is_counted_and_paid(way: Way, kind: str, name: str) -> None:
    world = COUNTED[name]

    def respond(query: str, top_k: int) -> Any:
        if query in world.get("fails", ()):
            raise ConnectionError
        if world.get("refuses") and top_k > 4:
            raise ValueError("top_k must be at most 4")
        return object() if world.get("unreadable") else search(query, top_k)

    class Odd(list[Any]):
        """A response that is taken for a list and then breaks."""

        def __iter__(self) -> Any:
            raise RuntimeError("this list cannot be read twice")

    config = {**transforming(kind), "store": {"readPrice": 1_000_000}}
    broken = (lambda query, top_k: Odd(respond(query, top_k))) if world.get("breaks") else respond
    searched = way.wrap(broken, config=config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", qtm.SetupWarning)
        retrieval = searched.retrieve(QUERY)
    assert retrieval.trace.searches == len(searched.calls)
    assert retrieval.trace.read_units == retrieval.trace.read_cost_usd == len(searched.calls)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_no_more_than_the_limit_is_done_at_once(way: str) -> None:
    running, most = set(), [0]

    def enter(name: str) -> None:
        running.add(name)
        most[0] = max(most[0], len(running))

    def plain(query: str, top_k: int = 4) -> Any:
        enter(query)
        try:
            return search(query, top_k)
        finally:
            running.discard(query)

    async def awaited(query: str, top_k: int = 4) -> Any:
        enter(query)
        try:
            await asyncio.sleep(0)
            return search(query, top_k)
        finally:
            running.discard(query)

    config = transforming("multi_query", limits={"maxConcurrency": 2})
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(scripted))
    made = (
        qm.wrap(plain).retrieve(QUERY)
        if way == "sync"
        else asyncio.run(qm.wrap(awaited).aretrieve(QUERY))
    )
    assert len(made.variants) == 4
    assert most[0] <= 2


# --- conversations --------------------------------------------------------------------------------


@every_way
def test_a_follow_up_is_searched_in_its_standalone_form(way: Way) -> None:
    searched = way.wrap(
        config=transforming("rewrite"), script={"standalone": "Which dry food does Jaco eat?"}
    )
    retrieval = searched.retrieve(FOLLOW_UP, top_k=2, history=HISTORY)
    assert retrieval.original_query == FOLLOW_UP
    assert kinds(retrieval) == ["original", "standalone"]
    assert sorted(searched.texts) == sorted([FOLLOW_UP, "Which dry food does Jaco eat?"])
    assert ids(retrieval)[0] == "food"
    (prompt,) = searched.model.prompts
    assert [turn.content for turn in prompt.history] == [turn["content"] for turn in HISTORY]


def test_the_users_words_have_no_voice_beside_their_standalone_form() -> None:
    searched = Way("sync").wrap(
        config=transforming("rewrite"), script={"standalone": "What does Jaco eat?"}
    )
    retrieval = searched.retrieve(FOLLOW_UP, history=HISTORY)
    assert [ranking.variant.kind for ranking in retrieval.rankings] == ["standalone"]
    louder = {"fusion": {"weights": {"originalInConversation": 0.5}}}
    both = searched.retrieve(FOLLOW_UP, history=HISTORY, config=louder)
    assert [(it.variant.kind, it.variant.weight) for it in both.rankings] == [
        ("original", 0.5),
        ("standalone", 1.0),
    ]


FORMS = {
    "standalone": "Which dry food does Jaco eat?",
    "rewrite": "Brand of dry dog food for Jaco",
    "step_back": "How are dogs fed?",
    "sub_queries": [],
    "hyde": "Jaco eats dry food twice a day, in the morning and in the evening.",
}


@every_way
def test_a_follow_up_is_led_by_its_hypothetical_passage_beside_the_users_words(way: Way) -> None:
    searched = way.wrap(config=transforming("combined"), script=FORMS)
    retrieval = searched.retrieve(FOLLOW_UP, top_k=2, history=HISTORY)
    assert sorted(searched.texts) == sorted([FOLLOW_UP, FORMS["hyde"]])
    assert [(it.variant.kind, it.variant.weight) for it in retrieval.rankings] == [
        ("original", 1.0),
        ("hyde", 1.0),
    ]
    assert (
        "standalone",
        "not searched: the hypothetical passage is used instead",
    ) in retrieval.trace.notes
    assert ids(retrieval)[0] == "food"
    assert retrieval.status == "full"


@pytest.mark.parametrize(
    ("limit", "searched"),
    [(1, ["original", "hyde"]), (20, ["original", "standalone", "rewrite", "hyde", "step_back"])],
)
def test_a_budget_of_searches_leads_a_follow_up_or_lets_every_form_be_searched(
    limit: int, searched: list[str]
) -> None:
    way = Way("sync").wrap(
        config=transforming("combined", limits={"maxSearches": limit}), script=FORMS
    )
    assert set(kinds(way.retrieve(FOLLOW_UP, history=HISTORY))) == set(searched)


def test_a_passage_about_something_else_leads_no_follow_up() -> None:
    script = {**FORMS, "hyde": "The match was lost in extra time."}
    searched = Way("sync").wrap(config=transforming("combined"), script=script)
    retrieval = searched.retrieve(FOLLOW_UP, top_k=2, history=HISTORY)
    assert kinds(retrieval) == ["original", "joined"]
    assert script["hyde"] not in " ".join(searched.texts)
    assert ids(retrieval)[0] == "food"


def test_a_question_that_opens_a_new_topic_is_searched_as_it_stands() -> None:
    question = "What is the boiling point of liquid nitrogen at sea level?"
    script = {
        **FORMS,
        "standalone": "What is the boiling point of liquid nitrogen for Jaco at sea level?",
    }
    searched = Way("sync").wrap(config=transforming("rewrite"), script=script)
    retrieval = searched.retrieve(question, history=HISTORY)
    assert script["standalone"] not in searched.texts
    assert retrieval.rankings[0].variant == qtm.Variant("original", question)


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


@every_way
def test_of_long_passages_fewer_candidates_are_asked_for_once_that_is_known(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtmiddleware.retrieval.call.MAX_CANDIDATE_CHARS", 300)
    config = {
        **transforming("rewrite"),
        "keywordEvidence": {"candidates": 6},
        "cache": False,
    }
    searched = way.wrap(config=config)
    first, second = searched.retrieve(QUERY, top_k=2), searched.retrieve(QUERY, top_k=2)
    widths = {
        text: [top_k for it, top_k in searched.calls if it == text] for text in (QUERY, REWRITE)
    }
    assert widths[QUERY][0] == 6
    narrow = widths[QUERY][1]
    assert 2 < narrow < 6
    # The rewrite of the first call does not wait for a passage to be seen.
    assert (widths[QUERY], widths[REWRITE]) == ([6, narrow], [6, narrow])
    assert first.trace.notes == []
    (note,) = second.trace.notes
    assert note[0] == "keyword_evidence"
    assert note[1].startswith(f"{narrow} candidates instead of 6: passages have ")
    assert len(first.response) == len(second.response) == 2


@every_way
def test_evidence_without_text_keeps_the_order_and_says_so(way: Way) -> None:
    searched = way.wrap(
        lambda query, top_k: [
            {"id": row["id"], "score": row["score"]} for row in search(query, top_k)
        ]
    )
    retrieval = searched.retrieve(QUERY, top_k=8)
    assert ids(retrieval) == [row["id"] for row in search(QUERY, 8)]
    assert ("keyword_evidence", "no candidate has a text; order kept") in retrieval.trace.notes
    assert retrieval.status == "full"


def test_evidence_without_a_keyword_in_any_text_keeps_the_order_and_says_so() -> None:
    retrieval = Way("sync").wrap().retrieve("Kubernetes upgrade?", top_k=8)
    assert ids(retrieval) == [row["id"] for row in search("Kubernetes upgrade?", 8)]
    assert ("keyword_evidence", "no keyword in any candidate; order kept") in retrieval.trace.notes


def test_a_write_that_fails_costs_the_improvement_and_not_the_result() -> None:
    given = [
        {"id": "a", "score": 0.9, "text": "one"},
        {"id": "b", "score": 0.8, "text": "two words"},
    ]
    asked: list[int] = []

    def search(query: str, top_k: int = 1) -> Any:
        asked.append(top_k)
        return {"rows": given[:top_k]}

    def write(response: Any, rows: Any) -> Any:
        raise KeyError("rows")

    wrapped = qtm.QueryMiddleware().wrap(
        search, read=lambda response: response["rows"], write=write
    )
    found = wrapped.retrieve("where are two words")
    assert found.response == {"rows": given[:1]}
    assert [(match.id, match.score, match.raw is given[0]) for match in found.matches] == [
        ("a", 0.9, True)
    ]
    assert found.status == "degraded"
    assert [(it.stage, it.reason, it.detail) for it in found.degradations] == [
        ("middleware", "failed", "KeyError")
    ]
    assert asked == [WIDE, 1]


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError


@every_way
@pytest.mark.parametrize(
    "place",
    [
        "plan.prepare_query",
        "plan.find_skip_reason",
        "ranking.fuse_rankings",
        "flow.build_result",
    ],
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


def test_what_fails_inside_after_the_caller_s_own_search_asks_the_function_no_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qtmiddleware.retrieval.ranking.fuse_rankings", fails)
    asked: list[int] = []

    def counted(query: str, top_k: int = 100) -> list[dict[str, Any]]:
        asked.append(top_k)
        return search(query, top_k)

    found = qtm.QueryMiddleware().wrap(counted).retrieve(QUERY)
    assert found.response == search(QUERY, 100)
    assert (found.status, asked) == ("degraded", [100])
