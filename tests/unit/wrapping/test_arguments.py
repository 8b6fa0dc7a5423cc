"""The query is found wherever it is passed, and every other argument reaches every search untouched."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict, Field

import qtmiddleware as qtm
from tests.support.wrapping_world import QUERY, REWRITE, WIDE, ids, middleware, rows

qm = middleware()


class Recorder:
    """Collects the calls of the functions below."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def note(self, **arguments: Any) -> Any:
        self.seen.append(arguments)
        return rows()

    def values(self, name: str) -> list[Any]:
        return [call[name] for call in sorted(self.seen, key=lambda call: str(call["query"]))]


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((QUERY, 3), {}), ((QUERY,), {"top_k": 3}), ((), {"top_k": 3, "query": QUERY})],
    ids=["by position", "both", "by name"],
)
def test_the_query_is_found_by_position_and_by_name(args: Any, kwargs: Any, seen: Recorder) -> None:
    search = qm.wrap(lambda query, top_k=4: seen.note(query=query, top_k=top_k))
    assert ids(search(*args, **kwargs)) == ["near", "far"]
    assert seen.values("query") == [QUERY, REWRITE]
    assert seen.values("top_k") == [WIDE, WIDE]


def test_the_query_may_be_positional_only(seen: Recorder) -> None:
    def search(query: str, /, top_k: int = 4) -> Any:
        return seen.note(query=query, top_k=top_k)

    qm.wrap(search)(QUERY)
    assert seen.values("query") == [QUERY, REWRITE]


def test_the_query_may_be_keyword_only(seen: Recorder) -> None:
    def search(*, namespace: str, query: str, limit: int = 7) -> Any:
        return seen.note(query=query, namespace=namespace, limit=limit)

    qm.wrap(search)(query=QUERY, namespace="dogs")
    assert seen.values("query") == [QUERY, REWRITE]
    assert seen.values("namespace") == ["dogs", "dogs"]
    assert seen.values("limit") == [WIDE, WIDE]


def test_the_query_may_be_a_default(seen: Recorder) -> None:
    def search(query: str = QUERY, top_k: int = 4) -> Any:
        return seen.note(query=query)

    qm.wrap(search)()
    assert seen.values("query") == [QUERY, REWRITE]


def test_the_query_is_found_in_loose_arguments(seen: Recorder) -> None:
    def search(*args: Any, **kwargs: Any) -> Any:
        return seen.note(query=args[0] if args else kwargs["query"], kwargs=kwargs)

    qm.wrap(search)(QUERY, top_k=3)
    qm.wrap(search)(query=QUERY, top_k=3)
    assert seen.values("query") == [QUERY, QUERY, REWRITE, REWRITE]


def test_the_query_may_have_any_name(seen: Recorder) -> None:
    def search(namespace: str, words: str, count: int) -> Any:
        return seen.note(query=words, count=count, namespace=namespace)

    qm.wrap(search, query_arg="words", top_k_arg="count")("dogs", QUERY, 1)
    assert seen.values("query") == [QUERY, REWRITE]
    assert seen.values("count") == [WIDE, WIDE]
    assert seen.values("namespace") == ["dogs", "dogs"]


def test_the_query_may_lie_inside_an_argument(seen: Recorder) -> None:
    def search(*, body: dict[str, Any]) -> Any:
        return seen.note(query=body["inputs"]["text"], body=body)

    body = {"inputs": {"text": QUERY, "language": "en"}, "filter": {"a": 1}}
    before = copy.deepcopy(body)
    qm.wrap(search, query_arg="body.inputs.text")(body=body)
    assert body == before
    assert seen.values("query") == [QUERY, REWRITE]
    assert all(other["filter"] is body["filter"] for other in seen.values("body"))
    assert all(other["inputs"]["language"] == "en" for other in seen.values("body"))


class Asked(NamedTuple):
    limit: int = 3
    language: str = "en"


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


@pytest.mark.parametrize(
    "request_object",
    [
        {"text": QUERY, "limit": 3},
        Plain(),
        SimpleNamespace(text=QUERY, limit=3),
        Frozen(),
        Validated(text=QUERY),
    ],
    ids=lambda it: type(it).__name__,
)
@pytest.mark.parametrize("by_name", [True, False], ids=["by name", "by position"])
def test_the_number_of_passages_may_lie_inside_an_argument(
    seen: Recorder, request_object: Any, by_name: bool
) -> None:
    def search(req: Any) -> Any:
        read = req.get if isinstance(req, dict) else partial(getattr, req)
        return seen.note(query=read("text"), limit=read("limit"), req=req)

    before = copy.deepcopy(request_object)
    wrapped = qm.wrap(search, query_arg="req.text", top_k_arg="req.limit")
    assert ids(wrapped(req=request_object) if by_name else wrapped(request_object)) == [
        "near",
        "far",
    ]
    assert request_object == before
    assert seen.values("query") == [QUERY, REWRITE]
    assert seen.values("limit") == [WIDE, WIDE]
    assert all(type(it) is type(request_object) for it in seen.values("req"))


def test_a_number_in_a_pydantic_model_counts_as_set(seen: Recorder) -> None:
    def search(req: Validated) -> Any:
        return seen.note(query=req.text, sent=req.model_dump(exclude_unset=True))

    qm.wrap(search, query_arg="req.text", top_k_arg="req.limit")(Validated(text=QUERY))
    assert [it["limit"] for it in seen.values("sent")] == [WIDE, WIDE]


def test_the_number_of_passages_may_lie_in_a_body_of_elastic(seen: Recorder) -> None:
    def search(body: dict[str, Any]) -> Any:
        return seen.note(query=body["query"]["match"]["text"], size=body["size"], body=body)

    body = {"query": {"match": {"text": QUERY}}, "size": 3, "sort": ["_score"]}
    before = copy.deepcopy(body)
    qm.wrap(search, query_arg="body.query.match.text", top_k_arg="body.size")(body)
    assert body == before
    assert seen.values("size") == [WIDE, WIDE]
    assert all(it["sort"] is body["sort"] for it in seen.values("body"))


def test_the_number_of_passages_may_lie_in_another_argument_than_the_query(seen: Recorder) -> None:
    def search(query: str, options: Asked = Asked()) -> Any:  # noqa: B008
        return seen.note(query=query, options=options)

    wrapped = qm.wrap(search, top_k_arg="options.limit")
    wrapped(QUERY)
    wrapped(QUERY, Asked(2, "de"))
    assert seen.seen[0]["options"] == Asked(WIDE, "en")
    assert seen.seen[-1]["options"] == Asked(WIDE, "de")


class Unreadable:
    @property
    def limit(self) -> int:
        raise RuntimeError("not now")


class Fixed:
    @property
    def limit(self) -> int:
        return 3


@pytest.mark.parametrize(
    "options",
    [None, "text", {}, {"limit": None}, {"limit": "3"}, Unreadable(), Fixed()],
    ids=lambda it: repr(it)[:20],
)
def test_a_number_that_cannot_be_read_or_changed_is_passed_on(options: Any, seen: Recorder) -> None:
    search = qm.wrap(
        lambda query, options: seen.note(query=query, options=options), top_k_arg="options.limit"
    )
    search(QUERY, options)
    assert seen.values("query") == [QUERY, REWRITE]
    assert all(type(it) is type(options) for it in seen.values("options"))
    assert (
        options is None
        or isinstance(options, Unreadable | Fixed)
        or seen.values("options")[0] == options
    )


def test_a_number_inside_an_argument_is_no_parameter_to_pass_by_name() -> None:
    search = qm.wrap(lambda req: [], query_arg="req.text", top_k_arg="req.limit")
    assert search.top_k_argument is None


def test_a_request_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        qtm.WrapError,
        match=r"has no parameter 'reqq', but top_k_arg= names it; did you mean 'req'\?",
    ):
        qm.wrap(lambda req: [], query_arg="req.text", top_k_arg="reqq.limit")


def test_other_arguments_are_the_very_same_objects_in_every_search(seen: Recorder) -> None:
    filters, options, extra = {"lang": "en"}, ["a"], object()
    before = copy.deepcopy((filters, options))

    def search(query: str, filters: Any, *more: Any, top_k: int = 4, **kwargs: Any) -> Any:
        return seen.note(query=query, filters=filters, more=more, kwargs=kwargs)

    qm.wrap(search)(QUERY, filters, options, extra=extra)
    assert len(seen.seen) == 2
    assert all(it is filters for it in seen.values("filters"))
    assert all(it[0] is options for it in seen.values("more"))
    assert all(it["extra"] is extra for it in seen.values("kwargs"))
    assert (filters, options) == before


def test_keyword_arguments_of_the_caller_are_never_written_to(seen: Recorder) -> None:
    search = qm.wrap(lambda query, top_k=4: seen.note(query=query))
    arguments = {"query": QUERY, "top_k": 2}
    search(**arguments)
    assert arguments == {"query": QUERY, "top_k": 2}


def test_without_a_top_k_nothing_is_widened_or_cut(seen: Recorder) -> None:
    search = qm.wrap(lambda query: seen.note(query=query))
    retrieval = search.retrieve(QUERY)
    assert len(retrieval.matches) == 3
    assert seen.values("query") == [QUERY, REWRITE]


def test_a_top_k_beyond_the_candidates_stays(seen: Recorder) -> None:
    search = qm.wrap(lambda query, top_k=4: seen.note(query=query, top_k=top_k))
    search(QUERY, top_k=WIDE + 1)
    assert seen.values("top_k") == [WIDE + 1, WIDE + 1]


@pytest.mark.parametrize("top_k", [None, "4", 2.5, True])
def test_a_top_k_that_is_no_number_is_passed_on(top_k: Any, seen: Recorder) -> None:
    search = qm.wrap(lambda query, top_k=4: seen.note(query=query, top_k=top_k))
    search(QUERY, top_k=top_k)
    assert all(it is top_k for it in seen.values("top_k"))


def test_a_query_that_is_not_found_is_told_of_with_what_to_do(seen: Recorder) -> None:
    def search(query: str | None = None, top_k: int = 4, **more: Any) -> Any:
        return seen.note(query=query, **more)

    retrieval = qm.wrap(search, query_arg="query").retrieve(asked=QUERY)
    assert seen.seen == [{"query": None, "asked": QUERY}]
    (it,) = retrieval.degradations
    assert it.reason == "missing"
    assert "query_arg=" in it.detail


def test_an_unknown_argument_is_the_functions_own_error(seen: Recorder) -> None:
    search = qm.wrap(lambda query, top_k=4: seen.note(query=query))
    with pytest.raises(TypeError, match="topk"):
        search(QUERY, topk=3)


def test_a_config_of_the_functions_own_stays_its_own(seen: Recorder) -> None:
    def search(query: str, config: dict[str, Any] | None = None, top_k: int = 4) -> Any:
        return seen.note(query=query, config=config)

    wrapped = qm.wrap(search)
    tags = {"tags": ["mine"]}
    wrapped(QUERY, config=tags)
    retrieval = wrapped.retrieve(QUERY, config=tags)
    assert [variant.kind for variant in retrieval.variants] == ["original", "rewrite"]
    assert all(config is tags for config in seen.values("config"))
    seen.seen.clear()
    retrieval = wrapped.retrieve(QUERY, config=tags, qtm_config={"transformationType": "none"})
    assert [variant.kind for variant in retrieval.variants] == ["original"]
    assert seen.values("config") == [tags]


def test_a_config_for_a_function_that_hides_its_parameters_is_refused_with_the_way_to_pass_it_on() -> (
    None
):
    wrapped = qm.wrap(lambda query, **options: (query, options))
    with pytest.raises(
        qtm.ConfigError, match=r"if <lambda>\(\) needs config=, add a parameter of that name"
    ):
        wrapped.retrieve(QUERY, config={"tags": ["mine"]})


class Retriever:
    """As LangChain's: an object that is not called itself."""

    def invoke(self, input: str, config: Any = None) -> Any:  # noqa: A002
        return input, config


def test_an_object_that_is_no_function_is_refused_with_the_method_to_wrap() -> None:
    with pytest.raises(qtm.WrapError, match=r"wrap its search method: \.invoke"):
        qm.wrap(Retriever())  # type: ignore[call-overload]


def test_settings_of_one_call_have_a_name_that_no_function_uses(seen: Recorder) -> None:
    wrapped = qm.wrap(lambda query, top_k=4: seen.note(query=query))
    wrapped.retrieve(QUERY, qtm_config={"transformationType": "none"})
    assert seen.values("query") == [QUERY]
    with pytest.raises(qtm.ConfigError, match="did you mean"):
        wrapped.retrieve(QUERY, qtm_config={"transformation": "none"})


def test_a_call_without_a_query_is_made_as_it_was(seen: Recorder) -> None:
    def search(query: str | None = None, id: str | None = None, top_k: int = 4) -> Any:  # noqa: A002
        return seen.note(query=query, id=id)

    retrieval = qm.wrap(search).retrieve(id="near")
    assert seen.seen == [{"query": None, "id": "near"}]
    assert retrieval.original_query == ""
    assert [(it.stage, it.reason) for it in retrieval.degradations] == [("query", "missing")]


def test_a_missing_argument_is_told_by_the_function_itself() -> None:
    def search(query: str, top_k: int = 4) -> Any:
        return rows()

    with pytest.raises(
        TypeError, match=r"search\(\) missing 1 required positional argument: 'query'"
    ):
        qm.wrap(search)()
