"""Replies that were paid for once are kept, whatever becomes of the file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ModelError, StoreError
from qtmiddleware.kit.evaluation.caches import CachedModel
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.types import Deadline

FIELDS = (ReplyField("rewrite", "line", "the question in other words"),)
PROMPT = Prompt(
    "rewrite",
    "1",
    "Rewrite.",
    "secret question",
    FIELDS,
    "secret question",
)
REPLY = Reply(
    '{"rewrite": "\ud800 kept"}',
    12,
    5,
    calls=2,
    cost_usd=0.25,
)


class Accounting:
    """A model that counts how often it is asked."""

    can_async = True

    def __init__(self, reply: Reply | ModelError = REPLY, name: str = "accounting") -> None:
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


Ask = Callable[..., Reply]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ask]:
    """Asks a model through the cache, which each run opens anew."""
    with ExitStack() as stack:

        def run(inner: Accounting, prompt: Prompt = PROMPT, options: str = "") -> Reply:
            model = CachedModel(
                inner,
                tmp_path / "kept" / "cache.sqlite",
                options=options,
            )
            stack.callback(model.close)
            if request.param == "sync":
                return model.complete(prompt, Deadline())
            return asyncio.run(model.acomplete(prompt, Deadline()))

        yield run


def test_a_reply_is_replayed_with_its_tokens_its_cost_and_the_time_it_took(
    ask: Ask, tmp_path: Path
) -> None:
    inner = Accounting()
    assert ask(inner) == REPLY
    replayed = ask(inner)
    assert (inner.asked, replayed.seconds > 0) == (1, True)
    assert replace(replayed, seconds=0.0) == REPLY
    timed = replace(PROMPT, user="timed")
    for _ in range(2):
        assert ask(Accounting(replace(REPLY, seconds=1.5)), timed).seconds == 1.5
    assert b"secret" not in b"".join(it.read_bytes() for it in (tmp_path / "kept").iterdir())


def test_failures_and_truncated_replies_are_asked_again(ask: Ask) -> None:
    cut, down = Accounting(replace(REPLY, truncated=True)), Accounting(ModelError("rate_limited"))
    for _ in range(2):
        ask(cut)
        with pytest.raises(ModelError, match="rate_limited"):
            ask(down)
    assert (down.asked, cut.asked) == (2, 2)


def test_whatever_decides_a_reply_is_part_of_its_key(ask: Ask) -> None:
    changes: list[dict[str, Any]] = [
        *({"mode": "hyde"}, {"version": "2"}, {"system": "Other."}),
        *({"user": "other"}, {"max_tokens": 5}, {"fields": ()}),
    ]
    inner, other = Accounting(), Accounting(name="other")
    for _ in range(2):
        for change in changes:
            ask(inner, replace(PROMPT, **change))
        for model, options in ((inner, ""), (inner, "temperature 1"), (other, "")):
            ask(model, PROMPT, options)
    assert (inner.asked, other.asked) == (len(changes) + 2, 1)


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE cached",
        "UPDATE cached SET value = '{'",
        "UPDATE cached SET value = '{\"a\": 1}'",
    ],
)
def test_a_cache_that_is_damaged_on_the_way_costs_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    inner = Accounting()
    model = CachedModel(inner, tmp_path / "cache.sqlite")
    model.complete(PROMPT, Deadline())
    with sqlite3.connect(tmp_path / "cache.sqlite") as run:
        run.execute(damage)
    run.close()
    assert model.complete(PROMPT, Deadline()) == REPLY
    model.close()
    assert (inner.asked, "cache.sqlite" in caplog.text, "secret" in caplog.text) == (2, True, False)
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        StoreError,
        match=r"file.cache\.sqlite cannot be used",
    ):
        CachedModel(inner, tmp_path / "file" / "cache.sqlite")


def test_many_threads_share_one_cache(tmp_path: Path) -> None:
    model = CachedModel(Accounting(), tmp_path / "cache.sqlite")
    prompts = [replace(PROMPT, user=f"{number % 3}") for number in range(80)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda it: model.complete(it, Deadline()).text, prompts))
    model.close()
    assert found == [REPLY.text] * 80
