"""`on_retrieval`: it gets every retrieval, whichever way it was asked for, and costs nobody a result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.runtime import services
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Degradation
from tests.support.concurrency_world import config as settings
from tests.support.retrieval_world import QUERY, scripted, search
from tests.support.stepping import Counted, Model, cancelled_at_every_step, searching
from tests.support.waiting import PATIENCE, with_enough_time


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

    def awaitable(self, retrieval: qtm.Retrieval) -> Awaitable[None]:
        return self.awaited(retrieval)


WAYS: Final[dict[str, Callable[[Any], Any]]] = {
    "called": lambda qm: qm.wrap(plain)(QUERY),
    "retrieve": lambda qm: qm.wrap(plain).retrieve(QUERY),
    "aretrieve": lambda qm: asyncio.run(qm.wrap(plain).aretrieve(QUERY)),
    "async called": lambda qm: asyncio.run(qm.wrap(aplain)(QUERY)),
    "async aretrieve": lambda qm: asyncio.run(qm.wrap(aplain).aretrieve(QUERY)),
    "answer": lambda qm: qm.wrap(plain).answer(QUERY),
    "aanswer": lambda qm: asyncio.run(qm.wrap(aplain).aanswer(QUERY)),
    "stream": lambda qm: list(qm.wrap(plain).stream_answer(QUERY)),
    "method": lambda qm: type("Index", (), {"find": qm.wrap(lambda self, query: plain(query))})().find(QUERY),
    "overridden": lambda qm: qm.wrap(plain).retrieve(QUERY, config={"scores": "fused"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "awaited", "awaitable"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hook_gets_every_retrieval_once_whole_whichever_way_it_was_asked_for(
    way: str, kind: str
) -> None:
    heard = Heard()
    WAYS[way](
        qtm.QueryMiddleware(client=ScriptedModel("Ill. [1]"), on_retrieval=getattr(heard, kind))
    )
    (retrieval,) = heard
    assert (retrieval.original_query, retrieval.status, len(retrieval.matches)) == (
        QUERY,
        "full",
        3,
    )
    assert retrieval.trace.total_ms > 0


def test_the_hook_gets_what_the_caller_gets() -> None:
    heard = Heard()
    wrapped = qtm.QueryMiddleware(client=ScriptedModel(scripted)).wrap(
        plain, on_retrieval=heard.append
    )
    assert heard == [wrapped.retrieve(QUERY)]
    assert wrapped(QUERY) == heard[1].response


@pytest.mark.parametrize("query", ["", " ", "x" * 9_000, None, 3, [0.1, 0.2]])
def test_degraded_retrievals_are_told_of(query: Any) -> None:
    heard = Heard()
    qtm.QueryMiddleware(on_retrieval=heard.append).wrap(lambda query, top_k=3: [])(query)
    assert [(it.original_query, it.status) for it in heard] == [(query, "degraded")]


def test_what_the_function_itself_raises_is_no_retrieval() -> None:
    heard = Heard()

    def down(query: str, top_k: int = 3) -> Any:
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        qtm.middleware(on_retrieval=heard.append)(down)(QUERY)
    assert heard == []


# --- a hook that fails ----------------------------------------------------------------------------


@given(st.text(min_size=1).filter(lambda it: not it.isspace()), st.sampled_from(["sync", "async"]))
def test_a_failing_hook_changes_no_result_and_brings_no_text_out(query: str, way: str) -> None:
    def failing(retrieval: qtm.Retrieval) -> None:
        raise ValueError(retrieval.original_query)

    heard, records = Heard(), list[logging.LogRecord]()
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(handler)
    try:
        wrapped = qtm.QueryMiddleware(on_retrieval=heard.append).wrap(plain, on_retrieval=failing)
        unhooked = qtm.middleware(plain)
        retrieval = (
            wrapped.retrieve(query) if way == "sync" else asyncio.run(wrapped.aretrieve(query))
        )
    finally:
        logger.removeHandler(handler)
    assert retrieval.response == unhooked.retrieve(query).response
    assert retrieval.degradations == (Degradation("hook", "failed", "ValueError"),)
    # The next hook is told what became of the first one.
    assert heard == [retrieval]
    (record,) = records
    assert (
        record.getMessage()
        == f"retrieval {retrieval.trace.query_id} degraded: hook failed (ValueError)"
    )
    assert (record.qtm["query_id"], record.qtm["counts"]) == (
        retrieval.trace.query_id,
        {"hook failed": 1},
    )  # type: ignore[attr-defined]


def test_what_is_no_hook_is_refused() -> None:
    for make in (
        lambda: qtm.QueryMiddleware(on_retrieval=[]),  # type: ignore[arg-type]
        lambda: qtm.middleware(on_retrieval=3)(plain),  # type: ignore[call-overload]
    ):
        with pytest.raises(qtm.ConfigError, match="on_retrieval must be a function"):
            make()


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "HOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_async_hook_that_hangs_is_given_up_and_cancelled(way: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def hanging(_: qtm.Retrieval) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    wrapped = qtm.middleware(on_retrieval=hanging)(plain)
    retrieval = wrapped.retrieve(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))
    assert (retrieval.degradations, len(retrieval.matches)) == (
        (Degradation("hook", "timeout"),),
        3,
    )
    # On a busy machine its time may be over before it begins.
    assert not begun.is_set() or ended.wait(PATIENCE)


def test_a_plain_hook_that_blocks_leaves_the_loop_free_and_holds_a_thread_of_the_middleware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turned, release = threading.Event(), threading.Event()
    heard: list[bool] = []

    def blocking(_: qtm.Retrieval) -> None:
        # Set by the loop, after a few turns that it does not make while this blocks it.
        heard.append(turned.wait(PATIENCE))
        release.wait(PATIENCE)

    async def ask() -> list[qtm.Retrieval]:
        qm = qtm.QueryMiddleware(on_retrieval=blocking)
        qm.engine.bulkhead.limit = 1
        wrapped = qm.wrap(aplain)

        async def turn() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            turned.set()

        beside = asyncio.create_task(turn())
        found = [await wrapped.aretrieve(QUERY), await wrapped.aretrieve(QUERY)]
        await beside
        return found

    def within(seconds: float) -> list[qtm.Retrieval]:
        monkeypatch.setattr(services, "HOOK_SECONDS", seconds)
        return asyncio.run(ask())

    try:
        # With too little time on a busy machine the hook is given up before its thread begins.
        found = with_enough_time(within, lambda _: heard, seconds=0.05)
    finally:
        release.set()
    assert set(heard) == {True}
    assert [it.reason for one in found for it in one.degradations] == ["timeout", "overloaded"]


def test_a_plain_hook_of_a_plain_call_runs_in_the_callers_thread() -> None:
    threads: list[int] = []
    wrapped = qtm.middleware(on_retrieval=lambda _: threads.append(threading.get_ident()))(plain)
    wrapped(QUERY)
    assert threads == [threading.get_ident()]


# --- interrupted, nested, elsewhere ---------------------------------------------------------------


def test_a_retrieval_can_be_cancelled_while_its_hook_runs() -> None:
    counted = Counted()

    async def hook(_: qtm.Retrieval) -> None:
        with counted:
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    qm = qtm.QueryMiddleware(settings("combined"), client=Model(counted), on_retrieval=hook)
    wrapped = qm.wrap(searching(counted))
    assert cancelled_at_every_step(lambda: wrapped.aretrieve(QUERY), counted) > 8
    assert cancelled_at_every_step(lambda: wrapped.aanswer(QUERY), counted) > 10


def test_a_hook_that_cancels_itself_costs_no_result() -> None:
    async def hook(_: qtm.Retrieval) -> None:
        raise asyncio.CancelledError

    wrapped = qtm.middleware(on_retrieval=hook)(plain)
    for retrieval in (wrapped.retrieve(QUERY), asyncio.run(wrapped.aretrieve(QUERY))):
        assert (retrieval.degradations[0].stage, len(retrieval.matches)) == ("hook", 3)


def test_an_interrupt_in_a_hook_still_interrupts() -> None:
    def interrupted(_: qtm.Retrieval) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        qtm.middleware(on_retrieval=interrupted)(plain)(QUERY)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_what_a_hook_itself_retrieves_is_told_to_nobody(way: str) -> None:
    heard = Heard()

    def asking(retrieval: qtm.Retrieval) -> None:
        heard.append(retrieval)
        wrapped(QUERY)

    wrapped = qtm.middleware(on_retrieval=asking)(plain)
    for count in (1, 2):
        wrapped(QUERY) if way == "sync" else asyncio.run(wrapped.aretrieve(QUERY))
        assert len(heard) == count
