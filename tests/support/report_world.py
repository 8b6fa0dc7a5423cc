"""Comparisons to report on, put together from what each question gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from qtmiddleware.kit.evaluation import Comparison, Dataset, Difference, Question, Run, SystemScore
from qtmiddleware.kit.evaluation.measures import MEASURES, TOLERANCE
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message, Variant

if TYPE_CHECKING:
    from playwright.sync_api import Page

Open = Callable[..., "Page"]
BEFORE, FIRST = 0.5, 0.6


def run(
    question: str,
    *,
    text: str = "",
    ids: Sequence[str] = ("p1", "p2"),
    calls: int = 0,
    cost: float | None = 0.0,
    searches: int | None = None,
    ms: float = 0.2,
    variants: Sequence[tuple[str, str, float]] = (),
) -> Run:
    """What a system found for *question*, searched with its *text* and *variants*."""
    searched = [Variant("original", text or f"what about {question}?")]
    searched += [Variant(kind, said, weight) for kind, said, weight in variants]  # type: ignore[arg-type]
    return Run(
        tuple(ids),
        ms / 1e3,
        llm_calls=calls,
        cost_usd=cost,
        variants=tuple(searched),
        searches=searches,
    )


def score(
    name: str,
    gains: Mapping[str, float],
    *,
    is_significant: bool = True,
    spread: float = 0.02,
    runs: Mapping[str, Run] | None = None,
) -> SystemScore:
    """A system that made of each question's 0.5 what *gains* adds to it; from 0.6 on, its first passage is right."""
    found = dict(runs) if runs is not None else {question: run(question) for question in gains}
    gain = sum(gains.values()) / len(gains)
    values = {question: BEFORE + one for question, one in gains.items()}
    ranks = {
        question: 1.0 if value > FIRST - TOLERANCE else 0.5 for question, value in values.items()
    }
    p = 0.001 if is_significant and gain else 1.0
    measured = {name: ranks if name == "MRR@10" else values for name in MEASURES}
    difference = Difference(gain, gain - spread, gain + spread, p, p, gains=gains)
    return SystemScore(name, measured, difference, found)


def comparison(
    *challengers: SystemScore,
    base: str = "off",
    notes: Sequence[str] = (),
    name: str = "a set",
) -> Comparison:
    """*challengers* held against a baseline; that alone, on one question, where there are none."""
    questions = list(challengers[0].difference.gains) if challengers else ["q0"]
    raw = score(base, dict.fromkeys(questions, 0.0), is_significant=False, spread=0.0)
    return Comparison(name, 97, len(questions), base, (raw, *challengers), tuple(notes), seed=7)


def several(count: int = 40, systems: int = 6) -> Comparison:
    """A comparison as it often looks: free systems and such as cost something, some better, one worse."""
    questions = [f"q{number}" for number in range(count)]
    found = []
    for place in range(systems):
        gains = {
            question: round(((number * (place + 3)) % 11 - 2 - (place == 1) * 5) / 20, 4)
            for number, question in enumerate(questions)
        }
        calls = 0 if place < 2 else place - 1
        runs = {
            question: run(
                question,
                ids=("p2", "p1", f"p{number % 5 + 3}"),
                calls=calls,
                cost=calls * 0.0001,
                ms=150.0 * place,
                variants=[("rewrite", f"rewritten {question}", 0.7)],
            )
            for number, question in enumerate(questions)
        }
        found.append(
            score(
                f"system {place}",
                gains,
                is_significant=place != 0,
                runs=runs,
            )
        )
    return comparison(*found, notes=("Replies are recorded.",))


def data(found: Comparison, *, words: str = "words of", history: Sequence[Message] = ()) -> Dataset:
    """The questions and passages of *found*, every question answered by ``p1``."""
    questions = tuple(
        Question(id_, f"{words} question {id_}", tuple(history))
        for id_ in found[found.baseline].difference.gains
    )
    ids = dict.fromkeys(
        id_ for system in found.systems for one in system.runs.values() for id_ in one.ids
    )
    passages = tuple(
        Passage(id_, f"A title\n{words} passage {id_}", {"title": "A title"}) for id_ in ids
    )
    return Dataset(
        found.dataset,
        passages,
        questions,
        {question.id: {"p1": 2, "p2": 0} for question in questions},
    )
