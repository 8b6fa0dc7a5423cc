from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import openai
import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.llms.openai.prices import Prices, find_prices
from qtmiddleware.types import Deadline
from tests.support.living import count_new, objects
from tests.support.waiting import await_until, wait_until

pytestmark = pytest.mark.thorough

PATH = "/v1/chat/completions"
BODY = {"choices": [{"message": {"content": '{"rewrite": "x"}'}, "finish_reason": "stop"}]}


@pytest.fixture
def url(httpserver: HTTPServer) -> str:
    httpserver.expect_request(PATH).respond_with_json(BODY)
    return httpserver.url_for("/v1")


def keep_alive(server: Any, connection: socket.socket) -> None:
    """Answers one request after the other on one connection, as production servers do."""
    data = json.dumps(BODY).encode()
    while True:
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            % len(data)
        )
        connection.sendall(head + data)
        if not server.read_request(connection):
            return


def is_open_client(it: Any) -> bool:
    """Whether it is an async client that nobody closed."""
    return issubclass(type(it), openai.AsyncOpenAI) and not it.is_closed()


def test_three_event_loops_in_a_row_share_one_model_and_leave_nothing_open(prompt, wire) -> None:
    server, before = wire(keep_alive), objects(is_open_client)
    model = OpenAIModel("m", base_url=server.url())

    async def twice() -> list[str]:
        return [(await model.acomplete(prompt, Deadline.after(30))).text for _ in range(2)]

    for _ in range(3):
        assert asyncio.run(twice()) == ['{"rewrite": "x"}'] * 2
    assert server.connections == 3
    assert count_new(is_open_client, before) == 0


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Given(Enum):
    """Whose client the model has."""

    NOTHING = "ours"
    ASYNC = "a copy of the caller's"


def drop(loop: asyncio.AbstractEventLoop) -> None:
    """Leave *loop* as it is, sockets and all."""


def close(loop: asyncio.AbstractEventLoop) -> None:
    loop.close()


def shut_down(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def new_uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
# A loop of uvloop that was used and is not closed stays for good, with whatever refers to it and
# without.
@pytest.mark.parametrize(
    ("new_loop", "leave"),
    [
        (asyncio.new_event_loop, drop),
        (asyncio.new_event_loop, close),
        (asyncio.new_event_loop, shut_down),
        pytest.param(new_uvloop, close, marks=pytest.mark.thorough),
        pytest.param(new_uvloop, shut_down, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("given", Given)
def test_loops_that_nobody_ends_well_take_their_clients_and_descriptors_along(
    prompt, wire, leave: Any, given: Given, new_loop: Any
) -> None:
    server = wire(keep_alive)
    client = (
        openai.AsyncOpenAI(api_key="k", base_url=server.url()) if given is Given.ASYNC else None
    )
    model = OpenAIModel("m", base_url=server.url(), client=client)

    def use_loop() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = new_loop()
        assert (
            loop.run_until_complete(model.acomplete(prompt, Deadline.after(30))).text
            == '{"rewrite": "x"}'
        )
        leave(loop)
        return weakref.ref(loop)

    used = [use_loop()]
    clients, before = len(objects(is_open_client)), count_descriptors()
    used += [use_loop() for _ in range(12)]
    assert len(objects(is_open_client)) <= clients
    assert [loop() for loop in used] == [None] * 13
    # The server's ends, of which each is in this process too, close a moment later.
    server.stop()
    wait_until(lambda: count_descriptors() <= before)


def test_a_model_that_is_dropped_leaves_no_client_in_a_loop_that_goes_on(prompt, wire) -> None:
    server, before = wire(keep_alive), objects(is_open_client)

    async def drop_models() -> int:
        for _ in range(3):
            await OpenAIModel("m", base_url=server.url()).acomplete(prompt, Deadline.after(30))
        # What closes a client is a task of the loop, and may end a moment after it.
        await await_until(
            lambda: not count_new(is_open_client, before) and len(asyncio.all_tasks()) == 1
        )
        return len(asyncio.all_tasks())

    assert asyncio.run(drop_models()) == 1


def test_a_loop_that_goes_on_after_its_generators_were_shut_down_gets_another_client(
    prompt, wire
) -> None:
    server = wire(keep_alive)
    model = OpenAIModel("m", base_url=server.url())

    async def main() -> list[str]:
        first = await model.acomplete(prompt, Deadline.after(30))
        await asyncio.get_running_loop().shutdown_asyncgens()
        return [first.text, (await model.acomplete(prompt, Deadline.after(30))).text]

    with pytest.warns(ResourceWarning, match="asynchronous generator"):
        assert asyncio.run(main()) == ['{"rewrite": "x"}'] * 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("how", ["complete", "acomplete", "stream", "astream"])
def test_a_redirect_is_not_followed_and_says_what_to_check(
    prompt, httpserver: HTTPServer, status: int, how
) -> None:
    away = httpserver.url_for("/elsewhere")
    httpserver.expect_request(PATH).respond_with_data(status=status, headers={"location": away})
    httpserver.expect_request("/elsewhere").respond_with_json(BODY)
    model = OpenAIModel("m", base_url=httpserver.url_for("/v1"))

    async def heard() -> list[Any]:
        return [piece async for piece in model.astream(prompt, Deadline.after(30))]

    asks: dict[str, Any] = {
        "complete": lambda: model.complete(prompt, Deadline.after(30)),
        "stream": lambda: list(model.stream(prompt, Deadline.after(30))),
        "acomplete": lambda: asyncio.run(model.acomplete(prompt, Deadline.after(30))),
        "astream": lambda: asyncio.run(heard()),
    }
    with pytest.raises(ModelError) as caught:
        asks[how]()
    model.close()
    assert caught.value.reason == "unavailable"
    assert f"redirects to another address (HTTP {status})" in str(caught.value)
    assert "llm.baseUrl" in str(caught.value)
    assert [request.path for request, _ in httpserver.log] == [PATH]


def test_a_client_that_was_given_follows_redirects_as_it_was_told_to(
    prompt, httpserver: HTTPServer
) -> None:
    moved_to = httpserver.url_for("/elsewhere")
    httpserver.expect_request(PATH).respond_with_data(status=307, headers={"location": moved_to})
    httpserver.expect_request("/elsewhere").respond_with_json(BODY)
    address = httpserver.url_for("/v1")
    for follows in (True, False):
        http = openai.DefaultAsyncHttpxClient(follow_redirects=follows)
        model = OpenAIModel(
            "m", client=openai.AsyncOpenAI(api_key="k", base_url=address, http_client=http)
        )
        if follows:
            assert (
                asyncio.run(model.acomplete(prompt, Deadline.after(30))).text == '{"rewrite": "x"}'
            )
        else:
            with pytest.raises(ModelError, match="redirects to another address"):
                asyncio.run(model.acomplete(prompt, Deadline.after(30)))


def test_many_tasks_of_one_loop_share_one_client(prompt, wire) -> None:
    server, before = wire(keep_alive), objects(is_open_client)
    model = OpenAIModel("m", base_url=server.url())

    async def many() -> int:
        replies = await asyncio.gather(
            *(model.acomplete(prompt, Deadline.after(30)) for _ in range(12))
        )
        assert len({id(await model._clients.get_async_client()) for _ in range(3)}) == 1
        assert count_new(is_open_client, before) == 1
        return len(replies)

    assert asyncio.run(many()) == 12


def test_loops_of_several_threads_do_not_share_a_client(prompt, wire) -> None:
    server, before = wire(keep_alive), objects(is_open_client)
    model = OpenAIModel("m", base_url=server.url())

    def run(_: int) -> str:
        return asyncio.run(model.acomplete(prompt, Deadline.after(50))).text

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(run, range(12))) == {'{"rewrite": "x"}'}
    assert count_new(is_open_client, before) == 0


def test_a_cancelled_call_is_cancelled_and_the_next_one_works(prompt, wire) -> None:
    def talk(server: Any, connection: socket.socket) -> None:
        if server.connections == 1:
            asked.set_result(None) if asked.done() else loop.call_soon_threadsafe(
                asked.set_result, None
            )
            server.ended.wait()
        else:
            keep_alive(server, connection)

    async def main() -> str:
        nonlocal loop, asked
        loop, asked = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        model = OpenAIModel("m", base_url=wire(talk).url())
        task = asyncio.create_task(model.acomplete(prompt, Deadline.after(50)))
        await asked
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await model.acomplete(prompt, Deadline.after(50))).text

    loop: Any = None
    asked: Any = None
    assert asyncio.run(main()) == '{"rewrite": "x"}'


def is_client(it: object) -> bool:
    return type(it) is openai.OpenAI


def test_sixteen_threads_share_one_client(prompt, wire) -> None:
    server, before = wire(keep_alive), objects(is_client)
    model = OpenAIModel("m", base_url=server.url())
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: model.complete(prompt, Deadline.after(50)), range(64)))
    assert len(replies) == 64
    assert count_new(is_client, before) == 1
    model.close()


def test_a_closed_model_opens_again(prompt, url: str) -> None:
    model = OpenAIModel("m", base_url=url)

    async def main() -> None:
        await model.acomplete(prompt, Deadline.after(30))
        await model.aclose()
        await model.acomplete(prompt, Deadline.after(30))

    for _ in range(2):
        model.complete(prompt, Deadline.after(30))
        model.close()
    asyncio.run(main())


def test_a_given_client_is_used_and_never_closed(prompt, url: str) -> None:
    with openai.OpenAI(api_key="k", base_url=url) as client:
        model = OpenAIModel("m", client=client)
        assert not model.can_async
        model.complete(prompt, Deadline.after(30))
        model.close()
        assert not client.is_closed()
        assert client.max_retries == 2
        with pytest.raises(ModelError) as caught:
            asyncio.run(model.acomplete(prompt, Deadline.after(30)))
        assert caught.value.reason == "unavailable"


async def test_a_given_async_client_is_used_and_never_closed(prompt, url: str) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=url) as client:
        model = OpenAIModel("m", client=client)
        assert model.can_async
        await model.acomplete(prompt, Deadline.after(30))
        assert model.complete(prompt, Deadline.after(30)).text == '{"rewrite": "x"}'
        await model.aclose()
        assert not client.is_closed()


def of_itself(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url=url)


def with_a_given_http_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="k", base_url=url, http_client=openai.DefaultAsyncHttpxClient()
    )


def azure(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncAzureOpenAI(
        api_key="k", azure_endpoint=url.removesuffix("/v1"), api_version="2024-10-21"
    )


every_async_client = pytest.mark.parametrize("make", [of_itself, with_a_given_http_client, azure])


@every_async_client
def test_blocking_calls_of_all_threads_share_the_connections_of_one_private_loop(
    prompt, wire, make: Any
) -> None:
    server = wire(keep_alive)
    model = OpenAIModel("m", client=make(server.url()))
    before = objects(is_open_client)
    for _ in range(3):
        model.complete(prompt, Deadline.after(50))
    with ThreadPoolExecutor(4) as pool:
        replies = list(
            pool.map(lambda _: model.complete(prompt, Deadline.after(50)).text, range(60))
        )
    assert replies == ['{"rewrite": "x"}'] * 60
    assert server.connections <= 4
    # Copies of a client share what its resources are made of; the HTTP client is each one's own.
    assert count_new(is_open_client, before) == 1
    model.close()
    assert count_new(is_open_client, before) == 0
    model.complete(prompt, Deadline.after(50))
    asyncio.run(model.aclose())
    assert count_new(is_open_client, before) == 0


@every_async_client
def test_the_caller_s_own_client_is_never_given_a_connection_of_ours(
    prompt, wire, make: Any
) -> None:
    server = wire(keep_alive)
    client = make(server.url())
    model = OpenAIModel("m", client=client)

    async def ours() -> None:
        await model.acomplete(prompt, Deadline.after(50))

    async def both() -> list[Any]:
        own = [
            client.with_options(max_retries=0).chat.completions.create(model="m", messages=[])
            for _ in range(3)
        ]
        made = await asyncio.gather(
            *own, ours(), asyncio.to_thread(model.complete, prompt, Deadline.after(50))
        )
        await client.close()
        return made

    # A connection that this left in the client would be one of a loop that has ended.
    asyncio.run(ours())
    model.complete(prompt, Deadline.after(50))
    assert len(asyncio.run(both())) == 5
    model.close()


def test_a_stream_of_an_async_client_is_read_by_one_who_blocks(prompt, url: str) -> None:
    model = OpenAIModel("m", client=openai.AsyncOpenAI(api_key="k", base_url=url))
    *_, last = model.stream(prompt, Deadline.after(30))
    assert isinstance(last, Reply)
    assert last.text == '{"rewrite": "x"}'
    model.close()


def test_a_blocking_call_of_an_async_client_ends_at_its_deadline(prompt, wire) -> None:
    model = OpenAIModel("m", client=of_itself(wire(lambda server, _: server.ended.wait()).url()))
    with pytest.raises(ModelError) as caught:
        model.complete(prompt, Deadline.after(0.1))
    assert caught.value.reason == "timeout"
    model.close()


def test_a_closed_client_of_the_user_is_unavailable(prompt, url: str) -> None:
    client = openai.OpenAI(api_key="k", base_url=url)
    client.close()
    with pytest.raises(ModelError) as caught:
        OpenAIModel("m", client=client).complete(prompt, Deadline.after(30))
    assert caught.value.reason == "unavailable"


def test_an_azure_client_is_asked_at_its_deployment(prompt, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/openai/deployments/rewriter/chat/completions").respond_with_json(
        BODY
    )
    endpoint = httpserver.url_for("/").rstrip("/")
    with openai.AzureOpenAI(
        api_key="k", azure_endpoint=endpoint, api_version="2024-10-21"
    ) as client:
        assert (
            OpenAIModel("rewriter", client=client).complete(prompt, Deadline.after(30)).text
            == '{"rewrite": "x"}'
        )


class Traced(openai.OpenAI):
    """A client whose `create` a tracing library replaced on the object."""


def test_a_client_whose_create_was_replaced_is_called_through_the_replacement(
    prompt, url: str
) -> None:
    seen = []
    with Traced(api_key="k", base_url=url) as client:
        inner = client.chat.completions.create

        def create(**kwargs: Any) -> Any:
            seen.append(kwargs)
            return inner(**kwargs)

        client.chat.completions.create = create  # type: ignore[method-assign]
        reply = OpenAIModel("m", client=client).complete(prompt, Deadline.after(30))
    assert reply.text == '{"rewrite": "x"}'
    assert seen[0]["timeout"] <= 30


@pytest.mark.parametrize(
    "double", [MagicMock(), MagicMock(spec=openai.OpenAI), SimpleNamespace(chat=MagicMock())]
)
def test_a_double_in_place_of_a_client_is_called_plainly(prompt, double: Any) -> None:
    double.chat = MagicMock()
    double.chat.completions.create.return_value = BODY
    assert (
        OpenAIModel("m", client=double).complete(prompt, Deadline.after(30)).text
        == '{"rewrite": "x"}'
    )
    double.chat.completions.create.side_effect = ValueError("any")
    with pytest.raises(ModelError) as caught:
        OpenAIModel("m", client=double).complete(prompt, Deadline.after(30))
    assert caught.value.reason == "unavailable"


def test_interrupts_pass_through(prompt) -> None:
    double = MagicMock()
    double.chat.completions.create.side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        OpenAIModel("m", client=double).complete(prompt, Deadline.after(30))


def test_no_key_is_told_at_the_call_and_not_before(
    ask, prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    model = OpenAIModel("gpt-4o-mini")
    assert repr(model) == "OpenAIModel('gpt-4o-mini', host='the default address')"
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        ask(model, prompt)
    assert caught.value.reason == "unauthorized"


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
        ask(OpenAIModel("m", base_url="https://127.0.0.1:9/v1"), prompt)
    assert caught.value.reason == "unavailable"
    assert "passw0rd" not in "".join(traceback.format_exception(caught.value))


def refuse_tunnel(server: Any, connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 407 me:passw0rd\r\ncontent-length: 0\r\n\r\n")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_lets_nothing_through_is_named_and_not_the_key(
    ask, prompt, wire, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", wire(refuse_tunnel).url().removesuffix("/v1"))
    with pytest.raises(ModelError, match="check HTTPS_PROXY") as caught:
        ask(OpenAIModel("m", base_url=f"{scheme}://model.example/v1"), prompt)
    assert "passw0rd" not in "".join(traceback.format_exception(caught.value))


def test_a_server_of_one_s_own_needs_no_key(
    ask, prompt, monkeypatch: pytest.MonkeyPatch, url: str, httpserver
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.setenv("QTM_LLM_BASE_URL", url)
    model = OpenAIModel("m")
    ask(model, prompt)
    assert httpserver.log[0][0].headers["Authorization"] == "Bearer none"
    assert repr(model) == "OpenAIModel('m', host='127.0.0.1')"


def test_a_key_of_other_letters_is_told_as_such(
    ask, prompt, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-schlüssel")
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(
        ModelError, match=r"the key for m at 127\.0\.0\.1 .* check OPENAI_API_KEY"
    ) as caught:
        ask(OpenAIModel("m"), prompt)
    assert caught.value.reason == "unauthorized"
    assert "schl" not in str(caught.value)


def test_a_key_with_a_line_end_is_a_key(
    prompt, monkeypatch: pytest.MonkeyPatch, url: str, httpserver
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\n")
    OpenAIModel("m", base_url=url).complete(prompt, Deadline.after(30))
    assert httpserver.log[0][0].headers["Authorization"] == "Bearer sk-1"


FORKING = """
import os, sys
from qtmiddleware.types import Deadline
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.protocols import Prompt
prompt = Prompt("m", "1", "s", "u", (), "q")
model = OpenAIModel("m", base_url=sys.argv[1])
model.complete(prompt, Deadline.after(50))
child = os.fork()
text = model.complete(prompt, Deadline.after(50)).text
os.write(1, f"{text}\\n".encode())
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_a_client_of_its_own(wire) -> None:
    server = wire(keep_alive)
    done = subprocess.run(
        [sys.executable, "-c", FORKING, server.url()],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", '{"rewrite": "x"}', '{"rewrite": "x"}']
    assert server.connections == 2


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


PRICES = [
    (Prices("gpt-6-luna"), 0.10 + 0.50),
    (Prices("gpt-6-luna-2026-09-22"), 0.10 + 0.50),
    (Prices("gpt-4o-mini"), 0.15 + 0.60),
    (Prices("gpt-4o-mini-2024-07-18"), 0.15 + 0.60),
    (Prices("gpt-4o-2024-05-13"), 5.0 + 15.0),
    (Prices("my-model"), None),
    (Prices("my-model", 1.0, 2.0), 3.0),
    (Prices("my-model", 1.0), None),
    (Prices("gpt-4o-mini", 0.0, 0.0), 0.0),
    (Prices("gpt-4o-mini", output=1.0), 1.15),
]


@pytest.mark.parametrize(("prices", "cost"), PRICES)
def test_a_million_tokens_each_way_cost_both_prices(prices: Prices, cost: float | None) -> None:
    assert prices.compute_cost(1_000_000, 1_000_000) == (
        None if cost is None else pytest.approx(cost)
    )
    assert prices.compute_cost(0, 0) is None


def test_a_price_costs_no_call_over_the_network_and_is_looked_up_when_it_is_needed() -> None:
    code = (
        "import socket, sys\n"
        "def refused(*a, **k): raise AssertionError('a connection')\n"
        "socket.socket.connect = socket.getaddrinfo = refused\n"
        "from qtmiddleware.providers.llms.openai.prices import Prices\n"
        "prices = Prices('gpt-6-luna')\n"
        "print('genai_prices' in sys.modules, prices.compute_cost(1_000_000, 0), 'genai_prices' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout == "False 0.1 True\n"


@pytest.mark.parametrize(
    "package", [None, SimpleNamespace(Usage=dict, calc_price=lambda *a, **k: None)]
)
def test_without_the_list_of_prices_only_a_given_price_is_known(
    package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", package)
    find_prices.cache_clear()
    try:
        assert Prices("gpt-6-luna").compute_cost(1, 1) is None
        assert Prices("gpt-6-luna", 1.0, 2.0).compute_cost(1_000_000, 1_000_000) == 3.0
    finally:
        find_prices.cache_clear()
