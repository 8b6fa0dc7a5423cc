"""The questions a system hurt most: what was asked, what was searched, and what was found with and without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from qtmiddleware.evaluation import PRIMARY, Comparison, Dataset, Question, SystemScore
from qtmiddleware.ports import Passage
from qtmiddleware.reporting.wording import ending, short
from qtmiddleware.types import Variant

WORST: Final = 10
"""So many questions of each system are shown."""
FOUND: Final = 10
"""So many passages are, which is as far as the measure looks."""
QUESTION_LENGTH, TURN_LENGTH, VARIANT_LENGTH, PASSAGE_LENGTH, ID_LENGTH = 400, 160, 400, 90, 60
_VARIANTS: Final = 16
_TURNS: Final = 4


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that was found: its *rank* from 1, its first words, and its *grade*, ``None`` where not known."""

    rank: int
    id: str
    text: str = field(repr=False)
    grade: int | None = None

    @property
    def is_relevant(self) -> bool:
        """Whether it is judged to answer the question."""
        return self.grade is not None and self.grade > 0


@dataclass(frozen=True, slots=True)
class Hurt:
    """A question that lost against the baseline: *gain* below 0, from *before* to *after*, and why that may be.

    *missed* are relevant passages that are not among the first ten of the system. All texts are as they can be shown,
    cut to what a reader looks at.
    """

    id: str
    question: str = field(repr=False)
    history: tuple[tuple[str, str], ...] = field(repr=False)
    gain: float
    before: float
    after: float
    variants: tuple[Variant, ...] = field(repr=False)
    raw: tuple[Found, ...] = field(repr=False)
    found: tuple[Found, ...] = field(repr=False)
    missed: tuple[Found, ...] = field(repr=False)


class Hurting:
    """The questions that systems of *comparison* hurt most, told with the texts of *data* where it is given."""

    def __init__(self, comparison: Comparison, data: Dataset | None = None) -> None:
        self._base = comparison[comparison.baseline]
        self._questions = {question.id: question for question in data.questions} if data else {}
        self._qrels = data.qrels if data else {}
        wanted = set(self._wanted(comparison.systems))
        passages = data.passages if data else ()
        self._words = {it.id: short(_words(it), PASSAGE_LENGTH) for it in passages if it.id in wanted}

    def of(self, score: SystemScore) -> tuple[Hurt, ...]:
        """Those that *score*'s system hurt, the worst first."""
        return tuple(self._hurt(score, question, gain) for question, gain in score.worst(WORST))

    def text(self, id_: str) -> str:
        """What was asked, as far as it is known."""
        if id_ in self._questions:
            return self._questions[id_].text
        run = self._base.runs.get(id_)
        return next((it.text for it in run.variants if it.kind == "original"), "") if run else ""

    def _hurt(self, score: SystemScore, id_: str, gain: float) -> Hurt:
        run, base = score.runs[id_], self._base.runs[id_]
        after = score.per_query.values[PRIMARY][id_]
        grades = self._qrels.get(id_)
        raw, found = (self._found(it.ids[:FOUND], grades) for it in (base, run))
        seen = set(run.ids[:FOUND])
        lost = [it for it, grade in (grades or {}).items() if grade > 0 and it not in seen]
        return Hurt(
            id=short(id_, ID_LENGTH),
            question=short(self.text(id_), QUESTION_LENGTH),
            history=_turns(self._questions.get(id_)),
            gain=gain,
            before=after - gain,
            after=after,
            variants=tuple(replace(it, text=short(it.text, VARIANT_LENGTH)) for it in run.variants[:_VARIANTS]),
            raw=raw,
            found=found,
            missed=self._found(lost[:FOUND], grades),
        )

    def _found(self, ids: Iterable[str], grades: Mapping[str, int] | None) -> tuple[Found, ...]:
        return tuple(
            Found(rank, ending(it, ID_LENGTH), self._words.get(it, ""), None if grades is None else grades.get(it, 0))
            for rank, it in enumerate(ids, 1)
        )

    def _wanted(self, scores: Iterable[SystemScore]) -> Iterator[str]:
        """The passages that will be shown."""
        for score in scores:
            for question, _ in score.worst(WORST):
                yield from self._base.runs[question].ids[:FOUND]
                yield from score.runs[question].ids[:FOUND]
                yield from self._qrels.get(question, {})


def _words(passage: Passage) -> str:
    """What *passage* says, set apart from its title where it has one."""
    title = passage.metadata.get("title")
    if not isinstance(title, str) or not passage.text.startswith(f"{title}\n"):
        return passage.text
    return f"{title}: {passage.text[len(title) + 1 :]}"


def _turns(question: Question | None) -> tuple[tuple[str, str], ...]:
    """The end of the conversation before *question*, where there was one."""
    turns = question.history[-_TURNS:] if question else ()
    return tuple((short(turn.role, 20), short(turn.content, TURN_LENGTH)) for turn in turns)
