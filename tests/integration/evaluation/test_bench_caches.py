from __future__ import annotations

import asyncio
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import ModelError, StoreError
from qtmiddleware.kit.evaluation.caches import CachedEmbedder, CachedModel
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline
from tests.support.bench_world import CountingEmbedder

FIELDS = (ReplyField("rewrite", "line", "the question in other words"),)
PROMPT = Prompt(
    "rewrite", "1", "Rewrite.", '{"query": "secret question"}', FIELDS, "secret question"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "cache.sqlite"


class FixedEmbedder(CountingEmbedder):
    """Answers the vectors it was given."""

    def __init__(self, vectors: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.dimension = len(vectors[0])
        self._vectors = iter(vectors)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts.extend(texts)
        return [list(next(self._vectors)) for _ in texts]


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


REPLY = Reply(
    '{"rewrite": "\ud800 kept"}', input_tokens=12, output_tokens=5, calls=2, cost_usd=0.25
)


Kept = Callable[..., Any]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Makes what keeps things in a file, and closes it when the test is over."""
    with ExitStack() as stack:

        def make(kind: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            made = kind(*arguments, **options)
            stack.callback(made.close)
            return made

        yield make


def test_a_text_is_embedded_once_and_its_vector_is_the_same_ever_after(
    kept: Kept, path: Path
) -> None:
    inner = CountingEmbedder()
    first = kept(CachedEmbedder, inner, path).embed(["a", "b", "a"])
    again = kept(CachedEmbedder, inner, path).embed(["b", "a", "new"])
    assert inner.texts == ["a", "b", "new"]
    assert first == [*CountingEmbedder().embed(["a", "b"]), first[0]]
    assert again[:2] == [first[1], first[0]]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(
    st.text(), st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6)
)
def test_every_vector_of_every_text_comes_back_as_it_was(
    kept: Kept, tmp_path_factory: object, text: str, vector: list[float]
) -> None:
    path = tmp_path_factory.mktemp("vectors") / "cache.sqlite"  # type: ignore[attr-defined]
    kept(CachedEmbedder, FixedEmbedder([vector]), path).embed([text])
    unused = FixedEmbedder([vector])
    assert kept(CachedEmbedder, unused, path).embed([text]) == [vector]
    assert unused.texts == []


def test_another_model_or_length_is_another_vector(kept: Kept, path: Path) -> None:
    kept(CachedEmbedder, FixedEmbedder([[1.0, 2.0]]), path).embed(["a"])
    shorter = FixedEmbedder([[5.0]])
    assert kept(CachedEmbedder, shorter, path).embed(["a"]) == [[5.0]]
    other = CountingEmbedder()
    other.name = "other"
    kept(CachedEmbedder, other, path).embed(["a"])
    assert other.texts == ["a"]


def test_texts_are_told_with_their_time_when_they_come_out_of_the_file(
    kept: Kept, path: Path
) -> None:
    embedder = kept(CachedEmbedder, CountingEmbedder(), path)
    with embedder.record_replays() as replayed:
        embedder.embed(["a"])
        assert dict(replayed) == {}
        embedder.embed(["a", "b"])
    assert list(replayed) == ["a"]
    assert replayed["a"] > 0


def test_a_vector_too_few_is_an_error_and_nothing_is_kept(kept: Kept, path: Path) -> None:
    class Short(CountingEmbedder):
        def embed(self, texts: Sequence[str]) -> list[list[float]]:
            return super().embed(texts)[1:]

    with pytest.raises(ValueError, match="shorter"):
        kept(CachedEmbedder, Short(), path).embed(["a", "b"])
    whole = CountingEmbedder()
    kept(CachedEmbedder, whole, path).embed(["a", "b"])
    assert whole.texts == ["a", "b"]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    if request.param == "sync":
        return lambda model, prompt=PROMPT: model.complete(prompt, Deadline())
    return lambda model, prompt=PROMPT: asyncio.run(model.acomplete(prompt, Deadline()))


def test_a_reply_is_replayed_with_its_tokens_its_cost_and_the_time_it_took(
    kept: Kept, path: Path, ask: Callable[..., Reply]
) -> None:
    inner = Accounting(REPLY)
    assert ask(kept(CachedModel, inner, path)) == REPLY
    replayed = ask(kept(CachedModel, inner, path))
    assert inner.asked == 1
    assert replayed.seconds > 0
    assert replace(replayed, seconds=0.0) == REPLY


def test_failures_and_truncated_replies_are_asked_again(
    kept: Kept, path: Path, ask: Callable[..., Reply]
) -> None:
    down, cut = Accounting(ModelError("rate_limited")), Accounting(replace(REPLY, truncated=True))
    for inner in (down, cut, down, cut):
        model = kept(CachedModel, inner, path)
        if inner is down:
            with pytest.raises(ModelError, match="rate_limited"):
                ask(model)
        else:
            ask(model)
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
    kept: Kept, path: Path, changed: dict[str, object]
) -> None:
    inner = Accounting(REPLY)
    for prompt in (PROMPT, replace(PROMPT, **changed), PROMPT):  # type: ignore[arg-type]
        kept(CachedModel, inner, path).complete(prompt, Deadline())
    assert inner.asked == 2


def test_another_model_and_other_options_are_other_replies(kept: Kept, path: Path) -> None:
    inner, other = Accounting(REPLY), Accounting(REPLY, name="other")
    kept(CachedModel, inner, path).complete(PROMPT, Deadline())
    kept(CachedModel, inner, path, options="temperature 1").complete(PROMPT, Deadline())
    kept(CachedModel, other, path).complete(PROMPT, Deadline())
    assert (inner.asked, other.asked) == (2, 1)


def test_a_reply_that_was_replayed_itself_keeps_its_time(kept: Kept, path: Path) -> None:
    kept(CachedModel, Accounting(replace(REPLY, seconds=1.5)), path).complete(PROMPT, Deadline())
    assert kept(CachedModel, Accounting(REPLY), path).complete(PROMPT, Deadline()).seconds == 1.5


def test_the_file_holds_no_question_and_is_its_owners_alone(kept: Kept, path: Path) -> None:
    kept(CachedModel, Accounting(REPLY), path).complete(PROMPT, Deadline())
    kept(CachedEmbedder, CountingEmbedder(), path).embed(["secret question"])
    assert b"secret" not in b"".join(file.read_bytes() for file in path.parent.iterdir())
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600


def test_no_question_and_no_reply_is_in_a_repr(kept: Kept, path: Path) -> None:
    model = kept(CachedModel, ScriptedModel("secret"), path)
    model.complete(PROMPT, Deadline())
    assert "secret" not in repr(model) + repr(kept(CachedEmbedder, CountingEmbedder(), path))


def test_the_database_of_another_program_is_left_as_it_is(kept: Kept, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    with sqlite3.connect(path) as run:
        run.execute("CREATE TABLE theirs (x)")
    run.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="cannot be used: it is damaged, or not of this version"):
        kept(CachedEmbedder, CountingEmbedder(), path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(kept: Kept, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file.cache\.sqlite cannot be used"):
        kept(CachedModel, Accounting(REPLY), tmp_path / "file" / "cache.sqlite")


def test_a_cache_that_is_lost_on_the_way_costs_no_reply_and_no_vector(
    kept: Kept, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = kept(CachedModel, Accounting(REPLY), path)
    embedder = kept(CachedEmbedder, CountingEmbedder(), path)
    with sqlite3.connect(path) as run:
        run.execute("DROP TABLE cached")
    run.close()
    assert model.complete(PROMPT, Deadline()) == REPLY
    assert embedder.embed(["secret"]) == CountingEmbedder().embed(["secret"])
    assert "cache.sqlite" in caplog.text
    assert "secret" not in caplog.text


def test_many_threads_share_one_cache(kept: Kept, path: Path) -> None:
    embedder, model = (
        kept(CachedEmbedder, CountingEmbedder(), path),
        kept(CachedModel, Accounting(REPLY), path),
    )

    def work(number: int) -> tuple[list[list[float]], str]:
        texts = [f"text {number % 7}", f"text {number % 5}"]
        reply = model.complete(replace(PROMPT, user=f"{number % 3}"), Deadline())
        return embedder.embed(texts), reply.text

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(80)))
    assert found == [
        (CountingEmbedder().embed([f"text {number % 7}", f"text {number % 5}"]), REPLY.text)
        for number in range(80)
    ]


def test_many_processes_make_and_fill_one_cache_at_once(kept: Kept, path: Path) -> None:
    program = """
import sys
from qtmiddleware.kit.evaluation.caches import CachedEmbedder
from tests.support.bench_world import CountingEmbedder
embedder = CachedEmbedder(CountingEmbedder(), sys.argv[1])
for number in range(20):
    embedder.embed([f"{number}", f"{sys.argv[2]} {number}"])
"""
    root = Path(__file__).parents[3]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(number)],
            cwd=root,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for process in running:
        _, said = process.communicate(timeout=200)
        assert (process.returncode, said) == (0, b"")
    known = CountingEmbedder()
    kept(CachedEmbedder, known, path).embed(
        [f"{at} {number}" for at in range(4) for number in range(20)]
    )
    assert known.texts == []


def damaged(path: Path, statement: str, value: object) -> None:
    with sqlite3.connect(path) as file:
        file.execute(statement, (value,))
    file.close()


NOT_A_NUMBER = struct.pack("<d", float("nan"))


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xff", "text", 7, NOT_A_NUMBER * 9, b"\0" * 4_000_000]
)
def test_a_damaged_vector_is_made_anew(value: object, kept: Kept, path: Path) -> None:
    first = kept(CachedEmbedder, CountingEmbedder(), path)
    expected = first.embed(["one"])
    damaged(path, "UPDATE cached SET value = ?", value)
    again = CountingEmbedder()
    with (embedder := kept(CachedEmbedder, again, path)).record_replays() as replayed:
        assert embedder.embed(["one"]) == expected
    assert (again.texts, dict(replayed)) == (["one"], {})
    third = CountingEmbedder()
    kept(CachedEmbedder, third, path).embed(["one"])
    assert third.texts == []


NO_REPLIES = {
    "broken": "{",
    "unknown": '{"a": 1}',
    "no object": "[]",
    "empty": "",
    "deep": "[" * 100_000,
    "no text": '{"text": 5}',
    "a list of texts": '{"text": ["x"]}',
    "less than nothing": '{"text": "x", "input_tokens": -1}',
    "no cost": '{"text": "x", "cost_usd": NaN}',
    "endless cost": '{"text": "x", "cost_usd": 1e999}',
    "refunded": '{"text": "x", "cost_usd": -1.0}',
    "back in time": '{"text": "x", "seconds": -1.0}',
    "no time": '{"text": "x", "seconds": "1"}',
}


@pytest.mark.parametrize("reply", NO_REPLIES.values(), ids=NO_REPLIES)
def test_a_damaged_reply_is_asked_for_again(reply: str, kept: Kept, path: Path) -> None:
    model = Accounting(Reply('{"rewrite": "x"}'))
    kept(CachedModel, model, path).complete(PROMPT, Deadline())
    damaged(path, "UPDATE cached SET value = ?", reply)
    for _ in range(2):
        assert (
            kept(CachedModel, model, path).complete(PROMPT, Deadline()).text == '{"rewrite": "x"}'
        )
    assert model.asked == 2
