"""Laws of reading a reply: nothing raises but `ModelError`, nothing unusable is searched, what is complete is kept.

Each row of ``bad_replies.json`` is a transformation, a reply to it as models really write it, and
what is searched because of the reply: texts by field, or the reason why there are none.
"""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.transforms import (
    PROMPTS,
    build_prompts,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.types import Message, Transformation


def load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


MODES = [name for name, row in TRANSFORMS.items() if row.fields]
TABLES = load("replies")
REPLIES: Final[list[tuple[str, str, dict[str, Any] | str]]] = load("bad_replies")
HISTORY = (Message("user", "Who founded Acme?"),)
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
MARKS = """ {" "} "rewrite":" "," [ ] { } \\ " ' 1. - ** ? : # ``` <think> </think> a What """
TALK = (
    "I'm sorry, but I can't help|Here are:|What is Acme?|Rewritten query: |Original query:|hyde: "
)
PIECES = [*MARKS.split(), *TALK.split("|"), *"\n\u202e\u200d\ud800"]
ANYTHING = st.text(st.characters()) | st.lists(st.sampled_from(PIECES)).map("".join)
WORDS = "revenue Über plan 東京 E-42 growth vs don't (a) 1,000 C++ naïve"
SENTENCE = st.lists(st.sampled_from(WORDS.split()), min_size=4, max_size=8).map(
    lambda words: "Which " + " ".join(words)
)
SENTENCES = st.lists(SENTENCE, min_size=6, max_size=6, unique_by=str.casefold)


def prompt(mode: str, query: str = "What is Acme?", history: Any = ()) -> Prompt:
    return build_prompts(Settings(transformation_type=mode), query, history)[0]  # type: ignore[arg-type]


def read(one: Prompt, reply: Any, **more: Any) -> Transformation | str:
    """What came out: a transformation, or the one word that says why there is none."""
    text = reply if isinstance(reply, str) else json.dumps(reply)
    try:
        return parse_transformation(one, Reply(text, **more))
    except ModelError as error:
        return error.reason


def texts(found: Transformation | str) -> Any:
    if isinstance(found, str):
        return found
    return {name: list(held) for name in TEXT_FIELDS if (held := found.texts(name))}


def same(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".?! ")


def test_a_reply_gives_what_is_usable_in_it_and_nothing_else(subtests: pytest.Subtests) -> None:
    for mode, text, expected in REPLIES:
        if isinstance(expected, dict):
            expected = {k: [it] if isinstance(it, str) else it for k, it in expected.items()}
        # A half surrogate pair could not be reported.
        with subtests.test(ascii(text)):
            assert texts(read(prompt(mode, "What is Nike's strategy?"), text)) == expected


NONSENSE = (
    'nope|OK|Done.|...|]]{{ \x00 <b>|{"answer": "nope"}|["nope"]|Answer: nope'
    "|Hello! How can I assist you today?|Invalid API key provided."
    '|The model is overloaded, please try again later.|{"rewrite": "...", "sub_queries": ["...", "..."]}'
)


def test_a_text_that_has_nothing_to_do_with_the_question_is_not_searched() -> None:
    question = "What about case 258 on dogs and health?"
    for mode in MODES:
        for reply in (*NONSENSE.split("|"), "[" * 990 + "]" * 990):
            middleware = qtm.QueryMiddleware(
                {"transformationType": mode}, client=lambda messages, said=reply: said
            )
            found = middleware.wrap(lambda query: [{"id": "a", "text": "A."}]).retrieve(question)
            assert (found.status, len(found.variants)) == ("degraded", 1), (mode, reply)


@pytest.mark.parametrize("mode", MODES)
@given(text=ANYTHING, truncated=st.booleans(), history=st.sampled_from([(), HISTORY]))
def test_any_reply_gives_usable_texts_or_a_model_error(
    mode: str, text: str, truncated: bool, history: Any
) -> None:
    one = prompt(mode, history=history)
    found = read(one, text, truncated=truncated)
    if isinstance(found, str):
        assert found in {"refused", "empty", "truncated", "unparsable"}
        return
    assert is_within_limits(found, one.fields)
    for name, held in texts(found).items():
        assert len({same(value) for value in held}) == len(held)
        for value in held:
            assert any(map(str.isalnum, value))
            assert not HIDDEN.search(value)
            assert value == " ".join(value.split())
            alone = name != "keywords" and (name != "sub_queries" or len(held) == 1)
            assert not alone or same(value) != "what is acme"
            assert "I'm sorry" not in value[:9]


FRAMES = st.sampled_from(["{}", "```json\n{}\n```", "Sure! Here it is:\n{}\nBye."])


@given(SENTENCES, FRAMES, st.data())
def test_a_well_formed_reply_is_read_exactly_and_one_that_is_cut_anywhere_in_part(
    parts: list[str], frame: str, data: st.DataObject
) -> None:
    hyde = ". ".join(parts) + "."
    reply = {"rewrite": parts[0], "step_back": parts[1], "sub_queries": parts[2:], "hyde": hyde}
    one = prompt("combined", "zz 7")
    found = texts(read(one, frame.replace("{}", json.dumps(reply, indent=2))))
    assert found == {it: held if isinstance(held, list) else [held] for it, held in reply.items()}
    text = json.dumps(reply)
    cut = read(one, text[: data.draw(st.integers(0, len(text) - 1))], truncated=True)
    if isinstance(cut, str):
        assert cut == "truncated"
        return
    assert {cut.rewrite, cut.step_back, cut.hyde} <= {None, *parts[:2], hyde}
    assert list(cut.sub_queries) == parts[2:][: len(cut.sub_queries)]
    assert ("reply", "truncated") in cut.notes


@pytest.mark.parametrize(("query", "text"), TABLES["kept"])
def test_a_number_mark_or_word_that_belongs_to_the_text_stays(query: str, text: str) -> None:
    assert texts(read(prompt("rewrite", query), {"rewrite": text})) == {"rewrite": [text]}
    both = {"paraphrases": [text, "other words"]}
    assert texts(read(prompt("multi_query", query), both)) == both


def test_a_query_that_needs_no_splitting_or_resolving_is_no_error() -> None:
    for reply in ('{"sub_queries": []}', '{"sub_queries": ["what is acme"]}'):
        assert parse_transformation(prompt("decompose"), Reply(reply)).is_empty
    (one,) = build_prompts(Settings(transformation_type="rewrite"), "What is Acme?", HISTORY)
    reply = '{"standalone": "What is Acme?", "rewrite": "What does Acme make?"}'
    notes = (("standalone", "dropped: same as the query"),)
    assert parse_transformation(one, Reply(reply)) == Transformation(
        rewrite="What does Acme make?", notes=notes
    )


@pytest.mark.parametrize(("sub_query", "stays"), TABLES["references"])
def test_a_sub_query_that_waits_for_another_is_dropped(sub_query: str, stays: bool) -> None:
    reply = Reply(json.dumps({"sub_queries": ["Who runs Acme?", sub_query]}))
    found = parse_transformation(prompt("decompose"), reply)
    assert found.sub_queries == ("Who runs Acme?", *[sub_query] * stays)
    assert (("sub_queries", "dropped: unresolved reference") in found.notes) is not stays


EXAMPLES = [
    (name, next(iter(json.loads(row.example[1]).values())), "copies the prompt")
    for name, row in PROMPTS.items()
    if row.example and name != "keywords"
]


@pytest.mark.parametrize(("mode", "text", "rule"), [*TABLES["rules"], *EXAMPLES])
def test_a_text_that_cannot_be_searched_is_noted_with_the_rule(
    mode: str, text: Any, rule: str
) -> None:
    asked = prompt(mode)
    (field,) = asked.fields
    value = [text] if field.shape == "list" and isinstance(text, str) else text
    try:
        notes = parse_transformation(asked, Reply(json.dumps({field.name: value}))).notes
    except ModelError as error:
        notes = error.notes
    assert (field.name, f"dropped: {rule}") in notes


def test_merging_takes_the_first_of_each_text_and_every_item_once() -> None:
    first = Transformation(rewrite="r", sub_queries=("a?", "b"), notes=(("x", "y"),))
    other = {"rewrite": "other", "step_back": "s", "sub_queries": ("A", "c")}
    merged = merge_transformations([first, Transformation(**other, notes=first.notes)])
    assert texts(merged) == {"rewrite": ["r"], "sub_queries": ["a?", "b", "c"], "step_back": ["s"]}
    assert merged.notes == first.notes
    assert merge_transformations([]).is_empty


# Nothing that may be read as a mark, a label or a quotation itself.
