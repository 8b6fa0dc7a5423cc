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


def columns(query: Any, n_results: int = 4) -> dict[str, Any]:
    rows = search(query if isinstance(query, str) else query[0], n_results)
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


def doubling(vec_or_text: Any, top_k: int = 4) -> Any:
    return [number * 2.0 for number in vec_or_text]


def ending(query: str, top_k: int = 1) -> Any:
    """Another passage is first for the fee, and none for cats."""
    if "fail" in query:
        raise ConnectionError
    rows = [("cats", "Cats sleep", 0.8), ("fee", "The fee is due", 0.79), ("sun", "It shines", 0.7)]
    return [{"id": id_, "text": text, "score": score} for id_, text, score in rows][:top_k]


def embed(text: str) -> list[float]:
    return [float(len(text)), 1.0, 0.5]


# name: the function, how it is wrapped, and words of findings
HELPED: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, str]]]] = {
    "dicts": (
        plain,
        {},
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
        {"embed": embed},
        {
            "query": "embedded as 3 numbers, passed in `vector`",
            "text": "have a text, in `metadata.text`",
            "order": "does not change",
        },
    ),
    "texts": (
        texts,
        {},
        {
            "top_k": "no parameter sets the number -> if there is such a parameter, name it",
            "text": "which is the passage itself",
            "ids": "0 of 5",
            "scores": "5 of 5 have no score",
        },
    ),
    "columns": (columns, {}, {"text": "`document`", "scores": "lower is better"}),
    "refuses more": (narrow, {}, {"passages": f"rejects {WIDE} candidates -> set keywordEvid"}),
}
NOT_HELPED: Final[dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, str]]]] = {
    "a string": (lambda query: "a b", {}, {"passages": "type str -> return the list of passages"}),
    "an unknown field": (renamed, {}, {"text": "'blurb' holds text -> set config={"}),
    "no text": (without_text, {}, {"text": "include_metadata=True", "ids": "8 of 8"}),
    "it raises": (doubling, {}, {"call": "raised TypeError: can't multiply -> embed="}),
    "one passage": (lambda query: search(query, 1), {}, {"order": "single -> top_k_arg="}),
    "items that raise": (lambda query: [Unreadable()], {}, {"text": "no text under"}),
    "nothing": (lambda query, top_k=4: [], {}, {"passages": "no passages -> namespace"}),
}
KINDS: Final = {**HELPED, **NOT_HELPED}


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
    fn, options, words = KINDS[name]
    found = check(fn, **options)
    assert [subject for subject, said in words.items() if not says(found, subject, said)] == []
    assert found.helps == (name in HELPED)
    assert (found.question, found.keywords) == (QUERY, "jaco health concerns")
    assert all(len(line) <= 80 for line in str(found).splitlines())
    assert len(found.findings) <= 10
    written = json.loads(json.dumps(found.to_dict()))
    assert written["helps"] is found.helps
    names = ["subject", "state", "text", "fix"]
    assert [list(finding) for finding in written["findings"]] == [names] * len(found.findings)


@every_way
def test_a_function_is_checked_in_every_way_it_can_be_called(way: Way) -> None:
    searched = way.wrap(config=transforming("rewrite"))
    if way.name == "sync":
        found = searched.wrapped.check(QUERY)
    else:
        found = asyncio.run(searched.wrapped.acheck(QUERY))
        if way.name == "async":
            with pytest.raises(qtm.WrapError, match=r"await \.\.\.\.acheck"):
                searched.wrapped.check(QUERY)
    assert says(found, "model", "replied in")
    assert searched.calls[:1] == [(QUERY, WIDE)]
    assert len(searched.calls) == 3


def test_a_method_is_checked_on_its_object_with_the_other_arguments_of_the_call() -> None:
    class Index:
        @qtm.middleware
        def query(self, *, namespace: str, inputs: dict[str, str], top_k: int = 4) -> Any:
            assert namespace == "docs"
            return search(inputs["text"], top_k)

    found = Index().query.check(QUERY, top_k=3, namespace="docs")
    assert found.helps
    assert says(found, "top_k", "`top_k`, 3 in this call")
    # A list with one text is a question of a function that takes lists.
    assert check(columns, [QUERY]).helps


def in_need(query: str, *, top_k: int, namespace: str) -> Any:
    return search(query, top_k)


def with_filter(query: str, collection: str, /, *, filter: Any, top_k: int = 4) -> Any:  # noqa: A002
    return search(query, top_k)


def validated(query: str, top_k: int | None = None, **more: Any) -> Any:
    raise ValueError("top_k is missing")


@pytest.mark.parametrize(
    ("fn", "hint"),
    [
        (in_need, "--arg top_k=5 --arg namespace=..."),
        (with_filter, "check(question, collection=..., filter=...)"),
        (validated, "call the function without qtmiddleware"),
    ],
)
def test_each_required_argument_that_the_call_lacks_is_named(
    fn: Callable[..., Any], hint: str
) -> None:
    call = find(check(fn), "call")
    assert call.state is PROBLEM
    assert hint in call.fix
    assert qtm.QueryMiddleware().wrap(in_need).check(QUERY, top_k=4, namespace="docs").helps


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
    found = qtm.QueryMiddleware().wrap(plain).check()
    assert (found.helps, find(found, "query").state) == (False, PROBLEM)


def test_of_several_questions_those_whose_order_changes_are_counted_with_examples() -> None:
    found = check(ending, ["Do cats sleep?", FEES, "Do you fail?", "Cats?"])
    order = find(found, "order")
    assert order.text == (
        "changes for 1 of 3 questions; another passage is first for 1; 1 more failed"
    )
    assert "compare(" in order.fix
    example = f'{FEES} fee: "The fee is due" comes before cats: "Cats sleep"'
    assert find(found, "example").text == example
    assert found.helps
    found = check(ending, FEES)
    assert says(found, "order", "changes for this question (strength")
    assert says(found, "example", 'fee: "The fee is due" comes before cats')
    assert find(check(ending, [FEES] * 3), "order") == find(found, "order")
    # Rules that change nothing for three questions are no help, which is no fault of the search.
    found = check(ending, ["Do cats sleep?", "When do cats sleep?", "Where do cats sleep?"])
    assert (found.helps, find(found, "order").state) == (False, PROBLEM)
    for unchanged in (found, check(ending, "Do cats sleep?")):
        assert "first, nothing needs to change; otherwise" in find(unchanged, "order").fix


def for_user(user: str, query: str) -> Any:
    return ending(query)


def with_clauses(*, namespace: str, score_by: Any = None, top_k: int = 4) -> Any:
    return ending("", top_k)


@pytest.mark.parametrize(
    ("fn", "arguments", "fix"),
    [
        (ending, (), "pass the question as query="),
        (for_user, (FEES,), "pass the question as query="),
        (with_clauses, (FEES,), "pass one with a placeholder: score_by="),
    ],
)
def test_a_question_that_is_not_passed_is_asked_for_where_it_belongs(
    fn: Any, arguments: tuple[str, ...], fix: str
) -> None:
    assert find(qtm.QueryMiddleware().wrap(fn).check(*arguments), "query").fix.startswith(fix)


def test_of_many_questions_the_first_ten_are_asked_and_that_is_said() -> None:
    asked: list[str] = []

    def counted(query: str, top_k: int = 1) -> Any:
        asked.append(query)
        return ending(query, top_k)

    questions = [f"Fee number {number}?" for number in range(12)]
    found = check(counted, questions)
    assert list(dict.fromkeys(asked)) == questions[:10]
    assert "only the first 10 of 12 were asked" in find(found, "order").text


@pytest.mark.parametrize(
    ("config", "state"), [("off", OFF), ({"preprocess": {"applyTo": "text"}}, OFF), ("rules", OK)]
)
def test_the_settings_of_one_call_count(config: Any, state: qtm.CheckState) -> None:
    found = qtm.QueryMiddleware().wrap(plain).check(QUERY, qtm_config=config)
    assert find(found, "order").state is state
    with pytest.raises(qtm.ConfigError):
        qtm.QueryMiddleware().wrap(plain).check(QUERY, config={"topk": 3})


def test_a_conversation_is_passed_on() -> None:
    model = ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]})
    wrapped = qtm.QueryMiddleware(transforming("rewrite"), client=model).wrap(plain)
    wrapped.check("And its health?", history=[("user", "Who is Jaco?")])
    assert "Who is Jaco?" in model.prompts[0].user


def raising(*_: Any) -> Any:
    raise ConnectionError("http://user:secr@et@host is down")


@pytest.mark.parametrize(
    ("fn", "parts", "options", "subject", "said"),
    [
        (by_vector, {}, {"embed": raising}, "query", "embed= raised ConnectionError: http://(not"),
        (plain, {"reranker": lambda _, texts: [1] * len(texts)}, {}, "rerank", "reranks 8 cand"),
        (plain, {"reranker": lambda *_: []}, {}, "rerank", "failed"),
        (plain, {"fuse": raising}, {}, "problem", "fusion failed: failed (fuse= raised Connection"),
    ],
)
def test_every_part_that_is_set_is_tried_and_its_failure_said(
    fn: Any, parts: dict[str, Any], options: dict[str, Any], subject: str, said: str
) -> None:
    config = transforming("rewrite", rerank={"enabled": "reranker" in parts})
    model = ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]})
    found = qtm.QueryMiddleware(config, client=model, **parts).wrap(fn, **options).check(QUERY)
    assert says(found, subject, said)
    assert find(found, subject).state is (OK if "reranks" in said else PROBLEM)
    assert "secr" not in str(found)


@pytest.mark.parametrize("name", KINDS)
def test_a_check_leaves_no_trace(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Observer:
        def on_start(self, operation: Any) -> None:
            heard.append(operation)

        on_end = on_start

    heard: list[Any] = []
    fn, options, _ = KINDS[name]
    middleware = qtm.QueryMiddleware(
        transforming("rewrite", log={"path": str(tmp_path / "log.jsonl")}),
        client=ScriptedModel({"rewrite": REPLIES["rewrite"]["rewrite"]}),
        observers=[Observer()],
        on_retrieval=heard.append,
    )
    wrapped = middleware.wrap(fn, **options, on_retrieval=heard.append)
    before = middleware.health(), read_learned(wrapped).copy()
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, "qtmiddleware"):
        warnings.simplefilter("error")
        found = wrapped.check(QUERY)
    learned = read_learned(wrapped)
    for fact in ("holds_text", "problem", "widening", "is_new"):
        assert getattr(learned, fact) == getattr(before[1], fact)
    health = middleware.health()
    assert {**health, "budget": None} == {**before[0], "budget": None}
    assert (heard, list(tmp_path.iterdir())) == ([], [])
    logged = "".join(record.getMessage() for record in caplog.records)
    assert not [words for words in (QUERY, "jaco", ".check(question)") if words in logged]
    for secret in (QUERY, "jaco", "TypeError: can't"):
        assert secret not in repr(found)
    if name == "no text":
        with pytest.warns(qtm.SetupWarning, match="check"):
            wrapped(QUERY)
