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

print("imported")
TEXTS = ["Cats sleep", "Jaco has no health concerns", "The fee is due"]


def search(query, top_k=2, include_metadata=False):
    print("asked")
    rows = [{"id": str(n), "score": 0.9 - n / 100} for n in range(3)]
    return [{**row, "text": TEXTS[n]} if include_metadata else row for n, row in enumerate(rows)][:top_k]


def find(query, top_k=3):
    texts = [*TEXTS, "Birds sing", "Fish swim", "Bees hum", "Cows graze"]
    scores = [0.8, 0.79, 0.78, 0.4, 0.3, 0.2, 0.1]
    return [{"id": str(n), "score": scores[n], "text": text} for n, text in enumerate(texts)][:top_k]


class Index:
    @qtm.middleware
    async def search(self, query, top_k=2):
        return search(query, top_k, True)

    def query(self, vector, top_k=2):
        return search("", top_k, True)


index = Index()
embed = lambda text: [1.0, 2.0]
"""


def read_order(ended: Ended) -> dict[str, Any]:
    """Return the numbers of the finding on the order, from the JSON that the command wrote."""
    findings = json.loads(ended.out)["findings"]
    return next(it["values"] for it in findings if it["subject"] == "order")  # type: ignore[no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name", encoding="utf-8")
    return tmp_path


def test_a_function_that_is_helped_ends_with_0_and_one_that_is_not_with_1_and_the_mend(
    qtm: Run, folder: Path
) -> None:
    ended = qtm("check", "app:search", QUERY, folder=folder)
    assert (ended.code, "include_metadata=True" in ended.out) == (1, True)
    mended = qtm(
        "check", "app:search", QUERY, "--arg", "include_metadata=true", "--json", folder=folder
    )
    found = json.loads(mended.out)  # what the function prints is not in it
    assert (mended.code, found["helps"], found["keywords"]) == (0, True, "jaco health concerns")


def test_a_method_that_is_wrapped_or_takes_a_vector_is_checked_too(qtm: Run, folder: Path) -> None:
    wrapped = qtm("check", "app:index.search", folder=folder)
    assert (
        wrapped.code,
        "`text`" in wrapped.out,
        "generic one is used" in wrapped.err,
    ) == (0, True, True)
    vector = qtm("check", "app:index.query", QUERY, "--embed", "app:embed", folder=folder)
    assert (vector.code, "embedded as 2 numbers" in vector.out) == (0, True)


FILES = {
    "text": (
        "questions.txt",
        "Does Jaco have any health concerns?\n\nWhen is the fee due?\nDo cats sleep?\n",
    ),
    "JSON lines": (
        "questions.jsonl",
        '{"question": "Is Jaco in good health?"}\n{"query": "When is the fee due?"}\n{"text": "Do cats sleep?"}',
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_questions_of_a_file_are_asked_and_those_whose_order_changes_are_counted(
    qtm: Run, folder: Path, kind: str
) -> None:
    name, text = FILES[kind]
    (folder / name).write_text(text, encoding="utf-8")
    ended = qtm("check", "app:find", "--ask-file", name, folder=folder)
    assert ended.code == 0
    said = " ".join(ended.out.split())
    assert "changes for 2 of 3 questions; another passage is first for 2" in said
    assert "Jaco has no health concerns" in said
    assert "measure whether that is better" in said
    assert all(len(line) <= 80 for line in ended.out.splitlines())


def test_the_questions_of_a_query_log_are_asked_each_once_and_hashes_are_not(
    qtm: Run, folder: Path
) -> None:
    for texts in ("questions", "none"):
        log = {"path": str(folder / "log.jsonl"), "texts": texts}
        with qtmiddleware.QueryMiddleware({"log": log}) as middleware:
            search = middleware.wrap(lambda query, top_k=2: [{"id": "a", "text": "Cats sleep"}])
            for question in (QUERY, QUERY, "When is the fee due?", "Do cats sleep?"):
                search(question)
            search([0.1, 0.2])
    ended = qtm("check", "app:find", "--ask-file", "log.jsonl", "--json", folder=folder)
    assert (ended.code, read_order(ended)["asked"]) == (0, 3)
    assert "3 questions in the file are hashes" in ended.err


def test_the_questions_of_a_data_set_are_asked(qtm: Run, folder: Path) -> None:
    ended = qtm("check", "app:find", "--ask-file", str(DEMO), "--json", folder=folder)
    assert read_order(ended)["asked"] == 10


def test_questions_none_of_which_changes_anything_end_with_1(qtm: Run, folder: Path) -> None:
    (folder / "questions.txt").write_text(
        "Do cats sleep?\nWhen do cats sleep?\nWhere do cats sleep?", encoding="utf-8"
    )
    ended = qtm("check", "app:find", "--ask-file", "questions.txt", folder=folder)
    assert (ended.code, "order     ! changes for 0 of 3" in ended.out) == (1, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"queries": []}', "line 1: must have a question"),
        ('What?\n{"question"', "line 2: is not JSON"),
        ("\udce9", "line 1: is not UTF-8"),
        (
            '{"query_id": "1", "queries": ["sha256:0123456789abcdef"]}',
            "must hold questions, not their hashes",
        ),
        ("\n \n", "it holds none"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_asked_is_refused_with_its_line(
    qtm: Run, folder: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (folder / "questions.txt").write_text(content, encoding="utf-8", errors="surrogateescape")
    ended = qtm("check", "app:index.search", "--ask-file", "questions.txt", folder=folder)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_required_arguments_are_named_with_the_option_that_passes_them(
    qtm: Run, folder: Path
) -> None:
    needy = "def search(query, *, top_k, namespace): return []"
    (folder / "needy.py").write_text(needy, encoding="utf-8")
    ended = qtm("check", "needy:search", QUERY, folder=folder)
    assert (ended.code, "--arg top_k=5 --arg namespace=..." in " ".join(ended.out.split())) == (
        1,
        True,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:search",), 2, "nowhere"),
        (("app:index.search", QUERY, "--set", "topK=3"), 2, "already wrapped"),
        (("app:index.search", QUERY, "--ask-file", "app.py"), 2, "not both"),
        (("broken:search",), 1, "nothing_of_that_name"),
    ],
)
def test_what_cannot_be_checked_is_said_in_plain_words(
    qtm: Run, folder: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended = qtm("check", *arguments, folder=folder)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err
    assert "Traceback" not in ended.err
