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
from qtmiddleware.wrapping.wrapped import read_learned
from tests.support.retrieval_world import QUERY, REPLIES, WIDE, Way, every_way, search, transforming

OK, PROBLEM, OFF = qtm.CheckState.OK, qtm.CheckState.PROBLEM, qtm.CheckState.OFF
FEES: Final = "When is the fee due?"


class Unreadable:
    """As what a closed session leaves behind."""

    def __init__(self) -> None:
        self.id = "a"

    @property
    def text(self) -> str:
        raise RuntimeError("gone")


def plain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


def by_vector(vector: list[float], top_k: int = 4) -> QueryResponse:
    matches = [ScoredVector(**row) for row in search(QUERY, top_k)]
    return QueryResponse(matches=matches, namespace="docs")


def columns(query: str, n_results: int = 4) -> dict[str, Any]:
    rows = search(query, n_results)
    return {
        "ids": [[row["id"] for row in rows]],
        "documents": [[row["metadata"]["text"] for row in rows]],
        "distances": [[1 - row["score"] for row in rows]],
    }


def texts(query: str) -> list[str]:
    return [row["metadata"]["text"] for row in search(query, 5)]


def renamed(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{**row, "metadata": {"blurb": row["metadata"]["text"]}} for row in search(query, top_k)]


def without_text(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": row["id"], "score": row["score"]} for row in search(query, top_k)]


def narrow(query: str, top_k: int = 4) -> Any:
    return search(query, top_k) if top_k < 9 else 1 / 0


def ending(query: str, top_k: int = 1) -> Any:
    """Another passage is first for the fee, and none for cats."""
    rows = [("cats", "Cats sleep", 0.8), ("fee", "The fee is due", 0.79), ("sun", "It shines", 0.7)]
    return [{"id": id_, "text": text, "score": score} for id_, text, score in rows][:top_k]


KINDS: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], bool, dict[str, str]]]] = {
    # name: the function, how it is wrapped, whether it is helped, words of findings
    "dicts": (
        plain,
        {},
        True,
        {
            "query": "as text in `query`",
            "top_k": "`top_k`, 4 in this call",
            "passages": f"returned 8 of {WIDE}",
            "text": "8 of 8 have a text, in `metadata.text`",
            "ids": "8 of 8 have an id",
            "scores": "higher is better, from 0.1875 to 0",
            "order": "no passage holds clearly more of the question's keywords",
            "model": "the settings ask no model",
        },
    ),
    "a vector": (
        by_vector,
        {"embed": lambda text: [float(len(text)), 1.0, 0.5]},
        True,
        {"query": "embedded as 3 numbers, passed in `vector`", "order": "does not change"},
    ),
    "texts": (
        texts,
        {},
        True,
        {
            "top_k": "no parameter sets the number -> if there is such a parameter, name it",
            "passages": "returned 5",
            "text": "which is the passage itself",
            "ids": "0 of 5",
            "scores": "5 of 5 have no score",
        },
    ),
    "columns": (columns, {}, True, {"text": "`document`", "scores": "lower is better"}),
    "own shape": (
        lambda query, top_k=4: (7, search(query, top_k)),
        {"read": lambda pair: pair[1], "write": lambda pair, items: (pair[0], items)},
        True,
        {"passages": f"returned 8 of {WIDE}", "text": "`metadata.text`"},
    ),
    "one that refuses more": (
        narrow,
        {},
        True,
        {"passages": f"rejects {WIDE} candidates -> set keywordEvidence.candidates"},
    ),
    "a joined string": (
        lambda query, top_k=4: "\n".join(texts(query)),
        {},
        False,
        {"passages": "type str -> return the list of passages"},
    ),
    "an unknown field": (
        renamed,
        {},
        False,
        {"text": '\'blurb\' holds text -> set config={"keywordEvidence": {"fields"'},
    ),
    "no text": (without_text, {}, False, {"text": "include_metadata=True", "ids": "8 of 8"}),
    "one that raises": (
        lambda vec_or_text, top_k=4: [number * 2.0 for number in vec_or_text],
        {},
        False,
        {"call": "raised TypeError: can't multiply sequence -> wrap it with embed="},
    ),
    "one passage": (lambda query: search(query, 1), {}, False, {"order": "single -> top_k_arg="}),
    "items that raise": (
        lambda query, top_k=4: [Unreadable()],
        {},
        False,
        {"text": "neither a text nor metadata -> return the texts"},
    ),
    "None": (lambda query, top_k=4: None, {}, False, {"passages": "no passages -> namespace"}),
    "nothing": (lambda query, top_k=4: [], {}, False, {"passages": "no passages -> namespace"}),
}


def check(fn: Callable[..., Any], *args: Any, config: Any = None, **options: Any) -> qtm.Check:
    found: qtm.Check = qtm.QueryMiddleware(config).wrap(fn, **options).check(*(args or (QUERY,)))
    return found


def find(found: qtm.Check, subject: str) -> qtm.Finding:
    return next(finding for finding in found.findings if finding.subject == subject)


def says(found: qtm.Check, subject: str, words: str) -> bool:
    finding = find(found, subject)
    said, _, fix = words.partition(" -> ")
    return said in f"{finding.text} {finding.fix}" and fix in finding.fix


@pytest.mark.parametrize("name", KINDS)
def test_how_a_function_is_read_is_said_with_what_to_set(name: str) -> None:
    fn, options, is_helped, words = KINDS[name]
    found = check(fn, **options)
    assert [subject for subject, said in words.items() if not says(found, subject, said)] == []
    assert found.helps == is_helped
    assert (found.question, found.keywords) == (QUERY, "jaco health concerns")
    assert all(len(line) <= 80 for line in str(found).splitlines())
    assert len(found.findings) <= 10
    written = json.loads(json.dumps(found.to_dict()))
    assert written["helps"] is is_helped
    names = ["subject", "state", "text", "mend", "values"]
    assert [list(finding) for finding in written["findings"]] == [names] * len(found.findings)


@every_way
def test_a_function_is_checked_in_every_way_it_can_be_called(way: Way) -> None:
    searched = way.wrap(config=transforming("rewrite"))
    if way.name == "sync":
        found = searched.wrapped.check(QUERY)
    else:
        found = asyncio.run(searched.wrapped.acheck(QUERY))
    assert find(found, "model").values["calls"] == 1
    assert searched.calls[:1] == [(QUERY, WIDE)]
    assert len(searched.calls) == 3


def test_an_asynchronous_function_says_how_it_is_checked() -> None:
    with pytest.raises(qtm.WrapError, match=r"await \.\.\.\.acheck"):
        Way("async").wrap().wrapped.check(QUERY)


def test_a_method_is_checked_on_its_object_with_the_other_arguments_of_the_call() -> None:
    class Index:
        def __init__(self, namespace: str) -> None:
            self.namespace = namespace

        @qtm.middleware
        def query(self, query: str, top_k: int = 4, *, namespace: str) -> Any:
            assert namespace == self.namespace
            return search(query, top_k)

    found = Index("docs").query.check(QUERY, top_k=3, namespace="docs")
    assert (found.helps, find(found, "top_k").values) == (True, {"argument": "top_k", "value": 3})
    assert asyncio.run(Index("docs").query.acheck(QUERY, namespace="docs")).helps


def test_a_text_is_passed_on_where_the_function_takes_it() -> None:
    def search_records(*, namespace: str, inputs: dict[str, str], top_k: int = 4) -> Any:
        return search(inputs["text"], top_k)

    wrapped = qtm.QueryMiddleware().wrap(search_records)
    assert wrapped.check(QUERY, namespace="docs", top_k=4).helps


def in_need(query: str, *, top_k: int, namespace: str) -> Any:
    return search(query, top_k)


def with_filter(query: str, collection: str, /, *, filter: Any, top_k: int = 4) -> Any:  # noqa: A002
    return search(query, top_k)


def validated(query: str, top_k: int | None = None, **more: Any) -> Any:
    if top_k is None:
        raise ValueError("top_k is missing")
    return search(query, top_k)


@pytest.mark.parametrize(
    ("fn", "missing", "hint"),
    [
        (in_need, ["top_k", "namespace"], "--arg top_k=5 --arg namespace=..."),
        (with_filter, ["collection", "filter"], "check(question, collection=..., filter=...)"),
        (validated, [], "call the function without qtmiddleware"),
    ],
)
def test_each_required_argument_that_the_call_lacks_is_named(
    fn: Callable[..., Any], missing: list[str], hint: str
) -> None:
    call = find(check(fn), "call")
    assert (call.state, call.values["missing"]) == (PROBLEM, missing)
    assert hint in call.fix


def test_with_its_required_arguments_the_function_is_checked() -> None:
    wrapped = qtm.QueryMiddleware().wrap(in_need)
    assert wrapped.check(QUERY, top_k=4, namespace="docs").helps
    assert says(wrapped.check(QUERY, top_k=4), "call", "it needs `namespace` too")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ([0.1, 0.2], "must be text, not list -> embed="),
        ({"inner": "x"}, "must be text, not dict -> query_arg="),
        ("   ", "the question is blank -> another question"),
        ("x" * 9_000, "the question is too long -> another question"),
    ],
    ids=["vector", "mapping", "blank", "too long"],
)
def test_a_question_that_is_none_is_said(query: Any, said: str) -> None:
    for fn in (lambda query, top_k=4: [], lambda query, top_k=4: 1 / 0):
        found = check(fn, query)
        assert says(found, "query", said)
        assert not found.helps


def test_a_call_without_a_question_is_said() -> None:
    found = qtm.QueryMiddleware().wrap(plain).check()
    assert (found.helps, find(found, "query").state) == (False, PROBLEM)


def test_of_several_questions_those_are_named_whose_order_changes() -> None:
    def flaky(query: str, top_k: int = 1) -> Any:
        if "fail" in query:
            raise ConnectionError
        return ending(query, top_k)

    found = check(flaky, ["Do cats sleep?", FEES, "Do you fail?", "Cats?"])
    order = find(found, "order")
    counts = {"asked": 4, "failed": 1, "changed": 1, "other_first": 1, "questions": [FEES]}
    assert order.values == counts
    assert "changes for 1 of 3 questions; another passage is first for 1; 1 more" in order.text
    assert "compare(" in order.fix
    example = f'{FEES} fee: "The fee is due" comes before cats: "Cats sleep"'
    assert find(found, "example").text == example
    assert found.helps


def test_one_question_shows_its_example_too() -> None:
    found = check(ending, FEES)
    assert says(found, "order", "changes for this question (strength")
    assert find(found, "example").values == {"first": "fee", "was_first": "cats"}


def test_rules_that_change_nothing_for_three_questions_are_no_help() -> None:
    found = check(ending, ["Do cats sleep?", "When do cats sleep?", "Where do cats sleep?"])
    assert (found.helps, find(found, "order").state) == (False, PROBLEM)
    assert "keywordEvidence: false" in find(found, "order").fix


def test_at_most_ten_of_many_questions_are_asked_at_even_intervals() -> None:
    asked: list[str] = []

    def counted(query: str, top_k: int = 1) -> Any:
        asked.append(query)
        return ending(query, top_k)

    found = check(counted, [f"Fee number {number}?" for number in range(25)])
    assert find(found, "order").values["asked"] == 10
    assert [f"Fee number {number}?" for number in (0, 2, 5, 7)] == list(dict.fromkeys(asked))[:4]


def test_a_list_with_one_text_is_a_question_of_a_function_that_takes_lists() -> None:
    assert check(lambda query_texts, n_results=4: columns(query_texts[0], n_results), [QUERY]).helps


@pytest.mark.parametrize(
    ("config", "state"),
    [("off", OFF), ({"preprocess": {"applyTo": "text"}}, OFF), ("rules", OK)],
)
def test_the_settings_of_one_call_count(config: Any, state: qtm.CheckState) -> None:
    found = qtm.QueryMiddleware().wrap(plain).check(QUERY, qtm_config=config)
    assert find(found, "order").state is state
    assert find(found, "model").state is OFF
    with pytest.raises(qtm.ConfigError):
        qtm.QueryMiddleware().wrap(plain).check(QUERY, config={"topk": 3})


def test_a_conversation_out_of_an_iterator_is_read_by_each_call() -> None:
    model = ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]})
    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=model).wrap(plain)
    wrapped.check("And its health?", history=iter([("user", "Who is Jaco?")]))
    assert "Who is Jaco?" in model.prompts[0].user


def test_an_embedding_that_fails_is_said_without_its_password() -> None:
    def embed(text: str) -> list[float]:
        raise ConnectionError("http://user:secr@et@host is down")

    found = check(by_vector, embed=embed)
    assert says(found, "query", "embed= raised ConnectionError: http://(not shown)host is down")
    assert not found.helps


@pytest.mark.parametrize("rerank", [lambda _, texts: list(map(len, texts)), lambda _, texts: []])
def test_a_reranker_is_tried_if_one_is_set(rerank: Any) -> None:
    wrapped = qtm.QueryMiddleware({"rerank": {"enabled": True}}, reranker=rerank).wrap(plain)
    finding = find(wrapped.check(QUERY), "rerank")
    works = bool(rerank("?", ["a"]))
    assert finding.state is (OK if works else PROBLEM)
    assert ("reranks 8 candidates" in finding.text) == works


def test_what_else_fails_is_said_with_its_message() -> None:
    def fuse(*_: Any) -> Any:
        raise ValueError("no such weight")

    config = transforming("rewrite")
    model = ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]})
    wrapped = qtm.QueryMiddleware(config, client=model, fuse=fuse).wrap(plain)
    assert says(
        wrapped.check(QUERY),
        "problem",
        "fusion failed: failed (fuse= raised ValueError in line",
    )


@given(st.text(min_size=1, max_size=200))
def test_no_question_makes_a_check_fail(question: str) -> None:
    found = check(plain, question)
    assert json.dumps(found.to_dict())
    assert str(found)


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
    middleware = qtm.QueryMiddleware(
        transforming("rewrite", log={"path": str(tmp_path / "log.jsonl")}),
        client=ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]}),
        observers=[Observer()],
        on_retrieval=heard.append,
    )
    wrapped = middleware.wrap(fn, **options, on_retrieval=heard.append)
    before = middleware.health().to_dict(), read_learned(wrapped).copy()
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "qtmiddleware"):
        warnings.simplefilter("error")
        found = wrapped.check(QUERY)
    learned = read_learned(wrapped)
    for fact in ("holds_text", "problem", "widening", "passage_chars", "is_new"):
        assert getattr(learned, fact) == getattr(before[1], fact)
    health = middleware.health().to_dict()
    assert {**health, "budget": None} == {**before[0], "budget": None}
    assert (heard, list(tmp_path.iterdir())) == ([], [])
    logged = "".join(record.getMessage() for record in caplog.records)
    assert not [words for words in (QUERY, "jaco", ".check(question)") if words in logged]
    for secret in (QUERY, "jaco", "TypeError: can't"):
        assert secret not in repr(found)


def test_the_same_function_warns_of_its_problem_after_a_check() -> None:
    wrapped = qtm.QueryMiddleware().wrap(without_text)
    wrapped.check(QUERY)
    with pytest.warns(qtm.SetupWarning, match="check"):
        wrapped(QUERY)
