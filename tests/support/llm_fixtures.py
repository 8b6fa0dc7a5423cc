"""Prompts, ways of asking a model, and an environment without settings of the machine's own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Protocol

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.types import Deadline, Message
from tests.support.wire import Wire

SECRET = "sk-verysecret0123456789"
QUERY = "Does Jaco have any health concerns?"


@pytest.fixture(autouse=True)
def environment(bare_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key, and nothing else of the machine's own settings."""
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's retries come without a pause."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0, raising=False)


class MakePrompt(Protocol):
    def __call__(
        self, query: str = ..., *history: str, fields: tuple[ReplyField, ...] = ..., mode: str = ...
    ) -> Prompt: ...


FIELDS = (
    ReplyField("standalone", "line", "the standalone question"),
    ReplyField("rewrite", "line", "the rewritten question"),
    ReplyField("sub_queries", "list", "smaller questions", 1, 4),
)


@pytest.fixture
def make_prompt() -> MakePrompt:
    def make(
        query: str = QUERY,
        *history: str,
        fields: tuple[ReplyField, ...] = FIELDS,
        mode: str = "combined",
    ) -> Prompt:
        turns = tuple(
            Message("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(history)
        )
        return Prompt(
            mode,
            "1",
            "Answer with one JSON object.",
            f"<query>{query}</query>",
            fields,
            query,
            turns,
        )

    return make


@pytest.fixture
def prompt(make_prompt: MakePrompt) -> Prompt:
    return make_prompt()


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    """Asks a model in one of the two ways, in an event loop of its own."""

    def in_a_thread(model: LanguageModel, prompt: Prompt, seconds: float = 30.0) -> Reply:
        return model.complete(prompt, Deadline.after(seconds))

    def in_a_loop(model: LanguageModel, prompt: Prompt, seconds: float = 30.0) -> Reply:
        return asyncio.run(model.acomplete(prompt, Deadline.after(seconds)))

    return in_a_thread if request.param == "sync" else in_a_loop


@pytest.fixture
def wire() -> Iterator[Callable[[Callable[[Wire, socket.socket], None]], Wire]]:
    servers: list[Wire] = []

    def start(talk: Callable[[Wire, socket.socket], None]) -> Wire:
        servers.append(Wire(talk))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
