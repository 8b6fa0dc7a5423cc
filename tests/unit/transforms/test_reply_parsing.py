"""Laws of reading a reply: nothing raises but `ModelError`, nothing unusable is searched, what is complete is kept."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qtmiddleware.catalogue import TEXT_FIELDS, TRANSFORMS, TextField
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply, ReplyField
from qtmiddleware.retrieval.question import Question
from qtmiddleware.runtime.steps import Outcome
from qtmiddleware.transforms import (
    PROMPTS,
    build_prompts,
    build_standalone_prompt,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.transforms.plain_text import (
    find_field_name,
    is_label,
    strip_item_numbers,
    strip_markup,
)
from qtmiddleware.transforms.reply_rules import RULES, Verdict, check_text
from qtmiddleware.types import Message, Trace, Transformation

MODES = [name for name, row in TRANSFORMS.items() if row.fields]
HISTORY = (Message("user", "Who founded Acme?"),)
HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
MARKS = [
    '{"',
    '"}',
    '"rewrite": "',
    '", "',
    "[",
    "]",
    "{",
    "}",
    "\\",
    '"',
    "'",
    "1. ",
    "- ",
    "**",
    "?",
    ":",
    "#",
    "<rewrite>",
]
WORDS = [
    "Rewritten query: ",
    "sub_queries",
    "I'm sorry, but I can't help",
    "Here are:",
    "a",
    "b c",
    "What is Acme?",
    "null",
]
OTHERS = [
    "<rewrite>",
    "null",
    "```json\n",
    "\n",
    "\n\n",
    "<think>",
    "</think>",
    "\u202e",
    "\u200d",
    "\ud800",
    "Original query:",
    "hyde: ",
]
PIECES = st.sampled_from([*MARKS, *WORDS, *OTHERS])
REPLIES = st.text(st.characters()) | st.lists(PIECES).map("".join)
SENTENCE = st.lists(
    st.sampled_from(
        [
            "revenue",
            "Über",
            "plan",
            "東京",
            "E-42",
            "growth",
            "vs",
            "don't",
            "(a)",
            "1,000",
            "C++",
            "naïve",
        ]
    ),
    min_size=4,
    max_size=8,
).map(lambda words: "Which " + " ".join(words))


def prompt(mode: str, query: str = "What is Acme?", history: tuple[Message, ...] = ()) -> Prompt:
    return build_prompts(Settings(transformation_type=mode), query, history)[0]  # type: ignore[arg-type]


def read(one: Prompt, reply: Reply) -> Transformation | str:
    """What came out: a transformation, or the one word that says why there is none."""
    try:
        return parse_transformation(one, reply)
    except ModelError as error:
        return error.reason


def texts(found: Transformation) -> dict[str, list[str]]:
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
    for name, held in texts(found).items():
        assert len(held) <= max(1, allowed[name].max_items)
        assert len({same(value) for value in held}) == len(held)
        for value in held:
            assert any(map(str.isalnum, value))
            assert not HIDDEN.search(value)
            assert value == " ".join(value.split())
            assert len(value) <= (4_000 if name == "hyde" else 1_000)
            alone = name != "keywords" and (name != "sub_queries" or len(held) == 1)
            assert not alone or same(value) != "what is acme"
            assert "I'm sorry" not in value[:9]


def full_reply(parts: list[str]) -> dict[str, object]:
    rewrite, step_back, *rest = dict.fromkeys(parts)
    return {
        "rewrite": rewrite,
        "step_back": step_back,
        "sub_queries": rest[:4],
        "hyde": ". ".join(parts) + ".",
    }


@given(st.lists(SENTENCE, min_size=6, max_size=8, unique_by=str.casefold), st.booleans())
def test_a_well_formed_reply_is_read_exactly(parts: list[str], fenced: bool) -> None:
    reply = full_reply(parts)
    text = f"```json\n{json.dumps(reply, indent=2)}\n```" if fenced else json.dumps(reply)
    found = parse_transformation(prompt("combined", "zz 7"), Reply(text))
    assert found == Transformation(**{**reply, "sub_queries": tuple(reply["sub_queries"])})  # type: ignore[arg-type]


@given(st.lists(SENTENCE, min_size=6, max_size=6, unique_by=str.casefold), st.data())
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
    assert list(found.sub_queries) == reply["sub_queries"][: len(found.sub_queries)]  # type: ignore[index]
    assert str(reply["hyde"]).startswith(found.hyde or "")
    assert ("reply", "truncated") in found.notes


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        (
            "I can't log in",
            "Cannot log in to account: sign-in failure",
            "Cannot log in to account: sign-in failure",
        ),
        (
            "I can't create an account",
            "I can't create an account: form error",
            "I can't create an account: form error",
        ),
        ("I can't log in", "I'm sorry, but I can't help with that.", "refused"),
        ("SQL query slow", "SQL query: why is it slow?", "SQL query: why is it slow?"),
        (
            "parse JSON in Go",
            'How to parse {"name": "x"} in Go?',
            'How to parse {"name": "x"} in Go?',
        ),
        ("1. FC Köln", '{"rewrite": "1. FC Köln football club"}', "1. FC Köln football club"),
        ('"just do it" origin', '{"rewrite": "\\"just do it\\" slogan"}', '"just do it" slogan'),
        ("strip think tags", '{"rewrite": "remove </think> tags"}', "remove </think> tags"),
        (
            "__init__ in Python",
            "__init__ method in Python classes",
            "__init__ method in Python classes",
        ),
        ("what is 2**3", '{"rewrite": "What is 2**3 in Python?"}', "What is 2**3 in Python?"),
        ("این چیست", '{"rewrite": "می\u200cخواهم بدانم این چیست"}', "می\u200cخواهم بدانم این چیست"),
    ],
)
def test_words_of_the_query_are_no_noise(query: str, text: str, expected: str) -> None:
    found = read(prompt("rewrite", query), Reply(text))
    assert (found if isinstance(found, str) else found.rewrite) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 10_000, "unparsable"),
        ("lorem ipsum " * 1_000, "unparsable"),
        ("x" * 10_000_000, "truncated"),
        ("<think>" + "so " * 3_000_000, "truncated"),
        ("[" * 100_000, "truncated"),
        ('{"a":' * 100_000, "truncated"),
        ('"\n' * 100_000, "truncated"),
    ],
)
def test_a_blob_is_no_query(text: str, reason: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_transformation(prompt("rewrite"), Reply(text))
    assert caught.value.reason == reason
    assert text[:20] not in str(caught.value)


def test_a_reply_without_text_is_empty() -> None:
    with pytest.raises(ModelError) as caught:
        parse_transformation(prompt("rewrite"), Reply(None))  # type: ignore[arg-type]
    assert caught.value.reason == "empty"


@given(
    described=st.fixed_dictionaries(
        {
            "type": st.sampled_from(["string", "array", "object"]),
            "required": st.lists(SENTENCE, min_size=1),
        },
        optional={
            "description": SENTENCE,
            "items": SENTENCE,
            "properties": st.dictionaries(SENTENCE, SENTENCE),
        },
    ),
    text=SENTENCE,
)
def test_a_reply_that_describes_its_field_in_place_of_a_text_has_none(
    described: dict[str, object], text: str
) -> None:
    for one in (prompt("rewrite"), prompt("multi_query")):
        (field,) = one.fields
        assert read(one, Reply(json.dumps({field.name: described}))) == "empty"
        found = parse_transformation(
            one, Reply(json.dumps({field.name: {**described, "query": text}}))
        )
        assert texts(found) == {field.name: [text]}


def test_a_passage_of_thoughts_before_the_answer_may_be_long() -> None:
    reply = "<think>" + "hm " * 50_000 + '</think>\n{"rewrite": "a b c"}'
    assert parse_transformation(prompt("rewrite"), Reply(reply)).rewrite == "a b c"


def test_duplicates_go_before_the_list_is_cut_to_its_length() -> None:
    listed = ["Here are..", "a", "A ", "a", "", "What is Acme?", "b", "c", "d"]
    for text in (json.dumps(listed), "\n".join(listed), json.dumps({"paraphrases": listed})):
        assert parse_transformation(prompt("multi_query"), Reply(text)).paraphrases == (
            "a",
            "b",
            "c",
        )


@pytest.mark.parametrize(("characters", "stays"), [(100, True), (101, False)])
def test_a_key_term_has_at_most_a_hundred_characters(characters: int, stays: bool) -> None:
    one, term = prompt("keywords"), "Acme".ljust(characters, "x")
    found = parse_transformation(one, Reply(json.dumps({"keywords": ["Acme revenue", term]})))
    assert (term in found.keywords) is stays
    assert (("keywords", "dropped: too long for a keyword") in found.notes) is not stays
    assert is_within_limits(Transformation(keywords=(term,)), one.fields) is stays


@pytest.mark.parametrize(("characters", "goes"), [(200, True), (201, False)])
def test_a_remark_in_brackets_behind_a_text_goes_if_it_has_at_most_two_hundred_characters(
    characters: int, goes: bool
) -> None:
    remark = "(Here is the rewritten query " + "so that it is clear " * 20
    text = f"revenue of Acme {remark[: characters - 1].strip().ljust(characters - 1, '.')})"
    expected = "revenue of Acme" if goes else text
    assert (
        parse_transformation(prompt("rewrite"), Reply(json.dumps({"rewrite": text}))).rewrite
        == expected
    )


def test_long_values_are_cut_at_a_word() -> None:
    found = parse_transformation(prompt("rewrite"), Reply(json.dumps({"rewrite": "words " * 300})))
    assert found.rewrite == ("words " * 166).strip()
    assert ("rewrite", "cut: too long") in found.notes


def test_a_query_that_needs_no_splitting_or_resolving_is_no_error() -> None:
    assert parse_transformation(prompt("decompose"), Reply('{"sub_queries": []}')).is_empty
    assert parse_transformation(
        prompt("decompose"), Reply('{"sub_queries": ["what is acme"]}')
    ).is_empty
    one = build_standalone_prompt(Settings(), "What is Acme?", HISTORY)
    found = parse_transformation(one, Reply('{"standalone": "What is Acme?"}'))
    assert found == Transformation(notes=(("standalone", "dropped: same as the query"),))


def test_a_sub_query_that_is_the_question_stays_beside_others() -> None:
    reply = Reply(json.dumps({"sub_queries": ["What is Acme?", "Where is Acme?"]}))
    assert parse_transformation(prompt("decompose"), reply).sub_queries == (
        "What is Acme?",
        "Where is Acme?",
    )


@pytest.mark.parametrize(
    "sub_query",
    [
        "Where was that person born?",
        "When did #1 die?",
        "What did [answer of 1] write?",
        "Who starred in the film from step 1?",
        "When was it released?",
        "Is the answer to the previous question correct?",
        "Where is {answer} located?",
    ],
)
def test_a_sub_query_that_waits_for_another_is_dropped(sub_query: str) -> None:
    found = parse_transformation(
        prompt("decompose"), Reply(json.dumps({"sub_queries": ["Who runs Acme?", sub_query]}))
    )
    assert found.sub_queries == ("Who runs Acme?",)
    assert ("sub_queries", "dropped: unresolved reference") in found.notes


@pytest.mark.parametrize(
    "sub_query",
    [
        "Is it safe to take ibuprofen with alcohol?",
        "Which team won the 2010 cup, and who coached that team?",
        "Who directed Alien and where was that person born?",
        "When did the band release Dookie and was it a success?",
        "What is a step-down transformer?",
    ],
)
def test_a_sub_query_that_explains_itself_stays(sub_query: str) -> None:
    assert parse_transformation(
        prompt("decompose"), Reply(json.dumps({"sub_queries": [sub_query]}))
    ).sub_queries == (sub_query,)


REJECTED = {
    "refusal": ("rewrite", "I'm sorry, but I can't help with that."),
    "copies the prompt": ("rewrite", "the query made understandable without the history"),
    "no query": ("rewrite", "Here is the rewritten query:"),
    "same as the query": ("rewrite", "what is Acme"),
    "too long for a keyword": ("keywords", "so " * 40),
    "no letters": ("rewrite", "42"),
    "unresolved reference": ("decompose", "Where was that person born?"),
    "JSON": ("rewrite", '{"rewrite": "a b'),
}


@pytest.mark.parametrize("rule", REJECTED)
def test_a_text_is_rejected_with_the_name_of_the_first_rule_that_objects(rule: str) -> None:
    mode, text = REJECTED[rule]
    asked = prompt(mode, history=HISTORY)
    assert check_text(text, asked.fields[-1], asked) == Verdict(None, f"dropped: {rule}", rule)


def test_each_rule_has_a_text_it_rejects_and_a_name_of_its_own() -> None:
    assert list(RULES) == list(REJECTED)


def test_a_text_that_no_rule_objects_to_is_accepted_as_it_is_searched() -> None:
    asked = prompt("rewrite")
    question, shortened = "Which dogs does Acme breed?", ("dogs " * 200).strip()
    accepted = Verdict(question, key="which dogs does acme breed")
    assert check_text(f'1. "{question}"', asked.fields[0], asked) == accepted
    assert check_text("dogs " * 300, asked.fields[0], asked) == Verdict(
        shortened, "cut: too long", key=shortened
    )


def test_what_lacks_is_noted_without_any_text() -> None:
    found = parse_transformation(
        prompt("combined"), Reply('{"rewrite": "a b c", "step_back": "I\'m sorry, I can\'t help."}')
    )
    assert found.notes == (
        ("step_back", "dropped: refusal"),
        ("sub_queries", "missing"),
        ("hyde", "missing"),
    )


def test_merging_takes_the_first_of_each_text_and_every_item_once() -> None:
    parts = [
        Transformation(rewrite="r", sub_queries=("a?", "b"), notes=(("x", "y"),)),
        Transformation(rewrite="other", step_back="s", sub_queries=("A", "c"), notes=(("x", "y"),)),
    ]
    assert merge_transformations(parts) == Transformation(
        rewrite="r", step_back="s", sub_queries=("a?", "b", "c"), notes=(("x", "y"),)
    )
    assert merge_transformations([]).is_empty


@pytest.mark.parametrize("row", TEXT_FIELDS.values(), ids=lambda row: row.name)
def test_a_field_is_found_by_its_name_and_label_and_not_by_any_other_word(row: TextField) -> None:
    field = ReplyField(row.name, row.shape, "", 1, 1)
    for key in (row.name, row.name.replace("_", ""), row.name.replace("_", " ").title()):
        assert find_field_name(key, [field]) == row.name
    assert find_field_name("banana", [field]) == ""
    assert is_label(row.label)


EXAMPLES = {name: row.example for name, row in PROMPTS.items() if row.example}


@pytest.mark.parametrize(
    "mode", [mode for mode in MODES if mode in EXAMPLES and mode != "keywords"]
)
def test_a_reply_that_copies_the_example_of_the_prompt_is_said_to_do_so(mode: str) -> None:
    example = EXAMPLES[mode]
    assert example is not None
    outcome = Outcome(Reply(json.dumps(example[1])))
    question = Question("what is Acme", (), Settings(transformation_type=mode))  # type: ignore[arg-type]
    question.read_replies_and_prepare_next_round([outcome], Trace())
    (degradation,) = question.degradations
    assert (degradation.stage, degradation.reason) == (f"transform.{mode}", "unparsable")
    assert (
        degradation.detail
        == "no text of the model's reply can be searched; dropped: copies the prompt"
    )


def test_a_reply_without_any_text_that_may_be_searched_is_said_why_by_the_names_of_the_rules() -> (
    None
):
    with pytest.raises(ModelError, match="dropped: no letters, unresolved reference"):
        parse_transformation(
            prompt("decompose"),
            Reply(json.dumps({"sub_queries": ["Where was that person born?", "42"]})),
        )
    with pytest.raises(ModelError, match="has none of the requested fields"):
        parse_transformation(
            prompt("decompose"), Reply('{"error": {"message": "rate limited", "code": 429}}')
        )


NUMBERINGS = [
    "{}. ",
    "{}) ",
    "({}) ",
    "{}: ",
    "{}\\. ",
    "**{}.** ",
    "**{}.**",
    "**{})** ",
    "**{}:** ",
    "**{}**. ",
    "__{}.__ ",
    "*{}.* ",
    "_{}._ ",
    "- {}. ",
    "- **{}.** ",
    "* **{})** ",
    "> {}. ",
    "## {}. ",
]
LETTERED = [
    "[1] ",
    "a) ",
    "(b) ",
    "**a)** ",
    "**b.** ",
    "a\\) ",
    "- **c)** ",
    "① ",
    "1\ufe0f\u20e3 ",
    "Q1: ",
    "**Q1:** ",
]
# Nothing that may be read as a mark, a label or a quotation itself.
PLAIN = st.from_regex(r"\A[A-Z][a-z]{2,9}( [a-z]{3,9}){1,6}\?\Z")


@settings(max_examples=300)
@given(mark=st.sampled_from([it.format(1) for it in NUMBERINGS] + LETTERED), text=PLAIN)
def test_the_mark_before_a_text_is_not_searched_whatever_way_it_is_emphasised(
    mark: str, text: str
) -> None:
    for given_text in (mark + text, f"**{mark}{text}**" if mark[0] not in "*>#-_" else mark + text):
        assert (
            parse_transformation(
                prompt("rewrite"), Reply(json.dumps({"rewrite": given_text}))
            ).rewrite
            == text
        )


@settings(max_examples=300)
@given(
    numbering=st.sampled_from(NUMBERINGS),
    texts=st.lists(PLAIN, min_size=2, max_size=4, unique_by=str.casefold),
    is_json=st.booleans(),
)
def test_the_numbers_of_a_list_are_not_searched_whatever_way_they_are_emphasised(
    numbering: str, texts: list[str], is_json: bool
) -> None:
    items = [numbering.format(place) + text for place, text in enumerate(texts, 1)]
    reply = json.dumps({"paraphrases": items}) if is_json else "\n".join(items)
    found = parse_transformation(prompt("multi_query"), Reply(reply))
    assert found.paraphrases == tuple(texts[: len(found.paraphrases)])
    assert len(found.paraphrases) >= min(2, len(texts))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("Wie begann der Zweite Weltkrieg?", "2. Weltkrieg Ursachen"),
        ("Wann ist Heiligabend frei?", "24. Dezember Feiertag"),
        ("Causes of the 1. Weltkrieg", "1. Weltkrieg causes"),
        ("how large may files be", "1.5 GB limit?"),
        ("how are toys printed", "3D printing of toys"),
        ("what are the wonders of the world", "7 wonders of the world"),
        ("what do constructors do", "__init__ method in Python"),
        ("what is variadic", "*args and **kwargs in Python"),
        ("what is a key in Mongo", "_id field of a document"),
        ("2) or 3) in the form?", "2) or 3) in the tax form"),
    ],
)
def test_a_number_or_mark_that_belongs_to_the_text_stays(query: str, text: str) -> None:
    assert (
        parse_transformation(prompt("rewrite", query), Reply(json.dumps({"rewrite": text}))).rewrite
        == text
    )
    assert parse_transformation(
        prompt("multi_query", query), Reply(json.dumps({"paraphrases": [text, "other words"]}))
    ).paraphrases == (
        text,
        "other words",
    )


@given(
    label=st.sampled_from(
        ["Explanation:", "Reasoning:", "Note:", "### Analysis", "**Original query**"]
    ),
    remark=st.lists(SENTENCE, min_size=1, max_size=2),
    text=SENTENCE,
    other=SENTENCE,
)
def test_a_remark_below_its_label_ends_at_an_empty_line(
    label: str, remark: list[str], text: str, other: str
) -> None:
    assert (
        parse_transformation(
            prompt("rewrite"), Reply("\n".join([label, *remark, "", text]))
        ).rewrite
        == text
    )
    lines = [text, "", label, text, "", f"{other} instead"]  # a remark may repeat what it is about
    assert parse_transformation(prompt("multi_query"), Reply("\n".join(lines))).paraphrases == (
        text,
        f"{other} instead",
    )


@given(SENTENCE, SENTENCE, st.sampled_from(["**kwargs", "2**64", "**/*.md", "a ** b"]))
@example("How do", "work in Python functions", "**kwargs")
def test_stars_behind_a_label_belong_to_the_text(before: str, after: str, stars: str) -> None:
    text = f"{before} {stars} {after}?"
    for label in (
        "Rewritten query:",
        "**Rewritten query:**",
        "**Rewritten query**:",
        "# Rewritten query:",
    ):
        assert parse_transformation(prompt("rewrite"), Reply(f"{label} {text}")).rewrite == text


@given(
    st.lists(
        st.lists(
            st.sampled_from([*MARKS, "1", "2", "*", "_", ")", ".", "\ufe0f\u20e3", "a", " ", "\n"])
        ),
        max_size=4,
    ),
    st.text(),
)
def test_taking_marks_off_adds_nothing_and_leaves_nothing_to_take_off_of_the_kind(
    parts: list[list[str]], query: str
) -> None:
    texts = ["".join(part) for part in parts]
    stripped = strip_item_numbers(texts, query)
    assert len(stripped) == len(texts)
    assert all(after in before for before, after in zip(texts, stripped, strict=True))
    for text in texts:
        rest = iter(text)
        assert all(letter in rest for letter in strip_markup(text, query))
