"""Event loops of every kind, one after the other, inside one another and beside one another."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.completions import completion
from tests.support.concurrency_world import ANSWER, QUERY, REWRITE, SUBS, config, found, scripted
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.thorough

COUNTING = threading.Lock()
Run = Callable[[Coroutine[Any, Any, Any]], Any]


def plain(query: str, top_k: int = 2) -> Any:
    return found(query, top_k)


async def awaited(query: str, top_k: int = 2) -> Any:
    await asyncio.sleep(0)
    return found(query, top_k)


async def awaited_by_any_loop(query: str, top_k: int = 2) -> Any:
    return found(query, top_k)


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of *coroutine*, driven as another library's loop drives it: asyncio runs no loop."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


def searched(retrieval: qtm.Retrieval) -> list[str]:
    assert retrieval.status == "full", retrieval.degradations
    return [it.variant.text for it in retrieval.rankings]


class KeptAlive(BaseHTTPRequestHandler):
    """A service that keeps its connections open, which that of the other tests does not."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    opened = 0

    def setup(self) -> None:
        super().setup()
        with COUNTING:
            KeptAlive.opened += 1

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(completion(json.dumps({"rewrite": REWRITE}))).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client may hang up when its loop ends."""


@pytest.fixture
def kept() -> Iterator[str]:
    KeptAlive.opened = 0
    with Quiet(("127.0.0.1", 0), KeptAlive) as server:
        thread = threading.Thread(
            target=partial(server.serve_forever, poll_interval=0.01), daemon=True
        )
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def run_by_uvloop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


every_loop = pytest.mark.parametrize(
    "run",
    [
        pytest.param(asyncio.run, id="asyncio"),
        pytest.param(run_by_uvloop, id="uvloop", marks=pytest.mark.thorough),
    ],
)


@pytest.fixture
def own_account(monkeypatch: pytest.MonkeyPatch, house: ModelServer) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("QTM_LLM_BASE_URL", house.url)


@every_loop
def test_a_blocking_call_in_a_running_loop_does_not_wait_for_that_loop(
    run: Run, house: ModelServer
) -> None:
    async def cell() -> Any:
        async with openai.AsyncOpenAI(base_url=house.url, api_key="sk-x") as client:
            with openai.OpenAI(base_url=house.url, api_key="sk-x") as other:
                middleware = qtm.QueryMiddleware(config("rewrite"), client=(other, client))
                both = middleware.wrap(plain), middleware.wrap(awaited)
                return (
                    both[0].retrieve(QUERY),
                    await both[1].aretrieve(QUERY),
                    await both[0].aretrieve(QUERY),
                )

    assert [searched(it) for it in run(cell())] == [[QUERY, REWRITE]] * 3


@every_loop
def test_an_answer_is_streamed_under_every_loop(run: Run, house: ModelServer) -> None:
    async def streamed() -> str:
        async with openai.AsyncOpenAI(base_url=house.url, api_key="sk-x") as client:
            stream = (
                qtm.QueryMiddleware(config(), client=client).wrap(awaited).astream_answer(QUERY)
            )
            return "".join([piece async for piece in stream])

    assert run(streamed()) == ANSWER


@every_loop
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left_open"])
@pytest.mark.usefixtures("own_account")
def test_three_loops_in_a_row_share_one_middleware_with_a_client_of_its_own(
    run: Run, closes: bool
) -> None:
    middleware = qtm.QueryMiddleware(config("rewrite"))
    functions = middleware.wrap(awaited), middleware.wrap(plain)

    async def one() -> Any:
        made = await asyncio.gather(*(fn.aretrieve(QUERY) for fn in functions))
        if closes:
            await middleware.aclose()
        return made

    assert [searched(it) for _ in range(3) for it in run(one())] == [[QUERY, REWRITE]] * 6
    middleware.close()


def test_one_async_client_serves_its_owner_and_a_blocking_function_in_threads_and_loops_of_all_kinds(
    kept: str,
) -> None:
    """Two hundred calls: of the caller's own, blocking ones, awaited ones, and loops that soon end."""
    client = openai.AsyncOpenAI(base_url=kept, api_key="sk-x", max_retries=0)
    middleware = qtm.QueryMiddleware(config("rewrite"), client=client)
    wrapped = middleware.wrap(plain)

    async def own() -> str:
        made = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}]
        )
        return made.choices[0].message.content or ""

    async def application() -> tuple[list[Any], list[str]]:
        ours, theirs = [], []
        for _ in range(12):
            threads = [asyncio.to_thread(wrapped.retrieve, QUERY) for _ in range(5)]
            ours += await asyncio.gather(*threads, *(wrapped.aretrieve(QUERY) for _ in range(5)))
            theirs += await asyncio.gather(*(own() for _ in range(5)))
        await client.close()
        return ours, theirs

    ours, theirs = asyncio.run(application())
    ours += [wrapped.retrieve(QUERY) for _ in range(10)]
    steady = KeptAlive.opened
    ours += [asyncio.run(wrapped.aretrieve(QUERY)) for _ in range(10)]
    middleware.close()
    assert [searched(it) for it in ours] == [[QUERY, REWRITE]] * 140
    assert [json.loads(it) for it in theirs] == [{"rewrite": REWRITE}] * 60
    # Five at a time in each of three pools, some anew where they were idle for long, and one for
    # each loop that ends.
    assert steady <= 30
    assert KeptAlive.opened - steady == 10
    gc.collect()


def remembering() -> dict[str, Any]:
    """Settings under which equal questions share what the model makes of them."""
    return config(cache={"enabled": True})


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_question_that_is_asked_within_itself_does_not_wait_for_itself(way: str) -> None:
    middleware = qtm.QueryMiddleware(remembering(), client=ScriptedModel(scripted))
    functions: Any = middleware.wrap(plain), middleware.wrap(awaited)
    within = []

    def asks_again(query: str, top_k: int = 2) -> Any:
        within.append(functions[0].retrieve(query))
        return within[-1].response

    async def aasks_again(query: str, top_k: int = 2) -> Any:
        within.append(await functions[1].aretrieve(query))
        return within[-1].response

    outer: Any = middleware.wrap(aasks_again if way == "async" else asks_again)
    retrieval = asyncio.run(outer.aretrieve(QUERY)) if way == "async" else outer.retrieve(QUERY)
    assert searched(retrieval) == [QUERY, *SUBS]
    assert [it.status for it in within] == ["full"] * 4


@pytest.mark.parametrize("function", [plain, awaited_by_any_loop])
def test_under_a_loop_that_is_not_asyncios_a_call_is_answered_in_full(
    function: Callable[..., Any],
) -> None:
    qm = qtm.QueryMiddleware(config(), client=ScriptedModel(scripted))
    wrapped = qm.wrap(function)

    async def stream() -> str:
        async with wrapped.astream_answer(QUERY) as pieces:
            return "".join([piece async for piece in pieces])

    assert searched(driven(wrapped.aretrieve(QUERY)))[1:]
    assert driven(wrapped.aanswer(QUERY)).text == driven(stream()) == ANSWER
