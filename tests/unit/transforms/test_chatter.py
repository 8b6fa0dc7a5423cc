"""What a model says about its task is searched nowhere; what a user or a passage says like it is.

Of the table, ``talk`` is older than the rules, ``held_out`` was written after them and mended into
them, and ``unseen`` after that: no rule was made for it.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import LANGUAGES
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.retrieval.question import Question
from qtmiddleware.runtime.steps import Outcome
from qtmiddleware.transforms import build_prompts, build_standalone_prompt, parse_transformation
from qtmiddleware.transforms.chatter import find_chatter_end, is_noise, strip_lead_in
from qtmiddleware.types import Message, Trace
from tests.support.shared_data import RECORDED, SHARED

CHATTER: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("chatter.json").read_text(encoding="utf-8")
)
COMPANY: Final[dict[str, list[tuple[str, str]]]] = json.loads(
    Path(__file__).with_name("company_passages.json").read_text(encoding="utf-8")
)
QUERIES: Final[dict[str, str]] = CHATTER["queries"]
HISTORY = (
    Message("user", "Who founded Nike?"),
    Message("assistant", "Phil Knight and Bill Bowerman."),
)
MODES = {
    "rewrite": "rewrite",
    "stepback": "step_back",
    "decompose": "sub_queries",
    "multi_query": "paraphrases",
    "hyde": "hyde",
    "keywords": "keywords",
    "standalone": "standalone",
}
QUESTIONS = [name for name in MODES if name not in ("hyde", "keywords")]


def prompt(mode: str, query: str) -> Prompt:
    if mode == "standalone":
        return build_standalone_prompt(Settings(), query, HISTORY)
    return build_prompts(Settings(transformation_type=mode), query)[0]  # type: ignore[arg-type]


def searched(mode: str, query: str, text: str, *, is_plain: bool = False) -> str | None:
    """What is searched because of a reply that holds *text* for the one field of *mode*."""
    field = MODES[mode]
    value = [text] if field in ("sub_queries", "paraphrases", "keywords") else text
    reply = text if is_plain else json.dumps({field: value}, ensure_ascii=False)
    try:
        found = getattr(parse_transformation(prompt(mode, query), Reply(reply)), field)
    except ModelError as error:
        return None if error.reason in ("empty", "refused") else error.reason
    return found[0] if isinstance(found, tuple) and found else found or None


def rows(name: str) -> list[tuple[str, str]]:
    return [(language, text) for language, texts in CHATTER[name].items() for text in texts]


def test_the_table_is_as_long_as_it_claims() -> None:
    assert set(CHATTER["talk"]) == set(CHATTER["held_out"]) == set(QUERIES) == set(LANGUAGES)
    assert all(len(texts) >= 20 for texts in CHATTER["talk"].values())
    assert all(len(texts) >= 10 for texts in CHATTER["held_out"].values())


@pytest.mark.parametrize(("language", "text"), rows("talk") + rows("held_out"))
def test_what_a_model_says_about_its_task_is_searched_in_no_field(language: str, text: str) -> None:
    for mode in MODES:
        assert searched(mode, QUERIES[language], text) is None, mode
    assert searched("rewrite", QUERIES[language], text, is_plain=True) is None


def test_most_of_what_no_rule_was_written_for_is_searched_in_no_field_either() -> None:
    caught = [
        all(searched(mode, QUERIES[language], text) is None for mode in MODES)
        for language, text in rows("unseen")
    ]
    assert sum(caught) >= 0.7 * len(caught)


@pytest.mark.parametrize("language", LANGUAGES)
def test_chatter_is_known_whatever_language_the_question_has(language: str) -> None:
    for other in LANGUAGES:
        assert searched("rewrite", QUERIES[language], CHATTER["talk"][other][1]) is None


@pytest.mark.parametrize(("question", "text"), CHATTER["own"])
def test_a_question_that_opens_so_itself_keeps_its_variants(question: str, text: str) -> None:
    assert [searched(mode, question, text) for mode in QUESTIONS] == [text] * len(QUESTIONS)


@pytest.mark.parametrize("text", CHATTER["passages"])
def test_a_passage_may_speak_of_i_and_we_and_documents(text: str) -> None:
    assert searched("hyde", "What is the strategy?", text) == text


def test_the_passages_of_companies_are_as_many_as_they_claim() -> None:
    assert set(COMPANY) == set(LANGUAGES)
    assert sum(map(len, COMPANY.values())) >= 130


@pytest.mark.parametrize(("query", "text"), list(chain.from_iterable(COMPANY.values())))
def test_a_passage_in_the_words_of_a_help_page_is_searched_whatever_words_the_question_has(
    query: str, text: str
) -> None:
    assert searched("hyde", query, text) == text
    assert searched("hyde", query, text, is_plain=True) == text


@pytest.mark.parametrize(("text", "expected"), CHATTER["lead_ins"])
def test_what_follows_a_lead_in_is_searched_without_it(text: str, expected: str) -> None:
    assert [searched(mode, "running and knees", text) for mode in QUESTIONS] == [expected] * len(
        QUESTIONS
    )


def test_a_question_or_a_passage_behind_chatter_is_searched_without_it() -> None:
    text = "Sure, I can help with that! What are the goals of Nike's strategy?"
    assert searched("rewrite", QUERIES["en"], text) == "What are the goals of Nike's strategy?"
    passage = "Nike sells to its customers directly, in its own stores and online, and makes new shoes and clothes for them."
    assert (
        searched("hyde", QUERIES["en"], f"Let me break this down. {passage} {passage}")
        == f"{passage} {passage}"
    )
    assert searched("hyde", QUERIES["en"], "Let me break this down. It is about money.") is None


def test_one_chatty_field_leaves_the_others_and_a_note() -> None:
    reply = {
        "rewrite": "goals of Nike",
        "step_back": CHATTER["talk"]["en"][0],
        "sub_queries": ["Nike's stores", "Let me see."],
    }
    found = parse_transformation(
        build_prompts(Settings(transformation_type="combined"), QUERIES["en"])[0],
        Reply(json.dumps(reply)),
    )
    assert (found.rewrite, found.step_back, found.sub_queries) == (
        "goals of Nike",
        None,
        ("Nike's stores",),
    )
    assert {("step_back", "dropped: no query"), ("sub_queries", "dropped: no query")} <= set(
        found.notes
    )


def test_a_reply_that_is_all_chatter_is_a_degradation() -> None:
    question = Question(QUERIES["en"], (), Settings(transformation_type="rewrite"))
    outcome = Outcome(Reply(json.dumps({"rewrite": CHATTER["talk"]["en"][0]})))
    question.read_replies_and_prepare_next_round([outcome], Trace())
    assert question.repair_or_drop_texts(QUERIES["en"], (), "en").is_empty
    assert [(it.stage, it.reason) for it in question.degradations] == [
        ("transform.rewrite", "empty")
    ]


WORDS = sorted(
    {
        word
        for code in LANGUAGES
        for one in load_lexicon(code).chatter
        for word in one.replace("|", " ").split()
    }
)


@given(
    st.lists(
        st.sampled_from(WORDS) | st.sampled_from(["Nike", ".", ":", "?", "sure", "!", "'", "é"])
    ),
    st.text(),
)
def test_the_end_of_chatter_is_within_the_text_and_what_is_left_of_it_is_its_end(
    parts: list[str], query: str
) -> None:
    text = " ".join(parts)
    assert 0 <= find_chatter_end(text, query) <= len(text)
    assert text.endswith(strip_lead_in(text, query))
    assert not find_chatter_end(text, query) or is_noise(text, query)


def test_no_real_question_or_recorded_text_is_taken_for_chatter() -> None:
    files = [*(SHARED / "data").rglob("queries.jsonl"), *chain.from_iterable(RECORDED)]
    rows = [
        json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()
    ]
    fields = ["text", "standalone", "rewrite", "step_back", "hyde"]
    texts = [
        text
        for row in rows
        for text in (*map(row.get, fields), *row.get("sub_queries", ()))
        if text
    ]
    assert len(texts) > (10_000 if SHARED.is_dir() else 300)
    assert [text for text in texts if find_chatter_end(text, "")] == []
