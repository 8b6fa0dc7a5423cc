from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms import calls
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.types import Deadline

PATH = "/v1/chat/completions"
SECRET = "sk-verysecret0123456789"


def reset(connection: socket.socket) -> None:
    """Close with a reset, as a crashed server does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def test_nobody_listening_is_unavailable(ask, prompt) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    client_options = {
        "api_key": SECRET,
        "base_url": f"http://127.0.0.1:{port}/v1",
        "max_retries": 0,
    }
    pair = openai.OpenAI(**client_options), openai.AsyncOpenAI(**client_options)
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", client=pair), prompt)
    assert caught.value.reason == "unavailable"
    pair[0].close()


@pytest.mark.parametrize(
    "address", ["http://name.invalid/v1", "name-without-scheme/v1", "http://[bad/v1", "ftp://x/"]
)
def test_an_address_that_leads_nowhere_is_unavailable(ask, prompt, hasty, address: str) -> None:
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=address), prompt)
    assert caught.value.reason == "unavailable"


def test_tls_to_a_plain_port_is_unavailable(ask, prompt, hasty, httpserver: HTTPServer) -> None:
    address = httpserver.url_for("/v1").replace("http:", "https:")
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=address), prompt)
    assert caught.value.reason == "unavailable"


def test_a_reset_in_the_middle_of_the_body_is_unavailable(ask, prompt, wire) -> None:
    def talk(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b'content-length: 500\r\n\r\n{"choices": [')
        reset(connection)

    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=wire(talk).url()), prompt)
    assert caught.value.reason == "unavailable"


def test_a_body_shorter_than_promised_is_unavailable(ask, prompt, wire) -> None:
    server = wire(
        lambda self, connection: connection.sendall(
            HEAD + b'content-length: 500\r\n\r\n{"choices": ['
        )
    )
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=server.url()), prompt)
    assert caught.value.reason == "unavailable"


# A client that is cancelled in the middle of a TLS handshake leaves its socket to the garbage
# collector.
left_in_a_handshake = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@left_in_a_handshake
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_silent_server_is_given_up_at_the_deadline(ask, prompt, wire, scheme: str) -> None:
    server = wire(lambda self, connection: self.ended.wait())
    model = OpenAIModel("m", base_url=server.url(scheme))
    with pytest.raises(ModelError) as caught:
        ask(model, prompt, 0.5)
    model.close()
    assert caught.value.reason == "timeout"
    # The error's traceback holds the socket.
    del caught
    gc.collect()


@left_in_a_handshake
def test_a_host_that_does_not_answer_is_not_waited_for_as_a_model_is(
    ask, prompt, wire, hasty, monkeypatch
) -> None:
    monkeypatch.setattr(calls, "LONGEST_CONNECT", 0.2)
    server = wire(lambda self, connection: self.ended.wait())
    model = OpenAIModel("m", base_url=server.url("https"))
    with pytest.raises(
        ModelError, match=r"cannot be reached .* check llm\.baseUrl and the network"
    ) as caught:
        ask(model, prompt, 600)
    model.close()
    assert caught.value.reason == "timeout"
    del caught
    gc.collect()


def test_a_server_that_falls_silent_after_its_headers_is_given_up(ask, prompt, wire) -> None:
    def talk(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500\r\n\r\n")
        self.ended.wait()

    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=wire(talk).url()), prompt, 0.2)
    assert caught.value.reason == "timeout"


def test_a_server_that_trickles_its_body_cannot_hold_a_thread(ask, prompt, wire) -> None:
    def talk(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"content-length: 500000\r\n\r\n")
        while not self.ended.wait(0.02):
            connection.sendall(b" ")

    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=wire(talk).url()), prompt, 0.3)
    assert caught.value.reason == "timeout"


def test_a_body_without_end_is_not_read_to_its_end(ask, prompt, wire) -> None:
    def talk(self, connection: socket.socket) -> None:
        connection.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n")
        while not self.ended.is_set():
            connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")

    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=wire(talk).url()), prompt)
    assert caught.value.reason == "too_long"


def test_a_body_that_is_not_compressed_as_it_says_is_unparsable(
    ask, prompt, httpserver: HTTPServer
) -> None:
    httpserver.expect_request(PATH).respond_with_data(
        "not gzip", headers={"Content-Encoding": "gzip"}
    )
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url=httpserver.url_for("/v1")), prompt)
    assert caught.value.reason == "unparsable"


LOCAL_CAUSES = [
    ({"SSL_CERT_FILE": "/nowhere/ca.pem"}, "correct or unset SSL_CERT_FILE", "nothing was sent"),
    ({"SSL_CERT_FILE": __file__}, "correct or unset SSL_CERT_FILE", "nothing was sent"),
    (
        {"ALL_PROXY": "socks5://me:hunter2@127.0.0.1:1"},
        "correct or unset ALL_PROXY",
        "pip install socksio",
    ),
    (
        {"HTTPS_PROXY": "gopher://me:hunter2@127.0.0.1:1"},
        "correct or unset HTTPS_PROXY",
        "nothing was sent",
    ),
]
no_socksio = pytest.mark.skipif(
    importlib.util.find_spec("socksio") is not None, reason="SOCKS proxies can be used"
)


@no_socksio
@pytest.mark.parametrize(
    ("variables", "cause", "advice"), LOCAL_CAUSES, ids=[next(iter(it)) for it, *_ in LOCAL_CAUSES]
)
def test_what_keeps_a_client_from_being_made_is_named_and_not_the_network(
    ask, prompt, variables: dict[str, str], cause: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", base_url="http://127.0.0.1:9/v1"), prompt)
    assert caught.value.reason == "unavailable"
    assert cause in str(caught.value)
    assert advice in str(caught.value)
    told = f"{caught.value} {caught.value.__context__!r} {caught.value.__cause__!r}"
    assert "check" not in told
    assert "hunter2" not in told


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[str]:
    """The address of a service with a certificate that only those trust who are told to."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    with HTTPServer("127.0.0.1", 0, ssl_context=context) as server:
        server.expect_request(PATH).respond_with_json({"choices": [{"message": {"content": "{}"}}]})
        yield server.url_for("/v1")


def test_the_authorities_that_the_environment_names_are_trusted_and_no_others(
    ask,
    prompt,
    certificate: tuple[Path, Path],
    secure: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    hashed = ["openssl", "x509", "-subject_hash", "-noout", "-in", str(certificate[0])]
    name = subprocess.run(hashed, capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / f"{name}.0").write_bytes(certificate[0].read_bytes())
    before = os.environ.get("SSL_CERT_FILE", "")
    for variable, value in (
        ("SSL_CERT_FILE", str(certificate[0])),
        ("SSL_CERT_DIR", str(tmp_path)),
    ):
        with pytest.raises(ModelError, match=r"cannot be reached|not available"):
            ask(OpenAIModel("m", base_url=secure), prompt)
        with monkeypatch.context() as patched:
            patched.delenv("SSL_CERT_FILE")
            patched.setenv(variable, value)
            assert ask(OpenAIModel("m", base_url=secure), prompt).text == "{}"
    assert os.environ.get("SSL_CERT_FILE", "") == before
    gc.collect()


def test_the_authorities_are_read_once_for_all_models_and_loops(
    prompt,
    certificate: tuple[Path, Path],
    secure: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    reads, read = [], ssl.SSLContext.load_verify_locations

    def load(self: ssl.SSLContext, *args: Any, **kwargs: Any) -> None:
        reads.append(args)
        read(self, *args, **kwargs)

    own = tmp_path / "own.pem"
    own.write_bytes(certificate[0].read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    given = openai.AsyncOpenAI(base_url=secure)
    reads.clear()
    for model in (OpenAIModel("m", base_url=secure), OpenAIModel("m", client=given)):
        for _ in range(3):
            assert asyncio.run(model.acomplete(prompt, Deadline.after(30))).text == "{}"
        assert model.complete(prompt, Deadline.after(30)).text == "{}"
        model.close()
    assert len(reads) == 1


def test_the_proxy_that_the_environment_names_is_used_except_for_hosts_it_exempts(
    ask, prompt, wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied: list[bytes] = []

    def talk(self, connection: socket.socket) -> None:
        body = b'{"choices": [{"message": {"content": "{}"}}]}'
        connection.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)

    server = wire(talk)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
    assert ask(OpenAIModel("m", base_url="http://model.invalid/v1"), prompt).text == "{}"
    assert server.connections == 1
    monkeypatch.setenv("NO_PROXY", "model.invalid")
    with pytest.raises(ModelError):
        ask(OpenAIModel("m", base_url="http://model.invalid/v1"), prompt)
    assert server.connections == 1
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.delenv("NO_PROXY")
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                proxied.append(connection.recv(65536).splitlines()[0])

        refusing = Thread(target=refuse)
        refusing.start()
        with pytest.raises(ModelError):
            ask(OpenAIModel("m", base_url="https://model.invalid/v1"), prompt)
        refusing.join(10)
    assert proxied == [b"CONNECT model.invalid:443 HTTP/1.1"]
    gc.collect()
