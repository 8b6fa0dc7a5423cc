"""Where the query sits in a call, whatever kind of callable is called."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pinecone import Pinecone, SearchQuery

from qtmiddleware.errors import WrapError
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.wrapping.signatures import read_signature

VECTOR = [0.1, 0.2]


def called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What *fn* receives once the query was replaced by "new" and top_k by 50."""
    shape = read_signature(fn)
    assert shape.read_query(args, kwargs) == "old"
    new_args, new_kwargs = shape.replace_arguments(args, kwargs, query="new", top_k=50)
    return fn(*new_args, **new_kwargs)


def plain(query: str, top_k: int = 4, namespace: str = "") -> Any:
    return query, top_k, namespace


def middle(namespace: str, question: str, *, k: int = 3) -> Any:
    return question, k, namespace


def unnamed(namespace_id: int, what: str, limit: int = 3) -> Any:
    return what, limit, namespace_id


def positional_only(query: str = "old", top_k: int = 4, /, namespace: str = "") -> Any:
    return query, top_k, namespace


def keyword_only(*, query: str, top_k: int = 4, namespace: str = "") -> Any:
    return query, top_k, namespace


def open_ended(query: str, **kwargs: Any) -> Any:
    return query, kwargs.get("top_k"), kwargs.get("namespace", "")


def loose(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


def indexed(index: object, what: str, n: int = 3) -> Any:
    return what, n, index


def untyped(index, what, size=3):  # type: ignore[no-untyped-def]
    return index, size, what


def kwargs_only(**kwargs: Any) -> Any:
    return plain(**kwargs)


def rest_by_keyword(*args: Any, top_k: int = 4, namespace: str = "") -> Any:
    return args[0], top_k, namespace


def half_open(index_name: str, **kwargs: Any) -> Any:
    return kwargs.get("question"), kwargs.get("k"), index_name


class Retriever:
    def search(self, query: str, top_k: int = 4, namespace: str = "") -> Any:
        return query, top_k, namespace

    def keyworded(self, *, query: str, top_k: int = 4, namespace: str = "") -> Any:
        return query, top_k, namespace

    def loosely(self, *args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    @classmethod
    def of_class(cls, query: str, top_k: int = 4, namespace: str = "") -> Any:
        return query, top_k, namespace

    @staticmethod
    def of_nobody(query: str, top_k: int = 4, namespace: str = "") -> Any:
        return query, top_k, namespace

    def __call__(self, query: str, top_k: int = 4, namespace: str = "") -> Any:
        return query, top_k, namespace


@functools.wraps(plain)
def wrapped(*args: Any, **kwargs: Any) -> Any:
    return plain(*args, **kwargs)


def nested() -> Callable[..., Any]:
    def inner(q: str, size: int = 4, namespace: str = "") -> Any:
        return q, size, namespace

    return inner


me = Retriever()


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected"),
    [
        (plain, ("old",), {}, ("new", 50, "")),
        (plain, ("old", 7, "ns"), {}, ("new", 50, "ns")),
        (plain, (), {"query": "old", "namespace": "ns"}, ("new", 50, "ns")),
        (middle, ("ns", "old"), {}, ("new", 50, "ns")),
        (middle, ("ns",), {"question": "old", "k": 9}, ("new", 50, "ns")),
        (unnamed, (7, "old"), {}, ("new", 50, 7)),
        (positional_only, ("old",), {"namespace": "ns"}, ("new", 50, "ns")),
        (positional_only, (), {}, ("new", 50, "")),
        (keyword_only, (), {"query": "old"}, ("new", 50, "")),
        (keyword_only, ("old",), {"namespace": "ns"}, ("new", 50, "ns")),
        (open_ended, ("old",), {"top_k": 3, "namespace": "ns"}, ("new", 50, "ns")),
        (open_ended, ("old",), {}, ("new", None, "")),
        (loose, ("old",), {"top_k": 3}, ("new", 50, "")),
        (loose, (), {"query": "old", "top_k": 3, "namespace": "ns"}, ("new", 50, "ns")),
        (indexed, (7, "old"), {}, ("new", 50, 7)),
        (untyped, ("old", "ns"), {}, ("new", 50, "ns")),
        (kwargs_only, (), {"query": "old", "top_k": 3}, ("new", 50, "")),
        (rest_by_keyword, ("old",), {"namespace": "ns"}, ("new", 50, "ns")),
        (half_open, ("ix",), {"question": "old", "k": 2}, ("new", 50, "ix")),
        (me.search, ("old",), {}, ("new", 50, "")),
        (me.loosely, ("old",), {"top_k": 1}, ("new", 50, "")),
        (Retriever.search, (me, "old"), {}, ("new", 50, "")),
        (Retriever.search, (me,), {"query": "old"}, ("new", 50, "")),
        (Retriever.keyworded, (me, "old"), {}, ("new", 50, "")),
        (Retriever.loosely, (me, "old"), {"top_k": 1}, ("new", 50, "")),
        (Retriever.of_class, ("old",), {}, ("new", 50, "")),
        (Retriever.of_nobody, ("old", 3), {}, ("new", 50, "")),
        (me, ("old",), {"namespace": "ns"}, ("new", 50, "ns")),
        (wrapped, ("old", 9), {}, ("new", 50, "")),
        (nested(), ("old",), {"size": 2}, ("new", 50, "")),
        (lambda text, n=2: (text, n, ""), ("old",), {}, ("new", 50, "")),
        (functools.partial(plain, namespace="ns"), ("old",), {}, ("new", 50, "ns")),
        (functools.partial(plain, top_k=9), ("old",), {}, ("new", 50, "")),
        (functools.partial(middle, "ns"), ("old",), {}, ("new", 50, "ns")),
        (functools.partial(functools.partial(middle, "ns"), k=8), ("old",), {}, ("new", 50, "ns")),
        (functools.partial(Retriever.search, me), ("old",), {}, ("new", 50, "")),
        (functools.partial(me.search, top_k=2), (), {"query": "old"}, ("new", 50, "")),
        (functools.partial(me, namespace="ns"), ("old", 3), {}, ("new", 50, "ns")),
    ],
)
def test_the_query_and_top_k_are_replaced_wherever_they_are_passed(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    assert called(fn, args, kwargs) == expected


@pytest.mark.parametrize("name", ["of_class", "of_nobody"])
def test_a_classmethod_or_staticmethod_object_is_seen_through(name: str) -> None:
    descriptor = Retriever.__dict__[name]
    args: tuple[Any, ...] = (Retriever, "old") if name == "of_class" else ("old",)
    new_args, _ = read_signature(descriptor).replace_arguments(args, {}, query="new", top_k=None)
    assert new_args == (*args[:-1], "new")


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected"),
    [
        (plain, ("x",), {}, 4),
        (plain, ("x", 9), {}, 9),
        (plain, ("x",), {"top_k": 2}, 2),
        (plain, ("x",), {"top_k": "2"}, None),
        (plain, ("x",), {"top_k": True}, None),
        (plain, ("x",), {"top_k": None}, None),
        (functools.partial(plain, top_k=11), ("x",), {}, 11),
        (loose, ("x",), {"n_results": 6}, 6),
        (loose, ("x",), {}, None),
        (lambda query: query, ("x",), {}, None),
    ],
)
def test_top_k_is_the_one_in_effect(fn: Any, args: Any, kwargs: Any, expected: int | None) -> None:
    assert read_signature(fn).read_top_k(args, kwargs) == expected


def test_top_k_may_have_any_name_that_is_told() -> None:
    def fn(query: str, how_many: int = 3) -> Any:
        return query, how_many

    shape = read_signature(fn, top_k_arg="how_many")
    assert shape.read_top_k(("x",), {}) == 3
    assert shape.replace_arguments(("x",), {}, query="x", top_k=8) == (("x",), {"how_many": 8})


def test_a_function_without_top_k_is_never_given_one() -> None:
    assert read_signature(lambda query: query).replace_arguments(
        ("x",), {}, query="y", top_k=8
    ) == (
        ("y",),
        {},
    )


def test_the_told_parameter_goes_before_the_usual_names() -> None:
    def fn(query: str, real: str) -> Any:
        return query, real

    shape = read_signature(fn, query_arg="real")
    assert shape.argument == "real"
    assert shape.replace_arguments(("a", "b"), {}, query="c", top_k=None) == (("a", "c"), {})


def test_a_builtin_without_a_signature_takes_its_first_text() -> None:
    assert read_signature(dict.fromkeys).read_query(("ab",), {}) == "ab"
    assert read_signature(getattr).replace_arguments(
        (me, "search"), {}, query="keyworded", top_k=3
    ) == (
        (me, "keyworded"),
        {},
    )


def columns(query_embeddings: Any = None, query_texts: Any = None, n_results: int = 10) -> Any:
    """The signature of Chroma's query."""


def test_a_list_of_one_text_is_that_text_and_stays_a_list() -> None:
    shape, texts = read_signature(columns), ["old"]
    assert shape.read_query((), {"query_texts": texts}) == "old"
    assert shape.replace_arguments((), {"query_texts": texts}, query="new", top_k=50) == (
        (),
        {"query_texts": ["new"], "n_results": 50},
    )
    assert texts == ["old"]
    assert shape.read_query((), {"query_texts": ["old", "older"]}) == ["old", "older"]
    inside = read_signature(columns, query_arg="query_texts.text")
    assert inside.read_query((), {"query_texts": {"text": texts}}) == texts


def test_a_query_that_is_none_or_no_text_is_handed_on_to_be_refused() -> None:
    assert read_signature(plain).read_query((), {"query": None}) is None
    assert read_signature(plain).read_query((7,), {}) == 7
    assert read_signature(loose).read_query((7,), {}) == 7


INDEX = Pinecone(api_key="k").Index(host="http://127.0.0.1:9")
INPUTS = {"text": "old", "extra": 1}
NEW = {"text": "new", "extra": 1}


@pytest.mark.parametrize("query_arg", [None, "query", "inputs.text"])
@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {"inputs": INPUTS, "top_k": 3}, {"inputs": NEW, "top_k": 50}),
        (
            (),
            {"inputs": INPUTS, "query": None, "top_k": 3},
            {"inputs": {"text": "new", "extra": 1}, "query": None, "top_k": 50},
        ),
        (
            (),
            {"query": {"inputs": INPUTS, "top_k": 3, "filter": {"a": 1}}},
            {"query": {"inputs": {"text": "new", "extra": 1}, "top_k": 50, "filter": {"a": 1}}},
        ),
        (("old",), {"top_k": 3}, {"inputs": {"text": "new"}, "top_k": 50}),
        ((), {"query": "old", "top_k": 3}, {"inputs": {"text": "new"}, "top_k": 50}),
    ],
)
def test_pinecones_search_is_read_and_rewritten_in_every_form(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any], query_arg: str | None
) -> None:
    before = copy.deepcopy(kwargs)
    shape = read_signature(INDEX.search, query_arg=query_arg)
    kwargs = {"namespace": "ns", **kwargs}
    assert shape.read_query(args, kwargs) == "old"
    assert shape.read_top_k(args, kwargs) == 3
    assert shape.replace_arguments(args, kwargs, query="new", top_k=50) == (
        (),
        {"namespace": "ns", **expected},
    )
    assert kwargs == {"namespace": "ns", **before}


@pytest.mark.parametrize("query_arg", [None, "query.inputs.text"])
def test_a_search_query_object_is_copied_before_it_is_changed(query_arg: str | None) -> None:
    query = SearchQuery(inputs={"text": "old"}, top_k=3, filter={"a": 1})
    shape = read_signature(INDEX.search, query_arg=query_arg)
    assert (shape.read_query((), {"query": query}), shape.read_top_k((), {"query": query})) == (
        "old",
        3,
    )
    _, kwargs = shape.replace_arguments((), {"query": query}, query="new", top_k=50)
    assert kwargs["query"].to_dict() == {"inputs": {"text": "new"}, "top_k": 50, "filter": {"a": 1}}
    assert query.to_dict() == {"inputs": {"text": "old"}, "top_k": 3, "filter": {"a": 1}}


@dataclass(frozen=True)
class Frozen:
    inputs: dict[str, Any]
    top_k: int


def older_search(namespace: str, query: Any, rerank: Any = None, fields: Any = None) -> Any:
    """The signature of SDK 6 to 8."""


@pytest.mark.parametrize("make", [dict, Frozen])
def test_the_nested_query_of_older_versions_is_read_by_position_and_by_name(
    make: Callable[..., Any],
) -> None:
    query = make(inputs={"text": "old"}, top_k=3)
    new = make(inputs={"text": "new"}, top_k=50)
    for fn in (older_search, loose):
        shape = read_signature(fn)
        assert shape.read_query((), {"namespace": "n", "query": query}) == "old"
        assert shape.replace_arguments(
            (), {"namespace": "n", "query": query}, query="new", top_k=50
        ) == (
            (),
            {"namespace": "n", "query": new},
        )
    assert read_signature(older_search).replace_arguments(
        ("n", query), {}, query="new", top_k=50
    ) == (
        ("n", new),
        {},
    )


def older_query(
    *args: Any, top_k: int, vector: Any = None, namespace: Any = None, **kwargs: Any
) -> Any:
    """The signature of SDK 5 to 8."""


def by_vector(vector: list[float], top_k: int = 4) -> Any: ...
def by_both(query: str, vector: list[float] | None = None) -> Any: ...
def under_query(query: Any, top_k: int = 4) -> Any: ...
def by_odd_name(numbers: list[float]) -> Any: ...


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected"),
    [
        (INDEX.query, ("t",), {"top_k": 3}, ((), {"vector": VECTOR, "top_k": 3})),
        (INDEX.query, (), {"query": "t", "top_k": 3}, ((), {"vector": VECTOR, "top_k": 3})),
        (INDEX.query, (), {"vector": "t", "top_k": 3}, ((), {"vector": VECTOR, "top_k": 3})),
        (older_query, ("t",), {"top_k": 3}, ((), {"vector": VECTOR, "top_k": 3})),
        (older_query, (), {"vector": "t", "top_k": 3}, ((), {"vector": VECTOR, "top_k": 3})),
        (INDEX.search, ("t",), {"namespace": "n"}, ((), {"vector": VECTOR, "namespace": "n"})),
        (
            INDEX.search,
            (),
            {"namespace": "n", "inputs": {"text": "t"}},
            ((), {"vector": VECTOR, "namespace": "n"}),
        ),
        (
            INDEX.query_namespaces,
            ("t",),
            {"namespaces": ["n"]},
            ((), {"vector": VECTOR, "namespaces": ["n"]}),
        ),
        (by_vector, ("t", 3), {}, ((VECTOR, 3), {})),
        (by_vector, (), {"vector": "t"}, ((), {"vector": VECTOR})),
        (by_vector, (), {"query": "t"}, ((), {"vector": VECTOR})),
        (by_both, ("t",), {}, (("t",), {"vector": VECTOR})),
        (under_query, ("t",), {"top_k": 3}, ((VECTOR,), {"top_k": 3})),
        (by_odd_name, ("t",), {}, ((VECTOR,), {})),
        (loose, ("t", 3), {}, ((VECTOR, 3), {})),
        (functools.partial(by_vector, top_k=2), ("t",), {}, ((VECTOR,), {})),
    ],
)
def test_a_vector_goes_where_the_function_wants_it_however_the_text_came(
    fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any
) -> None:
    shape = read_signature(fn, takes_vector=True)
    assert shape.read_query(args, kwargs) == "t"
    assert shape.replace_arguments(args, kwargs, query=VECTOR, top_k=None) == expected


def test_a_nested_top_k_is_passed_on_where_a_vector_takes_the_place_of_the_text() -> None:
    shape = read_signature(INDEX.search, takes_vector=True)
    query = {"inputs": {"text": "t"}, "top_k": 3}
    expected = {"vector": VECTOR, "top_k": 50, "namespace": "n"}
    assert shape.replace_arguments(
        (), {"namespace": "n", "query": query}, query=VECTOR, top_k=50
    ) == (
        (),
        expected,
    )


def annotated(of: list[float], k: int = 4) -> None: ...


@dataclass
class Bundle:
    """As LlamaIndex passes a query: its text, and the vectors of it once there are any."""

    query_str: str
    embedding: list[float] | None = None


def test_the_text_of_a_query_bundle_is_read_and_replaced_with_no_vector_of_the_former_one() -> None:
    shape, bundle = read_signature(lambda query_bundle: None), Bundle("old", VECTOR)
    assert shape.read_query((bundle,), {}) == "old"
    assert shape.replace_arguments((bundle,), {}, query="new", top_k=None) == ((Bundle("new"),), {})
    assert shape.replace_arguments((bundle,), {}, query="old", top_k=None) == ((bundle,), {})
    assert bundle == Bundle("old", VECTOR)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: read_signature(by_vector), "embed="),
        (lambda: read_signature(older_query), "embed="),
        (lambda: read_signature(INDEX.query), "embed="),
        (
            lambda: read_signature(loose).read_query((), {"vector": VECTOR}),
            "wrap it with embed=; otherwise pass it as 'query'",
        ),
        (lambda: read_signature(annotated), "embed="),
        (lambda: read_signature(plain, query_arg="querry"), "did you mean 'query'"),
        (lambda: read_signature(plain, top_k_arg="depth"), "query, top_k, namespace"),
        (lambda: read_signature(lambda: None), "query_arg="),
        (lambda: read_signature(lambda *, foo: foo), "its parameters are: foo"),
        (lambda: read_signature(functools.partial(plain, "x")), "already sets 'query'"),
        (lambda: read_signature(functools.partial(plain, query="x")), "already sets 'query'"),
        (
            lambda: read_signature(functools.partial(plain, "x"), query_arg="query"),
            "already sets 'query'",
        ),
        (
            lambda: read_signature(functools.partial(INDEX.search, inputs={"text": "x"})),
            "already sets 'inputs'",
        ),
        (lambda: read_signature("not callable"), "is not callable"),  # type: ignore[arg-type]
        (lambda: read_signature(plain).read_query((), {}), "without a query"),
        (lambda: read_signature(loose).read_query((), {"namespace": "n"}), "query_arg="),
        (
            lambda: read_signature(INDEX.search).read_query((), {"inputs": {"image": "x"}}),
            "inputs.text",
        ),
        (
            lambda: read_signature(INDEX.search).read_query(
                (), {"query": {"id": "x"}, "namespace": "n"}
            ),
            "inputs.text",
        ),
    ],
)
def test_what_cannot_be_wrapped_is_refused_with_advice(
    make: Callable[[], Any], advice: str
) -> None:
    with pytest.raises(WrapError) as caught:
        make()
    assert advice in str(caught.value)


@given(
    query=st.text(),
    new=st.text(),
    top_k=st.none() | st.integers(1, 10_000),
    rest=st.dictionaries(
        st.sampled_from(["namespace", "filter", "fields"]), st.recursive(st.integers(), st.lists)
    ),
    form=st.sampled_from(["inputs", "query", "positional"]),
)
def test_only_the_query_and_top_k_change_and_nothing_is_mutated(
    query: str, new: str, top_k: int | None, rest: dict[str, Any], form: str
) -> None:
    args: tuple[Any, ...] = (query,) if form == "positional" else ()
    kwargs = dict(rest)
    if form == "inputs":
        kwargs["inputs"] = {"text": query}
    elif form == "query":
        kwargs["query"] = {"inputs": {"text": query}, "top_k": 3}
    before = copy.deepcopy((args, kwargs))
    shape = read_signature(INDEX.search)
    new_args, new_kwargs = shape.replace_arguments(args, kwargs, query=new, top_k=top_k)
    assert (args, kwargs) == before
    assert shape.read_query(new_args, new_kwargs) == new
    assert shape.read_top_k(new_args, new_kwargs) == (top_k or (3 if form == "query" else None))
    assert {name: new_kwargs[name] for name in rest} == rest
    assert new_kwargs.keys() - {"inputs", "query", "top_k"} == rest.keys()


async def coroutine(query: str) -> Any: ...


class Async:
    async def search(self, query: str) -> Any: ...

    async def __call__(self, query: str) -> Any: ...

    @classmethod
    async def of_class(cls, query: str) -> Any: ...

    @staticmethod
    async def of_nobody(query: str) -> Any: ...


@functools.wraps(coroutine)
def logged(*args: Any, **kwargs: Any) -> Any:
    return coroutine(*args, **kwargs)


class Holder:
    """Keeps the function it calls, as many decorators do."""

    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@pytest.mark.parametrize(
    "fn",
    [
        coroutine,
        logged,
        Holder(coroutine),
        Async(),
        Async().search,
        Async.search,
        Async.of_class,
        Async.of_nobody,
        Async.__dict__["of_class"],
        Async.__dict__["of_nobody"],
        functools.partial(coroutine, "x"),
        functools.partial(functools.partial(Async().search)),
        functools.partial(Async()),
    ],
)
def test_every_kind_of_async_callable_is_told(fn: Any) -> None:
    assert is_async(fn)


@pytest.mark.parametrize(
    "fn",
    [
        plain,
        me,
        me.search,
        Async,
        functools.partial(plain),
        wrapped,
        Holder(plain),
        len,
        loose,
        lambda q: q,
        None,
    ],
)
def test_a_sync_callable_is_no_async_one(fn: Any) -> None:
    assert not is_async(fn)
