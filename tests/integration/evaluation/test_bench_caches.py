"""Replies that were paid for once are kept, whatever becomes of the file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from qtmiddleware.errors import ModelError, StoreError
from qtmiddleware.kit.evaluation.caches import CachedModel
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.types import Deadline

FIELDS = (ReplyField("rewrite", "line", "the question in other words"),)
PROMPT = Prompt(
    "rewrite", "1", "Rewrite.", '{"query": "secret question"}', FIELDS, "secret question"
)
REPLY = Reply(
    '{"rewrite": "\ud800 kept"}', input_tokens=12, output_tokens=5, calls=2, cost_usd=0.25
)


class Accounting:
    """A model that counts its tokens; *asked* is how often it was."""

    can_async = True

    def __init__(self, reply: Reply | ModelError, name: str = "accounting") -> None:
        self.name = name
        self.asked = 0
        self._reply = reply

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        self.asked += 1
        if isinstance(self._reply, ModelError):
            raise self._reply
        return self._reply

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "cache.sqlite"


Open = Callable[..., CachedModel]


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Opens the cache around a model, as each run does, and closes it when the test is over."""
    with ExitStack() as stack:

        def make(inner: Accounting, options: str = "") -> CachedModel:
            made = CachedModel(inner, path, options=options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    if request.param == "sync":
        return lambda model, prompt=PROMPT: model.complete(prompt, Deadline())
    return lambda model, prompt=PROMPT: asyncio.run(model.acomplete(prompt, Deadline()))


def test_a_reply_is_replayed_with_its_tokens_its_cost_and_the_time_it_took(
    opened: Open, ask: Callable[..., Reply]
) -> None:
    inner = Accounting(REPLY)
    assert ask(opened(inner)) == REPLY
    replayed = ask(opened(inner))
    assert (inner.asked, replayed.seconds > 0) == (1, True)
    assert replace(replayed, seconds=0.0) == REPLY


def test_a_reply_that_was_replayed_itself_keeps_its_time(opened: Open) -> None:
    opened(Accounting(replace(REPLY, seconds=1.5))).complete(PROMPT, Deadline())
    assert opened(Accounting(REPLY)).complete(PROMPT, Deadline()).seconds == 1.5


def test_failures_and_truncated_replies_are_asked_again(
    opened: Open, ask: Callable[..., Reply]
) -> None:
    cut, down = Accounting(replace(REPLY, truncated=True)), Accounting(ModelError("rate_limited"))
    for _ in range(2):
        ask(opened(cut))
        with pytest.raises(ModelError, match="rate_limited"):
            ask(opened(down))
    assert (down.asked, cut.asked) == (2, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"mode": "hyde"},
        {"version": "2"},
        {"system": "Other."},
        {"user": '{"query": "other"}'},
        {"max_tokens": 5},
        {"fields": ()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_decides_a_reply_is_part_of_its_key(
    opened: Open, changed: dict[str, object]
) -> None:
    inner = Accounting(REPLY)
    for prompt in (PROMPT, replace(PROMPT, **changed), PROMPT):  # type: ignore[arg-type]
        opened(inner).complete(prompt, Deadline())
    assert inner.asked == 2


def test_another_model_and_other_options_are_other_replies(opened: Open) -> None:
    inner, other = Accounting(REPLY), Accounting(REPLY, name="other")
    for model in (opened(inner), opened(inner, "temperature 1"), opened(other)):
        model.complete(PROMPT, Deadline())
    assert (inner.asked, other.asked) == (2, 1)


def test_the_file_holds_no_question_and_is_its_owners_alone(opened: Open, path: Path) -> None:
    opened(Accounting(REPLY)).complete(PROMPT, Deadline())
    assert b"secret" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file.cache\.sqlite cannot be used"):
        CachedModel(Accounting(REPLY), tmp_path / "file" / "cache.sqlite")


@pytest.mark.parametrize(
    "damage",
    ["DROP TABLE cached", "UPDATE cached SET value = '{'", """UPDATE cached SET value = '{"a": 1}'"""],
)  # fmt: skip
def test_a_cache_that_is_damaged_on_the_way_costs_no_reply(
    opened: Open, path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    inner = Accounting(REPLY)
    model = opened(inner)
    model.complete(PROMPT, Deadline())
    with sqlite3.connect(path) as run:
        run.execute(damage)
    run.close()
    assert model.complete(PROMPT, Deadline()) == REPLY
    assert inner.asked == 2
    assert "cache.sqlite" in caplog.text
    assert "secret" not in caplog.text


def test_many_threads_share_one_cache(opened: Open) -> None:
    model = opened(Accounting(REPLY))
    prompts = [replace(PROMPT, user=f"{number % 3}") for number in range(80)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda it: model.complete(it, Deadline()).text, prompts))
    assert found == [REPLY.text] * 80
