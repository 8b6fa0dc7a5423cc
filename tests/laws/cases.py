"""The cases of the world: one value per dimension, few cases that hold every pair of values, and any by chance."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from itertools import combinations
from random import Random
from typing import Final

from hypothesis import strategies as st

_VALUES: Final = {
    # How the function is asked: called, awaited, or, though it blocks, awaited in a running loop.
    "way": "blocking, async, threads",
    "callable": "function, method, object, partial",
    "shape": "dicts, metadata, mapping, dataclass, query response, documents response, pairs, columns, "
    "documents, documents and scores",
    "fields": "all, no text, no scores, no ids",
    # How many passages each text finds: more than any call asks for, those with each third one
    # twice, more than the caller asks for, fewer, or none.
    "supply": "plenty, repeated, some, few, none",
    "question": "positional, keyword, clause, vector",
    "number": "positional, keyword, default, absent",
    "model": "none, good, late, garbage, refusing, chatting, failing, wrong count",
    "search": "fine, slow, rejects many, breaks for many, gives less of many, caps many, "
    "ignores the number, fails, one fails, variants fail, variants hang",
    # Presets and transformation types; "concat" is "decompose" with that fusion.
    "setting": "off, rules, words, balanced, thorough, auto, rewrite, decompose, hyde, all, research, "
    "concat",
}
DIMENSIONS: Final = tuple(values.split(", ") for values in _VALUES.values())


@dataclass(frozen=True, slots=True)
class Case:
    """One place in the world; the defaults are a good day."""

    way: str = "blocking"
    callable: str = "function"
    shape: str = "dicts"
    fields: str = "all"
    supply: str = "plenty"
    question: str = "positional"
    number: str = "keyword"
    model: str = "good"
    search: str = "fine"
    setting: str = "balanced"
    seed: int = 0

    def __str__(self) -> str:
        return " / ".join(map(str, astuple(self)))

    @property
    def is_model_asked(self) -> bool:
        """Whether the setting asks the model for every question."""
        return self.setting not in ("off", "rules", "auto")

    @property
    def has_lists_in_turn(self) -> bool:
        """Whether the lists take turns: words do not count, and each passage has its list's score."""
        return self.setting in ("research", "concat")

    @property
    def is_hasty(self) -> bool:
        """Whether the limits are short, because something hangs."""
        return self.model == "late" or self.search == "variants hang"

    @property
    def is_uncertain(self) -> bool:
        """Whether a busy machine may be too late for a model that could have been used."""
        return self.search == "variants hang" and self.model in ("good", "wrong count")


any_case: Final[st.SearchStrategy[Case]] = st.builds(
    Case, *map(st.sampled_from, DIMENSIONS), seed=st.integers(0, 1_000)
)

_Value = tuple[int, str]
"""A value and the place of its dimension."""


def cover_pairs() -> list[Case]:
    """Few cases in which every two values of different dimensions meet."""
    values: list[list[_Value]] = [
        [(place, value) for value in dimension] for place, dimension in enumerate(DIMENSIONS)
    ]
    # A dict keeps its order, so that the cases are the same in every process.
    missing = dict.fromkeys(
        frozenset((one, other))
        for first, second in combinations(values, 2)
        for one in first
        for other in second
    )
    cases = []
    chance = Random(1)
    while missing:
        row = {value[0]: value for value in next(iter(missing))}
        for place, candidates in enumerate(values):
            if place not in row:
                row[place] = max(
                    candidates,
                    key=lambda value: (
                        sum(frozenset((value, other)) in missing for other in row.values()),
                        chance.random(),
                    ),
                )
        for pair in combinations(row.values(), 2):
            missing.pop(frozenset(pair), None)
        cases.append(Case(*(row[place][1] for place in range(len(values))), seed=len(cases)))
    return cases


assert [it.name for it in fields(Case)] == [*_VALUES, "seed"]
