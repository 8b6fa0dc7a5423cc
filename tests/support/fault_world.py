"""A search function beside a model that has bad days, asked blocking and awaiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import openai
from werkzeug import Response

import qtmiddleware as qtm
from tests.support import model_server
from tests.support.retrieval_world import QUERY, WIDE, rank

__all__ = ["QUERY", "WIDE"]

SECRET: Final = "sk-verysecret0123456789"
PASSAGES: Final = {
    "health": "Jaco has no health concerns",
    "vet": "The vet saw Jaco in May and found him fit",
    "food": "Jaco eats dry food twice a day",
    "illness": "Common medical conditions of older dogs are arthritis and obesity",
    "fees": "The fee is due in March",
}
PATIENT: Final = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
HASTY: Final = {"llmTimeoutMs": 150, "deadlineMs": 55_000}


def failure(status: int) -> Response:
    """A refusal that repeats what it was sent."""
    return model_server.failure(status, f"no luck with {QUERY} and {SECRET}")


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return rank(PASSAGES, query, top_k)


@dataclass
class Day:
    """What one retrieval came to: what was returned or raised, and every text that was searched."""

    calls: list[tuple[str, int]] = field(default_factory=list)
    retrieval: Any = None
    response: Any = None
    error: BaseException | None = None

    @property
    def reasons(self) -> list[tuple[str, str]]:
        return [(it.stage, it.reason) for it in self.retrieval.degradations]

    @property
    def kinds(self) -> list[str]:
        return [variant.kind for variant in self.retrieval.variants]


Respond = Callable[[str, int], Any]


class Caller:
    """Wraps a search function with the real client of its kind and asks it once."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def ask(
        self,
        settings: Mapping[str, Any],
        *,
        respond: Respond = search,
        query: Any = QUERY,
        **options: Any,
    ) -> Day:
        day, lock = Day(), Lock()

        def function(query: str, top_k: int = 3) -> Any:
            with lock:
                day.calls.append((query, top_k))
            return respond(query, top_k)

        async def coroutine(query: str, top_k: int = 3) -> Any:
            day.calls.append((query, top_k))
            return respond(query, top_k)

        account: dict[str, Any] = {"base_url": self.url, "api_key": SECRET, "max_retries": 0}
        try:
            if self.name == "sync":
                with openai.OpenAI(**account) as client:
                    wrapped = qtm.QueryMiddleware(settings, client=client).wrap(function)
                    day.retrieval = wrapped.retrieve(query, **options)
            else:
                day.retrieval = asyncio.run(
                    self._asked(settings, coroutine, account, query, options)
                )
        except BaseException as error:
            day.error = error
            return day
        day.response = day.retrieval.response
        return day

    async def _asked(
        self,
        settings: Mapping[str, Any],
        coroutine: Any,
        account: dict[str, Any],
        query: Any,
        options: dict[str, Any],
    ) -> qtm.Retrieval:
        async with openai.AsyncOpenAI(**account) as client:
            wrapped = qtm.QueryMiddleware(settings, client=client).wrap(coroutine)
            retrieval: qtm.Retrieval = await wrapped.aretrieve(query, **options)
            return retrieval

    def rules_alone(self, respond: Respond = search, query: str = QUERY) -> Day:
        """The same question where no model was ever configured."""
        return self.ask({}, respond=respond, query=query)


def transforming(kind: str, limits: Mapping[str, int] = PATIENT, **more: Any) -> dict[str, Any]:
    return {"transformationType": kind, "limits": dict(limits), **more}
