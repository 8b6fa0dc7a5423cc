"""How many calls one question has in flight, counted where they arrive."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from time import monotonic
from typing import Any

import httpx2 as httpx

from tests.robustness.soak.texts import tokens_in


class Meter:
    """The calls of one question. One that the middleware has given up counts no more, though it may go on."""

    def __init__(self) -> None:
        self.peak = 0
        self.begun = 0
        self._lock = Lock()
        self._numbers = count()
        self._under_way: dict[int, float] = {}

    def begin(self, until: float = float("inf")) -> int:
        """A call begins, which is given up at *until* (monotonic clock)."""
        with self._lock:
            now, number = monotonic(), next(self._numbers)
            self._under_way = {it: end for it, end in self._under_way.items() if end > now}
            self._under_way[number] = until
            self.begun += 1
            self.peak = max(self.peak, len(self._under_way))
            return number

    def end(self, number: int) -> None:
        """The call has ended."""
        with self._lock:
            self._under_way.pop(number, None)

    @property
    def now(self) -> int:
        """How many are under way."""
        with self._lock:
            return len(self._under_way)


class Meters:
    """The meters of all questions that are being answered, by token, and what was called without one."""

    def __init__(self) -> None:
        self.strangers: list[str] = []
        self.late = 0
        self._by_token: dict[str, Meter] = {}

    @contextmanager
    def of(self, token: str) -> Iterator[Meter]:
        """The meter of *token* while its question is being answered."""
        meter = self._by_token[token] = Meter()
        try:
            yield meter
        finally:
            del self._by_token[token]

    @contextmanager
    def call(
        self, text: str, what: str, until: float = float("inf"), *, in_thread: bool = False
    ) -> Iterator[None]:
        """One call that carries *text*. Only a thread may be about to make one while its question comes to its end."""
        found = tokens_in(text)
        meter = self._by_token.get(next(iter(found))) if len(found) == 1 else None
        if meter is None:
            if in_thread and len(found) == 1:
                self.late += 1
            else:
                self.strangers.append(f"{what} with tokens {sorted(found)} of no open question")
            yield
            return
        number = meter.begin(until)
        try:
            yield
        finally:
            meter.end(number)


def _call(meters: Meters, request: Any, *, in_thread: bool) -> Any:
    said = re.sub(r"\\u[0-9a-f]{4}", " ", request.content.decode())
    # Its patience was counted from a little earlier on.
    patience = request.extensions["timeout"]["read"] - 0.5
    return meters.call(said, "a call of the model", monotonic() + patience, in_thread=in_thread)


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc]
    def __init__(self, body: Any, call: Any) -> None:
        self._body = body
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            yield chunk

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._call.__exit__(None, None, None)

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._call.__exit__(None, None, None)


class MeteredTransport(httpx.HTTPTransport):  # type: ignore[misc]
    """The usual transport; a call counts until its answer was read or it failed."""

    def __init__(self, meters: Meters, **options: Any) -> None:
        super().__init__(**options)
        self._meters = meters

    def handle_request(self, request: Any) -> Any:
        """The response, whose end is the call's."""
        call = _call(self._meters, request, in_thread=True)
        call.__enter__()
        try:
            response = super().handle_request(request)
        except BaseException:
            call.__exit__(None, None, None)
            raise
        response.stream = _Body(response.stream, call)
        return response


class AsyncMeteredTransport(httpx.AsyncHTTPTransport):  # type: ignore[misc]
    """`MeteredTransport` for a running loop."""

    def __init__(self, meters: Meters, **options: Any) -> None:
        super().__init__(**options)
        self._meters = meters

    async def handle_async_request(self, request: Any) -> Any:
        """The response, whose end is the call's."""
        call = _call(self._meters, request, in_thread=False)
        call.__enter__()
        try:
            response = await super().handle_async_request(request)
        except BaseException:
            call.__exit__(None, None, None)
            raise
        response.stream = _Body(response.stream, call)
        return response
