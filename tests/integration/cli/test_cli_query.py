"""``qtm query`` as its users have it: with questions, at a terminal, and in a pipe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.answering_service import TRANSFORMED, AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, QUESTION, environ
from tests.support.terminal import CTRL_D, UP, Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
READY = ("'exit' to quit.", "\n> ")


def test_questions_are_answered_with_their_sources(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    ended = qtm(
        *("query", QUESTION, "What does he eat?", "--type", "rewrite", "-k", "2"),
        QTM_LLM_BASE_URL=service.url,
    )
    assert (ended.code, ended.err) == (0, "")
    first, _, second = ended.out.partition("\nQuestion: What does he eat?\n")
    assert first.startswith(
        f"Question: {QUESTION}\n{HEALTH} [1]\n\nSources:\n  [1] The vet's report (vet.pdf), page 3 ("
    )
    assert "\nTransformed:\n  rewrite: " in second
    assert [len(it["passages"]) for it in service.answered] == [2, 2]
    assert not any("history" in it for it in service.requests)


def test_where_the_model_fails_the_passages_are_shown(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {QUESTION}
    at = {"QTM_ESCALATION_MODE": "auto", "QTM_LLM_BASE_URL": service.url}
    ended = qtm("query", QUESTION, "--type", "hyde", **at)
    assert (ended.code, ended.err[:11]) == (1, "No answer: ")
    assert ended.out.startswith("Passages:\n  [1] The vet's report (vet.pdf), page 3")
    assert " s, 1 search, 1 LLM call, " in ended.out


def test_without_a_key_the_passages_that_meet_the_filter_are_shown(qtm: Run, folder: Path) -> None:
    asked = ("query", QUESTION, "--json", "--type", "all", "--filter", '{"page": {"$gte": 2}}')
    ended = qtm(*asked)
    assert (ended.code, "No language model is configured" in ended.err) == (0, True)
    row = json.loads(ended.out)
    assert [it["id"] for it in row["passages"]] == ["health"]
    assert (row["answer"], row["error"], row["trace"]["llm_calls"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((QUESTION, "--filter", "[1]"), 2, "JSON object"),
        ((QUESTION, "--filter", '{"page": {"$near": 3}}'), 2, "$near"),
        ((" ",), 2, "blank"),
        ((QUESTION, "--type", "rewritten"), 2, "transformationType"),
        ((QUESTION, "--set", "indexPath=none"), 1, "qtm ingest"),
    ],
)
def test_what_cannot_be_asked_is_said(
    qtm: Run, folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = qtm("query", *arguments)
    assert (ended.code, words in ended.err) == (code, True)


# --- at a terminal --------------------------------------------------------------------------------


def test_a_conversation_at_a_terminal(folder: Path, service: AnsweringService) -> None:
    at = environ(folder, QTM_LLM_BASE_URL=service.url)
    with Terminal("query", folder=folder, environ=at) as terminal:
        assert "1. rewrite - " in terminal.wait_for("type [none]:")
        terminal.type("12")
        terminal.wait_for("This is not a type: enter a number from 1 to", "type [none]:")
        terminal.type("1")
        terminal.wait_for("Current transformation type: rewrite", *READY)

        terminal.type(QUESTION)
        told = terminal.wait_for(
            f"{HEALTH} [1]", "Sources:", "Transformed:", "Scores: [1] 0.", "\n> "
        )
        assert "[1] The vet's report (vet.pdf), page 3 (score 0." in told
        assert f"rewrite: {TRANSFORMED['rewrite']}" in told
        assert "2 LLM calls, 200 + 40 tokens, $0.000040)" in told

        terminal.type("And last year?")
        terminal.wait_for("standalone: And last year of Jaco?", "\n> ")
        said_before = [turn["content"] for turn in service.transformed[-1]["history"]]
        assert said_before == [QUESTION, f"{HEALTH} [1]"]

        terminal.type("tt")
        terminal.wait_for("type [rewrite]:")
        terminal.type("step-back")
        terminal.wait_for("Transformation type set to: stepback", "\n> ")
        terminal.type("tt")
        terminal.wait_for("type [stepback]:")
        terminal.type("")
        terminal.wait_for("set to: stepback", "\n> ")
        terminal.type("half a question", enter=False)
        terminal.wait_for("half a question")
        # What the key recalls shows that readline reads the keys.
        terminal.type(UP, enter=False)
        terminal.wait_for("tt")
        terminal.interrupt()
        terminal.wait_for("\n> ")
        terminal.type(UP * 4)
        terminal.wait_for("step-back: How healthy is Jaco?", "\n> ")
        assert service.answered[-1]["question"] == "And last year?"
        terminal.type(CTRL_D, enter=False)
        assert terminal.ended() == 0


def test_ctrl_c_stops_an_answer_and_the_session_goes_on(
    folder: Path, service: AnsweringService
) -> None:
    service.pauses = True
    at = environ(folder, QTM_LLM_BASE_URL=service.url)
    with Terminal("query", "--type", "none", folder=folder, environ=at) as terminal:
        terminal.wait_for(*READY)
        terminal.type(QUESTION)
        wait_until(lambda: service.answered)
        terminal.interrupt()
        assert "Sources" not in terminal.wait_for("Stopped.", "\n> ")
        service.pauses = False
        terminal.type("Is he ill?")
        terminal.wait_for(f"{HEALTH} [1]", "Sources:", "\n> ")
        assert [turn["content"] for turn in service.answered[-1]["history"]] == [QUESTION]
        terminal.type("exit")
        assert terminal.ended() == 0


# --- in a pipe ------------------------------------------------------------------------------------


def test_a_pipe_holds_one_question_a_line_each_for_itself(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {"Is he ill?"}
    first = f"\ufeff{QUESTION}\r\n\ntt\nrewrite\ntt\nIs he ill?\n".encode()
    text = first + b"What \xff does he eat?\nexit\nMore?\n"
    ended = qtm("query", text=text, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    asked = [QUESTION, "Is he ill?", "What \ufffd does he eat?"]
    assert [it["question"] for it in service.answered] == asked
    assert [it["query"] for it in service.transformed] == asked[1:]
    assert not any("history" in it for it in service.requests)
    assert ended.out.startswith(f"Question: {QUESTION}\n{HEALTH} [1]\n")
    assert ended.out.count("Passages:") == 1
    assert "No answer: " in ended.err
    assert ">" not in ended.out + ended.err


def test_a_session_that_was_typed_works_line_by_line_in_a_pipe(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    lines = ["1", QUESTION, "tt", "3", "Is he ill?", "tt", "", "tt", "step-back"]
    text = "\n".join([*lines, "Why?", "2", "exit", "More?"]).encode()
    ended = qtm("query", text=text, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    assert [it["question"] for it in service.answered] == [QUESTION, "Is he ill?", "Why?", "2"]
    kinds = re.findall(r"Transformation type set to: (\w+)", ended.err)
    assert kinds == ["rewrite", "decompose", "decompose", "stepback"]
    # Without a model, no line that names a type becomes a question either.
    ended = qtm("query", text=b"1\nIs he ill?\ntt\n3\n")
    assert (ended.code, ended.out.count("Question: ")) == (0, 1)


def test_json_lines_hold_everything_and_nothing_else(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {"Is he ill?"}
    text = f"1\n{QUESTION}\nIs he ill?\n{'x' * 9_000}\n".encode()
    ended = qtm("query", "--json", "-t", "keywords", text=text, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    # A number is a question here.
    number, first, second, third = map(json.loads, ended.out.splitlines())
    assert number["question"] == "1"
    assert (first["question"], first["answer"], first["found"]) == (QUESTION, f"{HEALTH} [1]", True)
    (cited,) = first["citations"]
    assert first["answer"][cited["start"] : cited["end"]] == "[1]"
    place = {"number": 1, "id": "health", "source": "vet.pdf", "page": 3}
    assert cited.items() >= place.items()
    assert (first["passages"][0]["text"], first["trace"]["llm_calls"]) == (HEALTH, 2)
    assert (second["answer"], second["found"], len(second["passages"])) == (None, None, 4)
    assert second["error"]["reason"] == "unavailable"
    assert (third["passages"], third["error"]["reason"]) == ([], "failed")
