"""``qtm check`` on functions of a folder of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended

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


class Index:
    @qtm.middleware
    async def search(self, query, top_k=2):
        return search(query, top_k, True)

    def query(self, vector, top_k=2):
        return search("", top_k, True)


index = Index()
embed = lambda text: [1.0, 2.0]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name", encoding="utf-8")
    return tmp_path


def test_a_function_that_is_helped_ends_with_0_and_one_that_is_not_with_1_and_the_mend(qtm: Run, folder: Path) -> None:
    ended = qtm("check", "app:search", QUERY, folder=folder)
    assert (ended.code, "include_metadata=True" in ended.out) == (1, True)
    mended = qtm("check", "app:search", QUERY, "--arg", "include_metadata=true", "--json", folder=folder)
    found = json.loads(mended.out)  # what the function prints is not in it
    assert (mended.code, found["helps"], found["keywords"]) == (0, True, "jaco health concerns")


def test_a_method_that_is_wrapped_or_takes_a_vector_is_checked_too(qtm: Run, folder: Path) -> None:
    wrapped = qtm("check", "app:index.search", folder=folder)
    assert (wrapped.code, "keyword evidence" in wrapped.out, "stand-in" in wrapped.err) == (0, True, True)
    vector = qtm("check", "app:index.query", QUERY, "--embed", "app:embed", folder=folder)
    assert (vector.code, "embedded into 2 numbers" in vector.out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nowhere:search",), 2, "nowhere"),
        (("app:index.search", QUERY, "--query-arg", "query"), 2, "wrapped already"),
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
