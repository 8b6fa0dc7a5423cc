"""What a check says of functions of every kind, good and bad, and that it leaves no trace."""

from __future__ import annotations

import asyncio
import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinecone import QueryResponse, ScoredVector

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.clock import Clock
from tests.support.retrieval_world import (
    PASSAGES,
    QUERY,
    REPLIES,
    WIDE,
    Way,
    every_way,
    off,
    search,
    transforming,
)

OK, PROBLEM, OFF = qtm.CheckState.OK, qtm.CheckState.PROBLEM, qtm.CheckState.OFF


class Document:
    """As LangChain's."""

    def __init__(self, page_content: str) -> None:
        self.page_content = page_content
        self.metadata: dict[str, Any] = {}


class Unreadable:
    """As what a closed session leaves behind."""

    id = "a"

    @property
    def text(self) -> str:
        raise RuntimeError("gone")


def texts(count: int) -> list[str]:
    return [row["metadata"]["text"] for row in search(QUERY, count)]


def sdk_response(vector: list[float], top_k: int = 4) -> QueryResponse:
    matches = [
        ScoredVector(id=it["id"], score=it["score"], metadata=it["metadata"])
        for it in search(QUERY, top_k)
    ]
    return QueryResponse(matches=matches, namespace="docs")


def columns(query: str, n_results: int = 4) -> dict[str, Any]:
    rows = search(query, n_results)
    return {
        "ids": [[row["id"] for row in rows]],
        "documents": [[row["metadata"]["text"] for row in rows]],
        "distances": [[1 - row["score"] for row in rows]],
    }


def renamed(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{**row, "metadata": {"blurb": row["metadata"]["text"]}} for row in search(query, top_k)]


KINDS: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, str], str]]] = {
    # name: the function, how it is wrapped, words of findings, words of the verdict on keywords
    "dicts": (
        lambda query, top_k=4: search(query, top_k),
        {},
        {
            "query": "as text in `query`",
            "top_k": "`top_k`, 4",
            "text": "`metadata.text`",
            "scores": "higher is better",
        },
        f"rerank {len(PASSAGES)} candidates",
    ),
    "an SDK's response to a vector": (
        sdk_response,
        {"embed": lambda text: [float(len(text)), 1.0, 0.5]},
        {
            "query": "embedded as 3 numbers",
            "response": "the list in 'matches', 8 of type ScoredVector",
        },
        "rerank 8 candidates",
    ),
    "documents": (
        lambda input, config=None: [Document(text) for text in texts(5)],  # noqa: A006
        {},
        {
            "top_k": "no parameter",
            "text": "`page_content`",
            "ids": "none",
            "scores": "5 of 5 have no score",
        },
        "rerank 5 candidates, which is all that the function returns",
    ),
    "columns": (
        columns,
        {},
        {
            "top_k": "`n_results`",
            "response": "columns",
            "text": "`document`",
            "scores": "lower is better",
        },
        "rerank 8 candidates",
    ),
    "a joined string": (
        lambda query, top_k=4: "\n".join(texts(top_k)),
        {},
        {"response": "not one str"},
        "return the list of passages and join it later, or pass read=",
    ),
    "an unknown field": (
        renamed,
        {},
        {"text": "'blurb' holds text"},
        'set config={"keywordEvidence": {"fields": {"text": "blurb"}}}',
    ),
    "no metadata": (
        lambda query, top_k=4: [
            {"id": row["id"], "score": row["score"]} for row in search(query, top_k)
        ],
        {},
        {"text": "neither a text nor metadata", "ids": "8 of 8"},
        "include_metadata=True",
    ),
    "one that raises": (
        lambda vec_or_text, top_k=4: [number * 2.0 for number in vec_or_text],
        {},
        {"call": "raised TypeError: can't multiply"},
        "wrap it with embed=",
    ),
    "one passage": (
        lambda query: search(query, 1),
        {},
        {"candidates": "1 in your call"},
        "top_k_arg=",
    ),
    "one that refuses more": (
        lambda query, top_k=4: search(query, top_k) if top_k < 9 else 1 / 0,
        {},
        {
            "candidates": f"asked for {WIDE}, the function raised ZeroDivisionError: division by zero"
        },
        "rerank 4 candidates, which is all that the function returns",
    ),
    "items that raise": (
        lambda query, top_k=4: [Unreadable()],
        {},
        {"passages": "raised RuntimeError: gone"},
        "read=",
    ),
    "None": (lambda query, top_k=4: None, {}, {"response": "returned None"}, "namespace"),
    "nothing found": (lambda query, top_k=4: [], {}, {"response": "holds no passage"}, "namespace"),
}
HELPED: Final = (
    "dicts",
    "an SDK's response to a vector",
    "documents",
    "columns",
    "one that refuses more",
)


def checked(fn: Callable[..., Any], *args: Any, config: Any = None, **options: Any) -> qtm.Check:
    found: qtm.Check = qtm.QueryMiddleware(config).wrap(fn, **options).check(*(args or (QUERY,)))
    return found


def find(check: qtm.Check, subject: str) -> qtm.Finding:
    return next(it for it in (*check.findings, *check.verdicts) if it.subject == subject)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_understood_of_a_function_is_said_with_whether_it_helps_and_how_to_mend_it(
    name: str,
) -> None:
    fn, options, words, verdict = KINDS[name]
    check = checked(fn, **options)
    for subject, said in words.items():
        assert said in find(check, subject).text
    keywords = find(check, "keyword evidence")
    assert verdict in f"{keywords.text} -> {keywords.mend}"
    assert check.helps == (keywords.state is OK) == (name in HELPED)
    assert find(check, "model's variants").state is OFF
    report = str(check)
    assert "jaco health concerns" in report
    assert all(len(line) <= 120 for line in report.splitlines())
    assert json.loads(json.dumps(check.to_dict()))["helps"] is check.helps


@every_way
def test_a_function_is_checked_in_every_way_it_can_be_called(way: Way) -> None:
    searched = way.wrap(config=transforming("rewrite"))
    check = (
        asyncio.run(searched.wrapped.acheck(QUERY))
        if way.name != "sync"
        else searched.wrapped.check(QUERY)
    )
    assert [it.state for it in check.verdicts] == [OK, OK]
    assert find(check, "model").values["calls"] == 1
    assert {top_k for _, top_k in searched.calls} == {4, WIDE}
    assert len(searched.calls) <= 11


def test_arguments_beside_the_question_are_the_functions_and_methods_are_checked_on_their_object() -> (
    None
):
    class Index:
        def __init__(self, namespace: str) -> None:
            self.namespace = namespace

        @qtm.middleware
        def query(self, query: str, top_k: int = 4, *, namespace: str) -> Any:
            assert namespace == self.namespace
            return search(query, top_k)

    check = Index("docs").query.check(QUERY, top_k=3, namespace="docs")
    assert (check.helps, find(check, "top_k").values) == (True, {"argument": "top_k", "value": 3})
    assert asyncio.run(Index("docs").query.acheck(QUERY, namespace="docs")).helps


def test_a_text_that_the_function_has_no_place_for_is_checked_as_it_is_retrieved() -> None:
    def search_records(*, namespace: str, inputs: dict[str, str], top_k: int = 4) -> Any:
        return search(inputs["text"], top_k)

    wrapped = qtm.QueryMiddleware().wrap(search_records)
    assert wrapped.check(QUERY, namespace="docs", top_k=4).helps


def test_an_asynchronous_function_says_how_it_is_checked() -> None:
    with pytest.raises(qtm.WrapError, match=r"await \.\.\.\.acheck"):
        Way("async").wrap().wrapped.check(QUERY)


def test_what_over_fetching_costs_is_measured_on_the_spot(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtmiddleware.wrapping.check.perf_counter", clock)

    def slow(query: str, top_k: int = 2) -> Any:
        clock.now += 0.02 if top_k > 2 else 0.001
        return search(query, top_k)

    cost = find(checked(slow), "cost").values
    assert (cost["plain_calls"], cost["widened_calls"]) == (3, 3)
    assert (cost["plain_ms"], cost["widened_ms"]) == (pytest.approx(1), pytest.approx(20))
    assert cost["widened_bytes"] > 2 * cost["plain_bytes"] > 200


def test_passages_that_are_too_long_for_many_candidates_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qtmiddleware.retrieval.request.MAX_CANDIDATE_CHARS", 300)
    found = find(checked(lambda query, top_k=2: search(query, top_k)), "candidates")
    assert (
        found.values["plain"]
        == 2
        < found.values["asked"]
        == found.values["widened"]
        < len(PASSAGES)
    )
    assert f"because passages have about {found.values['passage_chars']} characters" in found.text
    none = find(checked(lambda query, top_k=8: search(query, top_k)), "candidates")
    assert none.values["asked"] is None


def test_a_slow_function_is_measured_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qtmiddleware.wrapping.check.LONGEST", 0.0)
    cost = find(checked(lambda query, top_k=4: search(query, top_k)), "cost").values
    assert (cost["plain_calls"], cost["widened_calls"]) == (1, 1)


def test_a_function_that_fails_now_and_then_is_checked_by_the_calls_that_succeed() -> None:
    calls: list[int] = []

    def flaky(query: str, top_k: int = 4) -> Any:
        calls.append(top_k)
        if len(calls) % 2 == 0:
            raise ConnectionError
        return search(query, top_k)

    check = checked(flaky)
    assert find(check, "cost").values["plain_calls"] == 1
    assert json.dumps(check.to_dict())


ORDERS: Final = {
    "no passage holds clearly more of the question's keywords than the first one (100%)": [
        "Jaco has health concerns"
    ]
    * 4,
    "no candidate holds any keyword": ["Cats sleep", "Dogs bark", "Birds sing"],
    "than the first one (33%)": ["Jaco sleeps", "Jaco eats", "Cats sleep"],
}


@pytest.mark.parametrize("why", ORDERS)
def test_why_the_order_stays_is_said(why: str) -> None:
    rows = [{"id": str(n), "score": 1 - n / 10, "text": text} for n, text in enumerate(ORDERS[why])]
    order = find(checked(lambda query: rows), "order")
    assert order.values == {"changed": False}
    assert why in order.text


def test_scores_that_lie_far_apart_are_named_where_they_keep_the_order() -> None:
    rows = [
        {"id": str(n), "score": 1 - n / 10, "text": text}
        for n, text in enumerate(["Cats", "Jaco", "Birds"])
    ]
    config = {"keywordEvidence": {"weight": 0.01}}
    assert (
        "the scores count for more than the keywords"
        in find(checked(lambda query: rows, config=config), "order").text
    )


@pytest.mark.parametrize(
    ("query", "said", "mend"),
    [
        ([0.1, 0.2], "must be text, not list", "embed="),
        ({"inner": "x"}, "must be text, not dict", 'query_arg="query.<name>"'),
        ("   ", "the question is blank", "another question"),
        ("x" * 9_000, "the question is too long", "another question"),
    ],
    ids=["vector", "mapping", "blank", "too long"],
)
def test_a_question_that_is_none_is_said_and_nothing_is_called(
    query: Any, said: str, mend: str
) -> None:
    check = checked(lambda query, top_k=4: pytest.fail("called"), query)
    assert said in find(check, "query").text
    assert mend in find(check, "keyword evidence").mend
    assert not check.helps


def test_what_decided_how_much_words_count_is_said() -> None:
    rows = [
        {"id": str(n), "score": 1 - n / 10, "text": text}
        for n, text in enumerate(["Jaco sleeps", *texts(8)])
    ]
    verdict = checked(lambda query: rows).verdicts[0]
    assert verdict.state == "ok"
    assert (
        "strength 1.00: one passage holds 100% of the question's keywords, the first one 33%"
        in verdict.text
    )


def test_what_is_switched_off_is_said_with_its_setting() -> None:
    check = checked(lambda query, top_k=4: search(query, top_k), config=off())
    assert (check.verdicts[0].state, check.verdicts[0].mend) == (OFF, "set keywordEvidence: true")
    assert not check.helps


def test_an_embedding_that_fails_is_said() -> None:
    def embed(text: str) -> list[float]:
        raise ConnectionError("http://user:secret@host is down")

    check = checked(sdk_response, embed=embed)
    assert "embed= raised ConnectionError: http://host is down" in find(check, "query").text
    assert not check.helps


def test_a_reranker_is_tried_where_one_is_configured() -> None:
    config = {"rerank": {"enabled": True}}
    for rerank, state in (
        (lambda query, texts: [len(text) for text in texts], OK),
        (lambda query, texts: [], PROBLEM),
    ):
        wrapped = qtm.QueryMiddleware(config, reranker=rerank).wrap(
            lambda query, top_k=4: search(query, top_k)
        )
        assert find(wrapped.check(QUERY), "rerank").state is state


@given(st.text(min_size=1, max_size=200))
def test_no_question_makes_a_check_fail(question: str) -> None:
    check = checked(lambda query, top_k=4: search(query, top_k), question)
    assert json.dumps(check.to_dict())
    assert str(check)


@pytest.mark.parametrize("name", KINDS)
def test_a_check_leaves_no_trace(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Observer:
        def on_start(self, operation: Any) -> None:
            heard.append(operation)

        on_end = on_start

    heard: list[Any] = []
    fn, options, *_ = KINDS[name]
    model = ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]})
    config = transforming("rewrite", log={"path": str(tmp_path / "log.jsonl")})
    wrapped = qtm.QueryMiddleware(config, client=model, observers=[Observer()]).wrap(fn, **options)
    before = wrapped._context
    state = {
        it: getattr(before.learned, it) for it in ("holds_text", "problem", "refuses_widening")
    }
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "qtmiddleware"):
        warnings.simplefilter("error")
        check = wrapped.check(QUERY)
    assert {it: getattr(wrapped._context.learned, it) for it in state} == state
    assert not before.issued_warnings.about_problem
    assert (heard, list(tmp_path.iterdir()), len(before.cache.local)) == ([], [], 0)
    assert [record for record in caplog.records if QUERY in record.getMessage()] == []
    for secret in (QUERY, "jaco", "TypeError: can't"):
        assert secret not in repr(check)
