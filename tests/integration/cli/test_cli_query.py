"""``qtm query`` as its users have it: at a terminal, and in a pipe."""

from __future__ import annotations

import io
import json
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.kit.cli.asking import ask_index
from qtmiddleware.kit.cli.session import (
    KINDS,
    LEAVING,
    Keyboard,
    Session,
    choose_transformation_type_or_line,
    find_transformation_type,
)
from qtmiddleware.kit.cli.show import show_outcome
from qtmiddleware.kit.cli.terminal import LineWrapper, measure_width
from qtmiddleware.kit.stores import MemoryStore, SQLiteStore
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.answering_service import TRANSFORMED, AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, INDEX, PASSAGES, QUESTION, environ
from tests.support.terminal import CTRL_C, CTRL_D, UP, Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
READY = ("for more.", "\n>")


def test_a_conversation_at_a_terminal(folder: Path, service: AnsweringService) -> None:
    with Terminal(
        "query", folder=folder, environ=environ(folder, QTM_LLM_BASE_URL=service.url)
    ) as terminal:
        menu = terminal.wait_for("type [none]:")
        assert all(f"{number}. {kind} - " in menu for number, kind in enumerate(KINDS, start=1))
        terminal.type("12")
        terminal.wait_for("This is not a type: enter a number from 1 to", "type [none]:")
        terminal.type("rewrit")
        terminal.wait_for("There is no type rewrit: did you mean rewrite?", "type [none]:")
        terminal.type("1")
        terminal.wait_for("Current transformation type: rewrite", *READY)

        terminal.type(QUESTION)
        told = terminal.wait_for(
            f"{HEALTH} [1]", "Sources:", "Transformed:", "Scores: [1] 0.", "\n>"
        )
        assert "[1] The vet's report (vet.pdf), page 3 (score 0." in told
        assert f"rewrite: {TRANSFORMED['rewrite']}" in told
        assert "2 LLM calls, 200 + 40 tokens, $0.000040)" in told
        assert "degraded" not in told

        terminal.type("And last year?")
        terminal.wait_for("standalone: And last year of Jaco?", "\n>")
        said = [(turn["role"], turn["content"]) for turn in service.transformed[-1]["history"]]
        assert said == [("user", QUESTION), ("assistant", f"{HEALTH} [1]")]

        terminal.type("tt")
        terminal.wait_for("type [rewrite]:")
        terminal.type("step-back")
        terminal.wait_for("Transformation type set to: stepback", "\n>")
        terminal.type(":type 5")
        terminal.wait_for("set to: combined", "\n>")
        terminal.type("tt")
        terminal.wait_for("type [combined]:")
        terminal.type("")
        terminal.wait_for("set to: combined", "\n>")
        terminal.type("half a question", enter=False)
        terminal.wait_for("half a question")
        terminal.type(CTRL_C, enter=False)
        terminal.wait_for("\n>")
        terminal.type(UP * 4)
        terminal.wait_for("step-back (not searched): How healthy is Jaco?", "\n>")
        assert service.answered[-1]["question"] == "And last year?"
        terminal.type(b"\xe9t\xe9?")
        terminal.wait_for("Sources:", "\n>")
        assert service.answered[-1]["question"] == "\ufffdt\ufffd?"
        terminal.type(CTRL_D, enter=False)
        assert terminal.ended() == 0
    kept = folder / "state" / "qtmiddleware" / "history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    typed = [
        line[1:] for line in kept.read_text(encoding="utf-8").splitlines() if line.startswith("+")
    ]
    assert typed == [
        QUESTION,
        "And last year?",
        "tt",
        ":type 5",
        "tt",
        "And last year?",
        "\ufffdt\ufffd?",
    ]


def test_a_question_at_the_first_prompt_is_answered_with_the_default_type(
    folder: Path, service: AnsweringService
) -> None:
    with Terminal(
        "query", folder=folder, environ=environ(folder, QTM_LLM_BASE_URL=service.url)
    ) as terminal:
        terminal.wait_for("or type your question", "type [none]:")
        terminal.type(QUESTION)
        terminal.wait_for("Current transformation type: none", f"{HEALTH} [1]", "Sources:", "\n>")
        assert service.answered[-1]["question"] == QUESTION
        terminal.type("tt")
        terminal.wait_for("type [none]:")
        terminal.type("And last year?")
        terminal.wait_for("Sources:", "\n>")
        assert service.answered[-1]["question"] == "And last year?"
        terminal.type(UP * 2)
        terminal.wait_for("type [none]:")
        terminal.type("exit")
        assert terminal.ended() == 0
    kept = (folder / "state" / "qtmiddleware" / "history").read_text(encoding="utf-8")
    assert QUESTION in kept


@pytest.mark.parametrize("first", ["exit", ":q"])
def test_the_first_prompt_takes_commands_too(folder: Path, first: str) -> None:
    plain = environ(folder, TERM="dumb", QTM_LLM_BASE_URL="http://127.0.0.1:9/v1")
    with Terminal("query", folder=folder, environ=plain) as terminal:
        terminal.wait_for("type [none]:")
        terminal.type("tt")
        terminal.wait_for("1. rewrite", "type [none]:")
        terminal.type(":help")
        terminal.wait_for("for more.", "forget the conversation", "\n>")
        terminal.type("tt")
        terminal.wait_for("type [none]:")
        terminal.type(first)
        assert terminal.ended() == 0


def test_an_empty_index_says_so(qtm: Run, folder: Path) -> None:
    with SQLiteStore(folder / INDEX, embedding_model="all-MiniLM-L6-v2", dimension=384) as store:
        store.delete([passage.id for passage in PASSAGES])
    for ended in (qtm("query", text=b"exit\n", folder=folder), qtm("ask", QUESTION, folder=folder)):
        assert f"the index at {INDEX} is empty; add documents with qtm ingest" in ended.err


def test_ctrl_c_stops_an_answer_and_the_session_goes_on(
    folder: Path, service: AnsweringService
) -> None:
    service.pauses = True
    arguments = ("query", "--type", "none", "--no-history")
    with Terminal(
        *arguments, folder=folder, environ=environ(folder, QTM_LLM_BASE_URL=service.url)
    ) as terminal:
        terminal.wait_for(*READY)
        terminal.type(QUESTION)
        terminal.wait_for("Jaco has")
        terminal.type(CTRL_C, enter=False)
        stopped = terminal.wait_for("Stopped.", "\n>")
        assert "Sources" not in stopped
        service.pauses = False
        terminal.type("Is he ill?")
        terminal.wait_for(f"{HEALTH} [1]", "Sources:", "\n>")
        assert [turn["content"] for turn in service.answered[-1]["history"]] == [QUESTION]
        terminal.type("exit")
        assert terminal.ended() == 0
    assert not (folder / "state").exists()


def test_without_a_key_a_plain_terminal_shows_passages_and_no_escape_sequence(folder: Path) -> None:
    plain = environ(folder, TERM="dumb", PYTHONIOENCODING="ascii")
    with Terminal("query", "--type", "combined", folder=folder, environ=plain) as terminal:
        assert "No language model is configured: set OPENAI_API_KEY" in terminal.wait_for(
            "type: none", *READY
        )
        terminal.type("What does Jaco eat?")
        told = terminal.wait_for("Passages:", "no LLM calls)", "\n>")
        assert "food.txt (score " in told
        assert "na?ve, but [31mgood for him" in told
        terminal.type("tt")
        terminal.wait_for("Until then the transformation type is none.", "\n>")
        terminal.type(CTRL_D, enter=False)
        assert terminal.ended() == 0
    assert b"\x1b" not in terminal.raw


def test_a_pipe_holds_one_question_a_line_each_for_itself(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {"Is he ill?"}
    text = (
        f"\ufeff{QUESTION}\r\n\n:type rewrite\n:nope\ntt\nIs he ill?\n".encode()
        + b"What \xff does he eat?\nexit\nMore?\n"
    )
    ended = qtm("query", text=text, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    assert [it["question"] for it in service.answered] == [
        QUESTION,
        "Is he ill?",
        "What \ufffd does he eat?",
    ]
    assert [it["query"] for it in service.transformed] == ["Is he ill?", "What \ufffd does he eat?"]
    assert not any("history" in it for it in service.requests)
    assert ended.out.startswith(f"Question: {QUESTION}\n{HEALTH} [1]\n")
    assert ended.out.count("Passages:") == 1
    assert "No answer: " in ended.err
    assert "There is no command :nope" in ended.err
    assert "Traceback" not in ended.err
    assert "degraded" not in ended.err
    assert ">" not in ended.out + ended.err


def test_a_session_that_was_typed_works_line_by_line_in_a_pipe(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    lines = [
        "",
        "1",
        QUESTION,
        "tt",
        "3",
        "Is he ill?",
        "tt",
        "",
        "tt",
        "step-back",
        "Why?",
        "2",
        "exit",
        "More?",
    ]
    ended = qtm("query", text="\n".join(lines).encode(), QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    assert [it["question"] for it in service.answered] == [QUESTION, "Is he ill?", "Why?", "2"]
    kinds = [
        line.rpartition(" ")[2]
        for line in ended.err.splitlines()
        if line.startswith("Transformation type set")
    ]
    assert kinds == ["rewrite", "decompose", "decompose", "stepback"]
    assert ended.err.count("Available transformation types:") == 3
    assert [
        f"\nQuestion: {it}\n" in f"\n{ended.out}" for it in (QUESTION, "Is he ill?", "Why?", "2")
    ] == [True] * 4
    # Without a model the types cannot be changed, and no line that names one becomes a question.
    ended = qtm("query", text=b"1\nIs he ill?\ntt\n3\n")
    assert (ended.code, ended.out.count("Question: ")) == (0, 1)
    # A line of JSON a question, so that a number is one.
    ended = qtm("query", "--json", text=b"1\n", QTM_LLM_BASE_URL=service.url)
    assert json.loads(ended.out)["question"] == "1"


def test_the_score_that_is_shown_falls_with_the_order(qtm: Run, folder: Path) -> None:
    ended = qtm("ask", "--no-answer", QUESTION)
    shown = [float(it) for it in re.findall(r"\(score (\d\.\d+)", ended.out)]
    assert len(shown) == 4
    assert shown == sorted(shown, reverse=True)
    assert ended.out.count(", store score 0.") >= 2


@given(st.lists(st.text("ab漢\u0301[1]-. \n", max_size=30)), st.integers(1, 60))
def test_lines_at_a_terminal_break_between_words(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    wrapper = LineWrapper(io.StringIO())
    wrapper._width = width
    assert ("".join(map(wrapper.add_piece, pieces)) + wrapper.flush()).split() == text.split()
    written = wrapper.add_piece("\n" + " ".join(it[:10] for it in text.split())) + wrapper.flush()
    assert all(measure_width(line) <= width or width < 30 for line in written.splitlines())


def test_a_pipe_may_be_a_conversation_and_be_explained(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    text = f"{QUESTION}\n:explain\nAnd last year?\n:clear\nAnd now?\n:config\n:help\n".encode()
    environ = {
        "QTM_LLM_BASE_URL": service.url,
        "QTM_LIMITS_LLM_TIMEOUT_MS": "60000",
        "QTM_LIMITS_DEADLINE_MS": "90000",
    }
    ended = qtm("query", "--chat", "-t", "decompose", text=text, **environ)
    assert ended.code == 0, ended.err
    assert [len(it.get("history", ())) for it in service.answered] == [0, 2, 0]
    for told in (
        "called the model: always",
        "sub-query, weight 0.40",
        "Fusion     anchored: ",
        "Keywords   weight ",
    ):
        assert told in ended.out
    assert 'transformationType  "decompose"  (' in ended.out
    assert "forget the conversation" in ended.out


def test_json_lines_hold_everything_and_nothing_else(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {"Is he ill?"}
    text = f"{QUESTION}\n:config\nIs he ill?\n{'x' * 9_000}\n".encode()
    ended = qtm("query", "--json", "-t", "keywords", text=text, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    first, second, third = map(json.loads, ended.out.splitlines())
    assert (first["question"], first["answer"], first["found"]) == (QUESTION, f"{HEALTH} [1]", True)
    (cited,) = first["citations"]
    assert first["answer"][cited["start"] : cited["end"]] == "[1]"
    assert (cited["number"], cited["id"], cited["source"], cited["page"]) == (
        1,
        "health",
        "vet.pdf",
        3,
    )
    assert first["passages"][0]["text"] == HEALTH
    assert first["trace"]["llm_calls"] == 2
    assert (second["answer"], second["found"], second["error"]["reason"]) == (
        None,
        None,
        "unavailable",
    )
    assert len(second["passages"]) == 4
    assert (third["passages"], third["error"]["reason"]) == ([], "failed")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("query",), 1, "qtm ingest"),
        (("query", "--type", "rewritten"), 2, "transformationType"),
    ],
)
def test_what_cannot_work_is_said_at_once(
    qtm: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = qtm(*arguments, text=b"Where?\n")
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err


def test_every_question_failing_is_a_failure(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.refused = {QUESTION}
    ended = qtm("query", text=f"{QUESTION}\n".encode(), QTM_LLM_BASE_URL=service.url)
    assert ended.code == 1
    assert HEALTH in ended.out


def test_every_type_is_offered_and_found_by_number_and_by_name() -> None:
    assert set(KINDS) == set(TRANSFORMS)
    # The seed's own numbers.
    assert tuple(KINDS)[:4] == ("rewrite", "stepback", "decompose", "all")
    for number, kind in enumerate(KINDS, start=1):
        assert (
            find_transformation_type(f" {number} ")
            == find_transformation_type(kind.replace("_", "-").upper())
            == kind
        )
    assert (
        find_transformation_type("0")
        is find_transformation_type("10")
        is find_transformation_type("")
        is None
    )


class Typed(Keyboard):
    """A keyboard at which the *lines* are typed."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.kept = list(lines), list[str]()

    def read_choice(self, prompt: str) -> str:
        return self.lines.pop(0)

    def save_question(self, question: str) -> None:
        self.kept.append(question)


@given(st.text())
def test_what_is_typed_for_a_type_is_one_or_a_question_or_asks_again(text: str) -> None:
    keyboard = Typed(text, "7")
    kind, line = choose_transformation_type_or_line(keyboard, "rewrite")
    asked_again = not keyboard.lines
    if asked_again:
        assert (find_transformation_type(text), kind, line) == (
            None,
            find_transformation_type("7"),
            "",
        )
        assert len(text.split()) == 1, "a question of several words is asked"
    else:
        assert (kind, line) == ((find_transformation_type(text) or "rewrite"), "") or (
            kind,
            line,
        ) == (
            "rewrite",
            text,
        )
    assert keyboard.kept == ([line] if line else [])


@pytest.mark.parametrize(
    "text", ["Can I pay with Amex?", "refunds?", "Amex", "exit", ":help", ":type 5", "3 bikes"]
)
def test_a_question_or_command_in_place_of_a_type_is_taken_as_it_is(text: str) -> None:
    assert choose_transformation_type_or_line(Typed(text), "rewrite") == ("rewrite", text)


def test_a_synthesis_that_broke_off_is_told_from_the_part_that_stands_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore(embedding_model="letters", dimension=2)
    store.upsert([Passage("one", "One.", {"source": "a\n  [9] made up"})], [[1.0, 0.0]])
    embedder = CallableEmbedder(letters, name="letters", dimension=2)
    with QueryMiddleware(
        {"answer": {"mode": "plain"}},
        client=lambda it: "A part [1].",
        store=store,
        embedder=embedder,
    ) as it:
        asked = ask_index(it, QUESTION, transformation_type="none", should_generate_answer=True)
    show_outcome(replace(asked, streamed="Both are"))
    shown = capsys.readouterr()
    assert shown.err == "The answer was cut off; one sub-answer is shown instead:\n"
    # Nor can what a document is called look like a line of ours.
    assert shown.out.startswith("A part [1].\n\nSources:\n  [1] a [9] made up (score ")


def letters(texts: list[str]) -> list[list[float]]:
    return [[1.0 + len(it), 1.0] for it in texts]


@settings(deadline=None, max_examples=60)
@given(st.text().filter(lambda text: text.strip() not in LEAVING))
def test_whatever_is_typed_the_session_goes_on(text: str) -> None:
    store = MemoryStore(embedding_model="letters", dimension=2)
    store.upsert(
        [Passage("one", "\x1b]0;one\x07"), Passage("two", "two")], [[1.0, 0.0], [0.0, 1.0]]
    )
    embedder = CallableEmbedder(letters, name="letters", dimension=2)
    config = Config.load({}, environ={})
    with QueryMiddleware(config, store=store, embedder=embedder) as middleware:
        session = Session(
            partial(ask_index, middleware, should_generate_answer=False),
            config,
            "none",
            is_chat=True,
        )
        assert session.process_line(text)
        assert session.failure_count == 0
