"""The question and the number of passages are found wherever a call passes them, and only they change."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest
from pinecone import Pinecone, SearchQuery
from pydantic import BaseModel, ConfigDict, Field

import qtmiddleware as qtm
from qtmiddleware.wrapping.binding import QUERIES, TOP_KS, VECTORS, Arguments
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, middleware

ROWS: Final = [{"id": str(n), "score": 1 - n / 99, "text": f"Note {n}"} for n in range(60)]
INDEX: Final = Pinecone(api_key="k").Index(host="http://127.0.0.1:9")
qm = middleware()


def embed(text: str) -> list[float]:
    return [float(len(text))]


@dataclass
class Plain:
    text: str = QUERY
    limit: int = 3


@dataclass(frozen=True, slots=True)
class Frozen:
    text: str = QUERY
    limit: int = 3


class Validated(BaseModel):
    model_config = ConfigDict(frozen=True, validate_assignment=True)
    text: str = QUERY
    limit: int = Field(default=3, le=20)


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
MILVUS: Final = "collection_name: str, data=None, filter='', limit: int = 10"
DOCUMENTS: Final = "*, score_by, top_k=4"
QDRANT: Final = "collection_name: str, query=None, *, limit: int = 10"


@pytest.mark.parametrize(
    ("signature", "call", "received"),
    [
        ("query, top_k=4, ns=''", "Q", "query=Q, top_k=W, ns=''"),
        ("query, top_k=4, ns=''", "Q, 7, 'n'", "query=Q, top_k=W, ns='n'"),
        ("query, top_k=4, ns=''", "ns='n', query=Q", "query=Q, top_k=W, ns='n'"),
        ("query, top_k", "Q, 4", "query=Q, top_k=W"),
        ("query=Q, top_k=4", "", "query=Q, top_k=W"),
        ("query", "Q", "query=Q"),
        ("ns, question, *, k=3", "'n', Q", "ns='n', question=Q, k=W"),
        ("ns, question, *, k=3", "'n', question=Q, k=9", "ns='n', question=Q, k=W"),
        ("ns_id: int, what: str, limit=3", "7, Q", "ns_id=7, what=Q, limit=W"),
        ("index: object, what: str, n=3", "7, Q", "index=7, what=Q, n=W"),
        ("what, k=5", "Q", "what=Q, k=W"),
        ("what, kind='all', k=5", "Q", "what=Q, kind='all', k=W"),
        ("tenant, search_text, k=4", "'a', Q", "tenant='a', search_text=Q, k=W"),
        ("tenant, userQuestion, k=4", "'a', Q", "tenant='a', userQuestion=Q, k=W"),
        ("tenant_id, what, k=4", "'a', Q", "tenant_id='a', what=Q, k=W"),
        ("*, tenant, search_text, k=4", "tenant='a', search_text=Q", "tenant='a', search_text=Q, k=W"),
        ("query, top_k=4, /, ns=''", "Q, 3, ns='n'", "query=Q, top_k=W, ns='n'"),
        ("*, query, top_k=4", "query=Q", "query=Q, top_k=W"),
        ("*, query, top_k=4", "Q", "query=Q, top_k=W"),
        ("query, **kw", "Q, top_k=3, a=1", "query=Q, kw={'top_k': W, 'a': 1}"),
        ("query, **kw", "Q", "query=Q, kw={}"),
        ("*args, **kw", "Q, top_k=3", "args=(Q,), kw={'top_k': W}"),
        ("*args, **kw", "7, Q", "args=(7, Q), kw={}"),
        ("*args, **kw", "query=Q, topK=3", "args=(), kw={'query': Q, 'topK': W}"),
        ("**kw", "question=Q, limit=3", "kw={'question': Q, 'limit': W}"),
        ("*args, top_k=4", "Q", "args=(Q,), top_k=W"),
        ("name: str, **kw", "'ix', question=Q, k=2", "name='ix', kw={'question': Q, 'k': W}"),
        (CHROMA, "query_texts=[Q]", "query_embeddings=None, query_texts=[Q], n_results=W"),
        ("search_text=None, *, top=None", "Q, top=5", "search_text=Q, top=W"),
        ("bundle", "Bundle(Q, [1.0])", "bundle=Bundle(Q, [1.0] if Q == QUERY else None)"),
        (PINECONE, "namespace='n', top_k=3, inputs={'text': Q, 'x': 1}",
         "namespace='n', top_k=W, inputs={'text': Q, 'x': 1}, query=None"),
        (PINECONE, "namespace='n', query={'inputs': {'text': Q}, 'top_k': 3, 'filter': 1}",
         ("namespace='n', top_k=None, inputs=None,"
         " query={'inputs': {'text': Q}, 'top_k': W, 'filter': 1}")),
        (PINECONE, "Q, namespace='n', top_k=3",
         "namespace='n', top_k=W, inputs={'text': Q}, query=None"),
        (PINECONE, "query=Q, namespace='n', top_k=3",
         "namespace='n', top_k=W, inputs={'text': Q}, query=None"),
        ("namespace, query, fields=None", "'n', {'inputs': {'text': Q}, 'top_k': 3}",
         "namespace='n', query={'inputs': {'text': Q}, 'top_k': W}, fields=None"),
        (DOCUMENTS, "score_by=[clause(Q)]", "score_by=[clause(Q)], top_k=W"),
        (DOCUMENTS, "score_by=[clause(Q)], top_k=2", "score_by=[clause(Q)], top_k=W"),
        ("score_by, k=4", "[clause(Q)]", "score_by=[clause(Q)], k=W"),
        ("query, score_by='bm25'", "Q", "query=Q, score_by='bm25'"),
        ("*args, **kw", "score_by=[clause(Q)], top_k=2",
         "args=(), kw={'score_by': [clause(Q)], 'top_k': W}"),
        ("*args, **kw", "query=Q, score_by=[clause('a')]",
         "args=(), kw={'query': Q, 'score_by': [clause('a')]}"),
    ],
)  # fmt: skip
def test_both_are_found_and_replaced_wherever_they_are_passed(
    signature: str, call: str, received: str
) -> None:
    check_calls(signature, call, received)


@pytest.mark.parametrize(
    ("signature", "call", "received", "wrap"),
    [
        ("query, top_k=4, ns=''", "Q", "query=Q, top_k=W, ns='n'",
         "partial(search, ns='n')"),
        ("query, top_k=4", "Q", "query=Q, top_k=W", "partial(search, top_k=9)"),
        ("ns, question, k=3", "Q", "ns='n', question=Q, k=W",
         "partial(partial(search, 'n'), k=8)"),
        ("ns, words: str, count: int", "'n', Q, 3", "ns='n', words=Q, count=W",
         "search; query_arg='words', top_k_arg='count'"),
        ("query: str, real: str", "'a', Q", "query='a', real=Q", "search; query_arg='real'"),
        ("text, how_many=3", "Q", "text=Q, how_many=W", "search; top_k_arg='how_many'"),
        ("query, options=Options()", "Q", "query=Q, options=Options(W, 'en')",
         "search; top_k_arg='options.limit'"),
        ("query, options=Options()", "Q, Options(2, 'de')", "query=Q, options=Options(W, 'de')",
         "search; top_k_arg='options.limit'"),
        ("body", "{'query': {'match': {'text': Q}}, 'size': 3, 'sort': ['_score']}",
         "body={'query': {'match': {'text': Q}}, 'size': W, 'sort': ['_score']}",
         "search; query_arg='body.query.match.text', top_k_arg='body.size'"),
        ("**kw", "retrievalQuery={'text': Q}, setup={'vector': {'numberOfResults': 3}}",
         "kw={'retrievalQuery': {'text': Q}, 'setup': {'vector': {'numberOfResults': W}}}",
         "search; query_arg='retrievalQuery.text', top_k_arg='setup.vector.numberOfResults'"),
        (DOCUMENTS, "Q", "score_by=[clause(Q)], top_k=W", "partial(search, score_by=[clause('')])"),
        (DOCUMENTS, "query=Q", "score_by=[clause(Q)], top_k=W",
         "partial(search, score_by=[clause('')])"),
        (PINECONE, "namespace='n', top_k=3, inputs={'text': Q}",
         "namespace='n', top_k=W, inputs={'text': Q}, query=None", "search; query_arg='query'"),
        (PINECONE, "namespace='n', query={'inputs': {'text': Q}, 'top_k': 3}",
         "namespace='n', top_k=None, inputs=None, query={'inputs': {'text': Q}, 'top_k': W}",
         "search; query_arg='inputs.text'"),
    ],
)  # fmt: skip
def test_partials_and_names_of_the_users_own_are_followed(
    signature: str, call: str, received: str, wrap: str
) -> None:
    check_calls(signature, call, received, wrap)


@pytest.mark.parametrize(
    ("signature", "call", "received"),
    [
        ("vector: list[float], top_k=4", "Q, 3", "vector=V, top_k=W"),
        ("vector, top_k=4", "vector=Q", "vector=V, top_k=W"),
        ("vector, top_k=4", "query=Q", "vector=V, top_k=W"),
        ("numbers: list[float]", "Q", "numbers=V"),
        ("collection, near_vector, k=4", "'c', Q", "collection='c', near_vector=V, k=W"),
        ("query: str, vector=None", "Q", f"query={QUERY!r}, vector=V"),
        ("*args, top_k, vector=None, **kw", "Q, top_k=3", "args=(), top_k=W, vector=V, kw={}"),
        ("*args, **kw", "Q, top_k=3", "args=(V,), kw={'top_k': W}"),
        (QDRANT, "'docs', query=Q", "collection_name='docs', query=V, limit=W"),
        (CHROMA, "Q", "query_embeddings=[V], query_texts=None, n_results=W"),
        (CHROMA, "query_texts=[Q]", "query_embeddings=[V], query_texts=None, n_results=W"),
        ("name: str, data: list, limit=4, timeout=None", "'docs', Q",
         "name='docs', data=[V], limit=W, timeout=None"),
        (MILVUS, "'docs', Q", "collection_name='docs', data=[V], filter='', limit=W"),
        (f"{PINECONE}, vector=None", "Q, namespace='n', top_k=3",
         "namespace='n', top_k=W, inputs=None, query=None, vector=V"),
        (f"{PINECONE}, vector=None", "namespace='n', query={'inputs': {'text': Q}, 'top_k': 3}",
         "namespace='n', top_k=W, inputs=None, query=None, vector=V"),
    ],
)  # fmt: skip
def test_a_vector_goes_where_the_function_wants_it_however_the_text_came(
    signature: str, call: str, received: str
) -> None:
    check_calls(signature, call, received, "search; embed=embed")


@pytest.mark.parametrize(
    "request_object",
    [{"text": QUERY, "limit": 3}, Plain(), SimpleNamespace(text=QUERY, limit=3), Frozen(),
     Validated(text=QUERY)],
    ids=lambda it: type(it).__name__,
)  # fmt: skip
@pytest.mark.parametrize("is_by_name", [True, False], ids=["by name", "by position"])
def test_both_may_be_fields_of_a_request_of_any_kind(request_object: Any, is_by_name: bool) -> None:
    search, seen = make_function("req")
    before = copy.deepcopy(request_object)
    wrapped: Any = qm.wrap(search, query_arg="req.text", top_k_arg="req.limit")
    wrapped(req=request_object) if is_by_name else wrapped(request_object)
    assert request_object == before
    read = dict.get if isinstance(request_object, dict) else getattr
    requests = [call["req"] for call in seen]
    assert {type(it) for it in requests} == {type(request_object)}
    assert sorted((read(it, "text"), read(it, "limit")) for it in requests) == [
        (QUERY, WIDE),
        (REWRITE, WIDE),
    ]
    if isinstance(request_object, Validated):
        assert all(it.model_dump(exclude_unset=True)["limit"] == WIDE for it in requests)
    assert wrapped.top_k_argument is None


def test_pinecones_own_object_and_method_are_read_and_copied() -> None:
    wrapped: Any = qm.wrap(INDEX.search)
    query = SearchQuery(inputs={"text": QUERY}, top_k=3, filter={"a": 1})
    arguments = Arguments(wrapped._function.binding, (), {"namespace": "n", "query": query})
    changed = arguments.replace("new", 50).kwargs["query"]
    assert (arguments.read_query(), arguments.read_top_k()) == (QUERY, 3)
    assert changed.to_dict() == {"inputs": {"text": "new"}, "top_k": 50, "filter": {"a": 1}}
    assert query.to_dict() == {"inputs": {"text": QUERY}, "top_k": 3, "filter": {"a": 1}}
    by_vector: Any = qm.wrap(INDEX.query, embed=embed)
    for args, kwargs in (((QUERY,), {}), ((), {"query": QUERY}), ((), {"vector": QUERY})):
        changed = Arguments(by_vector._function.binding, args, {"top_k": 3, **kwargs})
        changed = changed.replace([0.5], 50)
        assert (list(changed.args), changed.kwargs) == ([], {"top_k": 50, "vector": [0.5]})


@pytest.mark.parametrize("name", QUERIES)
def test_every_usual_name_of_a_question_is_known(name: str) -> None:
    check_calls(f"tenant, {name}, top_k=4", "'a', Q", f"tenant='a', {name}=Q, top_k=W")


@pytest.mark.parametrize("name", VECTORS)
def test_every_usual_name_of_a_vector_is_known(name: str) -> None:
    value = "[V]" if name.endswith("s") else "V"
    check_calls(f"a, {name}, k=4", "'a', Q", f"a='a', {name}={value}, k=W", "search; embed=embed")


@pytest.mark.parametrize("name", [*TOP_KS, "topK", "topk", "numberOfResults", "maxResults", "topN"])
def test_every_usual_name_of_the_number_is_known_in_any_spelling(name: str) -> None:
    check_calls(f"query, {name}=4", "Q", f"query=Q, {name}=W")


class Fixed:
    @property
    def limit(self) -> int:
        return 3


class Unreadable:
    @property
    def limit(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize("options", [None, "text", {}, {"limit": "3"}, Unreadable(), Fixed()])
def test_a_number_that_cannot_be_read_or_changed_is_passed_on(options: Any) -> None:
    search, seen = make_function("query, options")
    qm.wrap(search, top_k_arg="options.limit")(QUERY, options)
    assert sorted(call["query"] for call in seen) == [QUERY, REWRITE]
    assert all(type(call["options"]) is type(options) for call in seen)


# --- what is unclear or impossible ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "names"),
    [
        ("department, wording, top_k=4", "department, wording"),
        ("customer: str, topic: str", "customer, topic"),
        ("collection: str, data: list, filter: str = ''", "collection, filter"),
        ("what: str, vector: list[float]", "what, vector"),
        ("a=None, b=None", "a, b"),
    ],
)
def test_of_several_parameters_that_may_be_the_question_none_is_taken_and_it_is_said_once(
    signature: str, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    search, seen = make_function(signature)
    wrapped = qm.wrap(search)
    with pytest.warns(qtm.SetupWarning, match="query_arg=") as told:
        found = [wrapped.retrieve("acme", QUERY) for _ in range(3)]
    assert len(told) == len([it for it in caplog.messages if "details: .check" in it]) == 1
    assert f"search(): several of its parameters may be the question ({names})" in str(
        told[0].message
    )
    assert [(it.stage, it.reason) for it in found[0].degradations] == [("query", "missing")]
    assert [list(call.values())[:2] for call in seen] == [["acme", QUERY]] * 3
    assert found[0].response is ROWS


def test_a_call_without_a_question_is_made_as_it_was_and_says_what_to_do() -> None:
    search, seen = make_function("query=None, id=None, top_k=4, **kw")
    retrieval = qm.wrap(search).retrieve(id="near", asked=QUERY)
    assert seen == [{"query": None, "id": "near", "top_k": 4, "kw": {"asked": QUERY}}]
    assert (retrieval.original_query, retrieval.response) == ("", ROWS)
    (problem,) = retrieval.degradations
    assert problem.reason == "missing"
    assert "query_arg=" in problem.detail


@pytest.mark.parametrize(
    ("signature", "call", "advice"),
    [
        ("**kw", "vector=[0.5]", "pass it as 'query', name the parameter"),
        (PINECONE, "namespace='n', inputs={'image': 'x'}", "inputs.text"),
        (PINECONE, "namespace='n', query={'id': 'x'}", "inputs.text"),
    ],
)
def test_where_the_text_should_have_been_is_said(signature: str, call: str, advice: str) -> None:
    search, _ = make_function(signature)
    retrieval = qm.wrap(search).retrieve(**evaluate(f"dict({call})", QUERY))
    assert [it.reason for it in retrieval.degradations] == ["missing"]
    assert advice in retrieval.degradations[0].detail


@pytest.mark.parametrize(
    ("signature", "wrap", "advice"),
    [
        ("vector: list[float], top_k=4", "search", "pass embed="),
        ("*args, top_k, vector=None, **kw", "search", "pass embed="),
        ("of: list[float], k=4", "search", "pass embed="),
        ("collection: str, vector: list[float], k=4", "search", "pass embed="),
        ("query_embedding: list[float], filters: dict = None", "search", "pass embed="),
        ("", "INDEX.query", "pass embed="),
        ("", "search", "name it with query_arg="),
        ("*, foo", "search", "its parameters are: foo"),
        ("query, k=4", "search; query_arg='querry'", "has no parameter 'querry', but query_arg= names it; its parameters are: query, k"),
        ("req", "search; query_arg='req.text', top_k_arg='reqq.limit'",
         "has no parameter 'reqq', but top_k_arg= names it; its parameters are: req"),
        ("query, namespace", "search; top_k_arg='depth'", "query, namespace"),
        ("query", "search; page_arg=True", "has no parameter True, but page_arg= names it"),
        ("query", "search; page_arg=3", "has no parameter 3, but page_arg= names it"),
        ("query, offset=0", "search; page_arg='ofset'", "its parameters are: query, offset"),
        ("query, k=4", "partial(search, 'x')", "already sets 'query'"),
        ("query, k=4", "partial(search, query='x')", "already sets 'query'"),
        ("query, k=4", "partial(search, 'x'); query_arg='query'", "already sets 'query'"),
        ("", "partial(INDEX.search, inputs={})", "already sets 'inputs'"),
    ],
)  # fmt: skip
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
    assert all(call["config"] is tags for call in seen)
    with pytest.raises(qtm.ConfigError, match="did you mean"):
        wrapped.retrieve(QUERY, qtm_config={"transformation": "none"})
    hidden = qm.wrap(lambda query, **options: (query, options))
    with pytest.raises(
        qtm.ConfigError, match=r"if <lambda>\(\) needs config=, add a parameter of that name"
    ):
        hidden.retrieve(QUERY, config={"tags": ["mine"]})
