"""`balanced` on the replies of a model that is wrong: recorded ones, corrupted, and ones written for this benchmark.

Every reply is handed over as the text a model says, so that the product's own parser, salvage and
guard read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, quality, table, write
from benchmarks.quality.sets import Prepared, Source, prepared, records
from qtmiddleware import preprocess
from qtmiddleware.kit.evaluation import (
    BASELINE,
    PRIMARY,
    SYSTEMS,
    Comparison,
    Question,
    Run,
    measure,
    run_of,
)
from qtmiddleware.testing import ScriptedModel

Record = Mapping[str, Any]
Replies = Mapping[str, str]
"""What the model says, by the question's id."""

REPLIES: Final = Path(__file__).resolve().parent / "replies"
RECORDED: Final = "as recorded"
FREE: Final = (BASELINE, "rules")
ASKED: Final = ("balanced", "auto")
KEPT_OF_CUT: Final = 0.6
FIELDS: Final = ("standalone", "rewrite", "step_back", "sub_queries", "hyde")
GENERIC: Final = (
    "This is an important subject that has received a lot of attention in recent years. There are several aspects to "
    "consider, and the details depend on the circumstances. Many people have different views on it. In general, it is "
    "advisable to gather information from reliable sources and to take all relevant factors into account before a "
    "decision is made. Further information can be found in the relevant documents."
)


@dataclass(frozen=True, slots=True)
class Case:
    """One question of a set: its recorded fields, those of the question half a set away, and its *number*."""

    question: Question
    own: Record
    other: Record
    number: int


def _write(fields: Record) -> str:
    return json.dumps(
        {name: fields[name] for name in FIELDS if fields.get(name)}, ensure_ascii=False
    )


def _borrow_passage(case: Case) -> str:
    return _write({**case.own, "hyde": case.other["hyde"]} if case.number % 2 else case.own)


def _cut(case: Case) -> str:
    text = _write(case.own)
    return text[: int(KEPT_OF_CUT * len(text))]


def _say_nothing(case: Case) -> str:
    words = preprocess(case.question.text)
    fields = {
        "rewrite": f"What should one know about {words}?",
        "step_back": f"What is {words} about?",
    }
    return _write(
        {**fields, "standalone": case.question.history and case.question.text, "hyde": GENERIC}
    )


CORRUPTIONS: Final[Mapping[str, Callable[[Case], str]]] = {
    RECORDED: lambda case: _write(case.own),
    "no hypothetical passage": lambda case: _write({**case.own, "hyde": ""}),
    "passage of another question, every second one": _borrow_passage,
    "reply to another question, every second one": lambda case: _write(
        case.other if case.number % 2 else case.own
    ),
    "reply to another question": lambda case: _write(case.other),
    f"cut off at {KEPT_OF_CUT:.0%}": _cut,
    "says nothing": _say_nothing,
}
"""What becomes of a recorded reply."""


@dataclass(slots=True)
class Part:
    """Questions that were asked under the same *conditions*, with the comparison of each set."""

    title: str
    conditions: list[str] = field(default_factory=list)
    by_set: dict[str, Comparison] = field(default_factory=dict)

    def add(self, name: str, one: Prepared, conditions: Mapping[str, Replies]) -> None:
        """Measure every system of `ASKED` on the questions of *one* under each of the *conditions*."""
        self.conditions = list(conditions)
        systems = {it: one.asking(one.model).with_settings(SYSTEMS[it]) for it in FREE}
        for asked in ASKED:
            for condition, replies in conditions.items():
                systems[_named(asked, condition)] = _answer_from(replies, one, SYSTEMS[asked])
        self.by_set[name] = measure(systems, one.data, seed=SEED)


def run(source: Source) -> None:
    """Measure all, and write ``results/quality-wrong-model.md``."""
    written = {file.stem: _load_written(file) for file in sorted(REPLIES.glob("*.jsonl"))}
    parts = {name: Part(f"The questions of replies/{name}.jsonl") for name in ("", *written)}
    parts[""].title = "All recorded questions"
    for name in source.names:
        with prepared(source, name) as one:
            recorded = records(source.recording(name))
            cases = _pair(one.data.questions, recorded)
            conditions = {
                it: {case.question.id: how(case) for case in cases}
                for it, how in CORRUPTIONS.items()
            }
            parts[""].add(name, one, conditions)
            for manner, by_set in written.items():
                if ids := by_set.get(name, {}).keys():
                    covering = {
                        it: given[name]
                        for it, given in written.items()
                        if ids <= given.get(name, {}).keys()
                    }
                    drawn = replace(one, data=one.data.only(ids))
                    parts[manner].add(name, drawn, {RECORDED: conditions[RECORDED], **covering})
        print(f"{name}: measured under {len(CORRUPTIONS)} corruptions", flush=True)
    asked = [part for part in parts.values() if part.by_set]
    texts = [text for part in asked for text in (f"## {part.title}", *_tables(part))]
    write(source, "quality-wrong-model", circumstances(source, "wrong-model"), texts)


def _load_written(file: Path) -> dict[str, dict[str, str]]:
    """The written replies, by set and question."""
    found: dict[str, dict[str, str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["set"], {})[record["_id"]] = record["reply"]
    return found


def _pair(questions: Sequence[Question], recorded: Mapping[str, Record]) -> list[Case]:
    away = len(questions) // 2
    others = [*questions[away:], *questions[:away]]
    return [
        Case(one, recorded[one.id], recorded[other.id], number)
        for number, (one, other) in enumerate(zip(questions, others, strict=True))
    ]


def _answer_from(
    replies: Replies, one: Prepared, settings: Mapping[str, Any]
) -> Callable[[Question], Run]:
    """A system whose model says these *replies*, and is judged by those it has given."""
    reply = ""
    system = one.asking(ScriptedModel(lambda _: reply)).with_settings(settings)

    def answer(question: Question) -> Run:
        nonlocal reply
        reply = replies[question.id]
        return run_of(system.retrieve(question))

    return answer


def _named(system: str, condition: str) -> str:
    return f"{system}: {condition}"


def _tables(part: Part) -> list[str]:
    head = ["the model's replies", *part.by_set, "mean", "gain over off", "hurt"]
    texts = [table(head, [_row(part, name, name) for name in FREE])]
    for asked in ASKED:
        rows = [_row(part, condition, _named(asked, condition)) for condition in part.conditions]
        texts += [f"### {asked}", table(head, rows)]
    return texts


def _row(part: Part, label: str, system: str) -> list[str]:
    scores = [comparison[system] for comparison in part.by_set.values()]
    return [
        label,
        *(quality(score.means[PRIMARY], score.hurt_rate) for score in scores),
        f"{mean([score.means[PRIMARY] for score in scores]):.3f}",
        f"{100 * mean([score.difference.gain for score in scores]):+.1f}",
        f"{mean([score.hurt_rate for score in scores]):.1%}",
    ]
