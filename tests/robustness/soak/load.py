"""The load: coroutines and threads that ask one question after the other."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Final

import openai

import qtmiddleware as qtm
from tests.robustness.soak.laws import Laws, SearchDown
from tests.robustness.soak.meters import AsyncMeteredTransport, MeteredTransport, Meters, httpx
from tests.robustness.soak.texts import (
    LUCKY,
    is_lucky,
    passages,
    question,
    token_in,
    token_of,
    tokens_in,
)

CAPS: Final = {"combined": 3, "decompose": 3, "multi_query": 4, "all": 2, "rewrite": 8}
"""Each kind of transformation with the limit of calls in flight it is run under."""
SHARES: Final = (4, 3, 3, 1, 1)
"""How often each of them is asked for."""
IN_THREADS: Final = 0.1
"""Share of the coroutines' questions to the synchronous function, which then runs in threads of the middleware."""
OVER_HTTP: Final = 0.1
AGAIN: Final = 0.05
"""Share of questions that are asked a second time, which may be answered from the cache."""

asked_by: Final[ContextVar[str]] = ContextVar("asked_by")


@dataclass(frozen=True)
class Plan:
    """How long and how hard."""

    seconds: float
    seed: int
    breaker: bool
    pace: float
    coroutines: int = 500
    threads: int = 64

    @property
    def limits(self) -> dict[str, int]:
        """Patience: several times what the model and a busy processor take."""
        return {
            "llmTimeoutMs": int(4_500 + 3_750 * self.pace),
            "deadlineMs": int(7_000 + 6_500 * self.pace),
        }


class Load:
    """Everything that asks, and what it asks."""

    def __init__(self, plan: Plan, port: int, laws: Laws) -> None:
        self.laws = laws
        self.plan = plan
        self.meters = Meters()
        self._numbers = count()
        self._address = f"http://127.0.0.1:{port}"
        self._until = float("inf")
        most = httpx.Limits(max_connections=4_000, max_keepalive_connections=4_000)
        # An http client of their own makes them no others: real clients, whose calls are counted on
        # their way out.
        self._threaded = httpx.Client(transport=MeteredTransport(self.meters, limits=most))
        self._awaited = httpx.AsyncClient(transport=AsyncMeteredTransport(self.meters, limits=most))
        self._search = httpx.Client(timeout=30, limits=most)
        self._asearch = httpx.AsyncClient(timeout=30, limits=most)
        account = {"api_key": "sk-soak", "base_url": f"{self._address}/v1"}
        clients = (
            openai.OpenAI(**account, http_client=self._threaded),
            openai.AsyncOpenAI(**account, http_client=self._awaited),
        )
        self._cases: list[tuple[int, Any, Any]] = []
        for kind, cap in CAPS.items():
            config = {
                "transformationType": kind,
                "limits": {**plan.limits, "maxConcurrency": cap},
                "breaker": {"failures": 5 if plan.breaker else 0, "seconds": 1.0},
                "cache": {"maxEntries": 256},
            }
            middleware = qtm.QueryMiddleware(config, client=clients)
            self._cases.append(
                (cap, middleware.wrap(self._coroutine), middleware.wrap(self._function))
            )

    # --- the functions that are wrapped ---

    def _mood(self, text: str) -> tuple[float, str]:
        """How long the search for *text* takes, and what befalls it."""
        rng = Random(f"{self.plan.seed}/{text}")
        is_original = text.startswith("What does report")
        chance = 0.5 if is_lucky(token_in(text)) else rng.random()
        if chance < (0.005 if is_original else 0.03):
            return 0.005, "fails"
        if chance < 0.05:
            return 0.3, "slow"
        if not is_original and chance < 0.052:
            return 3.0, "hangs"
        return rng.uniform(0.005, 0.02), "http" if chance > 1 - OVER_HTTP else ""

    def _function(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        self.laws.searched(asked_by.get("nobody"), query)
        seconds, mood = self._mood(query)
        with self.meters.call(query, "a search", in_thread=True):
            time.sleep(seconds)
            if mood == "fails":
                raise SearchDown(query)
            if mood == "http":
                return self._search.get(f"{self._address}/search", params={"q": query}).json()[
                    :top_k
                ]  # type: ignore[no-any-return]
            return passages(query, top_k)

    async def _coroutine(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        self.laws.searched(asked_by.get("nobody"), query)
        seconds, mood = self._mood(query)
        with self.meters.call(query, "a search"):
            await asyncio.sleep(3_600 if mood == "hangs" else seconds)
            if mood == "fails":
                raise SearchDown(query)
            if mood == "http":
                response = await self._asearch.get(f"{self._address}/search", params={"q": query})
                return response.json()[:top_k]  # type: ignore[no-any-return]
            return passages(query, top_k)

    # --- those who ask ---

    def _questions(self, rng: Random) -> Any:
        token = ""
        while time.monotonic() < self._until:
            token = token if token and rng.random() < AGAIN else token_of(next(self._numbers))
            (case,) = rng.choices(self._cases, SHARES)
            yield (*case, token, rng.random())

    def _judged(self, way: str, cap: int, token: str, meter: Any, ask: Callable[[], Any]) -> None:
        """`_ajudged` for a thread."""
        self.laws.begun()
        began, outcome = time.perf_counter(), "raised: the search's own error"
        try:
            outcome = self._outcome(way, cap, token, meter, ask())
        except Exception as error:
            self._raised(token, error)
        self.laws.cap(way, cap, token, meter)
        self.laws.ended(outcome, time.perf_counter() - began)

    async def _ajudged(
        self, way: str, cap: int, token: str, meter: Any, ask: Callable[[], Any]
    ) -> None:
        self.laws.begun()
        began, outcome = time.perf_counter(), "raised: the search's own error"
        try:
            outcome = self._outcome(way, cap, token, meter, await ask())
        except Exception as error:
            self._raised(token, error)
        self.laws.cap(way, cap, token, meter)
        self.laws.ended(outcome, time.perf_counter() - began)

    def _outcome(self, way: str, cap: int, token: str, meter: Any, found: Any) -> str:
        if isinstance(found, qtm.Retrieval):
            return self.laws.retrieval(way, cap, token, found, meter)
        self.laws.rows(token, found)
        return "plain call"

    def _raised(self, token: str, error: Exception) -> None:
        if type(error) is not SearchDown or tokens_in(str(error)) != {token}:
            self.laws.breach(f"{token} raised {type(error).__name__}: {error}")

    async def _asking(self, number: int) -> None:
        rng = Random(f"{self.plan.seed}/coroutine/{number}")
        for cap, awaited, plain, token, chance in self._questions(rng):
            asked_by.set(token)
            way, call = (
                ("async", awaited.aretrieve)
                if chance > IN_THREADS
                else ("threads", plain.aretrieve)
            )
            if chance > 0.8:
                call = awaited
            with self.meters.of(token) as meter:
                await self._ajudged(way, cap, token, meter, lambda: call(question(token)))  # noqa: B023
            if asked_by.get() != token:
                self.laws.breach(f"{token} came back in the context of {asked_by.get()}")

    def _threads_asking(self, number: int) -> None:
        rng = Random(f"{self.plan.seed}/thread/{number}")
        for cap, _, plain, token, chance in self._questions(rng):
            asked_by.set(token)
            call = plain if chance > 0.8 else plain.retrieve
            with self.meters.of(token) as meter:
                self._judged("sync", cap, token, meter, lambda: call(question(token)))  # noqa: B023

    async def warm_up(self) -> None:
        """Ask each function once, so that nothing is imported while time is measured."""
        for number, (cap, awaited, plain) in enumerate(self._cases):
            for way, call in (("async", awaited.aretrieve), ("threads", plain.aretrieve)):
                token = token_of(LUCKY + number + (way == "async") * len(self._cases))
                asked_by.set(token)
                with self.meters.of(token) as meter:
                    await self._ajudged(way, cap, token, meter, lambda: call(question(token)))  # noqa: B023

    async def run(self, then: Callable[[], None]) -> float:
        """Ask until the time is over, call *then*, wait until all has come back; answers how long that took."""
        began = time.monotonic()
        self._until = began + self.plan.seconds
        threads = [
            threading.Thread(
                target=self._threads_asking, args=(number,), name=f"asks-{number}", daemon=True
            )
            for number in range(self.plan.threads)
        ]
        for thread in threads:
            thread.start()
        async with asyncio.TaskGroup() as group:
            for number in range(self.plan.coroutines):
                group.create_task(self._asking(number))
            await asyncio.sleep(self.plan.seconds)
            await asyncio.to_thread(then)
        while any(thread.is_alive() for thread in threads):
            await asyncio.sleep(0.01)
        took = time.monotonic() - began
        # What was given up ends now or has ended; then nothing of it is left.
        await asyncio.sleep(0.1)
        for client in (self._awaited, self._asearch):
            await client.aclose()
        return took

    def close(self) -> None:
        """Close the clients of the threads."""
        self._threaded.close()
        self._search.close()


def idle_seconds(seconds: float) -> None:
    """Let idle threads of the middleware go sooner, so that a brief run need not wait for them."""
    from qtmiddleware.runtime import threads

    threads.IDLE_SECONDS = min(threads.IDLE_SECONDS, max(0.5, seconds / 10))  # type: ignore[misc]
