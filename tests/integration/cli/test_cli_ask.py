"""``qtm ask`` as its users run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, INDEX, PASSAGES, QUESTION, environ
from tests.support.terminal import Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]


def test_questions_are_answered_with_their_sources(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    ended = qtm(
        *("ask", QUESTION, "What does he eat?", "--type", "rewrite", "--explain", "--top-k", "2"),
        *("-H", "Who is Jaco?", "-H", "A dog."),
        QTM_LLM_BASE_URL=service.url,
    )
    assert ended.code == 0, ended.err
    first, _, second = ended.out.partition("  total  ")
    assert first.startswith(
        f"Question: {QUESTION}\n{HEALTH} [1]\n\nSources:\n  [1] The vet's report (vet.pdf), page 3 ("
    )
    assert "\nQuestion: What does he eat?\n" in second
    assert "Question   What does he eat?" in second
    assert [len(it["passages"]) for it in service.answered] == [2, 2]
    assert [[turn["content"] for turn in it["history"]] for it in service.requests] == [
        ["Who is Jaco?", "A dog."]
    ] * 4
    assert ended.err == f"qtm: note: used by default: index {folder / INDEX}\n"


def test_json_says_what_the_passages_do_not_hold(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.text = "NO_ANSWER The passages say nothing about cats."
    ended = qtm("ask", "--json", text=b"Is there a cat?\nWhere?\n", QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    first, second = json.loads(ended.out)
    assert (first["found"], first["answer"]) == (False, "The passages say nothing about cats.")
    assert (first["citations"], second["question"]) == ([], "Where?")


def test_an_answer_appears_while_it_is_written(folder: Path, service: AnsweringService) -> None:
    service.pauses = True
    at = environ(folder, QTM_LLM_BASE_URL=service.url)
    with Terminal("ask", QUESTION, folder=folder, environ=at) as terminal:
        assert "health" not in terminal.wait_for("Jaco has")
        service.released.set()
        terminal.wait_for("no health concerns, says the vet. [1]", "Sources:")
        assert terminal.ended() == 0


def test_where_the_model_fails_the_passages_are_shown(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {QUESTION}
    at = {
        "QTM_LLM_BASE_URL": service.url,
        "QTM_ESCALATION_MODE": "auto",
        "QTM_STORE_READ_PRICE": "16",
    }
    ended = qtm("ask", QUESTION, "--type", "hyde", "--explain", **at)
    assert ended.code == 1
    assert "Gate       did not call the model: clear_first_result (lead 0." in ended.out
    assert ended.err.splitlines()[1].startswith("No answer: ")
    assert ended.out.startswith("Passages:\n  [1] The vet's report (vet.pdf), page 3")
    assert " s, 1 search for $0.000016, 1 LLM call, " in ended.out
    assert " ms, 1 search for $0.000016, 1 LLM calls" in ended.out


@pytest.mark.parametrize(("more", "code"), [((), 1), (("--no-answer",), 0)])
def test_without_a_key_the_passages_that_meet_the_filter_are_shown(
    qtm: Run, folder: Path, more: tuple[str, ...], code: int
) -> None:
    ended = qtm(
        "ask", QUESTION, "--json", "--type", "all", "--filter", '{"page": {"$gte": 2}}', *more
    )
    assert ended.code == code
    assert "No language model is configured" in ended.err
    (row,) = json.loads(ended.out)
    assert [it["id"] for it in row["passages"]] == [
        it.id for it in PASSAGES if it.metadata.get("page")
    ]
    assert (row["answer"], row["error"], row["trace"]["llm_calls"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--filter", "[1]"), "JSON object"),
        (("--filter", '{"page": {"$near": 3}}'), "$near"),
        ((" ",), "blank"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    qtm: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    ended = qtm("ask", QUESTION, *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert "Traceback" not in ended.err
