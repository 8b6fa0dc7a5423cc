"""What shadow mode logged: how often and how much our lists differ from what callers got, and what they would cost."""

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
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.runtime.files import open_document

MOST_BYTES: Final = 1 << 24
"""Bytes of a line that are read; a longer one counts as unreadable."""

Change = Literal["same", "order", "passages"]
Better = Literal["ours", "plain", "neither", "failed"]

_BETTER: Final[dict[int | None, Better]] = {0: "ours", 1: "plain", None: "neither"}


@dataclass(frozen=True, slots=True)
class Shown:
    """One passage of a list: its *name* (title, id or the like), and its *text* where the log holds it."""

    name: str
    text: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ShadowQuestion:
    """One question that was retrieved in the shadow, with the list its caller got and ours.

    *kept* passages are in both lists. Times are in milliseconds, *cost_usd* is model and reads
    together, ``None`` where a price is not known. *dropped* others were left out since the one
    before.
    """

    query: str = field(repr=False)
    plain: tuple[Shown, ...] = field(repr=False)
    ours: tuple[Shown, ...] = field(repr=False)
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
        """Whether ours are other passages, the same in another order, or the very same list."""
        if self.is_order_same:
            return "same"
        return "order" if self.kept == len(self.ours) == len(self.plain) else "passages"

    @property
    def entered(self) -> int:
        """How many passages of ours the caller did not get."""
        return max(0, len(self.ours) - self.kept)


@dataclass(frozen=True)
class ShadowReport:
    """All *questions* of a log; *unreadable* lines were passed over. *judge* is the model that compared the lists."""

    questions: tuple[ShadowQuestion, ...] = field(repr=False)
    unreadable: int = 0
    judge: str = ""
    judge_cost_usd: float | None = 0.0

    @property
    def dropped(self) -> int:
        """How many calls were to be retrieved in the shadow and were not, as too many were under way."""
        return sum(it.dropped for it in self.questions)

    def count_better(self) -> dict[str, int]:
        """How often which list answers better, by the judge; empty where nothing was judged."""
        return dict(Counter(it.better for it in self.questions if it.better is not None))

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data: shares from 0 to 1, times in milliseconds, means a question."""
        asked = self.questions
        figures: dict[str, Any] = {
            "questions": len(asked),
            "dropped": self.dropped,
            "unreadable": self.unreadable,
        }
        if asked:
            costs = [it.cost_usd for it in asked]
            known = [it for it in costs if it is not None]
            changes = Counter(it.change for it in asked)
            figures |= {
                "changed": {it: changes[it] / len(asked) for it in ("passages", "order", "same")},
                "otherFirst": fmean(not it.is_first_same for it in asked),
                "enteredPassages": fmean(it.entered for it in asked),
                "passages": fmean(len(it.ours) for it in asked),
                "degraded": fmean(it.status == "degraded" for it in asked),
                "searches": fmean(it.searches for it in asked),
                "llmCalls": fmean(it.llm_calls for it in asked),
                "tokens": fmean(it.tokens for it in asked),
                "costUsd": fmean(known) if len(known) == len(costs) else None,
                "plainMs": _describe_times([it.plain_ms for it in asked]),
                "ms": _describe_times([it.ms for it in asked]),
            }
        if self.judge:
            figures["judged"] = {
                "judge": self.judge,
                "costUsd": self.judge_cost_usd,
                **self.count_better(),
            }
        return figures

    def pick_examples(self, count: int) -> list[ShadowQuestion]:
        """The *count* questions whose lists differ most, those first whose first passage is another one."""
        changed = [it for it in self.questions if it.change != "same"]
        return sorted(changed, key=lambda it: (it.is_first_same, -it.entered))[:count]


def _describe_times(times: Sequence[float]) -> dict[str, float]:
    p95 = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"median": median(times), "p95": p95}


def read_shadow_log(path: str | Path) -> ShadowReport:
    """What shadow mode wrote to the query log at *path*.

    Other records of the log are passed over; lines that are damaged are, too, and counted. Raises
    `ConfigError` where the file cannot be read.
    """
    unreadable = 0
    questions: list[ShadowQuestion] = []
    try:
        for line in _read_lines(Path(path)):
            try:
                record = json.loads(line)
                if "shadow" in record:
                    questions.append(_build_question(record))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                unreadable += 1
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    return ShadowReport(tuple(questions), unreadable)


def _read_lines(path: Path) -> Iterator[bytes]:
    with open_document(path, follow_link=True) as file:
        while line := file.readline(MOST_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < MOST_BYTES
            while not line.endswith(b"\n") and (rest := file.readline(MOST_BYTES)):
                line = rest
            if not is_whole:
                yield b"?"
            elif line.strip():
                yield line


def _build_question(record: Mapping[str, Any]) -> ShadowQuestion:
    shadow, trace = record["shadow"], record["trace"]
    model_usd, read_usd = trace["cost_usd"], trace["read_cost_usd"]
    return ShadowQuestion(
        query=str(record["queries"][0]),
        plain=_build_list(shadow["plain"]),
        ours=_build_list(record["retrieval_steps"]["final"]),
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


def _build_list(rows: Iterable[Mapping[str, Any]]) -> tuple[Shown, ...]:
    names = ("title", "id", "url", "source")
    return tuple(
        Shown(
            next((str(row[it]) for it in names if row.get(it)), "(no id)"), str(row.get("text", ""))
        )
        for row in rows
    )


def judge_lists(
    report: ShadowReport, model: LanguageModel, *, count: int = 50, seed: int = 0, timeout: float = 60.0,
    concurrency: int = 4,
) -> ShadowReport:  # fmt: skip
    """*report* with the verdicts of *model* on which list answers better, for *count* questions drawn by *seed*.

    Questions of which both lists are the same are not asked about. The model sees each pair twice,
    once in each order, without being told whose list is whose; a list is better where it is in both
    orders. Raises `ConfigError` where the log holds no texts of questions and passages, and the
    `ModelError` of the first reply where there is no other.
    """
    places = [at for at, it in enumerate(report.questions) if it.change != "same"]
    judged = Random(seed).sample(places, min(count, len(places)))
    if any(
        not shown.text
        for at in judged
        for shown in (*report.questions[at].plain, *report.questions[at].ours)
    ):
        raise ConfigError(
            "the log must hold the texts of passages; set log.passageText, keep log.queryText on,"
            " and log again",
            path="log.passageText",
        )
    panel = Judge(LISTS, model, seed=seed, timeout=timeout, concurrency=concurrency)

    def show(question: Question) -> Ballot:
        one = report.questions[int(question.id)]
        lists = [[shown.text for shown in passages] for passages in (one.ours, one.plain)]
        return Ballot(question, lists, panel.draw_orders(2))

    ballots = panel.ask([Question(str(at), report.questions[at].query) for at in judged], show)
    errors = [ballot.error for ballot in ballots if ballot.error is not None]
    if (
        errors
        and len(errors) == len(ballots)
        and any(error.reason != "unparsable" for error in errors)
    ):
        raise errors[0]
    questions = list(report.questions)
    for at, ballot in zip(judged, ballots, strict=True):
        better = "failed" if ballot.error is not None else _BETTER[ballot.find_winner()]
        questions[at] = replace(questions[at], better=better)
    return replace(
        report, questions=tuple(questions), judge=model.name, judge_cost_usd=panel.cost_usd
    )
