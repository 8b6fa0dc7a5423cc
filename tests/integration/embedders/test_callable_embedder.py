"""Whatever embeds is taken, by the contract it has; a wrong vector is never silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import EmbeddingError, WrapError
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers.embedders import CallableEmbedder, query_embedder
from tests.support.embeddings_server import EmbeddingsServer, vector_of
from tests.support.model_server import failure
from tests.support.pinecone_world import pinecone_world
from tests.support.tiny_models import embedder_folder

Embed = Callable[[CallableEmbedder, list[str]], list[list[float]]]


def blocking(embedder: CallableEmbedder, texts: list[str]) -> list[list[float]]:
    return embedder.embed(texts)


def awaiting(embedder: CallableEmbedder, texts: list[str]) -> list[list[float]]:
    return asyncio.run(embedder.aembed(texts))


both_ways = pytest.mark.parametrize("embed", [blocking, awaiting])


def true(text: str) -> list[float]:
    return vector_of(text, 8)


def lengths(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


async def lengths_async(texts: list[str]) -> list[list[float]]:
    return lengths(texts)


# --- the two contracts, in the shapes people write them -------------------------------------------

Vector = Callable[[str], list[float]]


def of_text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError("a text, please")
    return text


def of_list(texts: Any) -> list[str]:
    if not isinstance(texts, list):
        raise TypeError("a list, please")
    return texts


ONE: dict[str, Callable[[Vector], Callable[[Any], Any]]] = {
    "a text": lambda v: lambda t: v(of_text(t)),
    "the first of a list, silently": lambda v: lambda t: v(t if isinstance(t, str) else t[0]),
    "the first of a list, in a list": lambda v: lambda t: [v(t if isinstance(t, str) else t[0])],
    "the first of a list, repeated": lambda v: (
        lambda t: v(t) if isinstance(t, str) else [v(t[0])] * len(t)
    ),
    "anything, as text": lambda v: lambda t: v(f"{t}"),
    "a text, in a list": lambda v: lambda t: [v(of_text(t))],
    "a text, as an array": lambda v: lambda t: np.array(v(of_text(t)), dtype=np.float32),
    "a text, as an array of two dimensions": lambda v: lambda t: np.array([v(f"{t}")]),
    "a text, nothing for a list": lambda v: lambda t: v(t) if isinstance(t, str) else None,
    "a text, as numpy numbers": lambda v: lambda t: tuple(map(np.float64, v(of_text(t)))),
    "a text, as a response": lambda v: lambda t: {"data": [{"embedding": v(of_text(t))}]},
}
MANY: dict[str, Callable[[Vector], Callable[[Any], Any]]] = {
    "a list": lambda v: lambda ts: [v(t) for t in of_list(ts)],
    "a list or the letters of a text": lambda v: lambda ts: [v(t) for t in ts],
    "a list, or a text as a list of it": lambda v: (
        lambda ts: [v(t) for t in ([ts] if isinstance(ts, str) else ts)]
    ),
    "a list, or a text flat": lambda v: (
        lambda ts: v(ts) if isinstance(ts, str) else [v(t) for t in ts]
    ),
    "a list, as an array": lambda v: lambda ts: np.array([v(t) for t in ts]),
    "a list, as arrays": lambda v: (
        lambda ts: [np.array(v(t), dtype=np.float32) for t in of_list(ts)]
    ),
    "a list, squeezed": lambda v: lambda ts: np.squeeze(np.array([v(t) for t in of_list(ts)])),
    "a list, one after the other": lambda v: lambda ts: (v(t) for t in of_list(ts)),
    "a list, as a response in any order": lambda v: (
        lambda ts: {
            "data": [{"index": at, "embedding": v(t)} for at, t in enumerate(of_list(ts))][::-1]
        }
    ),
}
NEITHER: dict[str, Callable[[Vector], Callable[[Any], Any]]] = {
    "the first of a list, of a text the first letter": lambda v: lambda ts: v(ts[0]),
    "the same in a list": lambda v: lambda ts: [v(ts[0])],
    "the first of a list, repeated": lambda v: lambda ts: [v(ts[0]) for _ in ts],
    "the texts joined": lambda v: lambda ts: [v(" ".join(of_list(ts)))],
    "all but the last": lambda v: lambda ts: [v(t) for t in of_list(ts)[:-1]],
    "nothing": lambda v: lambda ts: None,
    "the texts": lambda v: lambda ts: ts,
    "words": lambda v: lambda ts: {"vector": ts},
    "not finite": lambda v: lambda t: [float("nan")] * 8,
}
VECTORS: dict[str, Vector] = {
    "of the text": true,
    "of its length": lambda text: [float(len(text)), 1.0],
    "of its words": lambda text: [
        float(text.split().count(word)) for word in ("A", "the", "are", "a")
    ],
    "always the same": lambda text: [0.25, 0.5],
}


def asynchronous(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def embed(argument: Any) -> Any:
        await asyncio.sleep(0)
        return fn(argument)

    return embed


def disguised(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda argument: asynchronous(fn)(argument)


KINDS = {
    "synchronous": lambda fn: fn,
    "asynchronous": asynchronous,
    "a coroutine in disguise": disguised,
}
# Letters that are exact in 32 bits whatever their number is, and few, so that equal and short texts
# are frequent.
texts_lists = st.lists(
    st.text(max_size=3) | st.text() | st.sampled_from(["A", "How", "Fees", "fees"]), max_size=4
)
batches = st.lists(texts_lists, min_size=1, max_size=3)


@both_ways
@pytest.mark.parametrize("kind", KINDS)
@given(
    make=st.sampled_from([*ONE.values(), *MANY.values()]),
    vector=st.sampled_from(list(VECTORS.values())),
    asked=batches,
)
def test_every_text_has_its_own_vector_whatever_the_contract(
    embed: Embed, kind: str, make: Any, vector: Vector, asked: list[list[str]]
) -> None:
    embedder = CallableEmbedder(KINDS[kind](make(vector)))
    for texts in asked:
        vectors = embed(embedder, texts)
        assert vectors == [vector(text) for text in texts]
        assert all(type(number) is float for vector in vectors for number in vector)


@both_ways
@given(
    make=st.sampled_from(list(NEITHER.values())),
    vector=st.sampled_from(list(VECTORS.values())),
    asked=batches,
)
def test_what_keeps_no_contract_gives_right_vectors_or_an_error(
    embed: Embed, make: Any, vector: Vector, asked: list[list[str]]
) -> None:
    embedder = CallableEmbedder(make(vector))
    for texts in asked:
        try:
            found = embed(embedder, texts)
        except (EmbeddingError, IndexError):
            continue
        assert found == [vector(text) for text in texts]


@both_ways
@pytest.mark.parametrize("contract", NEITHER)
def test_what_fits_neither_contract_is_an_error_that_names_both_and_what_came(
    embed: Embed, contract: str
) -> None:
    secret = "the secret plan"
    with pytest.raises(EmbeddingError) as caught:
        embed(CallableEmbedder(NEITHER[contract](true), name="mine"), [secret])
    message = str(caught.value)
    assert "a function from a text to its vector" in message
    assert "a function from a list of texts to a list of vectors" in message
    assert "mine" in message
    assert secret not in message


@both_ways
def test_an_error_names_the_types_that_came(embed: Embed) -> None:
    with pytest.raises(
        EmbeddingError, match=r"Given a text it .*NoneType.*; given a list of 2 texts it .*dict"
    ):
        embed(CallableEmbedder(lambda it: None if isinstance(it, str) else {"a": 1}), ["x"])
    with pytest.raises(
        EmbeddingError,
        match="Given a text it raised KeyError; given a list of 2 texts it raised Type",
    ):
        embed(
            CallableEmbedder(lambda it: it["vector"] if isinstance(it, dict) else {}[of_text(it)]),
            ["x"],
        )


# --- how the contract is found --------------------------------------------------------------------


class Seen:
    """Keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def text(self, text: str) -> list[float]:
        self.calls.append(text)
        return true(of_text(text))

    def list(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(texts)
        return [true(text) for text in of_list(texts)]

    def sequence(self, texts: Sequence[str] | None, other: NotThere | None = None) -> Any:  # type: ignore[name-defined] # noqa: F821
        return self.list(list(texts or ()))

    def optional(self, *, text: str | None = None) -> list[float]:
        return self.text(text or "")

    def one(self, text):  # type: ignore[no-untyped-def]
        return self.text(text)

    def many(self, given):  # type: ignore[no-untyped-def]
        return self.list(given)


@both_ways
def test_an_annotation_tells_the_contract_and_nothing_is_tried(embed: Embed) -> None:
    seen = Seen()
    assert embed(CallableEmbedder(seen.text), ["a"]) == [true("a")]
    assert embed(CallableEmbedder(seen.list), ["b", "c"]) == [true("b"), true("c")]
    assert embed(CallableEmbedder(partial(Seen.list, seen)), ["d"]) == [true("d")]
    assert seen.calls == ["a", ["b", "c"], ["d"]]


@both_ways
def test_an_annotation_that_cannot_be_read_is_no_harm(embed: Embed) -> None:
    assert embed(CallableEmbedder(Seen().sequence), ["a"]) == [true("a")]


@both_ways
def test_a_function_that_takes_its_text_by_keyword_only_is_called_so(embed: Embed) -> None:
    def create(*, input: str | list[str], model: str, dimensions: int = 8) -> Any:  # noqa: A002
        return {"data": [{"embedding": vector_of(text, dimensions)} for text in of_list(input)]}

    assert embed(CallableEmbedder(partial(create, model="tiny")), ["a", "b"]) == [
        true("a"),
        true("b"),
    ]


@both_ways
def test_a_function_of_lists_is_tried_once_with_one_text_more(embed: Embed) -> None:
    seen = Seen()
    embedder = CallableEmbedder(seen.many)
    assert embed(embedder, ["first"]) == [true("first")]
    assert embed(embedder, ["second"]) == [true("second")]
    (first, probe), second = seen.calls
    assert (first, second) == ("first", ["second"])
    assert probe not in ("first", "second")


@both_ways
def test_two_different_texts_need_no_other(embed: Embed) -> None:
    seen = Seen()
    assert embed(CallableEmbedder(seen.many), ["a", "b"]) == [true("a"), true("b")]
    assert seen.calls == [["a", "b"]]


@both_ways
def test_a_function_of_one_text_is_tried_once_and_then_called_a_text(embed: Embed) -> None:
    seen = Seen()
    embedder = CallableEmbedder(seen.one)
    assert embed(embedder, ["first"]) == [true("first")]
    tried = len(seen.calls)
    assert tried == 1 + 2 + 1  # a list, two probes, and the text itself
    assert embed(embedder, ["b", "c", "d"]) == [true("b"), true("c"), true("d")]
    assert sorted(seen.calls[tried:]) == ["b", "c", "d"]


def test_nothing_is_called_before_the_first_text() -> None:
    embedder = CallableEmbedder(lambda texts: pytest.fail("was called"))
    assert embedder.embed([]) == []
    assert asyncio.run(embedder.aembed([])) == []


def test_the_contract_is_found_by_many_threads_at_once() -> None:
    for make in (ONE["the first of a list, silently"], MANY["a list or the letters of a text"]):
        embedder = CallableEmbedder(make(true))
        start = threading.Barrier(8)
        found: dict[str, list[list[float]]] = {}

        def ask(
            text: str, embedder: CallableEmbedder = embedder, start: Any = start, found: Any = found
        ) -> None:
            start.wait()
            found[text] = embedder.embed([text, text + "!"])

        threads = [threading.Thread(target=ask, args=(f"text {number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {f"text {n}": [true(f"text {n}"), true(f"text {n}!")] for n in range(8)}


# --- services that are down -----------------------------------------------------------------------


class ServiceError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(status_code)
        self.status_code = status_code


@both_ways
@pytest.mark.parametrize(
    "error", [ConnectionError(), TimeoutError(), ServiceError(503), ServiceError(401)], ids=repr
)
@pytest.mark.parametrize(
    "make", [ONE["a text"], ONE["a text, in a list"], MANY["a list"], *list(MANY.values())[1:4]]
)
def test_a_service_that_is_down_is_its_own_error_and_tells_no_contract(
    embed: Embed, error: Exception, make: Any
) -> None:
    is_down = True

    def fn(argument: Any) -> Any:
        if is_down:
            raise error
        return make(true)(argument)

    embedder = CallableEmbedder(fn)
    with pytest.raises(type(error)) as caught:
        embed(embedder, ["x"])
    assert caught.value is error
    is_down = False
    assert embed(embedder, ["a", "bc"]) == [true("a"), true("bc")]


@both_ways
@pytest.mark.parametrize("down_for", range(1, 6))
@pytest.mark.parametrize("make", [*ONE.values(), *MANY.values(), NEITHER["the same in a list"]])
def test_an_outage_in_the_middle_fixes_no_wrong_contract(
    embed: Embed, down_for: int, make: Any
) -> None:
    calls = 0

    def fn(argument: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == down_for:
            raise ConnectionError("down")
        return make(true)(argument)

    embedder = CallableEmbedder(fn)
    for texts in (["x"], ["abc"], ["a", "bcd"], ["abc"]):
        before = calls
        try:
            found = embed(embedder, texts)
        except (ConnectionError, EmbeddingError):
            assert make is NEITHER["the same in a list"] or before < down_for <= calls
            continue
        assert found == [true(text) for text in texts]


@both_ways
def test_what_the_function_raises_passes_through(embed: Embed) -> None:
    error = RuntimeError("theirs")

    def broken(texts: list[str]) -> list[list[float]]:
        raise error

    for fn in (broken, lambda it: broken(it)):
        with pytest.raises(RuntimeError) as caught:
            embed(CallableEmbedder(fn), ["a"])
        assert caught.value is error


@both_ways
def test_a_service_that_refuses_lists_with_an_error_is_asked_for_single_texts(embed: Embed) -> None:
    class HTTPError(OSError):
        """What requests raises for every status, this one with nothing that tells it from an outage."""

    def fn(text):  # type: ignore[no-untyped-def]
        if not isinstance(text, str):
            raise HTTPError("422")
        calls.append(text)
        return true(text)

    calls: list[str] = []
    embedder = CallableEmbedder(fn)
    assert embed(embedder, ["first"]) == [true("first")]
    calls.clear()
    assert embed(embedder, ["second"]) == [true("second")]
    assert calls == ["second"]


# --- many calls of a function of one text ---------------------------------------------------------


@both_ways
@pytest.mark.parametrize("is_async", [False, True])
def test_calls_run_beside_each_other_up_to_the_limit_and_see_the_callers_context(
    embed: Embed, is_async: bool
) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="nobody")
    lock = threading.Lock()
    both = threading.Barrier(2, timeout=20)
    running = most = 0

    def enter(text: str) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert caller.get() == "me"

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    def plain(text: str) -> list[float]:
        enter(text)
        both.wait()  # Passed by two at a time only.
        leave()
        return true(text)

    waiting: list[asyncio.Event] = []

    async def awaited(text: str) -> list[float]:
        enter(text)
        if waiting:
            waiting.pop().set()
        else:
            waiting.append(event := asyncio.Event())
            await asyncio.wait_for(event.wait(), 20)
        leave()
        return true(text)

    texts = ["a", "b", "c", "d"]
    embedder = CallableEmbedder(awaited if is_async else plain)
    caller.set("me")
    found = (
        embedder.embed(texts, 2) if embed is blocking else asyncio.run(embedder.aembed(texts, 2))
    )
    assert found == [true(text) for text in texts]
    assert most == 2


@both_ways
def test_one_call_that_fails_ends_the_others(embed: Embed) -> None:
    ended: list[str] = []

    async def fn(text: str) -> list[float]:
        if text == "bad":
            raise RuntimeError("no vector")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(text)
        return true(text)

    with pytest.raises(RuntimeError, match="no vector"):
        embed(CallableEmbedder(fn), ["a", "bad", "c"])
    assert ended == ["a", "c"]


def test_a_blocking_caller_has_one_loop_for_all_its_calls() -> None:
    loops = set()

    async def fn(text: str) -> list[float]:
        loops.add(asyncio.get_running_loop())
        return true(text)

    embedder = CallableEmbedder(fn)
    embedder.embed(["a"])
    embedder.embed(["a", "b", "c"])

    async def inside() -> list[list[float]]:
        return embedder.embed(["a"])

    assert asyncio.run(inside()) == [true("a")]
    assert len(loops) == 1


def test_vectors_of_single_texts_have_one_length() -> None:
    def fn(text: str) -> list[float]:
        return [1.0] * len(text)

    with pytest.raises(EmbeddingError, match="of 2 numbers, not 1"):
        CallableEmbedder(fn).embed(["a", "bc"])


def test_two_vectors_for_one_text_and_none_for_the_next_are_not_two_vectors() -> None:
    def fn(text: str) -> list[list[float]]:
        return [[1.0]] * len(text)

    with pytest.raises(EmbeddingError):
        CallableEmbedder(fn).embed(["ab", ""])


# --- objects of other libraries -------------------------------------------------------------------


class LangChain:
    """The methods of LangChain's ``Embeddings``; questions have other vectors than passages."""

    model = "chain-small"

    def __init__(self) -> None:
        self.awaited = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [true(f"passage: {text}") for text in of_list(texts)]

    def embed_query(self, text: str) -> list[float]:
        return true(f"query: {of_text(text)}")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.awaited += 1
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        self.awaited += 1
        return self.embed_query(text)


class LlamaIndex:
    """The methods of a LlamaIndex embedding, which can also be called, with nodes."""

    model_name = "llama-small"

    def __init__(self) -> None:
        self.awaited = 0

    def __call__(self, nodes: Any) -> Any:
        raise AssertionError("was given texts instead of nodes")

    def get_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False
    ) -> list[list[float]]:
        return [true(f"passage: {text}") for text in of_list(texts)]

    def get_query_embedding(self, query: str) -> list[float]:
        return true(f"query: {of_text(query)}")

    async def aget_query_embedding(self, query: str) -> list[float]:
        self.awaited += 1
        return self.get_query_embedding(query)


class Chroma:
    """Chroma's embedding functions are called with a list; their newer method for questions as well."""

    def __call__(self, input: Any) -> Any:  # noqa: A002
        return [np.array(true(f"passage: {text}"), dtype=np.float32) for text in of_list(input)]

    def embed_query(self, input: Any) -> Any:  # noqa: A002
        return [np.array(true(f"query: {text}"), dtype=np.float32) for text in of_list(input)]


@both_ways
@pytest.mark.parametrize("make", [LangChain, LlamaIndex, Chroma])
def test_questions_and_passages_are_embedded_each_by_their_method(embed: Embed, make: Any) -> None:
    passages = CallableEmbedder(make())
    for questions in (passages.queries, query_embedder(passages), query_embedder(make())):
        assert embed(questions, ["a"]) == [true("query: a")]
        assert embed(questions, ["a", "b"]) == [true("query: a"), true("query: b")]
    assert embed(passages, ["a", "b"]) == [true("passage: a"), true("passage: b")]


@both_ways
def test_a_method_that_is_awaited_is_taken_where_one_awaits(embed: Embed) -> None:
    for given_object in (LangChain(), LlamaIndex(), Both()):
        embed(query_embedder(given_object), ["a"])
        assert given_object.awaited == (1 if embed is awaiting else 0)


class Both:
    """An embedder that can be called, embeds and is awaited."""

    name = "both"
    dimension = 8

    def __init__(self) -> None:
        self.awaited = 0

    def __call__(self, _: Any) -> Any:
        raise AssertionError("an embedder is asked to embed")

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [true(text) for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        self.awaited += 1
        return self.embed(texts)


class AwaitedOnly:
    async def aembed_query(self, text: str) -> list[float]:
        return true(text)


@both_ways
def test_a_method_that_can_only_be_awaited_will_do(embed: Embed) -> None:
    assert embed(query_embedder(AwaitedOnly()), ["a", "b"]) == [true("a"), true("b")]


def test_a_name_is_the_models_where_there_is_one() -> None:
    assert CallableEmbedder(LangChain()).name == "chain-small"
    assert CallableEmbedder(Both()).name == "both"
    assert CallableEmbedder(Chroma()).name == "Chroma"
    assert CallableEmbedder(LangChain()).queries.name == "chain-small"
    assert CallableEmbedder(lengths).queries.name == "lengths"


def test_a_function_is_the_same_for_questions_and_passages() -> None:
    embedder = CallableEmbedder(lengths)
    assert embedder.queries is embedder


@pytest.mark.parametrize(
    "given_object", [42, None, "all-MiniLM-L6-v2", b"x", {"model": "x"}, LangChain], ids=repr
)
def test_what_cannot_embed_is_refused_at_once(given_object: Any) -> None:
    with pytest.raises(WrapError, match="embed must be"):
        CallableEmbedder(given_object)


# --- the real OpenAI client -----------------------------------------------------------------------


@pytest.fixture
def server(httpserver: HTTPServer) -> EmbeddingsServer:
    return EmbeddingsServer(httpserver)


@both_ways
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("text_format", ["base64", "float"])
def test_the_lambdas_people_write_around_the_openai_client(
    embed: Embed, is_async: bool, text_format: Any, server: EmbeddingsServer
) -> None:
    make: Any = openai.AsyncOpenAI if is_async else openai.OpenAI

    def create(given_input: Any) -> Any:
        # A client for each loop, as a connection lives in one.
        client = make(api_key="k", base_url=server.url, max_retries=0)
        return client.embeddings.create(
            model="tiny", input=given_input, encoding_format=text_format
        )

    async def then(made: Any, read: Any) -> Any:
        return read(await made)

    def first(response: Any) -> Any:
        return response.data[0].embedding

    def all_of(response: Any) -> Any:
        return [it.embedding for it in sorted(response.data, key=lambda it: it.index)]

    reads: dict[str, Any] = {
        "one text": first,
        "many": all_of,
        "whole response": lambda response: response,
    }
    if text_format == "base64":  # of which the client decodes nothing where it was asked for it
        reads = {"whole response": reads["whole response"]}
    for read in reads.values():
        embedder = CallableEmbedder(
            (lambda it, read=read: then(create(it), read))
            if is_async
            else (lambda it, read=read: read(create(it)))
        )
        for texts in (["alone"], ["one", "two", "three"], ["one", "one"]):
            assert embed(embedder, texts) == server.expected(texts)


@both_ways
def test_the_create_method_itself_will_do(embed: Embed, server: EmbeddingsServer) -> None:
    client = openai.OpenAI(api_key="k", base_url=server.url)
    embedder = CallableEmbedder(partial(client.embeddings.create, model="tiny"))
    assert embed(embedder, ["one", "two"]) == server.expected(["one", "two"])


@both_ways
def test_a_key_that_is_refused_is_the_clients_own_error(
    embed: Embed, server: EmbeddingsServer
) -> None:
    client = openai.OpenAI(api_key="k", base_url=server.url, max_retries=0)
    server.faults += [failure(401, "wrong key") for _ in range(2)]
    embedder = CallableEmbedder(
        lambda text: client.embeddings.create(model="tiny", input=text).data[0].embedding
    )
    with pytest.raises(openai.AuthenticationError):
        embed(embedder, ["one"])
    assert embed(embedder, ["one"]) == server.expected(["one"])


@both_ways
def test_what_pinecones_own_models_answer_will_do(embed: Embed) -> None:
    with pinecone_world() as world:
        world.add_index("texts", dimension=16, model="test-embed")
        client = world.client()

        def answer(given_input: Any) -> Any:
            return client.inference.embed(
                model="test-embed",
                inputs=given_input,
                parameters={"input_type": "query", "truncate": "END"},
            )

        texts = ["red lamp", "front brake", "rain"]
        expected = [list(it.values) for it in answer(texts)]
        for fn in (
            answer,
            lambda text: answer(text)[0].values,
            lambda given_texts: [it.values for it in answer(given_texts)],
        ):
            assert embed(CallableEmbedder(fn), texts) == expected


# --- real models of sentence-transformers ---------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from sentence_transformers import SentenceTransformer

    folder = embedder_folder(tmp_path_factory.mktemp("models") / "tiny")
    return SentenceTransformer(
        str(folder), device="cpu", prompts={"query": "text: ", "document": ""}
    )


@pytest.mark.thorough
def test_a_model_of_sentence_transformers_embeds_questions_and_passages_as_it_should(
    model: Any,
) -> None:
    texts = ["Does Jaco have any health concerns?", "What is the strategy of Nike?"]
    near = partial(pytest.approx, abs=1e-6)
    questions, passages = query_embedder(model), CallableEmbedder(model)
    for found, text in zip(questions.embed(texts), texts, strict=True):
        assert found == near(model.encode_query(text).tolist())
    for found, text in zip(passages.embed(texts), texts, strict=True):
        assert found == near(model.encode_document(text).tolist())
    assert questions.embed(texts)[0] != near(passages.embed(texts)[0])


@pytest.mark.thorough
@both_ways
@pytest.mark.parametrize("as_tensor", [False, True])
def test_lambdas_around_a_model_of_sentence_transformers(
    embed: Embed, as_tensor: bool, model: Any
) -> None:
    options = {"convert_to_tensor": as_tensor}
    for fn in (
        lambda text: model.encode(text, **options),
        lambda text: model.encode([f"{text}"], **options),
        lambda text: model.encode([f"{text}"], **options)[0],
        lambda texts: list(model.encode(texts, **options)),
        partial(model.encode, **options),
    ):
        embedder = CallableEmbedder(fn)
        for texts in (["Jaco has health concerns"], ["nike sell shoes", "the strategy of nike"]):
            found = embed(embedder, texts)
            assert found == [pytest.approx(model.encode(text).tolist(), abs=1e-6) for text in texts]


# --- as an embedder of an index -------------------------------------------------------------------


def test_a_function_becomes_an_embedder() -> None:
    embedder = CallableEmbedder(lengths)
    assert isinstance(embedder, Embedder)
    assert embedder.embed(("a", "abc")) == [[1.0, 1.0], [3.0, 1.0]]
    assert (embedder.name, embedder.dimension) == ("lengths", 2)


def test_the_dimension_is_learned_without_a_first_call_of_the_user() -> None:
    assert CallableEmbedder(lengths).dimension == 2
    assert CallableEmbedder(lengths_async).dimension == 2
    assert CallableEmbedder(lambda text: true(text)).dimension == 8
    assert (
        CallableEmbedder(
            lambda texts: pytest.fail("was called"), dimension=2, name="mine"
        ).dimension
        == 2
    )


@pytest.mark.parametrize(
    "made",
    [
        np.ones((2, 3), dtype=np.float32),
        [np.ones(3), np.ones(3)],
        ((1, 1, 1), (1, 1, 1)),
        [[np.float64(1)] * 3] * 2,
    ],
    ids=["one array", "arrays", "tuples", "numpy numbers"],
)
def test_any_kind_of_numbers_comes_out_as_floats(made: Any) -> None:
    def embed(texts: list[str]) -> Any:
        return made

    found = CallableEmbedder(embed).embed(["a", "b"])
    assert found == [[1.0] * 3] * 2
    assert all(type(number) is float for vector in found for number in vector)


@pytest.mark.parametrize("is_annotated", [True, False])
@pytest.mark.parametrize(
    "made",
    [
        [[1.0]] * 3,
        [[1.0], [1.0, 2.0]],
        [[], []],
        None,
        ["12", "34"],
        [["a"], ["b"]],
        "ab",
        {"a": [1.0]},
        [[[1.0]]] * 2,
    ],
    ids=[
        "too many",
        "ragged",
        "empty",
        "None",
        "texts",
        "no numbers",
        "a text",
        "a mapping",
        "too deep",
    ],
)
def test_anything_else_is_an_embedding_error(made: Any, is_annotated: bool) -> None:
    def embed(texts: list[str]) -> Any:
        return made

    with pytest.raises(EmbeddingError):
        CallableEmbedder(embed if is_annotated else lambda texts: made, name="mine").embed(
            ["a", "b"]
        )


@pytest.mark.parametrize("made", [[[1.0]], [1.0, 2.0]], ids=["too few", "flat"])
def test_too_few_vectors_of_a_function_of_lists_are_an_embedding_error(made: Any) -> None:
    def embed(texts: list[str]) -> Any:
        return made

    with pytest.raises(EmbeddingError, match="for 2 texts"):
        CallableEmbedder(embed).embed(["a", "b"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float32("nan"), 10**400])
def test_a_number_that_is_not_finite_is_an_embedding_error(number: Any) -> None:
    with pytest.raises(EmbeddingError):
        CallableEmbedder(lambda texts: [[1.0, number]]).embed(["a"])


def test_a_length_other_than_before_is_an_embedding_error() -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0] * len(texts[0])]

    embedder = CallableEmbedder(embed)
    embedder.embed(["four"])
    with pytest.raises(EmbeddingError, match="of 5 numbers, not 4"):
        embedder.embed(["fifth"])


def test_the_callers_list_is_not_handed_out() -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        texts.append("more")
        return [[1.0]]

    given_texts = ["a"]
    CallableEmbedder(embed).embed(given_texts)
    assert given_texts == ["a"]


@both_ways
@given(texts=st.lists(st.text(), max_size=5))
def test_texts_arrive_unchanged(embed: Embed, texts: list[str]) -> None:
    seen: list[str] = []

    def fn(given_texts: list[str]) -> list[list[float]]:
        seen.extend(given_texts)
        return lengths(given_texts)

    embed(CallableEmbedder(fn), texts)
    assert seen == texts
