"""``qtm bench --function`` on functions in a folder of the user's own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.evaluation import FREE, USUAL
from tests.support.bench_world import reply
from tests.support.command_line import Ended
from tests.support.model_server import ModelServer
from tests.support.terminal import Terminal

Run = Callable[..., Ended]
MODULE = """
import asyncio
import pathlib
import re
import qtmiddleware as qtm

print("imported")
TEXTS = {
    "health": "Jaco has no health concerns.",
    "food": "Jaco eats twice a day, and is fond of carrots.",
    "walks": "Jaco walks at seven and at six, health permitting.",
    "names": "Any dog that is called by its name will come.",
    "fees": "The adoption fee is 120 euros and is due on the day.",
}


def words(text):
    return set(re.findall(r"[a-z]+", text.lower()))


def search(query, top_k=3, namespace="docs"):
    print("asked for", top_k, "in", namespace)
    found = sorted(TEXTS, key=lambda id: (-len(words(query) & words(TEXTS[id])), id))
    return [{"id": id, "score": 1 - n / 10, "text": TEXTS[id]} for n, id in enumerate(found)][:top_k]


async def find(query: str, top_k: int = 3):
    await asyncio.sleep(0)
    return search(query, top_k)


class Index:
    @classmethod
    def search(cls, query, top_k=3):
        return search(query, top_k)

    def query(self, vector, top_k=3):
        near = sorted(TEXTS, key=lambda id: sum((a - b) ** 2 for a, b in zip(vector, embed(TEXTS[id]))))
        return [{"id": id, "score": 1 - n / 10, "text": TEXTS[id]} for n, id in enumerate(near)][:top_k]


index = Index()


def embed(text):
    return [float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]


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


names = list(TEXTS)
"""
QUESTIONS = {
    "Does Jaco have any health concerns?": "health",
    "What does Jaco eat?": "food",
    "When is it that Jaco walks?": "walks",
    "How much is the fee, if I may ask?": "fees",
}
CSV = "question,id\n" + "".join(f'"{text}",{id_}\n' for text, id_ in QUESTIONS.items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "questions.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


@pytest.fixture
def bench(qtm: Run, folder: Path) -> Run:
    """Run ``qtm bench`` on a function of the folder and its file of questions."""

    def run(function: str, *arguments: str, data: str = "questions.csv", **environ: Any) -> Ended:
        return qtm(
            "bench", "--function", function, "--data", data, *arguments, folder=folder, **environ
        )

    return run


@pytest.fixture
def chat(model_server: ModelServer) -> ModelServer:
    model_server.reply = reply
    return model_server


def figures(ended: Ended) -> dict[str, Any]:
    """The systems of a report in JSON, by name."""
    assert ended.code == 0, ended.err
    return {system["name"]: system for system in json.loads(ended.out)["systems"]}


def last_line(ended: Ended) -> str:
    return " ".join(ended.err.strip().splitlines()[-1:])


def test_a_function_is_measured_on_its_own_index_by_one_command(bench: Run, folder: Path) -> None:
    ended = bench("app:search")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[0] == "questions: 4 questions"  # what the function prints is not in it
    rows = [line.split("  ")[0].strip() for line in lines[4:7]]
    assert rows == list(FREE)
    assert "app:search is called at most 12 times.\n" in ended.err
    # Twelve, and one more with the caller's number, because the index has fewer than ten passages.
    assert ended.err.count("asked for") == 13
    assert [file.name for file in (folder / ".qtm" / "bench").iterdir()] == ["cache.sqlite"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("app:find",), id="asynchronous"),
        pytest.param(("app:Index.search",), id="class method"),
        pytest.param(("app:index.search",), id="method of an object"),
        pytest.param(("app:index.query", "--embed", "app:embed"), id="vectors"),
        pytest.param(("app:wrapped",), id="wrapped"),
        pytest.param(("app:fixed",), id="without a number of passages"),
        pytest.param(
            ("app:renamed", "--set", "keywordEvidence.fields.id=doc"),
            id="ids in a field of their own",
        ),
    ],
)
def test_functions_of_every_kind_are_measured(bench: Run, arguments: tuple[str, ...]) -> None:
    ended = bench(*arguments, "--json")
    found = figures(ended)
    assert list(found) == [*FREE, *(["yours"] if "app:wrapped" in arguments else [])]
    assert all(system["means"]["R@10"] >= 0.5 for system in found.values())
    assert found["rules"]["means"]["nDCG@10"] >= found["off"]["means"]["nDCG@10"]
    assert ("has no parameter for the number of passages" in ended.err) == (
        "app:fixed" in arguments
    )


@pytest.mark.thorough
def test_with_a_model_every_tier_and_the_seeds_are_beside_the_config_of_ones_own(
    bench: Run, folder: Path, chat: ModelServer
) -> None:
    (folder / "mine.json").write_text(
        '{"transformationType": "hyde", "keywordEvidence": {"weight": 0.6}}'
    )
    options = ("-c", "mine.json", "--json", "--report", "out.html")
    ended = bench("app:search", *options, QTM_LLM_BASE_URL=chat.url)
    found = figures(ended)
    assert list(found) == [*USUAL, "mine"]
    assert "seed-parity" in found
    assert found["seed-parity"]["llmCalls"] == 12
    assert found["mine"]["llmCalls"] == found["balanced"]["llmCalls"] == 4
    assert (folder / "out.html").is_file()
    asked = len(chat.bodies)
    again = figures(bench("app:search", *options, QTM_LLM_BASE_URL=chat.url))
    assert len(chat.bodies) == asked  # replies are kept, what the function found is not
    assert [it["perQuery"] for it in again.values()] == [it["perQuery"] for it in found.values()]


@pytest.mark.thorough
def test_a_question_the_function_fails_on_is_counted_and_not_fatal(bench: Run) -> None:
    ended = bench("app:flaky", "--json")
    assert figures(ended)["off"]["failed"] == 1
    assert json.loads(ended.out)["questions"] == 3
    told = "1 of 4 questions failed and are not counted: off on '2' (TimeoutError: no answer from the index)."
    assert told in ended.err
    assert told in json.loads(ended.out)["notes"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("app:broken",),
            1,
            "app:broken raised ConnectionError: refused. The system 'off' failed on 4 questions in a row.",
        ),
        (("app:index.query",), 1, "On the command line: --embed app:embed"),
        (("app:names",), 2, "app:names must be a function, not list"),
        (("app:nothing",), 2, "app has no 'nothing'"),
        (("nowhere:search",), 2, "the module 'nowhere' was not found"),
        (("app:search", "--arg", "namespace"), 2, "must have the form name=value"),
        (("app:search", "--arg", "other=1"), 1, "TypeError"),
        (("app:search", "--systems", "hybrid"), 2, "hybrid"),
        (("app:search", "--systems", "balanced"), 2, "a language model is needed for"),
        (("app:wrapped", "--embed", "app:embed"), 2, "already wrapped"),
        (("app:wrapped", "--recordings", "r.jsonl"), 2, "already wrapped"),
        (("app:search", "--set", "topK=3"), 2, "needs --config"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(
    bench: Run, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended = bench(*arguments)
    assert (ended.code, ended.out) == (code, ""), ended.err
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err


@pytest.mark.thorough
def test_options_of_a_function_need_one_and_a_file_of_questions_too(qtm: Run, folder: Path) -> None:
    for option, value in (("--arg", "a=1"), ("--embed", "app:embed")):
        ended = qtm("bench", "--data", "questions.csv", option, value, folder=folder)
        assert (ended.code, last_line(ended)) == (2, f"qtm: {option} needs --function")
    ended = qtm("bench", "--data", "questions.csv", folder=folder)
    assert (ended.code, "add --function module:name" in ended.err) == (2, True)


def many(folder: Path, count: int) -> str:
    lines = [f'"What does Jaco eat on day {number}?",food\n' for number in range(count)]
    (folder / "many.csv").write_text("question,id\n" + "".join(lines))
    return "many.csv"


@pytest.mark.thorough
def test_beyond_a_thousand_searches_leave_is_needed(bench: Run, folder: Path) -> None:
    data = many(folder, 340)
    ended = bench("app:search", data=data)
    assert (ended.code, ended.out, "asked for" in ended.err) == (2, "", False)
    assert "makes up to 1,020. Add --yes, or reduce the number with --questions" in last_line(ended)
    assert "store.readPrice" in last_line(ended)
    ended = bench("app:search", "--set", "store.readPrice=16", data=data)
    assert "called at most 1,020 times. The cost is at most $0.02.\n" in ended.err
    fewer = bench("app:search", "--questions", "5", "--json", data=data)
    assert json.loads(fewer.out)["questions"] == 5
    assert (
        figures(bench("app:search", "--yes", "--json", data=data))["off"]["searchesPerQuestion"]
        == 1.0
    )


@pytest.mark.thorough
@pytest.mark.skipif(os.name != "posix", reason="there are no such terminals here")
def test_at_a_terminal_leave_is_asked_for(folder: Path) -> None:
    data = many(folder, 340)
    at = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_"))
    }
    with Terminal(
        "bench", "--function", "app:search", "--data", data, folder=folder, environ=at
    ) as terminal:
        terminal.wait_for("Go on? [y/N]:")
        terminal.type("n")
        assert terminal.ended() == 0
    assert b"Nothing was searched." in terminal.raw
    assert b"asked for" not in terminal.raw
