"""Whose client is called, in which loop and process, and what it keeps of its own settings."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.types import Deadline
from tests.support.living import count_new, objects
from tests.support.model_server import ModelServer, failure

TEXT = '{"rewrite": "x"}'
BODY = {"choices": [{"message": {"content": TEXT}, "finish_reason": "stop"}]}


@pytest.fixture
def server(model_server: ModelServer) -> ModelServer:
    model_server.reply = TEXT
    return model_server


def at(url: str) -> OpenAIModel:
    return OpenAIModel("m", LlmSettings(base_url=url))


def own_client(url: str, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="k", **options)


def keep_alive(server: Any, connection: socket.socket) -> None:
    """Answers one request after the other on one connection, as production servers do."""
    data = json.dumps(BODY).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    while True:
        connection.sendall(head % len(data) + data)
        if not server.read_request(connection):
            return


def is_open_client(it: Any) -> bool:
    return issubclass(type(it), openai.AsyncOpenAI | openai.OpenAI) and not it.is_closed()


# --- the user's own settings ----------------------------------------------------------------------


def test_a_blocking_call_of_an_async_client_ends_at_the_deadline(
    prompt, server: ModelServer
) -> None:
    server.reply = failure(503, headers={"retry-after": "30"})
    model = OpenAIModel("m", client=own_client(server.url, max_retries=2))
    began = monotonic()
    with pytest.raises(ModelError) as caught:
        model.complete(prompt, Deadline.after(0.5))
    assert caught.value.reason == "timeout"
    assert monotonic() - began < 20


@pytest.mark.parametrize(("max_retries", "requests"), [(0, 1), (2, 3)])
def test_a_client_s_own_retries_are_made(
    ask, prompt, hasty, server: ModelServer, max_retries: int, requests: int
) -> None:
    server.reply = failure(503, headers={"Retry-After-Ms": "1"})
    client = own_client(server.url, max_retries=max_retries)
    with pytest.raises(ModelError) as caught:
        ask(OpenAIModel("m", client=client), prompt)
    assert (caught.value.reason, len(server.bodies)) == ("unavailable", requests)


def test_a_client_whose_create_was_replaced_is_called_through_the_replacement(
    prompt, server: ModelServer
) -> None:
    """As tracing libraries do it."""
    seen = []
    with openai.OpenAI(api_key="k", base_url=server.url) as client:
        inner = client.chat.completions.create

        def create(**kwargs: Any) -> Any:
            seen.append(kwargs)
            return inner(**kwargs)

        client.chat.completions.create = create  # type: ignore[method-assign]
        assert OpenAIModel("m", client=client).complete(prompt, Deadline.after(30)).text == TEXT
    assert seen[0]["timeout"] <= 30


# --- loops, threads, processes --------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["given", "own"])
def test_three_event_loops_in_a_row_share_one_model_and_leave_nothing_open(
    prompt, wire, whose: str
) -> None:
    server, before = wire(keep_alive), objects(is_open_client)
    given = openai.AsyncOpenAI(base_url=server.url(), api_key="k") if whose == "given" else None
    model = OpenAIModel("m", LlmSettings(base_url=server.url()), client=given)

    async def twice() -> list[str]:
        return [(await model.acomplete(prompt, Deadline.after(30))).text for _ in range(2)]

    assert [asyncio.run(twice()) for _ in range(3)] == [[TEXT] * 2] * 3
    assert server.connections == 1
    model.close()
    assert count_new(is_open_client, before) == (whose == "given")


def test_blocking_calls_of_an_async_client_share_its_connections_and_end_at_the_deadline(
    prompt, wire
) -> None:
    server = wire(keep_alive)
    model = OpenAIModel("m", client=own_client(server.url()))
    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(lambda _: model.complete(prompt, Deadline.after(50)).text, range(40))
    assert (list(asked), server.connections <= 4) == ([TEXT] * 40, True)
    model.close()
    deaf = own_client(wire(lambda server, _: server.ended.wait()).url())
    with pytest.raises(ModelError) as caught:
        OpenAIModel("m", client=deaf).complete(prompt, Deadline.after(0.1))
    assert caught.value.reason == "timeout"


FORKING = """
import os, sys
from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.types import Deadline
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.protocols import Prompt
prompt = Prompt("m", "1", "s", "u", (), "q")
model = OpenAIModel("m", LlmSettings(base_url=sys.argv[1]))
model.complete(prompt, Deadline.after(50))
child = os.fork()
os.write(1, f"{model.complete(prompt, Deadline.after(50)).text}\\n".encode())
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_connections_of_its_own(wire) -> None:
    server = wire(keep_alive)
    command = [sys.executable, "-c", FORKING, server.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, f"{TEXT}\n" * 2), done.stderr
    assert server.connections == 2


# --- the environment ------------------------------------------------------------------------------


def test_no_key_is_told_at_the_call_and_not_before(
    ask, prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    model = OpenAIModel("gpt-4o-mini")
    assert repr(model) == "OpenAIModel('gpt-4o-mini', host='api.openai.com')"
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        ask(model, prompt)
    assert caught.value.reason == "unauthorized"


def test_a_server_of_one_s_own_needs_no_key_and_a_key_may_end_with_a_line(
    prompt, monkeypatch: pytest.MonkeyPatch, server: ModelServer
) -> None:
    monkeypatch.setenv("QTM_LLM_BASE_URL", server.url)
    for key in ("", "sk-1\n"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        OpenAIModel("m").complete(prompt, Deadline.after(30))
    assert server.keys == ["Bearer none", "Bearer sk-1"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", "http://me:passw0rd/with-a-slash@127.0.0.1:3128"),
        ("ALL_PROXY", "odd://me:passw0rd@127.0.0.1:3128"),
        ("SSL_CERT_FILE", "/no/passw0rd.pem"),
    ],
)
def test_a_proxy_or_certificate_that_cannot_be_used_is_told_without_its_password(
    ask, prompt, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ModelError, match=rf"cannot connect.*{variable}") as caught:
        ask(at("https://127.0.0.1:9/v1"), prompt)
    assert caught.value.reason == "unavailable"
    assert "passw0rd" not in "".join(traceback.format_exception(caught.value))


def test_nothing_heavy_is_loaded_before_the_first_call() -> None:
    code = (
        "import sys, qtmiddleware.providers.llms, qtmiddleware.providers.llms.callable\n"
        "from qtmiddleware.config.settings import Settings\n"
        "qtmiddleware.providers.llms.make_language_model(None, Settings())\n"
        "print({'openai', 'pydantic', 'httpx', 'httpx2', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "set()\n"
