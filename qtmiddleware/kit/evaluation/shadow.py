"""Read a log of shadow mode, and sum up how qtmiddleware's lists differ from the callers' lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.formatting import format_duration
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.preprocessing.text import format_count

# Other passages, another order, or no difference between the two lists.
_CHANGES: Final = ("passages", "order", "same")
# A larger number cannot be a count, a time or a price.
_LARGEST: Final = 1e15


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """One question retrieved in shadow mode, with the names of the passages in both lists.

    *change* is ``passages``, ``order`` or ``same``. *figures* are the numbers of this question by
    the names of `ShadowReport.to_dict`. The cost is ``None`` if the model's price is not known.
    """

    query: str = field(repr=False)
    plain: tuple[str, ...] = field(repr=False)
    ours: tuple[str, ...] = field(repr=False)
    change: str
    figures: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The questions in a log of shadow mode, and the number of damaged lines."""

    questions: tuple[ShadowQuestion, ...] = field(repr=False)
    unreadable: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """What would change, and the figures, one sentence each."""
        record = self.to_dict()
        count, changed = record["questions"], record["changed"]
        total = format_count(count, "question")
        other, same = round(record["otherFirst"] * count), round(changed["same"] * count)
        first = f"Another passage would come first for {other:,} of {total}"
        if not other:
            first = f"The first passage would stay the same for {total}"
        cost, plain, ours = record["costUsd"], record["plainMs"], record["ms"]
        price = "price not known" if cost is None else f"${cost * 1e3:,.2f} per 1,000 questions"
        return (
            f"{first}; {f'{same:,}' if same else 'none'} would get the same list.",
            (
                f"{changed['passages']:.1%} would get other passages:"
                f" {record['enteredPassages']:.1f} new ones of {record['passages']:.1f} on average."
            ),
            f"{changed['order']:.1%} would get the same passages in another order.",
            (
                f"Per question: {record['searches']:.2f} searches, {record['llmCalls']:.2f} model"
                f" calls, {record['tokens']:,.0f} tokens; {price}."
            ),
            (
                f"Half of the questions take {format_duration(ours['median'])} instead of"
                f" {format_duration(plain['median'])}, 95 of 100 at most"
                f" {format_duration(ours['p95'])} instead of"
                f" {format_duration(plain['p95'])}."
            ),
            f"{record['degraded']:.1%} are degraded.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict, ready for JSON.

        Shares are from 0 to 1. Times are in milliseconds. Searches, model calls, tokens and costs
        are means per question.
        """
        count = len(self.questions)
        record: dict[str, Any] = {"questions": count, "unreadable": self.unreadable}
        for name in self.questions[0].figures if count else ():
            values = [question.figures[name] for question in self.questions]
            known = [value for value in values if value is not None]
            record[name] = fmean(known) if len(known) == count else None
            if name in ("plainMs", "ms"):
                slowest = sorted(known)[ceil(0.95 * count) - 1]
                record[name] = {"median": median(known), "p95": slowest}
        changes = Counter(question.change for question in self.questions)
        shares = {change: changes[change] / max(1, count) for change in _CHANGES}
        return {**record, "changed": shares}

    def pick_examples(self, count: int) -> list[ShadowQuestion]:
        """Return at most *count* questions whose lists differ, those that differ most first."""
        changed = [question for question in self.questions if question.change != "same"]
        names = ("otherFirst", "enteredPassages")
        changed.sort(key=lambda question: [-(question.figures[name] or 0) for name in names])
        return changed[:count]


def read_shadow_log(path: str | Path) -> ShadowReport:
    """Return a report on the questions that shadow mode recorded in the query log at *path*.

    Other records in the log are skipped. Damaged lines are skipped and counted. Raises
    `ConfigError` if the file cannot be read.
    """
    unreadable = 0
    questions: list[ShadowQuestion] = []
    try:
        with open_regular_file(Path(path), follow_link=True) as file:
            for line in filter(bytes.strip, file):
                try:
                    record = json.loads(line)
                    if "shadow" in record:
                        questions.append(_build_question(record))
                # A process may have been killed while it wrote the line.
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    unreadable += 1
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    return ShadowReport(tuple(questions), unreadable)


def _build_question(record: Mapping[str, Any]) -> ShadowQuestion:
    shadow, trace = record["shadow"], record["trace"]
    plain, ours = map(_list_names, (shadow["plain"], record["retrieval_steps"]["final"]))
    kept = _read_number(shadow["kept"])
    change = "order" if kept == len(ours) == len(plain) else "passages"
    cost = trace["cost_usd"]
    numbers = {
        "otherFirst": shadow["same_first"] is not True,
        "enteredPassages": max(0.0, len(ours) - kept),
        "passages": len(ours),
        "degraded": record["status"] == "degraded",
        "searches": _read_number(trace["searches"]),
        "llmCalls": _read_number(trace["llm_calls"]),
        "tokens": _read_number(trace["input_tokens"]) + _read_number(trace["output_tokens"]),
        "costUsd": None if cost is None else _read_number(cost),
        "plainMs": _read_number(shadow["plain_ms"]),
        "ms": _read_number(trace["total_ms"]),
    }
    change = "same" if shadow["same_order"] is True else change
    return ShadowQuestion(str(record["queries"][0]), plain, ours, change, numbers)


def _read_number(value: Any) -> float:
    """Return the number *value*. Raises `ValueError` if it can be no count, time or price."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _LARGEST:
        raise ValueError(value)
    return float(value)


def _list_names(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    names = ("title", "id", "url", "source")
    return tuple(
        next((str(row[name]) for name in names if row.get(name)), "(no id)") for row in rows
    )
