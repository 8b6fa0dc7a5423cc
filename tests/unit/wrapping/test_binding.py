"""The question and the number of passages are found wherever a call passes them, and only they change."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from pinecone import Pinecone
from pydantic import BaseModel, ConfigDict, Field

import qtmiddleware as qtm
from qtmiddleware.wrapping.binding import QUERIES, TOP_KS, VECTORS
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, middleware

ROWS: Final = [{"id": str(n), "score": 1 - n / 99, "text": f"Note {n}"} for n in range(60)]
INDEX: Final = Pinecone(api_key="k").Index(host="http://127.0.0.1:9")
qm = middleware()


def embed(text: str) -> list[float]:
    return [float(len(text))]


@dataclass(frozen=True, slots=True)
class Plain:
    text: str = QUERY
    limit: int = 3


class Validated(BaseModel):
    model_config = ConfigDict(frozen=True, validate_assignment=True)
    text: str = QUERY
    limit: int = Field(default=3, le=20)


@dataclass
class Guarded:
    """Holds its text behind a property, in data that a plain copy would share."""

    data: dict[str, str] = field(default_factory=lambda: {"text": QUERY})
    limit: int = 3

    @property
    def text(self) -> str:
        return self.data["text"]

    @text.setter
    def text(self, text: str) -> None:
        self.data["text"] = text


class Options(NamedTuple):
    limit: int = 3
    language: str = "en"


@dataclass
class Bundle:
    """As LlamaIndex passes a question: its text, and the vectors of it once there are any."""

    query_str: str
    embedding: list[float] | None = None


def clause(text: str) -> dict[str, str]:
    return {"type": "embed", "query": text}


def evaluate(source: str, text: str) -> Any:
    """*source*, in which Q is the question or a variant, V its vector, and W the wide number."""
    names = {**globals(), "Q": text, "V": embed(text), "W": WIDE}
    return eval(source, names)


def make_function(signature: str) -> tuple[Any, list[dict[str, Any]]]:
    """A function of these parameters, and the arguments of its calls."""
    seen: list[dict[str, Any]] = []
    names = {**globals(), "Q": QUERY, "seen": seen}
    exec(f"def search({signature}): seen.append(dict(locals())); return ROWS", names)
    return names["search"], seen


def show(arguments: dict[str, Any]) -> str:
    return repr(sorted(arguments.items()))


def check_calls(signature: str, call: str, received: str, wrap: str = "search") -> None:
    """Every search, for the question and for the rewrite, receives the same but for its text."""
    search, seen = make_function(signature)
    fn = eval(wrap.partition(";")[0], {**globals(), "partial": partial, "search": search})
    options = eval(f"dict({wrap.partition(';')[2]})", globals())
    args, kwargs = evaluate(f"(lambda *a, **k: (a, k))({call})", QUERY)
    before = copy.deepcopy((args, kwargs))
    retrieval = qm.wrap(fn, **options).retrieve(*args, **kwargs)
    assert retrieval.original_query == QUERY
    assert repr((args, kwargs)) == repr(before), "the caller's own arguments stay as they are"
    expected = [evaluate(f"dict({received})", text) for text in (QUERY, REWRITE)]
    assert sorted(map(show, seen)) == sorted(map(show, expected))


PINECONE: Final = "*, namespace, top_k=None, inputs=None, query=None"
CHROMA: Final = "query_embeddings=None, query_texts=None, n_results=10"
DOCUMENTS: Final = "*, score_by, top_k=4"
QDRANT: Final = "collection_name: str, query=None, *, limit: int = 10"


@pytest.mark.parametrize(
    ("signature", "call", "received"),
    [
        ("query, top_k=4, ns=''", "Q, 7, 'n'", "query=Q, top_k=W, ns='n'"),
        ("query=Q, top_k=4", "", "query=Q, top_k=W"),
        ("query", "Q", "query=Q"),
        ("ns, question, *, k=3", "'n', question=Q, k=9", "ns='n', question=Q, k=W"),
        ("what, kind='all', k=5", "Q", "what=Q, kind='all', k=W"),
        ("tenant, search_text, k=4", "'a', Q", "tenant='a', search_text=Q, k=W"),
        ("tenant_id, what, k=4", "'a', Q", "tenant_id='a', what=Q, k=W"),
        ("*, query, top_k=4", "Q", "query=Q, top_k=W"),
        ("query, **kw", "Q, top_k=3, a=1", "query=Q, kw={'top_k': W, 'a': 1}"),
        ("*args, **kw", "Q, top_k=3", "args=(Q,), kw={'top_k': W}"),
        ("*args, **kw", "7, Q", "args=(7, Q), kw={}"),
        ("**kw", "question=Q, limit=3", "kw={'question': Q, 'limit': W}"),
        ("name: str, **kw", "'ix', question=Q, k=2", "name='ix', kw={'question': Q, 'k': W}"),
        (CHROMA, "query_texts=[Q]", "query_embeddings=None, query_texts=[Q], n_results=W"),
        ("bundle", "Bundle(Q, [1.0])", "bundle=Bundle(Q, [1.0] if Q == QUERY else None)"),
        (
            PINECONE,
            "namespace='n', top_k=3, inputs={'text': Q, 'x': 1}",
            "namespace='n', top_k=W, inputs={'text': Q, 'x': 1}, query=None",
        ),
        (
            PINECONE,
            "namespace='n', query={'inputs': {'text': Q}, 'top_k': 3, 'filter': 1}",
            (
                "namespace='n', top_k=None, inputs=None,"
                " query={'inputs': {'text': Q}, 'top_k': W, 'filter': 1}"
            ),
        ),
        (
            PINECONE,
            "query=Q, namespace='n', top_k=3",
            "namespace='n', top_k=W, inputs={'text': Q}, query=None",
        ),
        (DOCUMENTS, "score_by=[clause(Q)], top_k=2", "score_by=[clause(Q)], top_k=W"),
        ("query, score_by='bm25'", "Q", "query=Q, score_by='bm25'"),
        (
            "*args, **kw",
            "score_by=[clause(Q)], top_k=2",
            "args=(), kw={'score_by': [clause(Q)], 'top_k': W}",
        ),
    ],
)
def test_both_are_found_and_replaced_wherever_they_are_passed(
    signature: str, call: str, received: str
) -> None:
    check_calls(signature, call, received)


@pytest.mark.parametrize(
    ("signature", "call", "received", "wrap"),
    [
        ("query, top_k=4, ns=''", "Q", "query=Q, top_k=W, ns='n'", "partial(search, ns='n')"),
        ("ns, question, k=3", "Q", "ns='n', question=Q, k=W", "partial(partial(search, 'n'), k=8)"),
        (
            "ns, words: str, count: int",
            "'n', Q, 3",
            "ns='n', words=Q, count=W",
            "search; query_arg='words', top_k_arg='count'",
        ),
        (
            "query, options=Options()",
            "Q, Options(2, 'de')",
            "query=Q, options=Options(W, 'de')",
            "search; top_k_arg='options.limit'",
        ),
        (
            "body",
            "{'query': {'match': {'text': Q}}, 'size': 3, 'sort': ['_score']}",
            "body={'query': {'match': {'text': Q}}, 'size': W, 'sort': ['_score']}",
            "search; query_arg='body.query.match.text', top_k_arg='body.size'",
        ),
        (
            DOCUMENTS,
            "query=Q",
            "score_by=[clause(Q)], top_k=W",
            "partial(search, score_by=[clause('')])",
        ),
        (
            PINECONE,
            "namespace='n', top_k=3, inputs={'text': Q}",
            "namespace='n', top_k=W, inputs={'text': Q}, query=None",
            "search; query_arg='query'",
        ),
    ],
)
def test_partials_and_names_of_the_users_own_are_followed(
    signature: str, call: str, received: str, wrap: str
) -> None:
    check_calls(signature, call, received, wrap)


@pytest.mark.parametrize(
    ("signature", "call", "received"),
    [
        ("vector: list[float], top_k=4", "Q, 3", "vector=V, top_k=W"),
        ("vector, top_k=4", "query=Q", "vector=V, top_k=W"),
        ("query: str, vector=None", "Q", f"query={QUERY!r}, vector=V"),
        ("*args, top_k, vector=None, **kw", "Q, top_k=3", "args=(), top_k=W, vector=V, kw={}"),
        ("*args, **kw", "Q, top_k=3", "args=(V,), kw={'top_k': W}"),
        (QDRANT, "'docs', query=Q", "collection_name='docs', query=V, limit=W"),
        (CHROMA, "Q", "query_embeddings=[V], query_texts=None, n_results=W"),
        (CHROMA, "query_texts=[Q]", "query_embeddings=[V], query_texts=None, n_results=W"),
        (
            "name: str, data: list, limit=4, timeout=None",
            "'docs', Q",
            "name='docs', data=[V], limit=W, timeout=None",
        ),
        (
            f"{PINECONE}, vector=None",
            "namespace='n', query={'inputs': {'text': Q}, 'top_k': 3}",
            "namespace='n', top_k=W, inputs=None, query=None, vector=V",
        ),
    ],
)
def test_a_vector_goes_where_the_function_wants_it_however_the_text_came(
    signature: str, call: str, received: str
) -> None:
    check_calls(signature, call, received, "search; embed=embed")


@pytest.mark.parametrize(
    "request_object",
    [
        {"text": QUERY, "limit": 3},
        Plain(),
        SimpleNamespace(text=QUERY, limit=3),
        Validated(),
        Guarded(),
    ],
    ids=lambda it: type(it).__name__,
)
def test_both_may_be_fields_of_a_request_of_any_kind(request_object: Any) -> None:
    search, seen = make_function("req")
    before = copy.deepcopy(request_object)
    wrapped: Any = qm.wrap(search, query_arg="req.text", top_k_arg="req.limit")
    wrapped(request_object)
    assert request_object == before
    read = dict.get if isinstance(request_object, dict) else getattr
    requests = [call["req"] for call in seen]
    assert {type(it) for it in requests} == {type(request_object)}
    assert {(read(it, "text"), read(it, "limit")) for it in requests} == {
        (QUERY, WIDE),
        (REWRITE, WIDE),
    }
    assert wrapped.top_k_argument is None


def test_every_usual_name_is_known_and_that_of_the_number_in_any_spelling() -> None:
    for name in QUERIES:
        check_calls(f"tenant, {name}, top_k=4", "'a', Q", f"tenant='a', {name}=Q, top_k=W")
    for name in VECTORS:
        value = "[V]" if name.endswith("s") else "V"
        received = f"a='a', {name}={value}, k=W"
        check_calls(f"a, {name}, k=4", "'a', Q", received, "search; embed=embed")
    for name in (*TOP_KS, "topK", "numberOfResults"):
        check_calls(f"query, {name}=4", "Q", f"query=Q, {name}=W")


class Unreadable:
    @property
    def limit(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize("options", [None, "text", {"limit": "3"}, Unreadable()])
def test_a_number_that_cannot_be_read_or_changed_is_passed_on(options: Any) -> None:
    search, seen = make_function("query, options")
    qm.wrap(search, top_k_arg="options.limit")(QUERY, options)
    assert sorted(call["query"] for call in seen) == [QUERY, REWRITE]
    assert all(type(call["options"]) is type(options) for call in seen)


# --- what is unclear or impossible ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "call", "advice"),
    [
        ("query=None, id=None, top_k=4, **kw", "id='near', asked=Q", "query_arg="),
        ("**kw", "vector=[0.5]", "pass it as 'query', or name its parameter"),
        (PINECONE, "namespace='n', inputs={'image': 'x'}", "inputs.text"),
    ],
)
def test_a_call_without_a_question_is_made_as_it_was_and_says_what_to_do(
    signature: str, call: str, advice: str
) -> None:
    search, seen = make_function(signature)
    retrieval = qm.wrap(search).retrieve(**evaluate(f"dict({call})", QUERY))
    search(**evaluate(f"dict({call})", QUERY))
    assert seen[0] == seen[1]
    assert (retrieval.original_query, retrieval.response) == ("", ROWS)
    (problem,) = retrieval.degradations
    assert problem.reason == "missing"
    assert advice in problem.detail


@pytest.mark.parametrize(
    ("signature", "wrap", "advice"),
    [
        ("vector: list[float], top_k=4", "search", "pass embed="),
        ("collection: str, vector: list[float], k=4", "search", "pass embed="),
        ("", "INDEX.query", "pass embed="),
        ("*, foo", "search", "its parameters are: foo"),
        ("department, wording, top_k=4", "search", "(department, wording); name the right one"),
        ("a=None, b=None", "search", "query_arg="),
        ("what: str, vector: list[float]", "search", "pass embed="),
        (
            "query, k=4",
            "search; query_arg='querry'",
            "has no parameter 'querry', but query_arg= names it; its parameters are: query, k",
        ),
        ("query", "search; page_arg=True", "has no parameter True, but page_arg= names it"),
        ("query, offset=0", "search; page_arg='ofset'", "its parameters are: query, offset"),
        ("query, k=4", "partial(search, 'x')", "already sets 'query'"),
        ("", "partial(INDEX.search, inputs={})", "already sets 'inputs'"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_advice(
    signature: str, wrap: str, advice: str
) -> None:
    with pytest.raises(qtm.WrapError) as caught:
        check_calls(signature, "", "", wrap)
    assert advice in str(caught.value)


# --- arguments with the names of ours -------------------------------------------------------------


def test_a_config_of_the_functions_own_stays_its_own() -> None:
    search, seen = make_function("query, config=None, top_k=4")
    wrapped, tags = qm.wrap(search), {"tags": ["mine"]}
    retrieval = wrapped.retrieve(QUERY, config=tags)
    assert [variant.kind for variant in retrieval.variants] == ["original", "rewrite"]
    retrieval = wrapped.retrieve(QUERY, config=tags, qtm_config={"transformationType": "none"})
    assert [variant.kind for variant in retrieval.variants] == ["original"]
    assert all(call["config"] == tags for call in seen)
    assert sum(call["config"] is tags for call in seen) == 2
    with pytest.raises(qtm.ConfigError, match="did you mean"):
        wrapped.retrieve(QUERY, qtm_config={"transformation": "none"})
