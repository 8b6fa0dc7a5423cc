"""The dates that words such as "last year" lean on, told to the model with the questions that hold such a word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from qtmiddleware.preprocessing import Span
from qtmiddleware.preprocessing.dates import Times, find_unit, split_tokens
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.prompt import as_data

_RULE: Final = (
    '"dates" in the user message holds today\'s date and what words that lean on it mean. You may'
    " write these dates instead of, or beside, such words of the query; never guess another date."
)


@dataclass(frozen=True, eq=False, slots=True)
class Anchors:
    """What *today* makes of the words of one question, read as *times*, that lean on it."""

    today: date
    times: Times

    def add_to(self, prompt: Prompt) -> Prompt:
        """Return *prompt* with the dates; they are part of its version, and so of the cache key."""
        user = as_data({"dates": self._name_dates(), **json.loads(prompt.user)})
        version = f"{prompt.version}@{self.today}"
        return replace(prompt, version=version, system=f"{prompt.system}\n\n{_RULE}", user=user)

    def _name_dates(self) -> dict[str, str]:
        today = self.today
        named = {"today": f"{today:%A}, {today}"}
        for unit in ("week", "month", "year"):
            try:
                first, last = find_unit(today, unit, -1)
            except (ValueError, OverflowError):
                # Before the first year of the calendar there is none.
                continue
            spans = {
                "week": f"{first} to {last}",
                "month": f"{first:%B} {first.year}",
                "year": str(first.year),
            }
            named[f"last {unit}"] = spans[unit]
        return named

    def drop_leaning(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Return those of *spans* that the model must keep: not the 3 of "3 years ago", which it may resolve."""
        leaning, asked = Counter(self.times.leaning), Counter(self.times.tokens)
        return [
            span
            for span in spans
            if not (words := split_tokens(span.text))
            or any(leaning[word] < max(1, asked[word]) for word in words)
        ]
