"""Laws of reading a reply: nothing raises but `ModelError`, nothing unusable is searched, what is complete is kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.transforms import (
    PROMPTS,
    build_prompts,
    build_standalone_prompt,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.types import Message, Transformation

MODES = [name for name, row in TRANSFORMS.items() if row.fields]
TABLES = json.loads(Path(__file__).with_name("replies.json").read_text(encoding="utf-8"))
HISTORY = (Message("user", "Who founded Acme?"),)
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
MARKS = """ {" "} "rewrite":" "," [ ] { } \\ " ' 1. - ** ? : # ``` <think> </think> a What """
PIECES = [
    *MARKS.split(),
    "I'm sorry, but I can't help",
    "Here are:",
    "What is Acme?",
    "Rewritten query: ",
    "Original query:",
    "hyde: ",
    "\n",
    "\n\n",
    "\u202e",
    "\u200d",
    "\ud800",
]
REPLIES = st.text(st.characters()) | st.lists(st.sampled_from(PIECES)).map("".join)
WORDS = "revenue Über plan 東京 E-42 growth vs don't (a) 1,000 C++ naïve"
SENTENCE = st.lists(st.sampled_from(WORDS.split()), min_size=4, max_size=8).map(
    lambda words: "Which " + " ".join(words)
)
SENTENCES = st.lists(SENTENCE, min_size=6, max_size=6, unique_by=str.casefold)


def prompt(mode: str, query: str = "What is Acme?", history: tuple[Message, ...] = ()) -> Prompt:
    return build_prompts(Settings(transformation_type=mode), query, history)[0]  # type: ignore[arg-type]


def read(one: Prompt, reply: Reply | str) -> Transformation | str:
    """What came out: a transformation, or the one word that says why there is none."""
    try:
        return parse_transformation(one, Reply(reply) if isinstance(reply, str) else reply)
    except ModelError as error:
        return error.reason


def texts(found: Transformation | str) -> dict[str, list[str]] | str:
    if isinstance(found, str):
        return found
    return {name: list(held) for name in TEXT_FIELDS if (held := found.texts(name))}


def same(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).rstrip(".?! ")


@pytest.mark.parametrize("mode", MODES)
@given(text=REPLIES, truncated=st.booleans(), talked=st.booleans())
def test_any_reply_gives_usable_texts_or_a_model_error(
    mode: str, text: str, truncated: bool, talked: bool
) -> None:
    one = prompt(mode, history=HISTORY if talked else ())
    found = read(one, Reply(text, truncated=truncated))
    if isinstance(found, str):
        assert found in {"refused", "empty", "truncated", "unparsable"}
        return
    allowed = {field.name: field for field in one.fields}
    assert is_within_limits(found, one.fields)
    for name in TEXT_FIELDS:
        held = found.texts(name)
        assert len(held) <= max(1, allowed[name].max_items if name in allowed else 0)
        assert len({same(value) for value in held}) == len(held)
        for value in held:
            assert any(map(str.isalnum, value))
            assert not HIDDEN.search(value)
            assert value == " ".join(value.split())
            alone = name != "keywords" and (name != "sub_queries" or len(held) == 1)
            assert not alone or same(value) != "what is acme"
            assert "I'm sorry" not in value[:9]


def full_reply(parts: list[str]) -> dict[str, object]:
    rewrite, step_back, *rest = parts
    hyde = ". ".join(parts) + "."
    return {"rewrite": rewrite, "step_back": step_back, "sub_queries": rest, "hyde": hyde}


@given(SENTENCES, st.sampled_from(["{}", "```json\n{}\n```", "Sure! Here it is:\n{}\nBye."]))
def test_a_well_formed_reply_is_read_exactly(parts: list[str], frame: str) -> None:
    reply = full_reply(parts)
    text = frame.replace("{}", json.dumps(reply, indent=2))
    assert texts(read(prompt("combined", "zz 7"), text)) == {
        name: value if isinstance(value, list) else [value] for name, value in reply.items()
    }


@given(SENTENCES, st.data())
def test_a_reply_cut_anywhere_gives_a_part_of_the_whole(
    parts: list[str], data: st.DataObject
) -> None:
    reply = full_reply(parts)
    text = json.dumps(reply)
    cut = data.draw(st.integers(0, len(text) - 1))
    found = read(prompt("combined", "zz 7"), Reply(text[:cut], truncated=True))
    if isinstance(found, str):
        assert found == "truncated"
        return
    assert found.rewrite in (None, reply["rewrite"])
    assert found.step_back in (None, reply["step_back"])
    assert list(found.sub_queries) == parts[2:][: len(found.sub_queries)]
    assert str(reply["hyde"]).startswith(found.hyde or "")
    assert ("reply", "truncated") in found.notes


QUESTION = "goals of Nike"


@pytest.mark.parametrize("reply", TABLES["wrapped"])
def test_the_text_is_found_in_whatever_a_model_wraps_it(reply: str) -> None:
    for one in (prompt("rewrite", QUESTION), prompt("rewrite", QUESTION, HISTORY)):
        assert texts(read(one, reply)) == {"rewrite": ["Which goals does Nike have?"]}


@pytest.mark.parametrize(("query", "text"), TABLES["kept"])
def test_a_number_mark_or_word_that_belongs_to_the_text_stays(query: str, text: str) -> None:
    assert texts(read(prompt("rewrite", query), json.dumps({"rewrite": text}))) == {
        "rewrite": [text]
    }
    assert texts(
        read(prompt("multi_query", query), json.dumps({"paraphrases": [text, "other words"]}))
    ) == {"paraphrases": [text, "other words"]}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 10_000, "unparsable"),
        ("x" * 10_000_000, "truncated"),
        ("<think>" + "so " * 3_000_000, "truncated"),
        ("[" * 100_000, "truncated"),
        ('{"a":' * 100_000, "truncated"),
        (None, "empty"),
    ],
)
def test_a_blob_is_no_query(text: str, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_transformation(prompt("rewrite"), Reply(text))
    assert caught.value.reason == reason
    assert (text or "?")[:20] not in str(caught.value)


@pytest.mark.parametrize(("characters", "stays"), [(100, True), (101, False)])
def test_a_key_term_has_at_most_a_hundred_characters(characters: int, stays: bool) -> None:
    one, term = prompt("keywords"), "Acme".ljust(characters, "x")
    found = parse_transformation(one, Reply(json.dumps({"keywords": ["Acme revenue", term]})))
    assert (term in found.keywords) is stays
    assert (("keywords", "dropped: too long for a keyword") in found.notes) is not stays
    assert is_within_limits(Transformation(keywords=(term,)), one.fields) is stays


def test_a_query_that_needs_no_splitting_or_resolving_is_no_error() -> None:
    for reply in ('{"sub_queries": []}', '{"sub_queries": ["what is acme"]}'):
        assert parse_transformation(prompt("decompose"), Reply(reply)).is_empty
    one = build_standalone_prompt(Settings(), "What is Acme?", HISTORY)
    found = parse_transformation(one, Reply('{"standalone": "What is Acme?"}'))
    assert found == Transformation(notes=(("standalone", "dropped: same as the query"),))


@pytest.mark.parametrize(("sub_query", "stays"), TABLES["references"])
def test_a_sub_query_that_waits_for_another_is_dropped(sub_query: str, stays: bool) -> None:
    reply = Reply(json.dumps({"sub_queries": ["Who runs Acme?", sub_query]}))
    found = parse_transformation(prompt("decompose"), reply)
    assert found.sub_queries == ("Who runs Acme?", *[sub_query] * stays)
    assert (("sub_queries", "dropped: unresolved reference") in found.notes) is not stays


@pytest.mark.parametrize(("mode", "text", "rule"), TABLES["rules"])
def test_a_text_that_cannot_be_searched_is_noted_with_the_rule(
    mode: str, text: str, rule: str
) -> None:
    asked = prompt(mode)
    (field,) = asked.fields
    value = [text] if field.shape == "list" else text
    try:
        notes = parse_transformation(asked, Reply(json.dumps({field.name: value}))).notes
    except ModelError as error:
        notes = error.notes
    assert (field.name, f"dropped: {rule}") in notes


@pytest.mark.parametrize(
    "mode", [name for name, row in PROMPTS.items() if row.example and name != "keywords"]
)
def test_a_copy_of_the_example_in_the_prompt_is_not_searched(mode: str) -> None:
    example = PROMPTS[mode].example
    assert example is not None
    with pytest.raises(ModelError, match="dropped: copies the prompt"):
        parse_transformation(prompt(mode), Reply(example[1]))


def test_merging_takes_the_first_of_each_text_and_every_item_once() -> None:
    parts = [
        Transformation(rewrite="r", sub_queries=("a?", "b"), notes=(("x", "y"),)),
        Transformation(rewrite="other", step_back="s", sub_queries=("A", "c"), notes=(("x", "y"),)),
    ]
    assert merge_transformations(parts) == Transformation(
        rewrite="r", step_back="s", sub_queries=("a?", "b", "c"), notes=(("x", "y"),)
    )
    assert merge_transformations([]).is_empty


# Nothing that may be read as a mark, a label or a quotation itself.
PLAIN = st.from_regex(r"\A[A-Z][a-z]{2,9}( [a-z]{3,9}){1,6}\?\Z")
NUMBERINGS = """{}. |{}) |({}) |{}: |{}\\. |**{}.** |**{}.**|**{})** |**{}:** |**{}**. |- {}. |- **{}.** |\
* **{})** |> {}. |## {}. |Sub-query {}: """


@given(
    st.sampled_from(NUMBERINGS.split("|")),
    st.lists(PLAIN, min_size=2, max_size=4, unique_by=str.casefold),
    st.booleans(),
)
def test_the_numbers_of_a_list_are_not_searched_whatever_way_they_are_emphasised(
    numbering: str, items: list[str], is_json: bool
) -> None:
    numbered = [numbering.format(place) + text for place, text in enumerate(items, 1)]
    reply = json.dumps({"paraphrases": numbered}) if is_json else "\n".join(numbered)
    found = parse_transformation(prompt("multi_query"), Reply(reply))
    assert found.paraphrases == tuple(items[:3])
    assert texts(read(prompt("rewrite"), json.dumps({"rewrite": numbered[0]}))) == {
        "rewrite": [items[0]]
    }


def test_reading_a_complete_reply_imports_no_pydantic() -> None:
    code = (
        "import sys; from qtmiddleware.config.settings import Settings;"
        "from qtmiddleware.protocols import Reply;"
        "from qtmiddleware.transforms import build_prompts, parse_transformation;"
        "prompt, = build_prompts(Settings(transformation_type='rewrite'), 'goals of Nike');"
        'parse_transformation(prompt, Reply(\'{"rewrite": "aims of Nike"}\'));'
        "assert not [name for name in sys.modules if name.startswith('pydantic')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
