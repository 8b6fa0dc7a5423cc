"""Embedding through the real client over real HTTP, within the limits of the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import OpenAIEmbedder
from qtmiddleware.providers.embedding import query_embedder
from tests.support.embeddings_server import EmbeddingsServer
from tests.support.llm_fixtures import SECRET, hasty
from tests.support.model_server import failure

__all__ = ["hasty"]

TEXT = "Does Jaco have any health concerns?"


@pytest.fixture(autouse=True)
def environment(bare_environment: None, hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.fixture
def server(httpserver: HTTPServer) -> EmbeddingsServer:
    return EmbeddingsServer(httpserver)


@contextmanager
def made(server: EmbeddingsServer, model: str = "some-model") -> Iterator[OpenAIEmbedder]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OPENAI_BASE_URL", server.url)
        with closing(OpenAIEmbedder(model)) as embedder:
            yield embedder


@pytest.mark.parametrize("packs", [True, False], ids=["base64", "numbers"])
def test_every_text_has_its_own_vector_whatever_the_order_of_the_answer(
    server: EmbeddingsServer, packs: bool
) -> None:
    server.packs = packs
    texts = [f"text {number}" for number in range(150)]
    with made(server) as embedder:
        assert embedder.embed(texts) == server.expected(texts)
        assert embedder.embed([]) == []
        assert query_embedder(embedder).embed([TEXT]) == server.expected([TEXT])
    assert [len(sent) for sent in server.sent] == [64, 64, 22, 1]


def test_an_empty_text_is_sent_as_a_space_and_half_a_character_is_replaced(
    server: EmbeddingsServer,
) -> None:
    with made(server) as embedder:
        embedder.embed(["", "half \ud83d"])
    assert server.sent == [[" ", "half \ufffd"]]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_what_may_pass_is_tried_again_as_often_as_the_client_would(
    server: EmbeddingsServer, status: int
) -> None:
    server.faults = [failure(status)] * 2
    with made(server) as embedder:
        assert embedder.embed([TEXT]) == server.expected([TEXT])
        server.faults = [failure(status)] * 3
        with pytest.raises(EmbeddingError):
            embedder.embed([TEXT])
    assert len(server.bodies) == 6


def test_an_answer_without_the_vectors_is_an_embedding_error(server: EmbeddingsServer) -> None:
    embeddings = ("", ', "embedding": ["a"]', ', "embedding": []', ', "embedding": [NaN]')
    bodies = [f'{{"data": [{{"index": 0{it}}}]}}' for it in embeddings]
    for body in (*bodies, "{}", '{"data": []}', "[1, 2]", "<html>", ""):
        server.faults = [Response(body, content_type="application/json")]
        with made(server) as embedder, pytest.raises(EmbeddingError):
            embedder.embed([TEXT])


def test_without_a_key_and_an_address_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, server: EmbeddingsServer
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(EmbeddingError, match="set OPENAI_API_KEY, or OPENAI_BASE_URL"):
        OpenAIEmbedder("m").embed([TEXT])
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with closing(OpenAIEmbedder("m")) as embedder:
        assert embedder.embed([TEXT]) == server.expected([TEXT])
        assert repr(embedder) == "OpenAIEmbedder('m', host='127.0.0.1')"


def test_a_redirect_is_not_followed(httpserver: HTTPServer, server: EmbeddingsServer) -> None:
    httpserver.clear()
    httpserver.expect_request("/v1/embeddings").respond_with_data(
        status=307, headers={"location": httpserver.url_for("/elsewhere")}
    )
    with made(server) as embedder, pytest.raises(EmbeddingError, match="HTTP 307"):
        embedder.embed([TEXT])
    assert len(httpserver.log) == 1
