"""``qtm compare`` as its users run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qtmiddleware.kit.evaluation.side_by_side import SHOWN
from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, QUESTION, environ
from tests.support.terminal import Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
SICK = "Is Jaco sick?"
"""A question whose words no passage holds more of than the first one."""


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of the tables by their first word."""
    return {cells[0]: cells[1:] for line in text.splitlines() if (cells := line.split())}


def test_one_question_is_put_to_every_system_side_by_side(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    asked = ("compare", QUESTION, "--set", "topK=2", "--answers")
    ended = qtm(*asked, QTM_LLM_BASE_URL=service.url, COLUMNS="80")
    assert ended.code == 0, ended.err
    first, _, lists = ended.out.partition("passages, best first\n")
    rows = rows_of(first)
    # The searches and the calls, each with one for the answer.
    assert {name: (int(rows[name][-4]), int(rows[name][-3])) for name in SHOWN} == {
        **dict.fromkeys(SHOWN, (2, 2)),
        "off": (1, 1),
        "rules": (1, 1),
        "keywords": (1, 2),
        "decompose": (3, 2),
    }
    assert "[1] The vet's report (vet.pdf), page 3 " in ended.out
    assert "\nstepback\n  step-back: How healthy is Jaco?\n" in ended.out
    assert f"\n  answer: {HEALTH} [1]\n    [1] The vet's report (vet.pdf), page 3\n" in ended.out
    assert "Judged" not in ended.out
    assert [line.split()[0] for line in lists.partition("\n\n")[0].splitlines()] == [*SHOWN]
    assert max(map(len, ended.out.partition("\n[1] ")[0].splitlines()[1:])) <= 80


def test_each_passage_has_its_place_how_far_it_moved_and_why(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.transformation = {"rewrite": "What does Jaco eat twice a day?"}
    at = {"QTM_LLM_BASE_URL": service.url, "QTM_FUSION_WEIGHTS": '{"original": 0}'}
    asked = ("compare", SICK, "--systems", "rewrite", "--set", "topK=1")
    ended = qtm(*asked, **at)
    assert ended.code == 0, ended.err
    assert "\n  off      [1]\n  rewrite  [2]\n" in ended.out
    assert "\n  [2] new at 1st: found by the rewrite (1st)" in ended.out
    (row,) = json.loads(qtm(*asked, "--json", **at).out)["questions"]
    movement = row["systems"][1]["movement"]
    assert movement["passages"][0]["why"].startswith("new at 1st: found by the rewrite (1st)")
    assert [it["before"] for it in movement["dropped"]] == [1]


def test_without_a_model_what_needs_none_is_compared(qtm: Run, folder: Path) -> None:
    ended = qtm("compare", QUESTION, "--json")
    assert ended.code == 0, ended.err
    (row,) = json.loads(ended.out)["questions"]
    assert [it["system"] for it in row["systems"]] == ["off", "rules"]
    assert row["systems"][0]["passages"][0]["id"] == "health"
    assert (row["systems"][0]["answer"], row["ranking"]) == (None, None)
    assert "No language model is configured" in ended.err


def test_with_an_ideal_answer_the_answers_are_ranked_and_the_reasons_are_shown(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    service.transformation = {"rewrite": "What does Jaco eat twice a day?"}
    ended = qtm(
        *("compare", SICK, "--systems", "rewrite", "--reference", "None, says the vet."),
        QTM_FUSION_WEIGHTS='{"original": 0}',
        QTM_LLM_BASE_URL=service.url,
        QTM_TOP_K="1",
    )
    assert ended.code == 0, ended.err
    judged = ended.out.partition("Judged against the ideal answer:\n")[2]
    assert judged.startswith(
        "  1. rewrite: accuracy 10, completeness 10, relevance 10\n     + full"
    )
    assert "\n  2. off: " in judged
    assert "  why: " in judged
    assert judged.endswith("\n\nRanked by gpt-6-luna on 1 question: rewrite > off.\n")


def test_a_file_of_questions_and_ideal_answers_needs_no_judgements(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    rows = [{"question": f"{text} Why?", "ideal_answer": "None."} for text in (QUESTION, SICK)]
    (folder / "val.json").write_text(json.dumps(rows, indent=2))
    options = ("--questions", "val.json", "--systems", "rules", "--json")
    ended = qtm("compare", *options, QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert [row["reference"] for row in told["questions"]] == ["None."] * 2
    assert [it["system"] for it in told["ranked"]["ranking"]] == ["off", "rules"]
    assert all(row["ranking"]["error"] in ("", "equal") for row in told["questions"])
    refused = qtm("bench", "--data", "val.json")
    assert (refused.code, "qtm compare --questions val.json" in refused.err) == (2, True)


APP = """
import time

ROWS = [{"id": name, "score": 0.9 - at ** 4 / 100, "text": text} for at, (name, text) in enumerate(
    [("food", "Jaco eats dry food"), ("health", "Jaco has no health concerns"), ("cats", "Cats sleep")])]
calls = []


def search(query, top_k=2, tenant="one"):
    return ROWS[:top_k] if tenant == "two" else ROWS[2:]


def raises(query):
    raise KeyError("tenant")


def falters(query, top_k=2):
    calls.append(query)
    if len(calls) > 2:
        raise ConnectionError("the store went away")
    return ROWS[:top_k]


def hangs(query):
    time.sleep(600)


def odd(query):
    return 42
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "a question or --questions"),
        ((QUESTION, "--questions", "some.json"), 2, "a question or --questions"),
        ((QUESTION, "--function", "nowhere:search"), 2, "the module 'nowhere' was not found"),
        ((QUESTION, "--systems", "rewrite"), 2, "rewrite cannot be compared. No language model"),
        ((QUESTION, "--answers"), 2, "No language model"),
        (("--questions", "none.json"), 2, "none.json cannot be read"),
        ((" ",), 2, "blank"),
        ((QUESTION, "-f", "app:raises"), 1, "qtm: app:raises raised KeyError: 'tenant'"),
        ((QUESTION, "-f", "app:odd"), 0, "no list of passages was found"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    qtm: Run, folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    (folder / "app.py").write_text(APP)
    ended = qtm("compare", *arguments)
    assert ended.code == code, ended.err
    assert words in ended.err
    assert "Traceback" not in ended.err


def test_a_function_of_the_user_s_own_is_asked_with_its_arguments(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    arguments = ("--arg", "tenant=two", "--arg", "top_k=2")
    ended = qtm("compare", QUESTION, "--function", "app:search", *arguments, "--json")
    assert ended.code == 0, ended.err
    (row,) = json.loads(ended.out)["questions"]
    off, rules = row["systems"]
    assert [it["id"] for it in off["passages"]] == ["food", "health"]
    why = rules["movement"]["passages"][0]["why"]
    assert why == "from 2nd to 1st: holds 'jaco', 'health' and 'concerns'"
    # What fails for one system takes nothing from the others.
    ended = qtm("compare", QUESTION, "--function", "app:falters")
    assert ended.code == 1
    assert "\nrules\n  failed: ConnectionError: the store went away\n" in ended.out
    assert "\n[1] food (score 0.900)\n" in ended.out


def test_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    asked = ("compare", QUESTION, "--function", "app:hangs")
    with Terminal(*asked, folder=tmp_path, environ=environ(tmp_path)) as terminal:
        terminal.wait_for("Only systems that need no model are compared.")
        terminal.interrupt()
        terminal.wait_for("interrupted")
        assert terminal.ended() == 130
