"""The short way of reading a reply says what the long one says, or nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_bad_replies import QUERY, REPLIES

from qtmiddleware.errors import ModelError
from qtmiddleware.ports import Prompt, Reply, ReplyField
from qtmiddleware.settings import LlmSettings, Settings
from qtmiddleware.transforms import prompts_for, references
from qtmiddleware.transforms.noise import LEAD_INS, TALK
from qtmiddleware.transforms.parsing import read_carefully
from qtmiddleware.transforms.refusals import REFUSALS
from qtmiddleware.transforms.swift_reading import read_swiftly
from qtmiddleware.transforms.wording import folded
from qtmiddleware.types import Message, Transformation

RECORDINGS = sorted((Path(__file__).parents[3] / "shared" / "recordings").glob("*.jsonl"))
MODES = ["rewrite", "stepback", "decompose", "multi_query", "hyde", "keywords", "combined"]
FIELDS = {
    "rewrite": ["rewrite"],
    "stepback": ["step_back"],
    "decompose": ["sub_queries"],
    "hyde": ["hyde"],
    "combined": ["rewrite", "step_back", "sub_queries", "hyde"],
}
HISTORY = (Message("user", "Who founded Acme?"),)
PASSAGE = "Nike sells: shoes (all), in its own stores and online, to runners in forty countries."
LLM = LlmSettings(hyde_in_combined=True)


def prompt(mode: str, query: str = QUERY, history: tuple[Message, ...] = ()) -> Prompt:
    return prompts_for(Settings(transformation_type=mode, llm=LLM), query, history)[0]  # type: ignore[arg-type]


def carefully(asked: Prompt, reply: Reply) -> Transformation | str:
    try:
        return read_carefully(asked, reply)
    except ModelError as error:
        return error.reason


def agrees(asked: Prompt, reply: Reply) -> bool:
    """Whether the short way answered; what it answered is what the long way answers."""
    swiftly = read_swiftly(asked, reply)
    assert swiftly is None or swiftly == carefully(asked, reply)
    return swiftly is not None


def recorded(path: Path) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Each recorded reply as one to each kind of prompt that could have got it, with its mode and text."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for mode, names in FIELDS.items():
            yield row, mode, json.dumps({name: row[name] for name in names}, ensure_ascii=False)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_replies_are_read_alike_and_most_of_them_swiftly(path: Path) -> None:
    met = [agrees(prompt(mode), Reply(text)) for _, mode, text in recorded(path)]
    assert sum(met) >= 0.9 * len(met) > 0


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_replies_that_give_the_query_back_are_read_alike(path: Path) -> None:
    for row, mode, text in recorded(path):
        agrees(prompt(mode, row["sub_queries"][0]), Reply(text))


def test_all_sets_are_there() -> None:
    assert len(RECORDINGS) == 7


@pytest.mark.parametrize("mode", MODES)
def test_replies_as_models_really_write_them_are_read_alike(mode: str) -> None:
    for _, text, _ in REPLIES:
        for whole in (text, json.dumps({"rewrite": text}), json.dumps({"sub_queries": [text, "What is sold?"]})):
            agrees(prompt(mode), Reply(whole))
            agrees(prompt(mode, "Why did my request fail?", HISTORY), Reply(whole))


@pytest.mark.parametrize(
    ("mode", "reply", "expected"),
    [
        ("rewrite", {"rewrite": "Which plan does it have?"}, Transformation(rewrite="Which plan does it have?")),
        ("rewrite", {"rewrite": 'What is "it" now?'}, Transformation(rewrite='What is "it" now?')),
        ("multi_query", {"paraphrases": ["goals", "aims"]}, Transformation(paraphrases=("goals", "aims"))),
        ("hyde", {"hyde": PASSAGE}, Transformation(hyde=PASSAGE)),
        ("keywords", {"keywords": ["goals", "aims"]}, Transformation(keywords=("goals", "aims"))),
        (
            "combined",
            {"step_back": "Who sells shoes?", "sub_queries": []},
            Transformation(
                step_back="Who sells shoes?",
                notes=(("rewrite", "missing"), ("sub_queries", "none needed"), ("hyde", "missing")),
            ),
        ),
    ],
)
def test_what_was_asked_for_in_plain_letters_is_read_swiftly(
    mode: str, reply: dict[str, Any], expected: Transformation
) -> None:
    assert read_swiftly(prompt(mode), Reply(json.dumps(reply))) == expected
    assert carefully(prompt(mode), Reply(json.dumps(reply))) == expected


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("rewrite", '{"rewrite": "goals", "rewrite": "aims"}'),
        ("rewrite", '{"rewrite": "goals", "refusal": "no"}'),
        ("rewrite", '{"rewrite": "what is nike\'s strategy"}'),
        ("rewrite", '{"rewrite": "Rewritten query: goals"}'),
        ("rewrite", '{"rewrite": "goals (this version is clear)"}'),
        ("rewrite", '{"rewrite": "write in the language of the query"}'),
        ("rewrite", '{"rewrite": "I cannot help with that"}'),
        ("rewrite", '{"rewrite": "Sure, goals"}'),
        ("rewrite", '{"rewrite": "goals", "x": [[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]}'),
        ("rewrite", '{"rewrite": ["goals"]}'),
        ("rewrite", '{"rewrite": "straße"}'),
        ("rewrite", '{"rewrite": "stra\\u00dfe"}'),
        ("rewrite", '{"rewrite": "two\\nlines"}'),
        ("rewrite", '{"rewrite": "goals"} and more'),
        ("rewrite", '{"rewrite": "' + "goals " * 200 + 'end"}'),
        ("rewrite", '{"rewrite": null}'),
        ("rewrite", "{}"),
        ("hyde", '{"hyde": "Nike sells:"}'),
        ("decompose", '{"sub_queries": []}'),
        ("decompose", '{"sub_queries": ["goals", "Goals?"]}'),
        ("decompose", '{"sub_queries": ["a one", "b", "c", "d", "e", "f", "g"]}'),
        ("decompose", '{"sub_queries": ["Where did that company start?", "goals"]}'),
        ("keywords", '{"keywords": ["goals, aims"]}'),
    ],
)
def test_whatever_is_out_of_the_ordinary_is_read_carefully(mode: str, text: str) -> None:
    assert read_swiftly(prompt(mode), Reply(text)) is None


def test_a_reply_that_broke_off_is_read_carefully() -> None:
    assert read_swiftly(prompt("rewrite"), Reply('{"rewrite": "goals"}', truncated=True)) is None
    assert read_swiftly(prompt("rewrite"), Reply(None)) is None  # type: ignore[arg-type]


def test_a_field_of_another_name_makes_no_transformation() -> None:
    asked = Prompt("own", "own/1", "Say it.", "{}", (ReplyField("other", "line", "x"),), QUERY)
    assert read_swiftly(asked, Reply('{"other": "goals"}')) is None


PHRASES = st.one_of([st.from_regex(pattern) for pattern in (*TALK, *REFUSALS, *LEAD_INS)])
POINTERS = st.one_of(
    [st.from_regex(it) for it in (references._STEP, references._SLOT, references._POINTED, references._PRONOUN)]
)
PIECES = st.sampled_from(
    """
    goals|Goals|what|What is|a)|Q1.|1.|- |**|#|query|Query:|the|this is|(about it)|it|is that|person|"|'|. |: |, |\\|
    What is Nike's strategy?|Write in the language of the query|none|Sure|great. |here is|\n|\t|  |é|\u200b|straight|
    """.strip()
    .replace("\n    ", "")
    .split("|")
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=6).map(" ".join),
    st.tuples(st.sampled_from(["", "", "So ", "A"]), PHRASES, PIECES).map("".join),
    st.tuples(st.sampled_from(["When was ", "Who ", "Is "]), POINTERS, PIECES).map("".join),
    st.from_regex("[A-Za-z][a-z ,.]{0,20}[a-z?]", fullmatch=True),
)
CASED = TEXTS | TEXTS.map(str.lower) | TEXTS.map(str.capitalize) | TEXTS.map(str.upper)
VALUES = CASED | st.lists(CASED, max_size=6) | st.none() | st.integers()
NAMES = st.sampled_from(
    ["rewrite", "step_back", "sub_queries", "hyde", "paraphrases", "keywords", "standalone", "query", "note"]
)


def written(members: list[tuple[str, Any]], *, is_escaped: bool, around: str) -> str:
    inner = ", ".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=is_escaped)}" for k, v in members)
    return around.replace("*", f"{{{inner}}}")


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=150)
@given(data=st.data())
def test_any_reply_is_read_alike(mode: str, data: st.DataObject) -> None:
    query = data.draw(st.sampled_from([QUERY, "What does this person say: I'm sorry?", "Wie heißt es?", "goals:"]))
    asked = prompt(mode, query, data.draw(st.sampled_from([(), HISTORY])))
    own = st.tuples(st.sampled_from([field.name for field in asked.fields]), VALUES)
    members = data.draw(st.lists(own | st.tuples(NAMES, VALUES), max_size=4) | st.lists(own, max_size=1))
    around = data.draw(st.sampled_from(["*", "*", "*", " *\n", "```json\n*\n```", "* so", "[*]", '"*"', "<think>*"]))
    text = written(members, is_escaped=data.draw(st.booleans()), around=around)
    agrees(asked, Reply(text, truncated=data.draw(st.sampled_from([False, False, False, True]))))


@pytest.mark.parametrize("name", ["rewrite", "hyde", "paraphrases", "sub_queries", "keywords"])
@settings(max_examples=250)
@given(texts=st.lists(CASED, min_size=1, max_size=3), is_escaped=st.booleans())
def test_any_text_in_its_place_is_read_alike(name: str, texts: list[str], is_escaped: bool) -> None:
    mode = {"paraphrases": "multi_query", "sub_queries": "decompose"}.get(name, name)
    value = texts if name in {"paraphrases", "sub_queries", "keywords"} else texts[0]
    agrees(prompt(mode), Reply(json.dumps({name: value}, ensure_ascii=is_escaped)))


@settings(max_examples=500)
@given(
    text=st.tuples(PIECES, st.sampled_from(["", " "]), POINTERS | CASED, PIECES).map("".join),
    query=st.sampled_from(["", QUERY, "Who led that company in step 1 when it grew?"]),
)
def test_no_pointer_is_without_a_word_that_gives_it_away(text: str, query: str) -> None:
    pointing = references._points(text, folded(text), folded(query))
    assert references.points_elsewhere(text, query) == pointing
