"""Calls that are out of the ordinary: what nothing can be made of is passed on, what breaks beside the search breaks nothing."""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.laws.cases import Case
from tests.laws.world import PATIENCE, PATIENT_MS, QUERY, REPLIES, World, decorate, make_function
from tests.support.living import tasks_left
from tests.support.waiting import await_until

PATIENT: Final = {"limits": {"llmTimeoutMs": PATIENT_MS, "deadlineMs": 2 * PATIENT_MS}}
REWRITE: Final = {"transformationType": "rewrite", **PATIENT}
RERANK: Final = {"rerank": {"enabled": True}, **PATIENT}
WAYS: Final = ("blocking", "async")
both_ways: Final = pytest.mark.parametrize("way", WAYS)


class Search:
    """A function of a question and a number; *calls* are those it got."""

    def __init__(
        self, way: str = "blocking", respond: Callable[[Any, int], Any] | None = None
    ) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.returned: list[Any] = []
        self.is_async = way == "async"

        def search(query: Any, top_k: int = 3) -> Any:
            self.calls.append((query, top_k))
            self.returned.append((respond or _respond)(query, top_k))
            return self.returned[-1]

        self.function: Any = decorate(search, is_async=self.is_async)

    def wrap(self, setting: Any, *, client: Any = None, **helpers: Any) -> Any:
        """The function behind a new middleware with *helpers*."""
        client = client or ScriptedModel(_reply)
        return qtm.QueryMiddleware(setting, client=client, **helpers).wrap(self.function)

    def ask(self, setting: Any, /, *args: Any, client: Any = None, **kwargs: Any) -> qtm.Retrieval:
        return self.ask_again(self.wrap(setting, client=client), *args, **kwargs)

    def ask_again(self, wrapped: Any, *args: Any, **kwargs: Any) -> qtm.Retrieval:
        if self.is_async:
            found: qtm.Retrieval = asyncio.run(wrapped.aretrieve(*args, **kwargs))
            return found
        return wrapped.retrieve(*args, **kwargs)  # type: ignore[no-any-return]


async def _wait_for(found: Any) -> Any:
    return await found


def call(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
    found = wrapped(*args, **kwargs)
    return asyncio.run(_wait_for(found)) if inspect.isawaitable(found) else found


TEXTS: Final = (
    "The fee is due in March",
    "Dogs sleep most of the day",
    "Jaco has no health concerns",
    "Jaco eats dry food",
    "The vet comes in May",
    "A cat came from the south",
)


def _respond(query: Any, top_k: int, offset: int = 0) -> list[dict[str, Any]]:
    rows = [
        {"id": str(place), "score": 0.8 - place / 50, "text": text}
        for place, text in enumerate(TEXTS)
    ]
    return rows[offset:][:top_k]


def _reply(prompt: Any) -> dict[str, Any]:
    return {wanted.name: REPLIES[wanted.name] for wanted in prompt.fields}


def _problems(retrieval: qtm.Retrieval) -> list[tuple[str, str]]:
    return [(it.stage, it.reason) for it in retrieval.degradations]


# --- what the wrapped function looks like -----------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize("kind", ["function", "method", "object", "partial"])
@pytest.mark.parametrize("number", ["default", "absent"])
def test_signature_name_and_docstring_are_the_functions(way: str, kind: str, number: str) -> None:
    function = make_function(World(Case(way=way, callable=kind, number=number)))
    wrapped: Any = qtm.QueryMiddleware().wrap(function)
    assert inspect.signature(wrapped) == inspect.signature(function)
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(function, name):
            assert getattr(wrapped, name) == getattr(function, name)


def test_a_decorated_method_belongs_to_its_object() -> None:
    class Shelf:
        def __init__(self, name: str) -> None:
            self.name = name

        @qtm.middleware
        def search(self, query: str, *, top_k: int = 2) -> list[dict[str, Any]]:
            return [{"id": self.name, "score": 0.5, "text": query}]

        @qtm.middleware
        async def asearch(self, query: str) -> list[dict[str, Any]]:
            await asyncio.sleep(0)
            return [{"id": self.name, "score": 0.5, "text": query}]

    for name in "ab":
        for search in (Shelf(name).search, Shelf(name).asearch):
            assert call(search, QUERY)[0]["id"] == name
    assert Shelf("c").search.retrieve(query=QUERY).matches[0].id == "c"
    assert str(inspect.signature(Shelf("d").search)).startswith("(query")


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((QUERY,), {"topk": 3}), ((1, 2, 3, 4), {})]
)
def test_a_call_that_the_function_does_not_take_raises_its_error(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    search = Search()
    with pytest.raises(TypeError) as plain:
        search.function(*args, **kwargs)
    with pytest.raises(TypeError) as raised:
        qtm.QueryMiddleware().wrap(search.function)(*args, **kwargs)
    assert str(raised.value) == str(plain.value)


# --- what nothing can be made of is passed on -------------------------------------------------------------------

QUESTIONS: Final[dict[str, tuple[Any, str]]] = {
    "blank": (" \t\u2003\n", "blank"),
    "overlong": ("dog " * 2_001, "too_long"),
    "a number": (42, "not_text"),
    "parts": ([{"type": "text", "text": "Does Jaco eat?"}], "not_text"),
    "nothing": (None, "not_text"),
}


@both_ways
@pytest.mark.parametrize("config", ["off", "rules", "balanced"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_that_is_none_goes_to_the_function_as_it_is(
    name: str, config: str, way: str
) -> None:
    question, reason = QUESTIONS[name]
    search, model = Search(way), ScriptedModel(_reply)
    retrieval = search.ask(config, question, top_k=2, client=model)
    assert search.calls == [(question, 2)]
    assert search.calls[0][0] is retrieval.original_query is question
    assert retrieval.response is search.returned[0]
    assert model.prompts == []
    assert _problems(retrieval) == [("query", reason)]


PAGES: Final = (
    "offset skip start page cursor page_token next_token after pagination pageNumber named"
)


@pytest.mark.parametrize("is_declared", [True, False], ids=["parameter", "keyword"])
@pytest.mark.parametrize("config", ["rules", REWRITE])
@pytest.mark.parametrize("name", PAGES.split())
def test_a_later_page_is_not_widened_whatever_its_argument_is_called(
    name: str, config: Any, is_declared: bool
) -> None:
    calls: list[tuple[int, int]] = []

    def search(query: str, top_k: int = 2, **kwargs: int) -> list[dict[str, Any]]:
        calls.append((top_k, kwargs.get(name, 0)))
        return _respond(query, *calls[-1])

    code = f"lambda query, top_k=2, {name}=0: search(query, top_k, {name}={name})"
    function = eval(code, {"search": search}) if is_declared else search
    qm = qtm.QueryMiddleware(config, client=ScriptedModel(_reply))
    wrapped: Any = qm.wrap(function, page_arg=name if name == "named" else None)
    for place in (2, 4):
        found = wrapped(QUERY, 2, **{name: place})
        assert calls.pop() == (2, place)
        assert sorted(row["id"] for row in found) == [str(place), str(place + 1)]
        assert calls == []


@both_ways
@pytest.mark.parametrize("history", [["hello"], [3], [{"role": "user", "content": 7}]])
def test_a_history_that_cannot_be_read_is_left_out_and_told(history: list[Any], way: str) -> None:
    retrieval = Search(way).ask(REWRITE, QUERY, history=history)
    assert _problems(retrieval) == [("history", "unreadable")]
    assert retrieval.response == Search(way).ask(REWRITE, QUERY).response


@both_ways
def test_in_a_conversation_the_original_query_is_still_the_users_own(way: str) -> None:
    history = [{"role": "user", "content": QUERY}, {"role": "assistant", "content": "No."}]
    before = copy.deepcopy(history)
    retrieval = Search(way).ask(REWRITE, "And what does he eat?", history=history)
    assert retrieval.original_query == "And what does he eat?"
    assert retrieval.status == "full"
    assert len(retrieval.response) == 3
    assert history == before


@both_ways
@pytest.mark.parametrize("response", [42, "a text", {"took": 3}], ids=lambda it: type(it).__name__)
def test_a_response_of_unknown_shape_is_returned_as_it_is(response: Any, way: str) -> None:
    retrieval = Search(way, lambda *_: response).ask(REWRITE, QUERY)
    assert retrieval.response is response
    assert _problems(retrieval) == [("response", "unreadable")]


class Frame:
    """What tells a data frame: rows by place, and columns."""

    columns = ("id", "text")
    iloc = ()

    def __len__(self) -> int:
        return 2


@both_ways
def test_a_data_frame_is_returned_as_it_is_with_one_warning_that_names_read_and_write(
    way: str,
) -> None:
    response = Frame()
    search = Search(way, lambda *_: response)
    wrapped = search.wrap(REWRITE)
    with pytest.warns(qtm.SetupWarning, match=r"pass read= .* and write= ") as told:
        found = [call(wrapped, QUERY) for _ in range(3)]
    assert found == [response] * 3
    assert len(told) == 1


@both_ways
@pytest.mark.parametrize("item", ["dict", "pair"])
def test_two_functions_of_the_user_read_a_response_and_write_it(item: str, way: str) -> None:
    def respond(query: Any, top_k: int) -> Any:
        rows = _respond(query, top_k)
        return {"box": rows if item == "dict" else [(row["text"], row["score"]) for row in rows]}

    def write(response: Any, items: Any) -> Any:
        return {**response, "box": list(items)}

    search, qm = Search(way, respond), qtm.QueryMiddleware(REWRITE, client=ScriptedModel(_reply))
    wrapped = qm.wrap(search.function, read=lambda response: response["box"], write=write)
    box = call(wrapped, QUERY)["box"]
    assert len(box) == 3
    assert box[0] in [it for response in search.returned for it in response["box"]]
    assert "Jaco has no health concerns" in str(box[0])


def _fail_to_fuse(*_: Any) -> Any:
    raise ValueError


@both_ways
@pytest.mark.parametrize(
    "fuse", [_fail_to_fuse, lambda *_: [(("", "x"), 1.0)], lambda *_: 3, lambda *_: [("a",)]]
)
def test_a_function_that_fails_to_fuse_leaves_the_questions_own_list(fuse: Any, way: str) -> None:
    config = {**REWRITE, "keywordEvidence": {"enabled": False}}
    search = Search(way)
    found = search.ask_again(search.wrap(config, fuse=fuse), QUERY)
    assert found.response == _respond(QUERY, 3)
    assert _problems(found) == [("fusion", "failed")]


@both_ways
@pytest.mark.parametrize(
    "response", [None, [], (), {"matches": []}], ids=lambda it: type(it).__name__
)
def test_an_empty_response_is_returned_as_it_is(response: Any, way: str) -> None:
    for config in ("rules", REWRITE):
        retrieval = Search(way, lambda *_: response).ask(config, QUERY)
        assert retrieval.response == response
        assert type(retrieval.response) is type(response)
        assert retrieval.status == "full"


ODD_SCORES: Final[dict[str, tuple[Any, ...]]] = {
    "not numbers": (float("nan"), 0.5, float("nan")),
    "texts": ("high", "low", "lower"),
    "unsorted": (0.1, 0.9, 0.5),
    "rising": (0.1, 0.5, 0.9),
    "huge": (1e308, 1e308, -1e308),
}


@both_ways
@pytest.mark.parametrize("config", ["rules", REWRITE])
@pytest.mark.parametrize("name", ODD_SCORES)
def test_odd_scores_change_no_passage(name: str, config: Any, way: str) -> None:
    rows = [
        {"id": str(place), "score": score, "text": TEXTS[place]}
        for place, score in enumerate(ODD_SCORES[name])
    ]
    retrieval = Search(way, lambda *_: rows).ask(config, QUERY)
    assert sorted(map(repr, retrieval.response)) == sorted(map(repr, rows))
    assert retrieval.status == "full"


# --- what breaks beside the search breaks nothing ---------------------------------------------------------------


class Broken:
    """Whatever is asked of it, it fails."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("broken")


class BrokenObserver:
    def on_start(self, operation: Any) -> None:
        raise RuntimeError("broken")

    def on_end(self, operation: Any) -> None:
        raise RuntimeError("broken")


HELPERS: Final[dict[str, dict[str, Any]]] = {
    "hook": {"on_retrieval": Broken()},
    "observer": {"observers": (BrokenObserver(),)},
    "clock": {"clock": Broken()},
    "redaction": {"redact": Broken()},
}


@both_ways
@pytest.mark.parametrize("name", HELPERS)
def test_a_broken_helper_changes_nothing(name: str, way: str, tmp_path: Path) -> None:
    config = {**REWRITE, "log": {"path": str(tmp_path / "queries.jsonl")}}
    question = "Does Jaco have any health concerns since last year?"
    search = Search(way)
    found = search.ask_again(search.wrap(config, **HELPERS[name]), question)
    assert found.response == Search(way).ask(REWRITE, question).response
    assert found.original_query == question


BROKEN_RERANKERS: Final[dict[str, Any]] = {
    "raises": Broken(),
    "too few": lambda query, texts: [1.0],
    "not a number": lambda query, texts: [float("nan") for _ in texts],
    "texts": lambda query, texts: ["high" for _ in texts],
    "nothing": lambda query, texts: None,
}


@both_ways
@pytest.mark.parametrize("name", BROKEN_RERANKERS)
def test_a_broken_reranker_leaves_the_order_and_is_told(name: str, way: str) -> None:
    search = Search(way)
    found = search.ask_again(search.wrap(RERANK, reranker=BROKEN_RERANKERS[name]), QUERY)
    assert found.response == Search(way).ask("rules", QUERY).response
    assert [match.rerank_score for match in found.matches] == [None] * 3
    assert _problems(found) == [("rerank", "failed")]


@pytest.fixture
def hang() -> Iterator[Callable[..., Any]]:
    """Something that blocks until the test is over, and tells if somebody waited for it."""
    released, outwaited = threading.Event(), list[Any]()

    def wait(*args: Any) -> Any:
        if not released.wait(PATIENCE):
            outwaited.append(args)

    yield wait
    released.set()
    assert outwaited == []


@both_ways
def test_a_reranker_that_hangs_is_not_waited_for(way: str, hang: Callable[..., Any]) -> None:
    config = {"rerank": {"enabled": True}, "limits": {"deadlineMs": 100}}
    search = Search(way)
    found = search.ask_again(search.wrap(config, reranker=hang), QUERY)
    assert found.response == Search(way).ask("rules", QUERY).response
    assert _problems(found) == [("rerank", "timeout")]


class SharedCache:
    """What several processes share: a dict of values; *broken* takes the place of `get` or `set`."""

    def __init__(self, **broken: Callable[..., Any]) -> None:
        self.values: dict[str, str] = {}
        self.seconds: list[int] = []
        vars(self).update(broken)

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: str, seconds: int) -> Any:
        self.values[key] = value
        self.seconds.append(seconds)


def make_async(cache: SharedCache) -> SharedCache:
    """*cache* with methods to be awaited."""
    for name in ("get", "set"):
        setattr(cache, name, decorate(getattr(cache, name), is_async=True))
    return cache


both_caches: Final = pytest.mark.parametrize(
    "made", [lambda cache: cache, make_async], ids=["blocking cache", "async cache"]
)


@both_ways
@both_caches
def test_who_shares_a_cache_shares_what_the_model_said(made: Any, way: str) -> None:
    # A sentence, which may be longer than a keyword.
    rewrite = f"{QUERY.rstrip('?')} according to the notes of the vet who saw him in the old town?"
    cache, model = SharedCache(), ScriptedModel({"rewrite": f"In other words, {rewrite}"})
    shared = made(cache)

    def ask() -> qtm.Retrieval:
        config = {**REWRITE, "cache": {"ttlSeconds": 77}}
        search = Search(way)
        return search.ask_again(search.wrap(config, client=model, cache=shared), QUERY)

    first, second = ask(), ask()
    assert len(model.prompts) == 1
    assert second.transformation == first.transformation
    assert second.response == first.response
    assert {it.status for it in (first, second)} == {"full"}
    assert (second.trace.cache_hits, cache.seconds) == (1, [77])
    assert all(set(key.removeprefix("qtm:")) <= set("0123456789abcdef") for key in cache.values)


def _raise(*_: Any) -> Any:
    raise RuntimeError("broken")


BROKEN_CACHES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    "get raises": {"get": _raise},
    "set raises": {"set": _raise},
    "a number": {"get": lambda key: 42},
    "deep": {"get": lambda key: "[" * 100_000},
    "huge": {"get": lambda key: f'{{"key": "{key}", "rewrite": "{"a" * 2_000_000}"}}'},
    "not asked for": {"get": lambda key: f'{{"key": "{key}", "rewrite": "a", "hyde": "b"}}'},
    "another question's": {"get": lambda key: '{"key": "0", "rewrite": "Who are cats?"}'},
}


@both_ways
@both_caches
@pytest.mark.parametrize("name", BROKEN_CACHES)
def test_a_broken_cache_changes_nothing_and_is_told(name: str, made: Any, way: str) -> None:
    search = Search(way)
    wrapped = search.wrap(REWRITE, cache=made(SharedCache(**BROKEN_CACHES[name])))
    found, again = search.ask_again(wrapped, QUERY), search.ask_again(wrapped, QUERY)
    plain = Search(way).ask(REWRITE, QUERY)
    assert (found.response, found.transformation) == (plain.response, plain.transformation)
    assert _problems(found) == [("cache", "failed" if "raise" in name else "unreadable")]
    # What is known here needs no cache.
    assert (again.response, again.status) == (plain.response, "full")


async def _sleep(*_: Any) -> None:
    await asyncio.sleep(PATIENCE)


@both_ways
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", ["get", "set"])
def test_a_cache_that_hangs_is_not_waited_for(
    method: str, is_async: bool, way: str, hang: Callable[..., Any]
) -> None:
    cache = make_async(SharedCache()) if is_async else SharedCache()
    setattr(cache, method, _sleep if is_async else hang)
    search = Search(way)
    wrapped = search.wrap(REWRITE, cache=cache)
    found = search.ask_again(wrapped, QUERY)
    # It is not asked again for a while, so that a second question waits for nothing.
    other = search.ask_again(wrapped, f"{QUERY} And the cat?")
    assert found.response == Search(way).ask(REWRITE, QUERY).response
    assert _problems(found) == [("cache", "timeout")]
    assert other.status == "full"


async def test_a_blocking_cache_does_not_block_the_loop() -> None:
    reached, released = threading.Event(), threading.Event()

    def wait(key: str) -> None:
        reached.set()
        released.wait(PATIENCE)

    wrapped = Search("async").wrap(REWRITE, cache=SharedCache(get=wait))
    asked = asyncio.create_task(wrapped.aretrieve(QUERY))
    # Only a loop that goes on comes to see that the cache was asked.
    await await_until(reached.is_set)
    assert not asked.done()
    released.set()
    assert (await asked).response == Search().ask(REWRITE, QUERY).response


@pytest.mark.parametrize("cache", [{}, "redis://localhost", 3, lambda key: None])
def test_what_is_no_cache_is_refused_at_once(cache: Any) -> None:
    with pytest.raises(qtm.ConfigError, match="cache= must be an object with get"):
        qtm.QueryMiddleware(cache=cache)


class Failed(Exception):
    """What a vendor raises."""

    def __init__(self, status_code: int) -> None:
        super().__init__()
        self.status_code = status_code


@both_ways
@pytest.mark.parametrize(("status", "numbers"), [(429, [50]), (503, [50, 3]), (400, [50, 3])])
def test_a_search_that_fails_is_made_once_more_as_the_caller_asks_but_never_if_calls_are_too_many(
    status: int, numbers: list[int], way: str
) -> None:
    error = Failed(status)

    def fail(*_: Any) -> Any:
        raise error

    search = Search(way, fail)
    with pytest.raises(Failed) as raised:
        search.ask("rules", QUERY)
    assert raised.value is error
    assert [number for _, number in search.calls] == numbers


@both_ways
@pytest.mark.parametrize(("found", "searches"), [(3, 101), (5, 100), (60, 100)])
def test_a_small_collection_costs_one_search_more_and_a_healthy_function_none(
    found: int, searches: int, way: str
) -> None:
    rows = [{"id": str(n), "score": 1 - n / 99, "text": f"Note {n}"} for n in range(found)]
    search = Search(way, lambda _, top_k: rows[:top_k])
    wrapped = search.wrap("rules")
    for _ in range(100):
        assert len(call(wrapped, QUERY, top_k=5)) == min(found, 5)
    assert len(search.calls) == searches


@both_ways
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interruption_passes_through(kind: type[BaseException], way: str) -> None:
    def interrupt(query: Any, *_: Any) -> Any:
        raise kind

    with pytest.raises(kind):
        Search(way, interrupt).ask(REWRITE, QUERY)


@pytest.mark.parametrize(
    ("path", "value"), [("fusoin", {}), ("topK", 0), ("transformationType", "x")]
)
def test_a_bad_setting_for_one_call_is_refused_before_any_search(path: str, value: Any) -> None:
    search = Search()
    with pytest.raises(qtm.ConfigError) as refused:
        search.ask("rules", QUERY, config={path: value})
    assert (refused.value.path, search.calls) == (path, [])


# --- what a call leaves behind ----------------------------------------------------------------------------------


def test_no_result_is_kept_for_the_next_call() -> None:
    rows = _respond(QUERY, 6)
    search = Search(respond=lambda *_: list(rows))
    wrapped = search.wrap(REWRITE)
    assert len(wrapped(QUERY, top_k=6)) == 6
    del rows[2:]
    assert Counter(row["id"] for row in wrapped(QUERY, top_k=6)) == Counter("01")


mark: ContextVar[str] = ContextVar("mark", default="nobody")


@both_ways
def test_what_the_search_of_the_question_sets_is_seen_by_its_caller(way: str) -> None:
    """As it is after the plain call."""

    def respond(query: Any, *rest: Any) -> Any:
        mark.set(f"searched {query}")
        return _respond(query, *rest)

    search = Search(way, respond)
    wrapped = search.wrap(REWRITE)

    async def ask() -> str:
        found = wrapped(QUERY)
        await found if search.is_async else None
        return mark.get()

    assert asyncio.run(ask()) == f"searched {QUERY}"


def test_a_function_that_calls_its_wrapped_self_gets_the_plain_result() -> None:
    depth: list[str] = []

    @qtm.middleware
    def search(query: str, top_k: int = 3) -> Any:
        depth.append(query)
        return search("again", top_k) if len(depth) == 1 else _respond(query, top_k)

    assert len(search(QUERY)) == 3
    assert depth == [QUERY, "again"]


HANGING: Final = {
    "the model": Case(way="async", model="late", setting="rewrite"),
    "a variant's search": Case(way="async", search="variants hang", setting="all"),
    "the question's search": Case(way="async", search="slow", setting="rewrite"),
}


@pytest.mark.parametrize("name", HANGING)
async def test_a_cancelled_call_leaves_nothing_running(name: str) -> None:
    world = World(HANGING[name])
    # No model is there for the question's search, which waits for one.
    settings = {} if name == "the question's search" else {"transformationType": world.case.setting}
    qm = qtm.QueryMiddleware({**PATIENT, **settings}, client=world)
    asking = asyncio.ensure_future(qm.wrap(make_function(world))(QUERY))
    await await_until(lambda: name in world.waited_for)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert world.running == 0
    assert tasks_left() == set()
    assert world.outwaited == []


# --- a clear leader ---------------------------------------------------------------------------------------------


SURGERY: Final = "Does Jaco need chicken, carrots, rice, vitamins or surgery?"
LEADERS: Final[dict[str, tuple[str, list[tuple[float, str]]]]] = {
    "by far": (
        QUERY,
        [(0.82, "Jaco has no health concerns"), (0.55, "Health concerns of dogs")],
    ),
    "with as many words": (
        QUERY,
        [(0.6, "Jaco: health concerns, a record"), (0.58, "Concerns about the health of Jaco")],
    ),
    "by far, with a word less": (
        QUERY,
        [(0.85, "Jaco is in good health"), (0.45, "Jaco: health concerns")],
    ),
    "with none, where others have one": (
        QUERY,
        [(0.8, "He was seen by the vet and is fit"), (0.5, "Health insurance for cats")],
    ),
    "with a word less than another": (
        SURGERY,
        [
            (0.6, "Jaco: chicken, carrots, rice, vitamins"),
            (0.58, "Jaco: chicken, carrots, rice, vitamins, surgery"),
        ],
    ),
}


def _ask(question: str, scored: list[tuple[float, str]]) -> str:
    fillers = [(0.4 - place / 100, text) for place, text in enumerate(TEXTS) if "Jaco" not in text]
    rows = [
        {"id": str(place), "score": score, "text": text}
        for place, (score, text) in enumerate([*scored, *fillers])
    ]
    found = Search(respond=lambda query, top_k: rows[:top_k]).wrap("rules")(question, 6)
    return str(found[0]["text"])


@pytest.mark.parametrize("name", LEADERS)
def test_a_clear_leader_stays_first(name: str) -> None:
    question, scored = LEADERS[name]
    assert _ask(question, scored) == scored[0][1]


def test_a_passage_that_covers_clearly_more_of_the_question_comes_first() -> None:
    answer = "Jaco has no health concerns"
    scored = [(0.52, "Dogs need a vet once a year"), (0.51, "Dogs sleep"), (0.50, answer)]
    assert _ask(QUERY, scored) == answer
