"""What must hold for every question, and the account of what became of them."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from dataclasses import fields
from threading import Lock
from typing import Any, Final

from qtmiddleware.types import Retrieval
from tests.robustness.soak.meters import Meter
from tests.robustness.soak.texts import question, tokens_in

KEPT: Final = 20
"""How many breaches are told in full."""


class SearchDown(Exception):
    """What the search function raises on its bad days."""


class Laws:
    """Judges results; safe with many threads."""

    def __init__(self) -> None:
        self.breaches: list[str] = []
        self.broken = 0
        self.asked = 0
        self.outcomes: Counter[str] = Counter()
        self.seconds = array("f")
        self.reached: Counter[str] = Counter()
        self.able: Counter[str] = Counter()
        self.searches = 0
        self._lock = Lock()

    def breach(self, what: str) -> None:
        """Something did not hold."""
        with self._lock:
            self.broken += 1
            if len(self.breaches) < KEPT:
                self.breaches.append(what)

    def begun(self) -> None:
        """A question was asked."""
        with self._lock:
            self.asked += 1

    def ended(self, outcome: str, seconds: float) -> None:
        """A question came back."""
        with self._lock:
            self.outcomes[outcome] += 1
            self.seconds.append(seconds)

    def searched(self, asked_by: str, text: str) -> None:
        """A search for *text* sees *asked_by* in its context."""
        self.searches += 1
        if tokens_in(text) != {asked_by}:
            self.breach(f"a search of {asked_by} was for {sorted(tokens_in(text))}")

    def rows(self, token: str, rows: list[dict[str, Any]]) -> None:
        """What was found for *token* belongs to it."""
        strangers = [row["id"] for row in rows if not row["id"].startswith(f"{token}/")]
        if strangers or not rows:
            self.breach(f"{token} found {strangers or 'nothing'}")

    def retrieval(self, way: str, cap: int, token: str, found: Retrieval, meter: Meter) -> str:
        """Judge one account; answers its outcome."""
        self.rows(token, found.response)
        texts = [
            found.original_query,
            *(it.text for it in found.variants),
            *_texts(found.transformation),
        ]
        if found.original_query != question(token) or any(
            tokens_in(text) - {token} for text in texts
        ):
            self.breach(f"{token} was given texts of another question")
        if any(not str(match.id).startswith(f"{token}/") for match in found.matches):
            self.breach(f"{token} was given matches of another question")
        if any(it.stage == "middleware" for it in found.degradations):
            self.breach(f"the middleware failed: {found.degradations}")
        if found.status == "full" and len(found.variants) > cap:
            with self._lock:
                self.able[way] += 1
                self.reached[way] += meter.peak == cap
            if way == "async" and meter.peak < cap:
                self.breach(
                    f"{token} had {meter.peak} calls in flight at most, where {cap} are allowed"
                )
        if found.status == "full":
            return "full"
        stage, reason = found.degradations[0].stage.split(".")[0], found.degradations[0].reason
        return f"degraded: {stage} {reason}"

    def cap(self, way: str, cap: int, token: str, meter: Meter) -> None:
        """Never were more calls in flight than allowed."""
        if meter.peak > cap:
            self.breach(
                f"{token} ({way}) had {meter.peak} calls in flight, where {cap} are allowed"
            )

    def percentile(self, share: float) -> float:
        """The seconds within which *share* of all questions came back."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class Complaints(logging.Handler):
    """Every error that is logged is a breach; warnings of degraded retrievals are none."""

    def __init__(self, laws: Laws) -> None:
        super().__init__(logging.ERROR)
        self._laws = laws

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        self._laws.breach(f"logged by {record.name}: {record.getMessage()}")


def _texts(transformation: Any) -> list[str]:
    values = [
        getattr(transformation, it.name) for it in fields(transformation) if it.name != "notes"
    ]
    return [
        text for value in values for text in ((value,) if isinstance(value, str) else value or ())
    ]
