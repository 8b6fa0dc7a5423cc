"""``qtm compare`` as its users run it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import QUESTION

Run = Callable[..., Ended]


def test_one_question_is_put_to_every_system_side_by_side(qtm: Run, folder: Path, service: AnsweringService) -> None:
    ended = qtm("compare", QUESTION, "--top-k", "2", "--answers", QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines()]
    heading = next(row for row in rows if row[:1] == ["place"])
    assert heading == ["place", "and", "score", "raw", "rules", "rewrite", "stepback", "decompose"]
    by_name = {" ".join(row[:-5]): row[-5:] for row in rows if len(row) > 5}
    assert by_name["searches"] == ["1", "1", "2", "2", "3"]
    assert by_name["model calls"] == ["1", "1", "2", "2", "2"]
    assert "[1] The vet's report (vet.pdf), page 3 " in ended.out
    assert "\nstepback\n  step-back: How healthy is Jaco?\n  answer: " in ended.out
    assert "Judged" not in ended.out


def test_without_a_model_what_needs_none_is_compared(qtm: Run, folder: Path) -> None:
    ended = qtm("compare", QUESTION, "--json")
    assert ended.code == 0, ended.err
    (row,) = json.loads(ended.out)["questions"]
    assert [it["system"] for it in row["systems"]] == ["raw", "rules"]
    assert row["systems"][0]["passages"][0]["id"] == "health"
    assert (row["systems"][0]["answer"], row["ranking"]) == (None, None)
    assert "No language model is configured" in ended.err


def test_with_an_ideal_answer_the_answers_are_ranked_and_the_reasons_are_shown(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    asked = ("compare", QUESTION, "--systems", "rewrite", "--reference", "None, says the vet.")
    at = {"QTM_LLM_BASE_URL": service.url, "QTM_TOP_K": "1"}
    service.transformation = {"rewrite": "What does Jaco eat twice a day?"}
    ended = qtm(*asked, QTM_FUSION_INCLUDE_ORIGINAL="false", **at)
    assert ended.code == 0, ended.err
    judged = ended.out.partition("Judged against the ideal answer:\n")[2]
    assert judged.startswith("  1. rewrite: accuracy 7, completeness 7, relevance 7\n     + full\n  2. raw: ")
    assert "  why: B says most. (A is raw, B is rewrite)" in judged
    assert "  why: A says most. (A is rewrite, B is raw)" in judged
    assert judged.endswith("Ranked by gpt-6-luna on 1 question: rewrite > raw.\n")


def test_a_file_of_questions_and_ideal_answers_needs_no_judgements(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    rows = [{"question": f"Does Jaco{mark} have any concerns?", "ideal_answer": "None."} for mark in ("", " still")]
    (folder / "val.json").write_text(json.dumps(rows, indent=2))
    ended = qtm("compare", "--data", "val.json", "--systems", "rules", "--json", QTM_LLM_BASE_URL=service.url)
    assert ended.code == 0, ended.err
    told = json.loads(ended.out)
    assert [row["reference"] for row in told["questions"]] == ["None."] * 2
    assert [it["system"] for it in told["ranked"]["ranking"]] == ["raw", "rules"]
    assert all(row["ranking"]["error"] in ("", "equal") for row in told["questions"])
    refused = qtm("bench", "--data", "val.json")
    assert refused.code == 2
    assert "qtm compare --data val.json" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "either a question or --data"),
        ((QUESTION, "--systems", "rewrite"), "rewrite cannot be asked: No language model"),
        ((QUESTION, "--systems", "rewritten"), "no system is called 'rewritten'"),
        ((QUESTION, "--answers"), "No language model"),
        (("--data", "none.json"), "none.json cannot be read"),
        ((" ",), "blank"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(
    qtm: Run, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    ended = qtm("compare", *arguments)
    assert ended.code == 2, ended.err
    assert words in ended.err
    assert "Traceback" not in ended.err
