"""What is read out of a log of shadow mode, whatever stands in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.shadow import MOST_BYTES, judge_lists, read_shadow_log
from qtmiddleware.testing import ScriptedModel


def record(
    plain: str,
    ours: str,
    *,
    text: bool = True,
    query: str = "Who?",
    cost: float | None = 0.002,
    **shadow: Any,
) -> dict[str, Any]:
    """A record of the lists *plain* and *ours*, of which each passage is a letter."""

    def rows(names: str) -> list[dict[str, Any]]:
        return [
            {"id": it, "namespace": "", **({"text": f"passage {it}"} if text else {})}
            for it in names
        ]

    trace = {
        "searches": 2,
        "llm_calls": 1,
        "input_tokens": 100,
        "output_tokens": 20,
        "cost_usd": cost,
    }
    difference = {
        "plain": rows(plain), "kept": len(set(plain) & set(ours)), "same_first": plain[:1] == ours[:1],
        "same_order": plain == ours, "plain_ms": 40.0, "dropped": 0, **shadow,
    }  # fmt: skip
    return {
        "queries": [query], "status": "full", "retrieval_steps": {"final": rows(ours)},
        "trace": {**trace, "read_cost_usd": None, "total_ms": 90.0}, "shadow": difference,
    }  # fmt: skip


def write(path: Path, *records: Any) -> Path:
    path.write_text(
        "".join(f"{it if isinstance(it, str) else json.dumps(it)}\n" for it in records), "utf-8"
    )
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "q.jsonl"


def test_the_figures_are_shares_and_means_of_the_questions(log: Path) -> None:
    write(
        log,
        record("abc", "abc"),
        record("abc", "acb"),
        record("abc", "dab", dropped=3),
        record("abc", "abd"),
    )
    figures = read_shadow_log(log).to_dict()
    assert (figures["questions"], figures["dropped"], figures["unreadable"]) == (4, 3, 0)
    assert figures["changed"] == {"passages": 0.5, "order": 0.25, "same": 0.25}
    assert (figures["otherFirst"], figures["enteredPassages"], figures["passages"]) == (
        0.25,
        0.5,
        3,
    )
    assert (figures["searches"], figures["llmCalls"], figures["tokens"]) == (2, 1, 120)
    assert figures["costUsd"] == pytest.approx(0.002)
    assert (figures["plainMs"]["median"], figures["ms"]["median"]) == (40.0, 90.0)


def test_a_price_that_is_not_known_once_is_not_known_at_all(log: Path) -> None:
    write(log, record("a", "b"), record("a", "b", cost=None))
    assert read_shadow_log(log).to_dict()["costUsd"] is None


def test_the_examples_are_those_that_differ_most(log: Path) -> None:
    lists = {"same": "abc", "order": "acb", "first": "dab", "one": "abd", "all": "xyz"}
    write(log, *(record("abc", ours, query=query) for query, ours in lists.items()))
    assert [it.query for it in read_shadow_log(log).pick_examples(3)] == ["all", "first", "one"]


def test_damaged_lines_are_counted_and_other_records_passed_over(log: Path) -> None:
    unfinished = json.dumps(record("a", "b"))[:-30]
    other = {"queries": ["x"], "status": "full"}
    write(
        log,
        record("a", "b"),
        unfinished,
        "",
        other,
        "[" * 5000,
        '{"shadow": 3}',
        "\x00",
        record("a", "a"),
    )
    found = read_shadow_log(log)
    assert (len(found.questions), found.unreadable) == (2, 4)


def test_a_line_without_end_is_one_unreadable_line(log: Path) -> None:
    with log.open("wb") as file:
        file.truncate(3 * MOST_BYTES)
    write_after = json.dumps(record("a", "b")).encode()
    with log.open("ab") as file:
        file.write(b"\n" + write_after)
    found = read_shadow_log(log)
    assert (len(found.questions), found.unreadable) == (1, 1)


@given(
    st.binary(max_size=200),
    st.recursive(st.none() | st.text() | st.floats(), lambda it: st.lists(it), max_leaves=5),
)
def test_whatever_a_log_holds_raises_nothing(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, value: Any
) -> None:
    log = tmp_path_factory.mktemp("log") / "q.jsonl"
    log.write_bytes(raw + b"\n" + json.dumps({**record("a", "b"), "shadow": value}).encode())
    assert read_shadow_log(log).questions == ()


def test_a_log_that_is_not_there_is_told_by_name(log: Path) -> None:
    with pytest.raises(qtm.ConfigError, match=r"q\.jsonl cannot be read"):
        read_shadow_log(log)


def prefers(text: str) -> Any:
    """A judge that prefers the list in which *text* stands."""

    def reply(prompt: Any) -> str:
        lists = json.loads(prompt.user)
        return json.dumps(
            {
                "reason": "because",
                "ranking": "A > B" if any(text in it for it in lists["A"]) else "B > A",
            }
        )

    return ScriptedModel(reply)


def test_a_list_is_better_where_it_is_in_both_orders(log: Path) -> None:
    write(log, record("abc", "abd"), record("abc", "abc"))
    report = read_shadow_log(log)
    assert judge_lists(report, prefers("passage d")).count_verdicts() == {"ours": 1}
    assert judge_lists(report, prefers("passage c")).count_verdicts() == {"plain": 1}
    first = ScriptedModel('{"reason": "", "ranking": "A > B"}')
    assert judge_lists(report, first).count_verdicts() == {"neither": 1}
    assert judge_lists(
        report, ScriptedModel('{"reason": "", "ranking": "A = B"}')
    ).count_verdicts() == {"neither": 1}
    assert judge_lists(report, ScriptedModel("I like both")).count_verdicts() == {"failed": 1}


def test_the_judge_is_not_told_whose_list_is_whose(log: Path) -> None:
    write(log, record("abc", "abd"))
    model = prefers("passage d")
    judge_lists(read_shadow_log(log), model)
    for prompt in model.prompts:
        assert not {"ours", "plain", "shadow"} & set(json.loads(prompt.user))
        assert "plain" not in prompt.system


def test_no_more_are_judged_than_asked_for_and_the_same_ones_by_the_same_seed(log: Path) -> None:
    write(log, *(record("abc", "abd", query=str(n)) for n in range(20)))
    report = read_shadow_log(log)
    first, again = (
        judge_lists(report, prefers("passage d"), max_questions=4, seed=7) for _ in range(2)
    )
    assert first.count_verdicts() == {"ours": 4}
    assert first.questions == again.questions


def test_without_texts_of_passages_nothing_is_judged_and_it_is_said_what_to_set(log: Path) -> None:
    write(log, record("abc", "abd", text=False))
    with pytest.raises(qtm.ConfigError, match=r"log\.texts"):
        judge_lists(read_shadow_log(log), prefers("d"))


def test_a_judge_that_fails_on_some_pairs_fails_those_alone(log: Path) -> None:
    write(log, *(record("abc", "abd", query=f"question {n}") for n in range(3)))

    def reply(prompt: Any) -> Any:
        asked = json.loads(prompt.user)
        if asked["question"] == "question 1":
            return ModelError("unavailable", "down")
        return {"ranking": "A > B" if "passage d" in asked["A"] else "B > A"}

    assert judge_lists(read_shadow_log(log), ScriptedModel(reply)).count_verdicts() == {
        "ours": 2,
        "failed": 1,
    }


def test_a_judge_that_cannot_be_reached_is_told_of(log: Path) -> None:
    write(log, record("abc", "abd"))
    with pytest.raises(ModelError):
        judge_lists(read_shadow_log(log), ScriptedModel(ModelError("unavailable", "down")))
