"""``qtm check`` on functions of a folder of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware
from tests.support.command_line import Ended
from tests.support.shared_data import DEMO

Run = Callable[..., Ended]
QUERY = "Does Jaco have any health concerns?"
MODULE = """
import qtmiddleware as qtm

TEXTS = ["Cats sleep", "Jaco has no health concerns", "The fee is due", "Birds sing", "Fish swim"]


def find(query, top_k=3):
    print("asked")
    scores = [0.8, 0.79, 0.78, 0.4, 0.3]
    return [{"id": str(n), "score": scores[n], "text": text} for n, text in enumerate(TEXTS)][:top_k]


def search(query, top_k=2, include_metadata=False):
    rows = find(query, top_k)
    return rows if include_metadata else [{"id": row["id"], "score": row["score"]} for row in rows]


def needy(query, *, top_k, namespace):
    return []


class Index:
    @qtm.middleware
    async def search(self, query, top_k=2):
        return find(query, top_k)

    def query(self, vector, top_k=2):
        return find("", top_k)


index = Index()
embed = lambda text: [1.0, 2.0]
"""


@pytest.fixture
def check(qtm: Run, tmp_path: Path) -> Run:
    (tmp_path / "app.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name", encoding="utf-8")
    return lambda target, *arguments: qtm("check", target, *arguments)


def read_order(ended: Ended) -> Any:
    findings = json.loads(ended.out)["findings"]
    return next(it["text"] for it in findings if it["subject"] == "order")


def test_a_function_that_is_helped_ends_with_0_and_one_that_is_not_with_1_and_the_mend(
    check: Run,
) -> None:
    ended = check("app:search", QUERY)
    assert (ended.code, "include_metadata=True" in ended.out) == (1, True)
    assert check("./app.py:search", QUERY).out == ended.out
    mended = check("app:search", QUERY, "--arg", "include_metadata=true", "--json")
    found = json.loads(mended.out)  # what the function prints is not in it
    assert (mended.code, found["helps"], found["keywords"]) == (0, True, "jaco health concerns")
    ended = check("app:needy", QUERY)
    assert ended.code == 1
    assert "--arg top_k=5 --arg namespace=..." in " ".join(ended.out.split())


def test_a_method_that_is_wrapped_or_takes_a_vector_is_checked_too(check: Run) -> None:
    wrapped = check("app:index.search")
    assert (wrapped.code, "generic one is used" in wrapped.err) == (0, True)
    assert "`text`" in wrapped.out
    vector = check("app:index.query", QUERY, "--embed", "app:embed")
    assert (vector.code, "embedded as 2 numbers" in vector.out) == (0, True)


TEXT = "Does Jaco have any health concerns?\n\nWhen is the fee due?\nDo cats sleep?\n"
LINES = '{"question": "Is Jaco in good health?"}\n{"query": "When is the fee due?"}\n{"text": "Do cats sleep?"}'


@pytest.mark.parametrize(("name", "content"), [("asked.txt", TEXT), ("asked.jsonl", LINES)])
def test_questions_of_a_file_are_asked_and_those_whose_order_changes_are_counted(
    check: Run, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    ended = check("app:find", "--ask-file", name)
    assert ended.code == 0
    said = " ".join(ended.out.split())
    assert "changes for 2 of 3 questions; another passage is first for 2" in said
    assert "measure whether that is better" in said
    assert all(len(line) <= 80 for line in ended.out.splitlines())
    (tmp_path / "cats.txt").write_text("Do cats sleep?\nWhen do cats sleep?\nCats?\n")
    ended = check("app:find", "--ask-file", "cats.txt")
    assert (ended.code, "order     ! changes for 0 of 3" in ended.out) == (1, True)


def test_the_questions_of_a_query_log_or_a_data_set_are_asked(check: Run, tmp_path: Path) -> None:
    for texts in ("none", "questions"):
        log = {"path": str(tmp_path / f"{texts}.jsonl"), "texts": texts}
        with qtmiddleware.QueryMiddleware({"log": log}) as middleware:
            search = middleware.wrap(lambda query, top_k=2: [{"id": "a", "text": "Cats sleep"}])
            for question in (QUERY, QUERY, "When is the fee due?", "Do cats sleep?"):
                search(question)
    refused = check("app:find", "--ask-file", "none.jsonl")
    assert (refused.code, "must hold questions, not their hashes" in refused.err) == (2, True)
    assert "of 3 questions" in read_order(
        check("app:find", "--ask-file", "questions.jsonl", "--json")
    )
    order = read_order(check("app:find", "--ask-file", str(DEMO), "--json"))
    assert "only the first 10 of" in order


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("q.jsonl", b'{"queries": []}', "must have a question"),
        ("q.jsonl", b'{"query": "a"}\n{"question"', "line 2: is not JSON"),
        ("q.txt", b"\xe9", "line 1: is not UTF-8"),
        ("q.txt", b"\n \n", "must hold questions"),
        ("q.txt", None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused_with_its_line(
    check: Run, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    ended = check("app:index.search", "--ask-file", name)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:search",), 2, "nowhere"),
        (
            ("../app.py:search",),
            2,
            "given as MODULE:FUNCTION, such as app:search, not '../app.py:search'",
        ),
        (("app:index.search", QUERY, "--set", "topK=3"), 2, "already wrapped"),
        (("app:index.search", QUERY, "--ask-file", "app.py"), 2, "not both"),
        (("broken:search",), 1, "nothing_of_that_name"),
    ],
)
def test_what_cannot_be_checked_is_said_in_plain_words(
    check: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = check(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err
    assert "Traceback" not in ended.err
