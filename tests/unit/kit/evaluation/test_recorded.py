"""Recorded replies are found by question and conversation, and what is recorded can be replayed."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.recorded import RecordedModel, RecordingModel
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.providers.llms.callable import CallableModel
from qtmiddleware.types import Deadline, Message
from tests.support.shared_data import RECORDED

NEVER = Deadline()


def record(key: str, standalone: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "_id": key,
        "standalone": standalone,
        "rewrite": f"rewrite of {key}",
        "sub_queries": ["a", "b"],
        **more,
    }


def query(key: str, text: str, *history: str) -> dict[str, Any]:
    turns = [
        {"role": "user" if i % 2 == 0 else "assistant", "content": said}
        for i, said in enumerate(history)
    ]
    return {"_id": key, "text": text, "metadata": {"history": turns} if turns else {}}


FIELDS = (
    ReplyField("standalone", "line", "the standalone question"),
    ReplyField("rewrite", "line", "the rewritten question"),
    ReplyField("sub_queries", "list", "smaller questions", 1, 4),
)


def make_prompt(
    query: str = "Does Jaco have any health concerns?",
    *history: str,
    fields: tuple[ReplyField, ...] = FIELDS,
    mode: str = "combined",
) -> Prompt:
    roles = ("user", "assistant")
    turns = tuple(Message(roles[i % 2], text) for i, text in enumerate(history))
    return Prompt(mode, "1", "Answer with JSON.", query, fields, query, turns)


def answer(model: LanguageModel, prompt: Prompt) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.complete(prompt, NEVER).text)
    return found


def test_a_recorded_reply_is_the_json_of_the_fields_asked_for() -> None:
    model = RecordedModel([record("1", hyde="a passage")], [query("1", "Why is the sky  blue?")])
    reply = model.complete(make_prompt(" Why is\tthe sky blue?\n"), NEVER)
    assert json.loads(reply.text) == {"rewrite": "rewrite of 1", "sub_queries": ["a", "b"]}
    assert (reply.input_tokens, reply.output_tokens, reply.cost_usd) == (0, 0, 0.0)


def test_an_unknown_query_is_unavailable_and_not_told() -> None:
    model = RecordedModel([record("1")], [query("1", "known")])
    with pytest.raises(ModelError, match=r"^no recorded reply for this query$") as caught:
        model.complete(make_prompt("unknown"), NEVER)
    assert caught.value.reason == "unrecorded"


def test_a_field_that_was_not_recorded_is_left_out() -> None:
    model = RecordedModel([record("1", query="q")])
    wanted = (ReplyField("paraphrases", "list", "p", 1, 3),)
    with pytest.raises(ModelError) as caught:
        model.complete(make_prompt("q", fields=wanted), NEVER)
    assert caught.value.reason == "empty"
    assert answer(
        model, make_prompt("q", fields=(*wanted, ReplyField("rewrite", "line", "r")))
    ).keys() == {"rewrite"}


def test_a_list_is_cut_to_what_was_asked_for() -> None:
    model = RecordedModel([record("1", query="q", paraphrases=["a", "", "b", 3, "c"])])
    assert answer(
        model, make_prompt("q", fields=(ReplyField("paraphrases", "list", "p", 1, 2),))
    ) == {"paraphrases": ["a", "b"]}


FOLLOW_UPS = [
    query("paris", "Why?", "Is Paris big?", "Yes."),
    query("rome", "Why?", "Is Rome big?", "No."),
    query("alone", "Why?"),
]
RECORDS = [
    record("paris", "Why is Paris big?"),
    record("rome", "Why is Rome not big?"),
    record("alone"),
]


@pytest.mark.parametrize(
    ("history", "key"),
    [
        (("Is Paris big?", "Yes."), "paris"),
        (("Is Rome big?", "No."), "rome"),
        (("Hello", "Hello", "Is Rome big?", "No."), "rome"),
        (("x", "No."), "rome"),
        ((), "alone"),
    ],
)
def test_equal_follow_ups_are_told_apart_by_the_end_of_their_history(history, key: str) -> None:
    model = RecordedModel(RECORDS, FOLLOW_UPS)
    found = answer(model, make_prompt("Why?", *history))
    assert found["rewrite"] == f"rewrite of {key}"
    assert ("standalone" in found) == (key != "alone")


def test_a_follow_up_of_an_unrecorded_conversation_has_no_reply() -> None:
    with pytest.raises(ModelError):
        RecordedModel(RECORDS, FOLLOW_UPS).complete(
            make_prompt("Why?", "Is Oslo big?", "Maybe."), NEVER
        )


def test_a_long_message_that_the_prompt_cut_is_still_the_same_message() -> None:
    long = "word " * 500
    model = RecordedModel([record("1", "s")], [query("1", "Why?", "hm", long)])
    assert answer(model, make_prompt("Why?", "hm", long[:999].rstrip() + "…"))["standalone"] == "s"


def test_where_histories_are_unknown_only_one_candidate_is_an_answer() -> None:
    records = [{**record, "query": "Why?"} for record in RECORDS]
    one = RecordedModel(records[:1])
    assert answer(one, make_prompt("Why?", "anything"))["rewrite"] == "rewrite of paris"
    with pytest.raises(ModelError):
        one.complete(make_prompt("Why?"), NEVER)
    several = RecordedModel(records[:2])
    with pytest.raises(ModelError):
        several.complete(make_prompt("Why?", "anything"), NEVER)


@pytest.mark.parametrize("history", [(), ("Is Rome big?", "No.")])
def test_the_standalone_form_of_a_recorded_query_is_found(history: tuple[str, ...]) -> None:
    model = RecordedModel(RECORDS, FOLLOW_UPS)
    assert (
        answer(model, make_prompt("Why is Rome not big?", *history))["rewrite"] == "rewrite of rome"
    )


def test_a_recording_without_any_text_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="pass queries="):
        RecordedModel([record("1")])
    assert repr(RecordedModel([])) == "RecordedModel('recorded', queries=0)"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{}\n[1]\n", "line 2: must be a JSON object"),
        (b"\xff\xfe", "line 1: is not UTF-8"),
        (b"{", "line 1: is not JSON"),
        (b"[" * 100_000, "line 1: is not JSON"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_broken_recording_is_a_config_error(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"r\.jsonl {why}"):
        RecordedModel.from_file(path)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda it: (
        st.lists(it, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.just("content"), it, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["_id", "query", "history", "mode", "standalone", "rewrite", "sub_queries", "hyde", "keywords"]
)


@settings(deadline=None)
@given(records=st.lists(st.dictionaries(NAMES, ODD), min_size=1, max_size=3), many=st.booleans())
def test_whatever_a_recording_holds_it_gives_what_was_asked_for_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], many: bool
) -> None:
    path = tmp_path_factory.mktemp("recording") / "r.jsonl"
    more = {"sub_queries": ["x"] * 9_999} if many else {}
    path.write_text(
        "\n".join(json.dumps({"query": "Rome?", **record, **more}) for record in records),
        encoding="utf-8",
    )
    prompt = make_prompt("Rome?")
    try:
        reply = json.loads(RecordedModel.from_file(path).complete(prompt, Deadline()).text)
    except (ConfigError, ModelError):
        return
    asked = {field.name: field for field in prompt.fields}
    assert reply.keys() <= asked.keys()
    for name, value in reply.items():
        assert isinstance(value, str if asked[name].shape != "list" else list)
        assert all(
            isinstance(one, str) and one.strip()
            for one in ([value] if isinstance(value, str) else value)
        )
        assert asked[name].shape != "list" or len(value) <= asked[name].max_items


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("questions", "recordings"), RECORDED, ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_every_recorded_query_of_a_set_is_answered(questions: Path, recordings: Path) -> None:
    queries = {q["_id"]: q for q in read(questions)}
    model = RecordedModel.from_file(recordings, queries.values())
    wrong = 0
    for line in read(recordings):
        asked = queries[line["_id"]]
        history = [turn["content"] for turn in asked.get("metadata", {}).get("history", [])][-6:]
        found = answer(model, make_prompt(asked["text"], *history))
        assert found.get("standalone") == line["standalone"]
        wrong += found["rewrite"] != line["rewrite"]
    # Two sets ask one question twice under two ids, without any history to tell them apart.
    assert wrong == {"canard_dev": 1, "covidqa": 1}.get(recordings.stem, 0)
    assert model.name == f"recorded:{recordings.stem}"


def saying(text: str) -> CallableModel:
    def inner(messages: Any) -> str:
        return text

    inner.__qualname__ = "inner"
    return CallableModel(inner)


def test_what_was_recorded_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.jsonl"
    said = '{"standalone": "Why is Rome not big?", "rewrite": "größer\\u2028…", "sub_queries": ["a"], "extra": 1}'
    recording = RecordingModel(saying(said), path)
    assert recording.name == "inner"
    assert recording.can_async
    for _ in range(2):
        assert recording.complete(make_prompt("Why?", "Is Rome big?", "No."), NEVER).text == said
    recording.complete(make_prompt("Is Rome big?"), NEVER)
    RecordingModel(saying(said), path).complete(make_prompt("Is Rome big?"), NEVER)
    assert len(path.read_bytes().splitlines()) == 2
    replayed = RecordedModel.from_file(path)
    assert json.loads(
        replayed.complete(make_prompt("Why?", "Is Rome big?", "No."), NEVER).text
    ) == {
        "standalone": "Why is Rome not big?",
        "rewrite": "größer\u2028…",
        "sub_queries": ["a"],
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_each_mode_of_a_query_is_replayed_as_it_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for mode in ("rewrite", "combined"):
        RecordingModel(saying(f'{{"rewrite": "by {mode}"}}'), path).complete(
            make_prompt(mode=mode), NEVER
        )
    replayed = RecordedModel.from_file(path)
    assert [
        answer(replayed, make_prompt(mode=mode))["rewrite"]
        for mode in ("rewrite", "combined", "all")
    ] == [
        "by rewrite",
        "by combined",
        "by combined",
    ]


async def test_an_async_model_is_recorded_too(tmp_path: Path) -> None:
    async def fn(messages: list[dict[str, str]]) -> str:
        return '```json\n{"rewrite": "x"}\n```'

    recording = RecordingModel(CallableModel(fn), tmp_path / "r.jsonl")
    await asyncio.gather(*(recording.acomplete(make_prompt(f"q{n}"), NEVER) for n in range(5)))
    assert len(read(tmp_path / "r.jsonl")) == 5


def test_threads_write_whole_lines_and_each_question_once(tmp_path: Path) -> None:
    recording = RecordingModel(saying('{"rewrite": "' + "x" * 3_000 + '"}'), tmp_path / "r.jsonl")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: recording.complete(make_prompt(f"q{n % 40}"), NEVER), range(200)))
    assert len({line["query"] for line in read(tmp_path / "r.jsonl")}) == 40
    assert len(read(tmp_path / "r.jsonl")) == 40


@pytest.mark.parametrize(
    "said", ["I'm sorry, Jaco", '{"other": 1}', '{"rewrite": null}', "{" * 5_000, '["rewrite"]']
)
def test_a_reply_that_holds_no_field_is_passed_on_and_not_recorded(
    tmp_path: Path, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert RecordingModel(saying(said), tmp_path / "r.jsonl").complete(
            make_prompt(), NEVER
        ) == Reply(said)
    assert not (tmp_path / "r.jsonl").exists()
    assert "not recorded" in caplog.text
    assert "Jaco" not in caplog.text


def test_a_recording_that_cannot_be_written_costs_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = '{"rewrite": "x"}'
    assert RecordingModel(saying(said), tmp_path).complete(make_prompt(), NEVER).text == said
    (tmp_path / "broken.jsonl").write_text("not JSON\n")
    assert (
        RecordingModel(saying(said), tmp_path / "broken.jsonl").complete(make_prompt(), NEVER).text
        == said
    )
    assert (tmp_path / "broken.jsonl").read_text() == "not JSON\n"
    assert caplog.text.count("was not recorded") == 2


@given(st.text(st.characters(codec=None), min_size=1), st.text(min_size=1))
def test_any_query_and_reply_survive_a_recording(
    tmp_path_factory, query_text: str, said: str
) -> None:
    path = tmp_path_factory.mktemp("r") / "r.jsonl"
    fields = (ReplyField("rewrite", "line", "r"),)
    prompt = Prompt("rewrite", "1", "s", "u", fields, query_text)
    RecordingModel(saying(json.dumps({"rewrite": said})), path).complete(prompt, NEVER)
    if said.strip() and query_text.strip():
        assert answer(RecordedModel.from_file(path), prompt) == {"rewrite": said}
