"""What a log of shadow mode says: how the lists differ, and what that would cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.shadow import ShadowReport, read_shadow_log


def record(plain: str, ours: str, **changed: Any) -> dict[str, Any]:
    """A line of the log; each letter is a passage."""
    trace = {
        "searches": 2,
        "llm_calls": 1,
        "input_tokens": 100,
        "output_tokens": 20,
        "cost_usd": 0.002,
        "total_ms": 90.0,
    }
    return {
        "queries": [f"About {ours}?"],
        "status": "full",
        "retrieval_steps": {"final": [{"id": it} for it in ours]},
        "shadow": {
            "plain": [{"title": f"Passage {it}", "id": it} for it in plain],
            "kept": len(set(plain) & set(ours)),
            "same_first": plain[:1] == ours[:1],
            "same_order": plain == ours,
            "plain_ms": 40.0,
        },
        "trace": {**trace, **changed},
    }


def read(folder: Path, *lines: Any) -> ShadowReport:
    path = folder / "log.jsonl"
    path.write_text("".join(f"{it if isinstance(it, str) else json.dumps(it)}\n" for it in lines))
    return read_shadow_log(path)


FOUR = [record("abc", ours) for ours in ("abc", "acb", "dab", "xyz")]


def test_the_figures_are_shares_of_the_questions_and_means_per_question(tmp_path: Path) -> None:
    report = read(tmp_path, *FOUR, {"queries": ["no shadow"]})
    figures = report.to_dict()
    assert json.loads(json.dumps(figures)) == figures
    assert (figures["questions"], figures["unreadable"], figures["otherFirst"]) == (4, 0, 0.5)
    assert figures["changed"] == {"passages": 0.5, "order": 0.25, "same": 0.25}
    assert (figures["enteredPassages"], figures["searches"], figures["tokens"]) == (1.0, 2, 120)
    assert figures["costUsd"] == pytest.approx(0.002)
    assert figures["ms"] == {"median": 90.0, "p95": 90.0}
    sentences = " ".join(report.sentences)
    assert "Another passage would come first for 2 of 4 questions; 1 would get the" in sentences
    assert "$2.00 per 1,000 questions" in sentences
    assert "About" not in repr(report)
    examples = ["About xyz?", "About dab?", "About acb?"]
    assert [it.query for it in report.pick_examples(9)] == examples
    assert report.pick_examples(1)[0].plain == ("Passage a", "Passage b", "Passage c")


def test_a_model_without_a_price_makes_the_cost_unknown(tmp_path: Path) -> None:
    report = read(tmp_path, FOUR[0], record("a", "a", cost_usd=None))
    assert report.to_dict()["costUsd"] is None
    assert report.sentences[0].startswith("The first passage would stay the same for 2 questions")
    assert "price not known" in " ".join(report.sentences)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside *value*."""
    is_list = isinstance(value, list)
    for key in value if isinstance(value, dict) else range(len(value) if is_list else 0):
        yield (*path, key)
        yield from places(value[key], (*path, key))


@pytest.mark.parametrize(
    "value", [[], 10**400, float("nan"), -1, None, "x", {}], ids=lambda it: str(it)[:9]
)
def test_one_damaged_line_hides_no_other(tmp_path: Path, value: Any) -> None:
    for path in places(FOUR[1]):
        damaged = target = json.loads(json.dumps(FOUR[1]))
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        report = read(tmp_path, FOUR[0], damaged, "{", FOUR[3])
        json.dumps(report.to_dict())
        assert len(report.questions) + report.unreadable >= 3
        assert {"About abc?", "About xyz?"} <= {it.query for it in report.questions}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_shadow_log(tmp_path / "none.jsonl")
    assert read(tmp_path).to_dict()["questions"] == 0
