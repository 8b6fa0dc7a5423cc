"""Recorded replies are found by question and conversation, and what is recorded can be replayed."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.recorded import RecordedModel, RecordingModel
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.providers.llms.replies import Prices
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Message

NEVER = Deadline()
FIELDS = (
    ReplyField("standalone", "line", "the standalone question"),
    ReplyField("rewrite", "line", "the rewritten question"),
    ReplyField("sub_queries", "list", "smaller questions", 1, 2),
)


def talk(texts: tuple[str, ...]) -> tuple[Message, ...]:
    return tuple(Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts))


def prompt(query: str = "Is Rome big?", *history: str, mode: str = "combined") -> Prompt:
    return Prompt(mode, "1", "Answer with JSON.", query, FIELDS, query, talk(history))


def answer(model: LanguageModel, asked: Prompt) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.complete(asked, NEVER).text)
    return found


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# --- replayed -------------------------------------------------------------------------------------


def test_a_recorded_reply_is_the_json_of_the_fields_asked_for_with_an_estimated_price() -> None:
    texts = {"rewrite": "Rome's size", "hyde": "It is.", "sub_queries": ["a", "", 3, "b", "c"]}
    model = RecordedModel([{"query": "Is  Rome big?", **texts}])
    reply = model.complete(prompt(" Is\tRome big?\n"), NEVER)
    assert json.loads(reply.text) == {"rewrite": "Rome's size", "sub_queries": ["a", "b"]}
    assert (reply.input_tokens, reply.output_tokens, reply.cost_usd) == (0, 0, 0.0)
    model = RecordedModel([{"query": "Is Rome big?", "rewrite": "x" * 40}])
    priced = model.priced_as(Prices("unknown", 2.0, 8.0))
    reply = asyncio.run(priced.acomplete(prompt(), NEVER))
    assert (reply.input_tokens, reply.output_tokens) == (8, 14)
    assert reply.cost_usd == pytest.approx((8 * 2.0 + 14 * 8.0) / 1e6)


LONG = "word " * 500
FOLLOW_UPS = {
    "paris": ("Why?", "Is Paris big?", "Yes."),
    "rome": ("Why?", "Is Rome big?", "No."),
    "long": ("Why?", "hm", LONG),
    "alone": ("Why?",),
}


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        (("Why?", "Is Paris big?", "Yes."), "paris"),
        (("Why?", "Hello", "Hello", "Is Rome big?", "No."), "rome"),
        (("Why?", "hm", LONG[:999].rstrip() + "…"), "long"),
        (("Why?",), "alone"),
        (("standalone of rome",), "unrecorded"),
        (("Why?", "Is Oslo big?", "Maybe."), "unrecorded"),
        (("Empty?",), "empty"),
    ],
)
def test_equal_follow_ups_are_told_apart_by_the_end_of_their_history(
    asked: tuple[str, ...], key: str
) -> None:
    records = [
        {"_id": id_, "standalone": f"standalone of {id_}", "rewrite": f"rewrite of {id_}"}
        for id_ in FOLLOW_UPS
    ]
    queries = [
        {
            "_id": id_,
            "text": text,
            "metadata": {
                "history": [{"role": it.role, "content": it.content} for it in talk(turns)]
            },
        }
        for id_, (text, *rest) in FOLLOW_UPS.items()
        for turns in [tuple(rest)]
    ]
    model = RecordedModel([*records, {"query": "Empty?", "paraphrases": ["a"]}], queries)
    if key in ("unrecorded", "empty"):
        with pytest.raises(ModelError) as caught:
            model.complete(prompt(*asked), NEVER)
        assert caught.value.reason == key
        return
    found = answer(model, prompt(*asked))
    assert found["rewrite"] == f"rewrite of {key}"
    assert ("standalone" in found) == (len(asked) > 1)


# --- recorded -------------------------------------------------------------------------------------


def test_what_was_recorded_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    texts = {"standalone": "Why is Rome not big?", "rewrite": "größer\u2028…", "sub_queries": ["a"]}
    said = f"```json\n{json.dumps({**texts, 'extra': 1})}\n```"
    follow_up = prompt("Why?", "Is Rome big?", "No.")
    recording = RecordingModel(ScriptedModel(said), path)
    for _ in range(2):
        assert recording.complete(follow_up, NEVER).text == said
        assert asyncio.run(recording.acomplete(prompt(), NEVER)).text == said
    assert [line["query"] for line in read(path)] == ["Why?", "Is Rome big?"]
    assert answer(RecordedModel.from_file(path), follow_up) == texts
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Each mode of a question is replayed as it was recorded.
    for mode in ("rewrite", "all"):
        recording = RecordingModel(ScriptedModel({"rewrite": f"by {mode}"}), path)
        recording.complete(prompt("Which?", mode=mode), NEVER)
    replayed = RecordedModel.from_file(path)
    modes = ("rewrite", "all", "combined")
    found = [answer(replayed, prompt("Which?", mode=it))["rewrite"] for it in modes]
    assert found == ["by rewrite", "by all", "by all"]


def test_the_same_prompt_is_asked_once_and_its_reply_has_the_time_it_took() -> None:
    inner = ScriptedModel({"rewrite": "x"}, seconds=0.01)
    model = RecordingModel(inner)
    first = asyncio.run(model.acomplete(prompt(), NEVER))
    again = model.complete(prompt(), NEVER)
    assert (first.seconds, again.text) == (0, first.text)
    assert again.seconds >= 0.01
    for other in (prompt("Else?"), prompt(mode="all"), prompt("Is Rome big?", "Why?")):
        model.complete(other, NEVER)
    assert len(inner.prompts) == 4
    failing = ScriptedModel(ModelError("rate_limited"))
    model = RecordingModel(failing)
    for _ in range(2):
        with pytest.raises(ModelError, match="rate_limited"):
            model.complete(prompt(), NEVER)
    assert len(failing.prompts) == 2


@pytest.mark.parametrize("said", ["I'm sorry, Jaco", '{"rewrite": "Jaco"}'])
def test_a_reply_that_cannot_be_recorded_is_passed_on(
    tmp_path: Path, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.jsonl"
    recording = RecordingModel(ScriptedModel(said), path)
    if said.startswith("{"):
        path.unlink()
        path.mkdir()
    assert recording.complete(prompt(), NEVER) == Reply(said)
    assert path.is_dir() or path.read_bytes() == b""
    assert "was not recorded" in caplog.text
    assert "Jaco" not in caplog.text
