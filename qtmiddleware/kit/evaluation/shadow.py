"""Read a log of shadow mode, and compare qtmiddleware's lists with the callers' lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from statistics import fmean, median, quantiles
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.ballots import Ballot, Judge
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.prompts import LISTS
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.protocols import LanguageModel

MOST_BYTES: Final = 1 << 24
"""The longest line, in bytes. A longer line counts as unreadable."""

Change = Literal["same", "order", "passages"]
"""The difference between the two lists: none, another order, or other passages."""
Better = Literal["ours", "plain", "neither", "failed"]
"""The list that the judge prefers: qtmiddleware's (``ours``) or the caller's (``plain``)."""

_BETTER: Final[dict[int | None, Better]] = {0: "ours", 1: "plain", None: "neither"}


@dataclass(frozen=True, slots=True)
class ListedPassage:
    """One passage of a list in a shadow-mode log.

    Attributes:
        name: The passage's title. If the log has no title, the passage's id, URL or source.
        text: The passage's text; empty if the log does not contain the text.
    """

    name: str
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """One question retrieved in shadow mode, with the caller's list and qtmiddleware's list.

    Attributes:
        query: The question.
        plain: The list that the caller got.
        ours: The list that qtmiddleware would have returned.
        kept: The number of passages that are in both lists.
        is_first_same: Whether both lists have the same first passage.
        is_order_same: Whether both lists have the same passages in the same order.
        status: The status of qtmiddleware's retrieval, such as ``degraded``.
        searches: The number of searches that qtmiddleware made.
        llm_calls: The number of model calls that qtmiddleware made.
        tokens: The number of tokens that the model read and wrote.
        cost_usd: The cost of the model and the searches, in US dollars; ``None`` if the model's
            price is not known.
        plain_ms: The time of the caller's retrieval, in milliseconds.
        ms: The time of qtmiddleware's retrieval, in milliseconds.
        dropped: The number of calls that shadow mode skipped since the previous question.
        better: The list that the judge prefers; ``None`` if the lists were not judged.
    """

    query: str = field(repr=False)
    plain: tuple[ListedPassage, ...] = field(repr=False)
    ours: tuple[ListedPassage, ...] = field(repr=False)
    kept: int
    is_first_same: bool
    is_order_same: bool
    status: str
    searches: int
    llm_calls: int
    tokens: int
    cost_usd: float | None
    plain_ms: float
    ms: float
    dropped: int = 0
    better: Better | None = None

    @property
    def change(self) -> Change:
        """The difference between the lists: ``passages``, ``order`` or ``same``."""
        if self.is_order_same:
            return "same"
        return "order" if self.kept == len(self.ours) == len(self.plain) else "passages"

    @property
    def new_count(self) -> int:
        """The number of passages that are only in qtmiddleware's list."""
        return max(0, len(self.ours) - self.kept)


@dataclass(frozen=True)
class ShadowReport:
    """The questions in a shadow-mode log, and the judge's verdicts if there are any.

    Attributes:
        questions: The questions.
        unreadable: The number of damaged lines, which were skipped.
        judge: The name of the model that compared the lists; empty without a judge.
        judge_cost_usd: The judge's cost in US dollars; ``None`` if its price is not known.
    """

    questions: tuple[ShadowQuestion, ...] = field(repr=False)
    unreadable: int = 0
    judge: str = ""
    judge_cost_usd: float | None = 0.0

    @property
    def dropped_calls(self) -> int:
        """The number of calls that shadow mode skipped, because too many were running."""
        return sum(question.dropped for question in self.questions)

    def count_verdicts(self) -> dict[str, int]:
        """Return the number of questions for each verdict of the judge, such as ``ours``.

        The result is empty if no question was judged.
        """
        return dict(
            Counter(question.better for question in self.questions if question.better is not None)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report's figures as a dict, ready for JSON.

        Shares are from 0 to 1. Times are in milliseconds. Searches, model calls, tokens and costs
        are means per question.
        """
        questions = self.questions
        figures: dict[str, Any] = {
            "questions": len(questions),
            "dropped": self.dropped_calls,
            "unreadable": self.unreadable,
        }
        if questions:
            costs = [question.cost_usd for question in questions]
            known_costs = [cost for cost in costs if cost is not None]
            changes = Counter(question.change for question in questions)
            figures |= {
                "changed": {
                    change: changes[change] / len(questions)
                    for change in ("passages", "order", "same")
                },
                "otherFirst": fmean(not question.is_first_same for question in questions),
                "enteredPassages": fmean(question.new_count for question in questions),
                "passages": fmean(len(question.ours) for question in questions),
                "degraded": fmean(question.status == "degraded" for question in questions),
                "searches": fmean(question.searches for question in questions),
                "llmCalls": fmean(question.llm_calls for question in questions),
                "tokens": fmean(question.tokens for question in questions),
                "costUsd": fmean(known_costs) if len(known_costs) == len(costs) else None,
                "plainMs": _summarise_times([question.plain_ms for question in questions]),
                "ms": _summarise_times([question.ms for question in questions]),
            }
        if self.judge:
            figures["judged"] = {
                "judge": self.judge,
                "costUsd": self.judge_cost_usd,
                **self.count_verdicts(),
            }
        return figures

    def pick_examples(self, count: int) -> list[ShadowQuestion]:
        """Return at most *count* questions whose lists differ most.

        Questions whose lists have different first passages come first, then questions with many new
        passages. Questions with two identical lists are left out.
        """
        changed = [question for question in self.questions if question.change != "same"]
        return sorted(changed, key=lambda question: (question.is_first_same, -question.new_count))[
            :count
        ]


def _summarise_times(times: Sequence[float]) -> dict[str, float]:
    """Return a dict with the median and the 95th percentile of *times*."""
    # `quantiles` needs at least two values.
    p95 = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"median": median(times), "p95": p95}


def read_shadow_log(path: str | Path) -> ShadowReport:
    """Return a report on the questions that shadow mode recorded in the query log at *path*.

    Other records in the log are skipped. Damaged lines are skipped and counted. Raises
    `ConfigError` if the file cannot be read.
    """
    unreadable = 0
    questions: list[ShadowQuestion] = []
    try:
        for line in _read_nonblank_lines(Path(path)):
            try:
                record = json.loads(line)
                if "shadow" in record:
                    questions.append(_build_question(record))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                # A process may have been killed while it wrote the line.
                unreadable += 1
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    return ShadowReport(tuple(questions), unreadable)


def _read_nonblank_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of the file at *path*, except blank lines.

    Yields ``?`` instead of a line that is too long, so that the line counts as damaged.
    """
    with open_regular_file(path, follow_link=True) as file:
        while line := file.readline(MOST_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < MOST_BYTES
            # Read on to the end of a line that is too long, to find the next one.
            while not line.endswith(b"\n") and (rest := file.readline(MOST_BYTES)):
                line = rest
            if not is_whole:
                yield b"?"
            elif line.strip():
                yield line


def _build_question(record: Mapping[str, Any]) -> ShadowQuestion:
    """Return the question in *record*, a parsed line of a shadow-mode log.

    Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` if *record* is damaged.
    """
    shadow, trace = record["shadow"], record["trace"]
    # Searches without a price count as free, but a model without a price makes the cost unknown.
    model_usd, read_usd = trace["cost_usd"], trace["read_cost_usd"]
    return ShadowQuestion(
        query=str(record["queries"][0]),
        plain=_build_passage_list(shadow["plain"]),
        ours=_build_passage_list(record["retrieval_steps"]["final"]),
        kept=int(shadow["kept"]),
        is_first_same=bool(shadow["same_first"]),
        is_order_same=bool(shadow["same_order"]),
        status=str(record["status"]),
        searches=int(trace["searches"]),
        llm_calls=int(trace["llm_calls"]),
        tokens=int(trace["input_tokens"]) + int(trace["output_tokens"]),
        cost_usd=None if model_usd is None else float(model_usd) + float(read_usd or 0.0),
        plain_ms=float(shadow["plain_ms"]),
        ms=float(trace["total_ms"]),
        dropped=int(shadow["dropped"]),
    )


def _build_passage_list(rows: Iterable[Mapping[str, Any]]) -> tuple[ListedPassage, ...]:
    """Return the passages in *rows*, one list of a shadow-mode log."""
    names = ("title", "id", "url", "source")
    return tuple(
        ListedPassage(
            next((str(row[name]) for name in names if row.get(name)), "(no id)"),
            str(row.get("text", "")),
        )
        for row in rows
    )


def judge_lists(
    report: ShadowReport, model: LanguageModel, *, max_questions: int = 50, seed: int = 0,
    timeout: float = 60.0, concurrency: int = 4,
) -> ShadowReport:  # fmt: skip
    """Ask *model* which list answers each question better, and return *report* with the verdicts.

    Questions with two identical lists are not judged. The model sees each pair of lists in both
    orders, without the systems' names. A list is better only if the model prefers the list in both
    orders.

    Args:
        report: The report on a log that contains the texts of questions and passages.
        model: The model that judges.
        max_questions: The largest number of questions to judge.
        seed: The seed that draws the questions and the first order of each pair of lists.
        timeout: Seconds allowed per judgement.
        concurrency: The largest number of judgements that run at the same time.

    Raises:
        ConfigError: The log does not contain the texts.
        ModelError: Every judgement failed, and not only because of unreadable replies. This is the
            error of the first judgement.
    """
    changed = [
        index for index, question in enumerate(report.questions) if question.change != "same"
    ]
    # Check the texts first, because judgements cost money.
    judged = Random(seed).sample(changed, min(max_questions, len(changed)))
    if any(
        not shown.text
        for index in judged
        for shown in (*report.questions[index].plain, *report.questions[index].ours)
    ):
        raise ConfigError(
            "the log must hold the texts of passages; set log.texts to all and log again",
            path="log.texts",
        )
    panel = Judge(LISTS, model, seed=seed, timeout=timeout, concurrency=concurrency)

    def build_ballot(question: Question) -> Ballot:
        logged = report.questions[int(question.id)]
        lists = [[shown.text for shown in passages] for passages in (logged.ours, logged.plain)]
        return Ballot(question, lists, panel.draw_orders(2))

    # A question's id is its index in the report, by which build_ballot finds the lists.
    ballots = panel.judge_questions(
        [Question(str(index), report.questions[index].query) for index in judged], build_ballot
    )
    errors = [ballot.error for ballot in ballots if ballot.error is not None]
    # A model that answers, but never usably, is no error: its questions count as "failed".
    if (
        errors
        and len(errors) == len(ballots)
        and any(error.reason != "unparsable" for error in errors)
    ):
        raise errors[0]
    questions = list(report.questions)
    for index, ballot in zip(judged, ballots, strict=True):
        better = "failed" if ballot.error is not None else _BETTER[ballot.find_winner()]
        questions[index] = replace(questions[index], better=better)
    return replace(
        report, questions=tuple(questions), judge=model.name, judge_cost_usd=panel.cost_usd
    )
