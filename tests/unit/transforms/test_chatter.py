"""What a model says about its task is searched nowhere; what a user or a passage says like it is.

Of the tables in ``chatter.json``, no rule was made for the texts in ``unseen``.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.transforms import build_prompts, parse_transformation
from qtmiddleware.transforms.chatter import has_common_word, is_chatter, is_refusal
from qtmiddleware.types import Message
from tests.support.shared_data import RECORDED, SHARED


def load(name: str) -> Any:
    return json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))


CHATTER: Final = load("chatter")
REFUSALS: Final = load("refusals")
QUERIES: Final[dict[str, str]] = CHATTER["queries"]
HISTORY = (Message("user", "Who founded Nike?"), Message("assistant", "Phil Knight."))
QUESTIONS = {
    "rewrite": "rewrite",
    "stepback": "step_back",
    "decompose": "sub_queries",
    "multi_query": "paraphrases",
}
MODES = {**QUESTIONS, "keywords": "keywords", "hyde": "hyde"}


def prompt(mode: str, query: str) -> Prompt:
    return build_prompts(Settings(transformation_type=mode), query)[0]  # type: ignore[arg-type]


def searched(mode: str, query: str, text: str, *, is_plain: bool = False) -> str | None:
    """What is searched because of a reply that holds *text* for the one field of *mode*."""
    field = MODES[mode]
    value = [text] if field in ("sub_queries", "paraphrases", "keywords") else text
    reply = text if is_plain else json.dumps({field: value}, ensure_ascii=False)
    try:
        found = parse_transformation(prompt(mode, query), Reply(reply)).texts(field)
    except ModelError:
        return None
    return found[0] if found else None


def share_dropped(mode: str, *tables: str, is_plain: bool = False) -> float:
    texts = [(code, it) for table in tables for code, rows in CHATTER[table].items() for it in rows]
    kept = [text for code, text in texts if searched(mode, QUERIES[code], text, is_plain=is_plain)]
    return 1 - len(kept) / len(texts)


@pytest.mark.parametrize("language", REFUSALS)
def test_a_refusal_is_searched_in_no_field_whatever_language_the_question_has(
    language: str, subtests: pytest.Subtests
) -> None:
    for text in REFUSALS[language]:
        with subtests.test(text):
            for query in (QUERIES["en"], QUERIES.get(language, QUERIES["de"])):
                for mode in (*MODES, "combined"):
                    field = MODES.get(mode, "rewrite")
                    for reply in (text, json.dumps({field: text}), json.dumps({field: [text]})):
                        with pytest.raises(ModelError) as caught:
                            parse_transformation(prompt(mode, query), Reply(reply))
                        assert caught.value.reason == "refused"


@pytest.mark.parametrize("mode", QUESTIONS)
def test_what_a_model_says_about_its_task_is_searched_in_no_question(mode: str) -> None:
    assert share_dropped(mode, "talk", "held_out") > 0.98
    assert share_dropped(mode, "talk", "held_out", is_plain=True) > 0.98
    assert share_dropped(mode, "unseen") > 0.7


def test_what_a_model_says_about_its_task_is_seldom_taken_for_a_passage() -> None:
    assert share_dropped("hyde", "talk") > 0.9
    assert share_dropped("hyde", "talk", "held_out", "unseen") > 0.75


def test_a_question_that_opens_so_itself_keeps_its_variants() -> None:
    for question, text in CHATTER["own"]:
        assert [searched(mode, question, text) for mode in QUESTIONS] == [text] * len(QUESTIONS)


def test_a_passage_may_speak_of_i_and_we_and_you_as_a_help_page_does(
    subtests: pytest.Subtests,
) -> None:
    passages = [("What is the strategy?", text) for text in CHATTER["passages"]]
    for query, text in (*passages, *chain.from_iterable(load("company_passages").values())):
        with subtests.test(text):
            assert searched("hyde", query, text) == text
            is_like_an_answer = has_common_word(text, query) or len(text.split()) > 14
            assert not is_like_an_answer or searched("hyde", query, text, is_plain=True) == text


@pytest.mark.parametrize(("text", "expected"), CHATTER["lead_ins"])
def test_what_follows_a_lead_in_is_searched_without_it(text: str, expected: str | None) -> None:
    for mode in QUESTIONS:
        assert searched(mode, "running and knees", text) == expected


@pytest.mark.parametrize(("text", "query", "expected"), CHATTER["common_words"])
def test_a_word_of_the_question_is_found_in_any_form(text: str, query: str, expected: bool) -> None:
    assert has_common_word(text, query) is expected


def test_no_real_question_or_recorded_text_is_taken_for_chatter() -> None:
    files = [*(SHARED / "data").rglob("queries.jsonl"), *chain.from_iterable(RECORDED)]
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in files)
    fields = ["text", "standalone", "rewrite", "step_back", "hyde"]
    texts = [
        text
        for record in map(json.loads, lines)
        for text in (*map(record.get, fields), *record.get("sub_queries", ()))
        if text
    ]
    assert len(texts) > (10_000 if SHARED.is_dir() else 300)
    assert [text for text in texts if is_chatter(text, "") or is_refusal(text, "")] == []
