"""``qtm shadow`` on the log of a middleware in shadow mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware import QueryMiddleware
from tests.support.command_line import Ended
from tests.support.waiting import wait_until

Run = Callable[..., Ended]
TEXTS = {
    "a": "Nike sells shoes",
    "b": "Adidas earnings grew",
    "c": "The strategy of Nike in Europe",
    "d": "Puma opened shops",
    "e": "Shoes are worn",
}


def search(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    rows = [
        {"id": name, "score": 0.9 - at / 50, "metadata": {"title": f"About {name}", "text": text}}
        for at, (name, text) in enumerate(TEXTS.items())
    ]
    return rows[:top_k]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "queries.jsonl"
    qm = QueryMiddleware({"shadow": 1.0, "log": {"path": str(path), "texts": "all"}})
    wrapped = qm.wrap(search)
    for at, query in enumerate(
        ("What is Nike's strategy in Europe?", "How did the earnings of Adidas grow?"), 1
    ):
        wrapped(query)
        wait_until(lambda count=at: qm.health().shadow.finished >= count)
    return "queries.jsonl"


def test_it_says_how_often_lists_would_change_with_examples_and_what_it_costs(
    qtm: Run, log: str
) -> None:
    ended = qtm("shadow", log)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(
        "Another passage would come first for 2 of 2 questions; none would get the same list.\n"
        "2 questions retrieved in shadow mode.\n"
    )
    for said in (
        "would get other passages",
        "Per question: 1.00 searches, 0.00 model calls",
        "About c",
    ):
        assert said in ended.out
    assert "What is Nike's strategy in Europe?" in ended.out


def test_the_same_as_json(qtm: Run, log: str) -> None:
    plain = json.loads(qtm("shadow", log, "--json", "--examples", "1").out)
    assert plain["questions"] == 2
    assert sum(plain["changed"].values()) == pytest.approx(1)
    (example,) = plain["examples"]
    assert example["plain"] == ["About a", "About b"]
    assert example["ours"] != example["plain"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing.jsonl",), "cannot be read"),
        (("empty.jsonl",), "has no records of shadow mode"),
    ],
)
def test_what_cannot_be_reported_is_said(
    qtm: Run, log: str, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "empty.jsonl").write_text('{"status": "full"}\n', "utf-8")
    ended = qtm("shadow", *arguments)
    assert ended.code == 2
    assert said in ended.err
