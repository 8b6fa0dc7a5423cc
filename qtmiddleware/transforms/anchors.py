"""Add today's date to the prompt of a question with relative dates, such as "last year"."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Final

from qtmiddleware.preprocessing import Span
from qtmiddleware.preprocessing.dates import Times, find_first_and_last_day, split_date_tokens
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.prompt import format_json_message

_RULE: Final = (
    '"dates" in the user message holds today\'s date and what words that lean on it mean. You may'
    " write these dates instead of, or beside, such words of the query; never guess another date."
)


@dataclass(frozen=True, eq=False, slots=True)
class Anchors:
    """The dates that a model needs to understand phrases such as "last year" in a question.

    Attributes:
        today: Today's date.
        times: The dates and versions that the question names.
    """

    today: date
    times: Times

    def add_dates(self, prompt: Prompt) -> Prompt:
        """Return *prompt* with these dates and a rule on how to use them.

        The new prompt's version contains today's date. The version is part of the cache key, so
        the cache never returns a reply from yesterday.
        """
        user = format_json_message(
            {
                "dates": self._format_dates(),
                **json.loads(prompt.user),
            }
        )
        version = f"{prompt.version}@{self.today}"
        return replace(
            prompt,
            version=version,
            system=f"{prompt.system}\n\n{_RULE}",
            user=user,
        )

    def _format_dates(self) -> dict[str, str]:
        """Return texts that say which dates "today", "last week" and so on stand for."""
        today = self.today
        dates = {"today": f"{today:%A}, {today}"}
        for unit in ("week", "month", "year"):
            try:
                first, last = find_first_and_last_day(today, unit, -1)
            except (ValueError, OverflowError):
                # In the first year of the calendar there is no last year.
                continue
            texts = {
                "week": f"{first} to {last}",
                "month": f"{first:%B} {first.year}",
                "year": str(first.year),
            }
            dates[f"last {unit}"] = texts[unit]
        return dates

    def drop_relative_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        """Return *spans* without those in relative dates, which the model may rewrite.

        For example, the 3 in "3 years ago" is left out. A span stays if one of its words also
        occurs outside relative dates.
        """
        relative_counts = Counter(self.times.relative_tokens)
        token_counts = Counter(self.times.tokens)
        # A word that the tokens do not contain counts as occurring once outside relative dates.
        return [
            span
            for span in spans
            if not (words := split_date_tokens(span.text))
            or any(relative_counts[word] < max(1, token_counts[word]) for word in words)
        ]
