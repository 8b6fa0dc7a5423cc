"""Functions and objects that embed: each is called as its kind says, and nothing is called to find out which it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.errors import EmbeddingError, WrapError
from qtmiddleware.providers.embedding import CallableEmbedder, query_embedder
from tests.support.embeddings_server import EmbeddingsServer
from tests.support.model_server import failure

Embed = Callable[[CallableEmbedder, Sequence[str]], list[list[float]]]
TEXTS = ["one", "two words", "three"]


def true(text: str) -> list[float]:
    return [float(len(text)), float(text.count("o")), 1.0]


def blocking(embedder: CallableEmbedder, texts: Sequence[str]) -> list[list[float]]:
    return embedder.embed(texts)


def awaiting(embedder: CallableEmbedder, texts: Sequence[str]) -> list[list[float]]:
    return asyncio.run(embedder.aembed(texts))


both_ways = pytest.mark.parametrize("embed", [blocking, awaiting])


def of_list(texts: list[str]) -> list[list[float]]:
    return [true(text) for text in texts]


def of_either(given: str | list[str]) -> Any:
    assert isinstance(given, list)
    return np.array(of_list(given))


async def of_list_awaited(given: Iterable[str]) -> list[list[float]]:
    return of_list(list(given))


LISTS: dict[str, Any] = {
    "named texts": lambda texts: of_list(texts),
    "named input, keyword only": lambda *, input, model="m": of_list(input),  # noqa: A006
    "annotated": of_list,
    "either": of_either,
    "async": of_list_awaited,
}


@both_ways
@pytest.mark.parametrize("name", LISTS)
def test_a_function_of_a_list_is_called_once(embed: Embed, name: str) -> None:
    embedder = CallableEmbedder(LISTS[name], takes_list="input" not in name)
    assert embedder.takes_list
    for texts in (TEXTS, TEXTS[:1], []):
        assert embed(embedder, texts) == [true(text) for text in texts]


def vector_search(vector: Any, top_k: int = 4) -> list[dict[str, Any]]:
    return [{"id": "a", "score": vector[0], "text": "Jaco is well and has a vet."}]


def test_a_wrapped_function_embeds_by_either_option_but_not_by_both() -> None:
    def listed(given: Any) -> Any:
        return of_list(given)

    # The signature of a built-in method cannot be read.
    kept = {"Is Jaco ill?": [12.0]}.__getitem__
    for options in (
        {"embed": lambda text: true(text)},
        {"embed": kept},
        {"embed_many": listed},
    ):
        wrapped = qtm.QueryMiddleware().wrap(vector_search, **options)
        for search in (wrapped, qtm.middleware(**options)(vector_search)):
            assert search("Is Jaco ill?")[0]["score"] == 12.0
    with pytest.raises(WrapError, match="exclude each other"):
        qtm.QueryMiddleware().wrap(vector_search, embed=true, embed_many=listed)
    with pytest.raises(WrapError, match="not str"):
        qtm.QueryMiddleware().wrap(vector_search, embed="the-name-of-a-model")
    wrong = qtm.QueryMiddleware().wrap(vector_search, embed=listed)
    with pytest.raises(EmbeddingError, match=r"for 1 texts\. Pass a function of a list .*many="):
        wrong("Is Jaco ill?")


# --- objects --------------------------------------------------------------------------------------


def each(first: float) -> Any:
    return lambda self, texts: [[first, *true(text)] for text in texts]


def arrays(first: float) -> Any:
    return lambda self, input: [np.array([first, *true(text)]) for text in input]  # noqa: A006


def of_one_text(self: Any, text: str) -> list[float]:
    return [1.0, *true(text)]


OBJECTS: dict[str, dict[str, Any]] = {
    "LangChain": {"embed_query": of_one_text, "embed_documents": each(2.0)},
    "LlamaIndex": {"get_query_embedding": of_one_text, "get_text_embedding_batch": each(2.0)},
    "Chroma": {"embed_query": arrays(1.0), "embed_documents": arrays(2.0), "__call__": 1},
    "sentence-transformers": {"encode_query": arrays(1.0), "encode_document": arrays(2.0)},
    "a method for both": {"embed": each(1.0)},
}


@both_ways
@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_known_by_its_methods_for_questions_and_for_passages(
    embed: Embed, name: str
) -> None:
    model = type(name, (), {"model": "m", **OBJECTS[name]})()
    passages, questions = CallableEmbedder(model), query_embedder(model)
    assert (passages.name, questions.name) == ("m", "m")
    assert embed(questions, TEXTS) == [[1.0, *true(text)] for text in TEXTS]
    first = 2.0 if len(OBJECTS[name]) > 1 else 1.0
    assert embed(passages, TEXTS) == [[first, *true(text)] for text in TEXTS]
    assert embed(passages.queries, TEXTS) == embed(questions, TEXTS)


# --- results --------------------------------------------------------------------------------------


@both_ways
@pytest.mark.parametrize(
    "result",
    [
        *(None, 7, "text", b"x", {"a": 1.0}, {1.0, 2.0}, [], [[]], "123", object()),
        *([["a"]], [None], [float("nan")], [float("inf")], [[1.0], [2.0]], [10**400]),
        SimpleNamespace(data=[]),
    ],
)
def test_anything_else_is_an_embedding_error_without_the_text(embed: Embed, result: Any) -> None:
    def fn(text: str) -> Any:
        return result

    with pytest.raises(EmbeddingError) as caught:
        embed(CallableEmbedder(fn), ["Jaco"])
    assert "Jaco" not in str(caught.value)


@both_ways
def test_the_create_method_of_openai_will_do_for_one_request(
    embed: Embed, httpserver: HTTPServer
) -> None:
    server = EmbeddingsServer(httpserver)
    with openai.OpenAI(api_key="k", base_url=server.url, max_retries=0) as client:
        embedder = CallableEmbedder(partial(client.embeddings.create, model="tiny"))
        assert embed(embedder, ["one", "two"]) == server.expected(["one", "two"])
        assert server.sent == [["one", "two"]]
        server.faults = [failure(401)]
        with pytest.raises(openai.AuthenticationError):
            embed(embedder, ["one"])
