"""Read a log of shadow mode, and sum up how qtmiddleware's lists differ from the callers' lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.measures import Percentiles
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.preprocessing.text import format_count

Change = Literal["passages", "order", "same"]
"""The difference between the two lists: other passages, another order, or none."""
_CHANGES: Final[tuple[Change, ...]] = ("passages", "order", "same")
_LARGEST: Final = 1e15
"""A larger number cannot be a count, a time or a price."""


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """One question retrieved in shadow mode.

    Attributes:
        query: The question.
        plain: The names of the passages that the caller got: a title, id, URL or source.
        ours: The names of the passages that qtmiddleware would have returned.
        change: The difference between the lists.
        new_count: The number of passages that are only in qtmiddleware's list.
        is_first_same: Whether both lists have the same first passage.
        is_degraded: Whether a step of qtmiddleware failed.
        searches: The number of searches that qtmiddleware made.
        llm_calls: The number of model calls.
        tokens: The number of tokens that the model read and wrote.
        cost_usd: The cost of the model and the searches in US dollars; ``None`` if the model's
            price is not known.
        plain_ms: The time of the caller's retrieval, in milliseconds.
        ms: The time of qtmiddleware's retrieval, in milliseconds.
        dropped: The number of calls that shadow mode skipped since the previous question.
    """

    query: str = field(repr=False)
    plain: tuple[str, ...] = field(repr=False)
    ours: tuple[str, ...] = field(repr=False)
    change: Change
    new_count: int
    is_first_same: bool
    is_degraded: bool
    searches: float
    llm_calls: float
    tokens: float
    cost_usd: float | None
    plain_ms: float
    ms: float
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The questions in a log of shadow mode, and the number of damaged lines."""

    questions: tuple[ShadowQuestion, ...] = field(repr=False)
    unreadable: int = 0

    @property
    def dropped_calls(self) -> int:
        """The number of calls that shadow mode skipped, because too many were running."""
        return sum(question.dropped for question in self.questions)

    @property
    def headline(self) -> str:
        """What would change, as a sentence."""
        questions = self.questions
        total = format_count(len(questions), "question")
        other = sum(not question.is_first_same for question in questions)
        same = sum(question.change == "same" for question in questions)
        rest = f"{f'{same:,}' if same else 'none'} would get the same list"
        if other:
            return f"Another passage would come first for {other:,} of {total}; {rest}."
        subject = f"{'all' if len(questions) > 1 else 'the'} {total}"
        ending = f"; {rest}." if same < len(questions) else ", in the same list."
        return f"The same passage would come first for {subject}{ending}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The headline and the figures, one sentence each."""
        record = self.to_dict()
        changed, plain, ours = record["changed"], record["plainMs"], record["ms"]
        cost = record["costUsd"]
        price = "price not known" if cost is None else f"${cost * 1e3:,.2f} per 1,000 questions"
        dropped = f" ({self.dropped_calls:,} more were dropped, because too many were running)"
        return (
            self.headline,
            (
                f"{format_count(len(self.questions), 'question')} retrieved in shadow"
                f" mode{dropped if self.dropped_calls else ''}."
            ),
            (
                f"{changed['passages']:.1%} would get other passages:"
                f" {record['enteredPassages']:.1f} new ones of {record['passages']:.1f} on average."
            ),
            (
                f"{changed['order']:.1%} would get the same passages in another order,"
                f" {changed['same']:.1%} the same list."
            ),
            f"{record['otherFirst']:.1%} would have another passage first.",
            (
                f"Per question: {record['searches']:.2f} searches, {record['llmCalls']:.2f} model"
                f" calls, {record['tokens']:,.0f} tokens; {price}."
            ),
            (
                f"Half of the questions take {figures.format_duration(ours['median'])} instead of"
                f" {figures.format_duration(plain['median'])}, 95 of 100 at most"
                f" {figures.format_duration(ours['p95'])} instead of"
                f" {figures.format_duration(plain['p95'])}."
            ),
            f"{record['degraded']:.1%} are degraded.",
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict, ready for JSON.

        Shares are from 0 to 1. Times are in milliseconds. Searches, model calls, tokens and costs
        are means per question.
        """
        questions = self.questions
        record: dict[str, Any] = {
            "questions": len(questions),
            "dropped": self.dropped_calls,
            "unreadable": self.unreadable,
        }
        if not questions:
            return record
        counts = Counter(question.change for question in questions)
        costs = [question.cost_usd for question in questions if question.cost_usd is not None]
        return {
            **record,
            "changed": {change: counts[change] / len(questions) for change in _CHANGES},
            "otherFirst": fmean(not question.is_first_same for question in questions),
            "enteredPassages": fmean(question.new_count for question in questions),
            "passages": fmean(len(question.ours) for question in questions),
            "degraded": fmean(question.is_degraded for question in questions),
            "searches": fmean(question.searches for question in questions),
            "llmCalls": fmean(question.llm_calls for question in questions),
            "tokens": fmean(question.tokens for question in questions),
            "costUsd": fmean(costs) if len(costs) == len(questions) else None,
            "plainMs": _summarise_times([question.plain_ms for question in questions]),
            "ms": _summarise_times([question.ms for question in questions]),
        }

    def pick_examples(self, count: int) -> list[ShadowQuestion]:
        """Return at most *count* questions whose lists differ, those that differ most first."""
        changed = [question for question in self.questions if question.change != "same"]
        changed.sort(key=lambda question: (question.is_first_same, -question.new_count))
        return changed[:count]


def _summarise_times(times: Sequence[float]) -> dict[str, float]:
    return {"median": median(times), "p95": Percentiles.of(times).p95}


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
    kept = int(_read_number(shadow["kept"]))
    change: Change = "order" if kept == len(ours) == len(plain) else "passages"
    # Searches without a price count as free, but a model without a price makes the cost unknown.
    model_usd, read_usd = trace["cost_usd"], trace["read_cost_usd"]
    return ShadowQuestion(
        query=str(record["queries"][0]),
        plain=plain,
        ours=ours,
        change="same" if shadow["same_order"] is True else change,
        new_count=max(0, len(ours) - kept),
        is_first_same=shadow["same_first"] is True,
        is_degraded=record["status"] == "degraded",
        searches=_read_number(trace["searches"]),
        llm_calls=_read_number(trace["llm_calls"]),
        tokens=_read_number(trace["input_tokens"]) + _read_number(trace["output_tokens"]),
        cost_usd=None
        if model_usd is None
        else _read_number(model_usd) + _read_number(read_usd or 0.0),
        plain_ms=_read_number(shadow["plain_ms"]),
        ms=_read_number(trace["total_ms"]),
        dropped=int(_read_number(shadow["dropped"])),
    )


def _read_number(value: Any) -> float:
    """Return the number *value*. Raises `ValueError` if it can be no count, time or price."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError(value)
    return float(value)


def _list_names(rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    names = ("title", "id", "url", "source")
    return tuple(
        next((str(row[name]) for name in names if row.get(name)), "(no id)") for row in rows
    )
