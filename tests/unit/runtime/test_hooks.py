"""`on_retrieval`: it gets every retrieval, whichever way it was asked for, and costs nobody a result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.runtime import services
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Degradation
from tests.support.retrieval_world import QUERY, search
from tests.support.waiting import PATIENCE


def plain(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


async def aplain(query: str, top_k: int = 3) -> Any:
    return search(query, top_k)


class Heard(list[qtm.Retrieval]):
    """What a hook was told, plainly or to be awaited."""

    def plain(self, retrieval: qtm.Retrieval) -> None:
        self.append(retrieval)

    async def awaited(self, retrieval: qtm.Retrieval) -> None:
        await asyncio.sleep(0)
        self.append(retrieval)


WAYS: Final[dict[str, Callable[[Any], Any]]] = {
    "retrieve": lambda qm: qm.wrap(plain).retrieve(QUERY),
    "aretrieve": lambda qm: asyncio.run(qm.wrap(plain).aretrieve(QUERY)),
    "async called": lambda qm: asyncio.run(qm.wrap(aplain)(QUERY)),
    "answer": lambda qm: qm.wrap(plain).answer(QUERY),
    "stream": lambda qm: list(qm.wrap(plain).stream_answer(QUERY)),
}


@pytest.mark.parametrize("kind", ["plain", "awaited"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hook_gets_every_retrieval_once_whole_whichever_way_it_was_asked_for(
    way: str, kind: str
) -> None:
    heard = Heard()
    hook = getattr(heard, kind)
    WAYS[way](qtm.QueryMiddleware(client=ScriptedModel("Ill. [1]"), on_retrieval=hook))
    (retrieval,) = heard
    assert (retrieval.original_query, retrieval.status) == (QUERY, "full")
    assert (len(retrieval.matches), retrieval.trace.total_ms > 0) == (3, True)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("error", [ValueError(QUERY), asyncio.CancelledError(QUERY)], ids=repr)
def test_a_failing_hook_changes_no_result_and_brings_no_text_out(
    way: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(retrieval: qtm.Retrieval) -> None:
        raise error

    heard = Heard()
    wrapped = qtm.QueryMiddleware(on_retrieval=heard.append).wrap(plain, on_retrieval=failing)
    retrieval = wrapped.retrieve(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))
    assert retrieval.response == qtm.middleware(plain)(QUERY)
    reason = type(error).__name__
    assert retrieval.degradations == (Degradation("hook", "failed", reason),)
    # The next hook is told what became of the first one.
    assert heard == [retrieval]
    query_id = retrieval.trace.query_id
    assert caplog.messages == [f"retrieval {query_id} degraded: hook failed ({reason})"]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_async_hook_that_hangs_is_given_up_and_cancelled(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def hanging(_: qtm.Retrieval) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    monkeypatch.setattr(services, "HOOK_SECONDS", 0.05)
    wrapped = qtm.middleware(on_retrieval=hanging)(plain)
    retrieval = wrapped.retrieve(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))
    assert retrieval.degradations == (Degradation("hook", "timeout"),)
    assert len(retrieval.matches) == 3
    # On a busy machine its time may be over before it begins.
    assert not begun.is_set() or ended.wait(PATIENCE)


async def test_a_plain_hook_that_blocks_leaves_the_loop_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services, "HOOK_SECONDS", PATIENCE)
    turned = threading.Event()
    heard: list[bool] = []
    # Set by the loop, which makes no turn while the hook blocks it.
    hooked = qtm.middleware(on_retrieval=lambda _: heard.append(turned.wait(PATIENCE)))(aplain)
    asked = asyncio.create_task(hooked.aretrieve(QUERY))
    await asyncio.sleep(0.01)
    turned.set()
    assert ((await asked).status, heard) == ("full", [True])


@pytest.mark.parametrize("way", ["sync", "async"])
def test_what_a_hook_itself_retrieves_is_told_to_nobody(way: str) -> None:
    threads: list[int] = []

    def asking(retrieval: qtm.Retrieval) -> None:
        threads.append(threading.get_ident())
        wrapped(QUERY)

    wrapped = qtm.middleware(on_retrieval=asking)(plain)
    wrapped(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))
    (thread,) = threads
    # That of a blocking call runs in the caller's thread.
    assert (thread == threading.get_ident()) is (way == "sync")
