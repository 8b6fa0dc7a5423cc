from __future__ import annotations

import importlib.util
import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer
from werkzeug import Response

from qtmiddleware.errors import ConfigError, EmbeddingError
from qtmiddleware.protocols import Embedder
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.embedders import OpenAIEmbedder, query_embedder
from qtmiddleware.providers.embedders import openai as openai_module
from tests.support.embeddings_server import EmbeddingsServer
from tests.support.living import count_new, objects
from tests.support.model_server import as_json, failure

SECRET = "sk-verysecret0123456789"
TEXT = "Does Jaco have any health concerns?"


@pytest.fixture(autouse=True)
def environment(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr("qtmiddleware.providers.embedders.openai.FIRST_PAUSE", 0.001)


@pytest.fixture
def server(httpserver: HTTPServer) -> EmbeddingsServer:
    return EmbeddingsServer(httpserver)


Vectors = list[list[float]]


@contextmanager
def made(
    server: EmbeddingsServer, model: str = "some-model", **options: Any
) -> Iterator[OpenAIEmbedder]:
    embedder = OpenAIEmbedder(model, base_url=server.url, **options)
    yield embedder
    embedder.close()


def test_an_answer_larger_than_any_vectors_is_not_read_on(httpserver: HTTPServer) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b'{"data": [' + b"0," * 10_000

    httpserver.expect_request("/v1/embeddings").respond_with_handler(lambda _: Response(endless()))
    embedder = OpenAIEmbedder("m", base_url=httpserver.url_for("/v1"))
    with closing(embedder), pytest.raises(EmbeddingError, match="m sent more than 524,288 bytes"):
        embedder.embed([TEXT])
    assert len(httpserver.log) == 1


def test_a_redirect_is_not_followed(httpserver: HTTPServer) -> None:
    away = httpserver.url_for("/elsewhere")
    httpserver.expect_request("/v1/embeddings").respond_with_data(
        status=307, headers={"location": away}
    )
    embedder = OpenAIEmbedder("m", base_url=httpserver.url_for("/v1"))
    with pytest.raises(
        EmbeddingError,
        match=r"redirects to another address \(HTTP 307\), and redirects are not followed",
    ):
        embedder.embed([TEXT])
    embedder.close()
    assert [request.path for request, _ in httpserver.log] == ["/v1/embeddings"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "http://me:passw0rd/with-a-slash@127.0.0.1:3128"),
        ("ALL_PROXY", "odd://me:passw0rd@127.0.0.1:3128"),
        ("SSL_CERT_FILE", "/no/passw0rd.pem"),
    ],
)
def test_a_proxy_or_certificate_that_cannot_be_used_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        EmbeddingError, match=rf"cannot connect .*nothing was sent; .*{variable}"
    ) as caught:
        OpenAIEmbedder("m", base_url="https://127.0.0.1:9/v1").embed([TEXT])
    assert "passw0rd" not in "".join(traceback.format_exception(caught.value))


def test_a_proxy_that_asks_for_a_password_is_named_and_not_the_key(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpserver.expect_request("/v1/embeddings").respond_with_data(status=407)
    monkeypatch.setenv("HTTP_PROXY", httpserver.url_for("/"))
    with pytest.raises(EmbeddingError, match="check HTTPS_PROXY"):
        OpenAIEmbedder("m", base_url="http://embeddings.example/v1").embed([TEXT])


def test_every_text_has_its_own_vector_whatever_the_order_of_the_answer(
    server: EmbeddingsServer,
) -> None:
    texts = [f"text {number}" for number in range(7)]
    with made(server, batch_size=3) as embedder:
        assert embedder.embed(texts) == server.expected(texts)
    assert [len(sent) for sent in server.sent] == [3, 3, 1]
    assert server.bodies[0].keys() == {"model", "input", "encoding_format"}


def test_numbers_in_plain_json_are_read_too(server: EmbeddingsServer) -> None:
    server.packs = False
    with made(server) as embedder:
        assert embedder.embed([TEXT]) == server.expected([TEXT])


def test_the_tokens_of_all_requests_are_added_up(server: EmbeddingsServer) -> None:
    with made(server, batch_size=2) as embedder:
        # The service says one for each request.
        assert embedder.embed(["a", "b", "c", "d", "e"]).input_tokens == 3
        queries = query_embedder(embedder)
        queries.embed(["learn what it takes"])
        assert queries.embed(["a"]).input_tokens == 1
        address = urlsplit(server.url)
        assert embedder.server == queries.server == (address.hostname, address.port)


def test_no_texts_ask_nothing(server: EmbeddingsServer) -> None:
    with made(server) as embedder:
        assert embedder.embed([]) == []
    assert server.bodies == []


@pytest.mark.parametrize(
    ("model", "dimension"),
    [
        ("text-embedding-3-small", 1536),
        ("text-embedding-3-large", 3072),
        ("text-embedding-ada-002", 1536),
    ],
)
def test_the_well_known_models_have_a_dimension_without_being_asked(
    model: str, dimension: int
) -> None:
    embedder = OpenAIEmbedder(model)
    assert isinstance(embedder, Embedder)
    assert (embedder.name, embedder.dimension) == (model, dimension)


def test_the_dimension_of_another_model_is_learned(server: EmbeddingsServer) -> None:
    with made(server) as embedder:
        assert embedder.dimension == embedder.dimension == 8
    assert len(server.bodies) == 1


def test_dimensions_are_sent_where_they_are_given(server: EmbeddingsServer) -> None:
    with made(server, "text-embedding-3-small", dimensions=5) as embedder:
        assert (embedder.name, embedder.dimension) == ("text-embedding-3-small", 5)
        assert embedder.embed([TEXT]) == server.expected([TEXT], 5)
    assert server.bodies[0]["dimensions"] == 5


@pytest.mark.parametrize(
    ("model", "dimensions"),
    [
        ("text-embedding-3-small", 1537),
        ("text-embedding-3-large", 0),
        ("text-embedding-ada-002", 512),
    ],
)
def test_dimensions_a_model_does_not_have_are_refused_at_once(model: str, dimensions: int) -> None:
    with pytest.raises(ConfigError, match=str(dimensions)) as caught:
        OpenAIEmbedder(model, dimensions=dimensions)
    assert caught.value.path == "embeddingDimensions"


def test_a_server_that_ignores_the_dimensions_is_an_embedding_error(
    server: EmbeddingsServer,
) -> None:
    server.faults.append(as_json({"data": [{"index": 0, "embedding": [1.0] * 8}]}))
    with (
        made(server, dimensions=5) as embedder,
        pytest.raises(EmbeddingError, match="of 8 numbers, not 5"),
    ):
        embedder.embed([TEXT])


def test_an_empty_text_is_sent_as_a_space(server: EmbeddingsServer) -> None:
    with made(server) as embedder:
        assert embedder.embed(["", " ", "half \ud83d"]) == server.expected(
            [" ", " ", "half \ufffd"]
        )


# What is long


def test_a_long_text_is_cut_and_the_others_are_not(server: EmbeddingsServer) -> None:
    with made(server) as embedder:
        embedder.embed(["a word " * 20_000, TEXT])
    (sent,) = server.sent
    assert len(sent[0]) == openai_module.LONGEST
    assert sent[1] == TEXT


def test_a_text_the_service_finds_too_long_is_halved_alone(server: EmbeddingsServer) -> None:
    server.tokens = len  # A character is a token, as with rare scripts.
    texts = ["short", "彁" * 8_000, "彁" * 10_000, "other"]
    with made(server) as embedder:
        found = embedder.embed(texts)
    # 24,573 bytes are 8,191 characters, just not too many; four bytes each are fewer.
    assert found == server.expected(["short", "彁" * 8_000, "彁" * 8_191, "other"])
    server.most_tokens = 3_000
    with made(server) as embedder:
        again = embedder.embed(texts)
        alone = [embedder.embed([text])[0] for text in texts]
    assert again == alone == server.expected(["short", "彁" * 2_000, "彁" * 2_047, "other"])


def test_a_text_that_is_still_too_long_when_short_is_an_embedding_error(
    server: EmbeddingsServer,
) -> None:
    server.tokens = lambda text: 9_000
    with made(server) as embedder, pytest.raises(EmbeddingError, match="rejected the request"):
        embedder.embed(["word " * 300])
    assert len(server.bodies) < 6


def test_no_request_is_larger_than_the_service_takes(server: EmbeddingsServer) -> None:
    server.tokens = lambda text: len(text.encode())
    server.most_tokens = 300_000
    texts = ["x" * 10_000] * 65 + ["y"] * 2_100
    with made(server, batch_size=1_000_000) as embedder:
        assert len(embedder.embed(texts)) == len(texts)
    assert [len(sent) for sent in server.sent] == [30, 30, 5 + 2_043, 57]


@given(st.lists(st.text(st.characters(), max_size=50), max_size=20), st.integers(1, 5))
def test_what_is_sent_is_never_empty_always_utf8_and_in_order(texts: list[str], most: int) -> None:
    groups = openai_module.group_texts(texts, most)
    assert all(1 <= len(sent) <= most for sent in groups)
    assert [text for sent in groups for text in sent] == [
        replace_surrogates(text) or " " for text in texts
    ]
    assert all(text.encode() for sent in groups for text in sent)


@given(st.text(min_size=1), st.integers(1, 400))
def test_a_shortened_text_is_a_beginning_of_it(text: str, most: int) -> None:
    kept = openai_module.cut_to_bytes(text, most)
    assert text.startswith(kept)
    assert len(kept.encode()) <= most
    assert kept == text or len(text[: len(kept) + 1].encode()) > most


# What goes wrong


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (401, "invalid_api_key", "rejected the key; check OPENAI_API_KEY"),
        (403, None, "rejected the key; check OPENAI_API_KEY and its permissions"),
        (404, "model_not_found", "rejected the request .*model_not_found.* check the model"),
        (429, "insufficient_quota", "rate limit or quota"),
        (400, None, "rejected the request"),
        (400, "Bad " + SECRET, "rejected the request"),
    ],
)
def test_a_refusal_is_asked_once_and_said_in_a_sentence(
    server: EmbeddingsServer, status: int, code: str | None, said: str
) -> None:
    server.faults = [failure(status, f"You sent {TEXT} with {SECRET}", code=code)]
    with (
        made(server) as embedder,
        pytest.raises(EmbeddingError, match=said) as caught,
    ):
        embedder.embed([TEXT])
    assert str(caught.value).startswith("some-model at 127.0.0.1 ")
    assert SECRET not in str(caught.value)
    assert TEXT not in str(caught.value)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_what_may_pass_is_tried_again_as_often_as_the_client_would(
    server: EmbeddingsServer, status: int
) -> None:
    server.faults = [failure(status, "busy", headers={"Retry-After": "0"}), failure(status, "busy")]
    with made(server) as embedder:
        assert embedder.embed([TEXT]) == server.expected([TEXT])
    assert len(server.bodies) == 3
    server.faults = [failure(status, "busy") for _ in range(9)]
    with made(server) as embedder, pytest.raises(EmbeddingError, match=rf"HTTP {status}"):
        embedder.embed([TEXT])
    assert len(server.faults) == 9 - 3


def test_a_pause_longer_than_the_time_there_is_is_not_waited_for(server: EmbeddingsServer) -> None:
    server.faults = [failure(429, "busy", headers={"Retry-After": "60"})]
    with made(server, timeout=30.0) as embedder, pytest.raises(EmbeddingError, match="rate limit"):
        embedder.embed([TEXT])


@pytest.mark.parametrize(
    "answer",
    [
        Response("<html>sign in</html>", content_type="text/html"),
        Response("", content_type="application/json"),
        Response('{"data": [', content_type="application/json"),
        as_json([]),
        as_json({"error": {"message": "wrapped"}}),
        as_json({"data": []}),
        as_json({"data": [{"index": 0, "embedding": [1.0]}] * 2}),
        as_json({"data": [{"index": 1, "embedding": [1.0]}]}),
        as_json({"data": [{"index": 0}]}),
        as_json({"data": [{"index": 0, "embedding": []}]}),
        as_json({"data": [{"index": 0, "embedding": ["a"]}]}),
        as_json({"data": [{"index": 0, "embedding": "not base64!"}]}),
        as_json({"data": [{"index": 0, "embedding": "AAA="}]}),
        as_json({"data": [{"index": 0, "embedding": [float("nan")]}]}),
        as_json({"data": [{"index": 0, "embedding": "AADAfw=="}]}),
        as_json({"data": [7]}),
    ],
    ids=lambda it: it.get_data(as_text=True)[:40],
)
def test_an_answer_without_the_vectors_is_an_embedding_error(
    server: EmbeddingsServer, answer: Response
) -> None:
    server.faults = [answer]
    with made(server) as embedder, pytest.raises(EmbeddingError):
        embedder.embed([TEXT])


def test_a_server_that_names_no_index_keeps_the_order(server: EmbeddingsServer) -> None:
    server.faults = [as_json({"data": [{"embedding": [1.0]}, {"embedding": [2.0]}]})]
    with made(server) as embedder:
        assert embedder.embed(["a", "b"]) == [[1.0], [2.0]]


def test_nobody_listening_is_an_embedding_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    embedder = OpenAIEmbedder("m", base_url=f"http://user:{SECRET}@127.0.0.1:{port}/v1")
    with pytest.raises(
        EmbeddingError, match=r"m at 127\.0\.0\.1 is not available .* check the base URL"
    ) as caught:
        embedder.embed([TEXT])
    assert SECRET not in str(caught.value) + repr(embedder)
    embedder.close()


@contextmanager
def talking(talk: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The address of a server of plain sockets, which lets *talk* answer."""
    ended = threading.Event()
    threads = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65_536)
            try:
                talk(connection, ended)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
    accepting.join(10)
    for thread in threads:
        thread.join(10)


def silent(connection: socket.socket, ended: threading.Event) -> None:
    ended.wait(50)


def dripping(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
    )
    while not ended.wait(0.05):
        connection.sendall(b" ")


@pytest.mark.parametrize("talk", [silent, dripping])
def test_a_server_that_is_silent_or_drips_is_left_at_the_deadline(
    talk: Callable[[socket.socket, threading.Event], None],
) -> None:
    with talking(talk) as url:
        embedder = OpenAIEmbedder("m", base_url=url, timeout=0.3)
        with pytest.raises(EmbeddingError, match="did not answer in time"):
            embedder.embed([TEXT])
        embedder.close()


# Keys and clients


def test_without_a_key_and_an_address_the_variable_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(EmbeddingError, match="OPENAI_API_KEY"):
        OpenAIEmbedder("text-embedding-3-small").embed([TEXT])


def test_a_server_of_ones_own_needs_no_key(
    server: EmbeddingsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    embedder = OpenAIEmbedder("m")
    assert embedder.embed([TEXT]) == server.expected([TEXT])
    embedder.close()


def test_a_given_client_stays_open(server: EmbeddingsServer) -> None:
    with openai.OpenAI(api_key=SECRET, base_url=server.url, max_retries=0) as client:
        embedder = OpenAIEmbedder("m", client=client)
        assert embedder.embed([TEXT]) == server.expected([TEXT])
        embedder.close()
        assert not client.is_closed()
        server.faults = [failure(500, "busy")]
        with pytest.raises(EmbeddingError, match="is not available"):
            embedder.embed([TEXT])


async def test_an_async_client_is_refused_with_the_one_to_pass() -> None:
    async with openai.AsyncOpenAI(api_key=SECRET) as awaited:
        with pytest.raises(EmbeddingError, match=r"openai\.OpenAI\(\)"):
            OpenAIEmbedder("m", client=awaited).embed([TEXT])


def test_a_client_of_another_make_is_called_the_plain_way() -> None:
    seen: list[dict[str, Any]] = []

    def create(**request: Any) -> Any:
        seen.append(request)
        return SimpleNamespace(data=[SimpleNamespace(index=0, embedding=[1.0, 2.0])])

    embedder = OpenAIEmbedder(
        "m", client=SimpleNamespace(embeddings=SimpleNamespace(create=create))
    )
    assert embedder.embed([TEXT]) == [[1.0, 2.0]]
    assert seen[0]["input"] == [TEXT]
    assert 0 < seen[0]["timeout"] <= 60


def test_a_client_whose_create_was_replaced_is_called_through_that(
    server: EmbeddingsServer,
) -> None:
    with openai.OpenAI(api_key=SECRET, base_url=server.url) as client:
        seen = []
        plain = client.embeddings.create
        client.embeddings.create = lambda **request: (
            seen.append(request["model"]),
            plain(**request),
        )[1]
        assert OpenAIEmbedder("m", client=client).embed([TEXT]) == server.expected([TEXT])
    assert seen == ["m"]


def is_client(it: object) -> bool:
    return type(it) is openai.OpenAI


def test_threads_share_one_client(server: EmbeddingsServer) -> None:
    texts = [f"text {number}" for number in range(24)]
    before = objects(is_client)
    with made(server) as embedder, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: embedder.embed([text])[0], texts)) == server.expected(
            texts
        )
        assert count_new(is_client, before) == 1


def test_after_close_it_can_be_used_again(server: EmbeddingsServer) -> None:
    with made(server) as embedder:
        embedder.embed([TEXT])
        embedder.close()
        embedder.close()
        assert embedder.embed([TEXT]) == server.expected([TEXT])


def test_a_text_that_json_must_escape_arrives_as_it_is(server: EmbeddingsServer) -> None:
    text = 'quotes " and \\ and \n and \u2028 and 😀'
    with made(server) as embedder:
        embedder.embed([text])
    assert json.loads(json.dumps(server.sent)) == [[text]]


@pytest.mark.skipif(
    importlib.util.find_spec("socksio") is not None, reason="SOCKS proxies can be used"
)
@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "correct or unset"),
        ("ALL_PROXY", "socks5://me:hunter2@127.0.0.1:1", "pip install socksio"),
        ("HTTPS_PROXY", "gopher://me:hunter2@127.0.0.1:1", "correct or unset"),
    ],
)
def test_what_keeps_a_client_from_being_made_is_named_and_not_the_network(
    variable: str, value: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(EmbeddingError) as caught:
        OpenAIEmbedder("m", base_url="http://127.0.0.1:9/v1").embed([TEXT])
    assert variable in str(caught.value)
    assert advice in str(caught.value)
    told = f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"
    assert "network" not in told
    assert "hunter2" not in told
