"""What a log of shadow mode says: how the lists differ, and what that would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.shadow import ShadowReport, read_shadow_log


def record(plain: str, ours: str, *, query: str = "Who?", **changed: Any) -> dict[str, Any]:
    """A line of the log; each letter is a passage."""
    kept = len(set(plain) & set(ours))
    trace = {
        "searches": 2, "llm_calls": 1, "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.002,
        "read_cost_usd": None, "total_ms": 90.0,
    }  # fmt: skip
    return {
        "queries": [query],
        "status": "full",
        "retrieval_steps": {"final": [{"id": it} for it in ours]},
        "shadow": {
            "plain": [{"title": f"Passage {it}", "id": it} for it in plain],
            "kept": kept,
            "same_first": plain[:1] == ours[:1],
            "same_order": plain == ours,
            "plain_ms": 40.0,
            "dropped": 0,
        },
        "trace": {**trace, **changed},
    }


def read(folder: Path, *lines: Any) -> ShadowReport:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{it if isinstance(it, str) else json.dumps(it)}\n" for it in lines))
    return read_shadow_log(path)


FOUR = [record("abc", ours, query=f"About {ours}?") for ours in ("abc", "acb", "dab", "xyz")]


def test_the_figures_are_shares_of_the_questions_and_means_per_question(tmp_path: Path) -> None:
    report = read(tmp_path, *FOUR, {"queries": ["no shadow"]})
    record = report.to_dict()
    assert json.loads(json.dumps(record)) == record
    assert (record["questions"], record["unreadable"], record["otherFirst"]) == (4, 0, 0.5)
    assert record["changed"] == {"passages": 0.5, "order": 0.25, "same": 0.25}
    assert (record["enteredPassages"], record["searches"], record["tokens"]) == (1.0, 2, 120)
    assert record["costUsd"] == pytest.approx(0.002)
    assert record["ms"] == {"median": 90.0, "p95": 90.0}
    sentences = " ".join(report.sentences)
    assert (
        "Another passage would come first for 2 of 4 questions; 1 would get the same" in sentences
    )
    assert "$2.00 per 1,000 questions" in sentences
    assert "Who?" not in repr(report)


def test_the_headline_says_whether_another_passage_would_come_first(tmp_path: Path) -> None:
    for ours, said in (
        ("abc", "The first passage would stay the same for 1 question; 1 would get the same"),
        ("bac", "Another passage would come first for 1 of 1 question; none would get the same"),
    ):
        assert read(tmp_path, record("abc", ours)).sentences[0].startswith(said)


def test_examples_are_the_questions_whose_lists_differ_most(tmp_path: Path) -> None:
    report = read(tmp_path, *FOUR)
    assert [it.query for it in report.pick_examples(2)] == ["About xyz?", "About dab?"]
    assert [it.query for it in report.pick_examples(9)][-1] == "About acb?"
    assert report.pick_examples(1)[0].plain == ("Passage a", "Passage b", "Passage c")


def test_a_model_without_a_price_makes_the_cost_unknown(tmp_path: Path) -> None:
    report = read(tmp_path, FOUR[0], record("a", "a", cost_usd=None))
    assert report.to_dict()["costUsd"] is None
    assert "price not known" in " ".join(report.sentences)
    priced = read(tmp_path, record("a", "a", read_cost_usd=0.001))
    assert priced.to_dict()["costUsd"] == pytest.approx(0.003)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()  # fmt: skip
    for key, item in pairs:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.mark.parametrize("path", list(places(FOUR[1])), ids=str)
def test_one_damaged_line_hides_no_other(tmp_path: Path, path: tuple[Any, ...]) -> None:
    for value in ([], 10**400, float("inf"), float("nan"), -1, None, "x", {}):
        damaged = json.loads(json.dumps(FOUR[1]))
        target = damaged
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        report = read(tmp_path, FOUR[0], damaged, "{", FOUR[3])
        json.dumps(report.to_dict())
        assert len(report.questions) + report.unreadable >= 3
        assert {FOUR[0]["queries"][0], FOUR[3]["queries"][0]} <= {
            it.query for it in report.questions
        }


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_shadow_log(path)
    assert read(tmp_path).to_dict()["questions"] == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(content)
    json.dumps(read_shadow_log(path).to_dict())
