"""``qtm shadow`` on the log of a middleware in shadow mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qtmiddleware import QueryMiddleware
from tests.support.command_line import Ended
from tests.support.waiting import wait_until

TEXTS = {
    "a": "Nike sells shoes",
    "b": "Adidas earnings grew",
    "c": "The strategy of Nike in Europe",
    "d": "Puma opened shops",
}


def search(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    rows = [
        {"id": name, "score": 0.9 - at / 50, "metadata": {"title": f"About {name}", "text": text}}
        for at, (name, text) in enumerate(TEXTS.items())
    ]
    return rows[:top_k]


def test_it_says_how_often_lists_would_change_with_examples_and_what_it_costs(
    qtm: Callable[..., Ended], tmp_path: Path
) -> None:
    log = {"path": str(tmp_path / "queries.jsonl"), "texts": "all"}
    qm = QueryMiddleware({"shadow": 1.0, "log": log})
    qm.wrap(search)("What is Nike's strategy in Europe?")
    wait_until(lambda: qm.health()["shadow"]["finished"] >= 1)
    ended = qtm("shadow", "queries.jsonl")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(
        "Another passage would come first for 1 of 1 question; none would get the same list.\n"
        "100.0% would get other passages: "
    )
    for said in ("1.00 searches, 0.00 model calls", "About c", "Nike's"):
        assert said in ended.out
    plain = json.loads(qtm("shadow", "queries.jsonl", "--json").out)
    (example,) = plain["examples"]
    assert (plain["questions"], example["plain"]) == (1, ["About a", "About b"])
    assert example["ours"] != example["plain"]
    (tmp_path / "empty.jsonl").write_text('{"status": "full"}\n', "utf-8")
    ended = qtm("shadow", "empty.jsonl")
    assert (ended.code, "has no records of shadow mode" in ended.err) == (2, True)
