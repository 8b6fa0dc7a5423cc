"""Seed 002: rules strip the words of a question from it, without a model and without a setting.

By default the stripped words weigh the passages that the plain search returns; the seed embeds
them, which a setting and a preset do too.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.test_seeds.world import PATIENT, Script, Service, run_qtm

QUESTION: Final = "Does Jaco have any health concerns?"
STRIPPED: Final = "jaco health concerns"
LINE: Final = 'Query preprocessing: "Does Jaco have any health concerns?" -> "jaco health concerns"'

EXAMPLES: Final = [
    (QUESTION, STRIPPED),
    ("What are Jaco's favorite activities?", "jaco's favorite activities"),
    ("How does Jaco behave around other dogs?", "jaco behave around other dogs"),
    ("health concerns?", "health concerns"),
]
# The rows of the seed's table, and the kinds of queries that it names.
MORE: Final = [
    ("What is Jaco's walking schedule?", "jaco's walking schedule"),
    ("Jaco diet", "jaco diet"),
    ("What does Jaco like to eat?", "jaco like to eat"),
    ("Does Jaco have any allergies?", "jaco allergies"),
    ("Can you tell me about Jaco's diet?", "jaco's diet"),
    ("walking schedule", "walking schedule"),
    ("Does Jaco Have Any Health Concerns?", STRIPPED),
    (QUESTION.upper(), STRIPPED),
    ("How does NASA track asteroids?", "NASA track asteroids"),
    ("What did Will Smith say in May 2023?", "Will Smith say in May 2023"),
    *((f"Jaco{mark} diet{mark}", "jaco diet") for mark in ("?", "!", ".", ",", ";", ":", "...")),
    *((f"{it}Jaco{it}diet{it}", "jaco diet") for it in ("  ", "\t", "\n", "\u00a0", "\u3000")),
]
WORDS: Final = {
    "interrogative": "what when where who why how which",
    "auxiliary": "does do did is are was were has have had",
    "modal": "can could would should will shall may might must",
    "article": "a an the",
    "quantifier": "any some",
}
# One list that a search could give: the passage that answers stands last.
PASSAGES: Final = {
    "toys": "Does any dog have a toy? Jaco does, he does have a ball.",
    "vet": "The vet is open. Does the vet have any parking? He does.",
    "health": "Jaco has no health concerns.",
}


class Fixed:
    """A search that always gives the passages in one order, with close scores; *queries* were asked."""

    def __init__(self) -> None:
        self.queries: list[str] = []

    def search(self, query: str, top_k: int = 3) -> list[dict[str, Any]]:
        self.queries.append(query)
        rows = [
            {"id": id_, "score": 0.8 - 0.01 * at, "text": text}
            for at, (id_, text) in enumerate(PASSAGES.items())
        ]
        return rows[:top_k]


@pytest.mark.parametrize(("question", "stripped"), EXAMPLES + MORE)
def test_a_question_becomes_its_keywords(question: str, stripped: str) -> None:
    assert qtm.preprocess(question) == stripped


@pytest.mark.parametrize("word", [word for words in WORDS.values() for word in words.split()])
def test_each_listed_word_is_removed_wherever_it_stands(word: str) -> None:
    for query in (
        f"{word} jaco health concerns?",
        f"jaco {word} health concerns?",
        f"tell jaco, {word} health concerns?",
    ):
        kept = qtm.preprocess(query).split()
        assert word not in kept
        assert {"jaco", "health", "concerns"} <= set(kept)


@pytest.mark.parametrize("query", ["What is the?", "What is?", "How are you?", "???", "..."])
def test_a_query_of_which_nothing_would_be_left_stays_as_it_is(query: str) -> None:
    assert qtm.preprocess(query) == query
    searching = Fixed()
    qtm.QueryMiddleware("strip-as-text").wrap(searching.search)(query)
    assert set(searching.queries) == {query}


# Automatic, with the user's own function


def test_a_wrapped_function_needs_no_config_no_model_and_no_further_search() -> None:
    searching, model = Fixed(), ScriptedModel("unused")
    found = qtm.QueryMiddleware(client=model).wrap(searching.search).retrieve(QUESTION)
    assert (found.original_query, found.keywords) == (QUESTION, STRIPPED)
    assert (found.trace.searches, found.trace.llm_calls) == (1, 0)
    assert (searching.queries, model.prompts) == ([QUESTION], [])


def test_the_passage_that_answers_comes_before_those_that_only_share_question_words() -> None:
    searching = Fixed()
    plain = searching.search(QUESTION)
    improved = qtm.middleware(searching.search)(QUESTION)
    assert [hit["id"] for hit in plain] == ["toys", "vet", "health"]
    assert improved[0]["id"] == "health"
    assert sorted(hit["id"] for hit in improved) == sorted(PASSAGES)


def test_a_function_that_returns_one_text_still_answers_and_says_what_would_help() -> None:
    def get_context(message: str, namespace: str = "") -> str:
        return "Jaco has no health concerns."

    with pytest.warns(qtm.SetupWarning, match="return the list of passages"):
        assert qtm.middleware(get_context)(QUESTION) == "Jaco has no health concerns."


@pytest.mark.parametrize(
    ("kind", "field", "written"),
    [
        ("keywords", "keywords", ["allergies", "vet"]),
        ("hyde", "hyde", "Jaco is healthy and has no concerns, says the vet."),
        (
            "multi_query",
            "paraphrases",
            ["Is Jaco ill?", "Which health concerns does Jaco have?"],
        ),
    ],
)
def test_a_model_can_be_added_as_the_seed_foresees(kind: str, field: str, written: Any) -> None:
    middleware = qtm.QueryMiddleware(
        {"transformationType": kind, **PATIENT}, client=ScriptedModel({field: written})
    )
    found = middleware.wrap(Fixed().search).retrieve(QUESTION)
    got = getattr(found.transformation, field)
    assert (got if isinstance(written, str) else list(got)) == written
    assert (found.keywords, found.trace.llm_calls) == (STRIPPED, 1)


# The seed's way: the stripped text is embedded

AS_TEXT: Final[list[Any]] = ["strip-as-text", {"preprocess": {"applyTo": "text"}}]


@pytest.mark.parametrize("config", AS_TEXT)
def test_the_stripped_text_is_searched_in_place_of_the_question(config: Any) -> None:
    searching = Fixed()
    found = qtm.QueryMiddleware(config).wrap(searching.search).retrieve(QUESTION)
    assert set(searching.queries) == {STRIPPED}
    assert found.original_query == QUESTION


@pytest.mark.parametrize("config", AS_TEXT)
def test_the_stripped_text_is_embedded_for_a_function_of_vectors(
    config: Any, host: HTTPServer
) -> None:
    service = Service(host, f"/stripped/{AS_TEXT.index(config)}", Script())
    client = service.client()

    def embed(texts: list[str]) -> list[list[float]]:
        made = client.embeddings.create(model="text-embedding-3-small", input=texts)
        return [it.embedding for it in made.data]

    def search(vector: list[float], top_k: int = 3) -> list[dict[str, Any]]:
        return Fixed().search("", top_k)

    qtm.QueryMiddleware(config).wrap(search, embed_many=embed)(QUESTION)
    assert [body["input"] for body in service.embedded] == [[STRIPPED]]


@pytest.mark.parametrize("config", [{}, *AS_TEXT])
def test_the_generator_gets_the_original_question(config: Any, host: HTTPServer) -> None:
    script = Script(["no health concerns"], answer="None [1].")
    service = Service(host, f"/generator/{AS_TEXT.index(config) if config else 'default'}", script)
    middleware = qtm.QueryMiddleware(config, client=service.client())
    answer = middleware.wrap(Fixed().search).answer(QUESTION, config=PATIENT)
    (asked,) = service.completions
    assert QUESTION in asked.text
    assert STRIPPED not in asked.text
    assert answer.text == "None [1]."


# The log


def test_the_log_shows_before_and_after_at_debug_and_no_query_above(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, "qtmiddleware"):
        qtm.middleware(Fixed().search)(QUESTION)
    assert [it.levelno for it in caplog.records if it.getMessage() == LINE] == [logging.DEBUG]
    above = [it.getMessage() for it in caplog.records if it.levelno > logging.DEBUG]
    assert "jaco" not in " ".join(above).lower()


def test_the_query_log_holds_question_keywords_and_scores(tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    qtm.QueryMiddleware({"log": {"path": str(log)}}).wrap(Fixed().search)(QUESTION)
    record = json.loads(log.read_text(encoding="utf-8"))
    assert QUESTION in json.dumps(record["queries"])
    assert record["keywords"] == STRIPPED
    assert all(isinstance(it["score"], float) for it in record["retrieval_steps"]["final"])


def test_the_command_line_shows_before_and_after(tmp_path: Path) -> None:
    text = "".join(f"{question}\n" for question, _ in EXAMPLES)
    ended = run_qtm("transform", "--type", "none", "--json", folder=tmp_path, text=text)
    assert ended.code == 0, ended.err
    shown = [(row["query"], row["preprocessed"]) for row in json.loads(ended.out)]
    assert shown == EXAMPLES


# The off switch and the word lists


@pytest.mark.parametrize(
    "config", [{"preprocess": False}, {"preprocess": {"enabled": False}}, "off"]
)
def test_a_config_or_a_preset_switches_the_rules_off(
    config: Any, caplog: pytest.LogCaptureFixture
) -> None:
    searching = Fixed()
    with caplog.at_level(logging.DEBUG, "qtmiddleware"):
        found = qtm.QueryMiddleware(config).wrap(searching.search).retrieve(QUESTION)
    assert found.response == searching.search(QUESTION)
    assert found.keywords == ""
    assert "Query preprocessing" not in caplog.text


@pytest.mark.parametrize("applied", ["keywords", "text"])
def test_one_call_switches_the_rules_off_for_itself_alone(applied: str) -> None:
    searching = Fixed()
    search = qtm.QueryMiddleware({"preprocess": {"applyTo": applied}}).wrap(searching.search)
    off = search.retrieve(QUESTION, config={"preprocess": False})
    assert (off.keywords, set(searching.queries)) == ("", {QUESTION})
    assert off.response == Fixed().search(QUESTION)
    assert search.retrieve(QUESTION).keywords == STRIPPED


def test_an_environment_variable_switches_the_rules_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QTM_PREPROCESS_ENABLED", "false")
    assert qtm.QueryMiddleware().wrap(Fixed().search).retrieve(QUESTION).keywords == ""


@pytest.mark.parametrize(
    ("option", "words", "keywords"),
    [
        ("keepWords", ["any", "does"], "does jaco any health concerns"),
        ("extraWords", ["concerns"], "jaco health"),
    ],
)
def test_words_can_be_kept_and_more_can_be_removed(
    option: str, words: list[str], keywords: str
) -> None:
    middleware = qtm.QueryMiddleware({"preprocess": {option: words}})
    assert middleware.preprocess(QUESTION) == keywords
    assert middleware.wrap(Fixed().search).retrieve(QUESTION).keywords == keywords
