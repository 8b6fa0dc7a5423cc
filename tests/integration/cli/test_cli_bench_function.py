"""``qtm bench --function`` on functions in a folder of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.evaluation.systems import FREE, USUAL
from tests.support.bench_world import reply
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer

Run = Callable[..., Ended]
MODULE = """
import asyncio
import re
import qtmiddleware as qtm

TEXTS = {
    "health": "Jaco has no health concerns.",
    "food": "Jaco eats twice a day, and is fond of carrots.",
    "walks": "Jaco walks at seven and at six, health permitting.",
    "names": "Any dog that is called by its name will come.",
    "fees": "The adoption fee is 120 euros and is due on the day.",
}

def order(key, top_k):
    found = sorted(TEXTS, key=key)
    return [{"id": id, "score": 1 - n / 10, "text": TEXTS[id]} for n, id in enumerate(found)][:top_k]

def words(text):
    return set(re.findall(r"[a-z]+", text.lower()))

def search(query, top_k=3, namespace="docs"):
    print("asked for", top_k, "in", namespace)
    return order(lambda id: (-len(words(query) & words(TEXTS[id])), id), top_k)

async def find(query: str, top_k: int = 3):
    await asyncio.sleep(0)
    return search(query, top_k)

def embed(text):
    return [float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]

class Index:
    def query(self, vector, top_k=3):
        return order(lambda id: sum((a - b) ** 2 for a, b in zip(vector, embed(TEXTS[id]))), top_k)

index = Index()
wrapped = qtm.middleware(search, config={"keywordEvidence": {"weight": 0.5}})

def flaky(query, top_k=3):
    if "eat" in query:
        raise TimeoutError("no answer from the index")
    return search(query, top_k)

def broken(query, top_k=3):
    raise ConnectionError("refused")

def renamed(query, top_k=3):
    return [{**row, "id": "chunk-" + row["id"], "doc": row["id"]} for row in search(query, top_k)]

def fixed(query):
    return search(query, 2)
"""
QUESTIONS = {
    "Does Jaco have any health concerns?": "health",
    "What does Jaco eat?": "food",
    "When is it that Jaco walks?": "walks",
    "How much is the fee, if I may ask?": "fees",
}


def write_questions(path: Path, questions: dict[str, str]) -> None:
    rows = "".join(f'"{text}",{id_}\n' for text, id_ in questions.items())
    path.write_text(f"question,id\n{rows}", encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODULE, encoding="utf-8")
    write_questions(tmp_path / "questions.csv", QUESTIONS)
    return tmp_path


@pytest.fixture
def bench(qtm: Run, folder: Path) -> Run:
    """Run ``qtm bench`` on a function of the folder and its file of questions."""

    def run(function: str, data: str = "questions.csv", **environ: str) -> Ended:
        return qtm("bench", "--data", data, "--function", *function.split(), **environ)

    return run


def figures(ended: Ended) -> dict[str, Any]:
    """The systems of a report in JSON, by name."""
    assert ended.code == 0, ended.err
    return {system["name"]: system for system in json.loads(ended.out)["systems"]}


def test_a_function_is_measured_on_its_own_index_by_one_command(bench: Run, folder: Path) -> None:
    ended = bench("app:search")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == "questions: 4 questions"  # what the function prints is not in it
    rows = [line.split("  ")[0].strip() for line in lines[4:7]]
    assert rows == list(FREE)
    # Twelve, and one more with the caller's number, because the index has fewer than ten passages.
    assert ended.err.count("asked for") == 13
    assert not (folder / ".qtm").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "function",
    [
        "app:find",
        "app:index.query --embed app:embed",
        "app:wrapped",
        "app:fixed",
        "app:renamed --set keywordEvidence.fields.id=doc",
    ],
)
def test_functions_of_every_kind_are_measured(bench: Run, function: str) -> None:
    ended = bench(f"{function} --json")
    found = figures(ended)
    has_own = "wrapped" in function or "--set" in function
    assert list(found) == [*FREE, *(["yours"] if has_own else [])]
    assert all(system["means"]["R@10"] >= 0.5 for system in found.values())
    assert found["rules"]["means"]["nDCG@10"] >= found["off"]["means"]["nDCG@10"]
    is_fixed = "has no parameter for the number of passages" in ended.err
    assert is_fixed == (function == "app:fixed")


@pytest.mark.thorough
def test_with_a_model_every_tier_and_the_seeds_are_beside_the_config_of_ones_own(
    bench: Run, folder: Path, model_server: ModelServer
) -> None:
    model_server.reply = reply
    (folder / "mine.json").write_text('{"transformationType": "hyde"}')
    found = figures(bench("app:search -c mine.json --json", QTM_LLM_BASE_URL=model_server.url))
    assert list(found) == [*USUAL, "yours"]
    calls = {"seed-parity": 12, "yours": 4, "balanced": 4}
    assert {name: found[name]["llmCalls"] for name in calls} == calls


@pytest.mark.thorough
def test_a_question_the_function_fails_on_is_counted_and_not_fatal(bench: Run) -> None:
    ended = bench("app:flaky --json")
    assert figures(ended)["off"]["failed"] == 1
    told = json.loads(ended.out)
    assert told["questions"] == 3
    assert "1 of 4 questions failed and are not counted: off on '2' (TimeoutError)" in ended.err
    assert told["notes"][-1] in ended.err
    # The function's message is for people alone.
    assert "TimeoutError: " in ended.err
    assert "TimeoutError: " not in ended.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("function", "code", "said"),
    [
        ("app:broken", 1, "raised ConnectionError: refused. The system 'off' failed on 4"),
        ("app:index.query", 1, "On the command line: --embed app:embed"),
        ("app:TEXTS", 1, "dict is not callable"),
        ("app:nothing", 2, "app has no 'nothing'"),
        ("nowhere:search", 2, "the module 'nowhere' was not found"),
        ("app:search --arg namespace", 2, "must have the form name=value"),
        ("app:search --arg other=1", 1, "TypeError"),
        ("app:search --systems hybrid", 2, "hybrid"),
        ("app:wrapped --embed app:embed", 2, "already wrapped"),
        ("app:wrapped --recordings r.jsonl", 2, "already wrapped"),
        ("app:wrapped --set topK=3", 2, "already wrapped"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    bench: Run, function: str, code: int, said: str
) -> None:
    ended = bench(function)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err


def test_options_of_a_function_need_one_and_a_file_of_questions_too(qtm: Run, folder: Path) -> None:
    for more, said in (
        (("--arg", "a=1"), "--arg and --embed need --function"),
        ((), "add --function module:name"),
    ):
        ended = qtm("bench", "--data", "questions.csv", *more)
        assert (ended.code, said in ended.err) == (2, True)
