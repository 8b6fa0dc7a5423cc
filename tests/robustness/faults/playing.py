"""One case, played with the real clients over HTTP, and all that came of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, Final

import qtmiddleware as qtm
from tests.robustness.faults.cases import Case, Draw
from tests.robustness.faults.expected import broken
from tests.robustness.faults.watching import Watch
from tests.robustness.faults.world import NAMESPACE, QUERY, TOP_K, number_of, rows, seconds

KEY: Final = "sk-faults0123456789"
ROOT: Final = Path(__file__).parents[3]


class Unlucky(Exception):
    """What the function itself raises."""


@dataclass(frozen=True)
class Limits:
    """The two limits of a case, in milliseconds, and how many times as long as usual everything slow takes."""

    llm_ms: int = 120
    deadline_ms: int = 300
    pace: int = 1

    def slower(self) -> Limits:
        """Three times as much time for everything, which a busy machine needs to tell quick from slow."""
        return Limits(3 * self.llm_ms, 3 * self.deadline_ms, 3 * self.pace)


@dataclass
class Played:
    """What the plain function gave or raised, and what the wrapped one did."""

    plain: Any = None
    plain_error: BaseException | None = None
    retrieval: Any = None
    error: BaseException | None = None
    watch: Watch = field(default_factory=Watch)


def arguments_of(draw: Draw) -> dict[str, Any]:
    """What the caller passes, made anew each time."""
    common: dict[str, Any] = {"top_k": TOP_K, "filter": {"lang": {"$eq": "en"}}}
    if draw.backend == "search":
        return {"namespace": NAMESPACE, "inputs": {"text": QUERY}, **common}
    return {"query": QUERY, **common}


class Servers:
    """Where the servers of a run are."""

    def __init__(self, plain: int, encrypted: int) -> None:
        self._plain = plain
        self._encrypted = encrypted

    def model(self, fault: str, pace: int) -> str:
        """The address of a model with *fault*."""
        if fault == "tls":
            return f"https://127.0.0.1:{self._encrypted}/{pace}/model/ok"
        return f"http://{'nowhere.invalid' if fault == 'dns' else '127.0.0.1'}:{self._plain}/{pace}/model/{fault}"

    def index(self, case: Case, draw: Draw, pace: int) -> str:
        """The host of an index on which the search of *case* is as it says."""
        failing = ",".join(str(number_of(text)) for text in broken(case, draw)) or "none"
        return f"http://127.0.0.1:{self._plain}/{pace}/index/{case.search}/{draw.form}/{failing}"


@contextmanager
def served(certificate: tuple[Path, Path]) -> Iterator[Servers]:
    """The servers, in a process of their own that ends with the block."""
    command = [sys.executable, "-m", "tests.robustness.faults.serving", *map(str, certificate)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield Servers(*map(int, process.stdout.readline().split()))
        finally:
            assert process.stdin is not None
            process.stdin.close()


class Player:
    """Plays one case once."""

    def __init__(self, case: Case, draw: Draw, servers: Servers, limits: Limits) -> None:
        self.case = case
        self.draw = draw
        self.servers = servers
        self.limits = limits
        self.played = Played()
        self._error = Unlucky("no index") if draw.form else ConnectionResetError("gone")
        self._broken = frozenset(broken(case, draw))

    def play(self) -> Played:
        """Everything that came of it."""
        with self.played.watch as watch:
            if self.case.way == "async":
                asyncio.run(self._play())
            else:
                # Nothing that is awaited then ever suspends.
                with suppress(StopIteration):
                    self._play().send(None)
            watch.drain()
            watch.files_left()
        return self.played

    async def _play(self) -> None:
        import openai
        from pinecone import AsyncIndex, Index

        played, awaits = self.played, self.case.way == "async"
        async with AsyncExitStack() as stack:

            async def enter(manager: Any) -> Any:
                if awaits:
                    return await stack.enter_async_context(manager)
                return stack.enter_context(manager)

            async def tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
                try:
                    return (await call() if awaits else call()), None
                except Exception as error:
                    return None, error

            function: Callable[..., Any] = self._coroutine if awaits else self._function
            if self.draw.backend != "function":
                kind: Any = AsyncIndex if awaits else Index
                index = await enter(kind(host=self._host, api_key=KEY, ssl_verify=False))
                function = index.search
            client = None
            if self.draw.client == "given":
                kind = openai.AsyncOpenAI if awaits else openai.OpenAI
                client = await enter(kind(base_url=self._address, api_key=KEY, max_retries=0))
            plain = partial(function, **arguments_of(self.draw))
            played.plain, played.plain_error = await tried(plain)
            with self._environment():
                middleware = await enter(qtm.QueryMiddleware(self._settings, client=client))
                wrapped = middleware.wrap(function)
                if awaits:
                    played.watch.listens_to(asyncio.get_running_loop())
                ask = wrapped.aretrieve if awaits else wrapped.retrieve
                asked = partial(ask, **arguments_of(self.draw))
                played.retrieval, played.error = await tried(asked)
                if awaits:
                    await played.watch.tasks_left()
                else:
                    played.watch.drain()

    @property
    def _host(self) -> str:
        return self.servers.index(self.case, self.draw, self.limits.pace)

    @property
    def _address(self) -> str:
        return self.servers.model(self.case.model, self.limits.pace)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """The key and the address, for a client the middleware makes itself."""
        names = {"OPENAI_API_KEY": KEY, "QTM_LLM_BASE_URL": self._address}
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(names if self.draw.client == "own" else {})
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value is not None else {})

    @property
    def _settings(self) -> dict[str, Any]:
        is_auto = self.case.kind == "auto"
        return {
            "transformationType": "combined" if is_auto else self.case.kind,
            # Whether the gate would let this question through is not what is asked here.
            "escalation": {"mode": "auto", "targetCallRate": 1.0} if is_auto else {},
            "keywordEvidence": {"enabled": self.draw.evidence},
            "limits": {
                "maxSearches": 20,
                "llmTimeoutMs": self.limits.llm_ms,
                "deadlineMs": self.limits.deadline_ms,
            },
        }

    def _function(self, query: str, top_k: int = TOP_K, filter: Any = None) -> Any:  # noqa: A002
        sleep(self.limits.pace * seconds(self.case.search, self.draw.form, number_of(query)))
        return self._found(query, top_k)

    async def _coroutine(self, query: str, top_k: int = TOP_K, filter: Any = None) -> Any:  # noqa: A002
        await asyncio.sleep(
            self.limits.pace * seconds(self.case.search, self.draw.form, number_of(query))
        )
        return self._found(query, top_k)

    def _found(self, query: str, top_k: int) -> Any:
        from pinecone import QueryResponse, ScoredVector

        if query in self._broken or number_of(query) < 0:
            raise self._error
        found = rows(self.case.search, self.draw.form, number_of(query), top_k)
        matches = [
            ScoredVector(id=name, score=score, metadata={"text": text})
            for name, score, text in found
        ]
        return QueryResponse(matches=matches, namespace=NAMESPACE)
