"""Convert between the address of the playground's page and what the page asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlencode

from qtmiddleware.types import Message

MOST_TURNS: Final = 20
"""The maximum number of messages before the question. No prompt contains more messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """What the page asks, as the page's address says it.

    Attributes:
        question: The question.
        history: The messages before the question.
        tiers: The names of the tiers to ask; the plain tier comes first.
        problems: One sentence per parameter of the address that cannot be used.
    """

    question: str = field(default="", repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    tiers: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def from_parameters(
        cls,
        parameters: Iterable[tuple[str, str]],
        known_tiers: Sequence[str],
        default_tiers: Sequence[str],
    ) -> PageState:
        """Return the state in the query *parameters* of an address.

        The plain tier comes first in *known_tiers*. If the parameters name no tier, those in
        *default_tiers* are asked.
        """
        question = ""
        history: list[Message] = []
        named: set[str] = set()
        problems: list[str] = []
        for name, value in parameters:
            if name == "q":
                question = value
                if value.isspace():
                    problems.append("The question must not be blank.")
            # A form also sends the fields that nobody filled in.
            elif not value.strip():
                continue
            elif name in ("user", "assistant"):
                history.append(Message(name, value))
            elif name == "tier" and value in known_tiers:
                named.add(value)
            elif name == "tier":
                problems.append(f"There is no tier {value!r} here.")
        if len(history) > MOST_TURNS:
            problems.append(f"Only the last {MOST_TURNS} earlier turns are used.")
        chosen = named or default_tiers
        return cls(
            question=question,
            history=tuple(history[-MOST_TURNS:]),
            # The plain list is always asked, because the others are compared with it.
            tiers=tuple(name for name in known_tiers if name in (known_tiers[0], *chosen)),
            problems=tuple(problems),
        )

    def list_parameters(self, default_tiers: Sequence[str]) -> list[tuple[str, str]]:
        """Return the parameters from which `from_parameters` builds this state again.

        An address without a tier means *default_tiers*, so these are not named.
        """
        plain, others = self.tiers[:1], self.tiers[1:]
        # The plain tier is always asked. It is named only if no other tier is.
        named_tiers = others or plain
        if self.tiers == tuple(default_tiers):
            named_tiers = ()
        return [
            *([("q", self.question)] if self.question.strip() else []),
            *((turn.role, turn.content) for turn in self.history),
            *(("tier", name) for name in named_tiers),
        ]

    def format_link(self, default_tiers: Sequence[str]) -> str:
        """Return the address of this state, relative to the page."""
        # A lone surrogate in a text cannot be encoded.
        return "?" + urlencode(self.list_parameters(default_tiers), errors="replace")

    def follow_up(self) -> PageState:
        """Return the state for a follow-up question, with the current question in the history."""
        turns = (*self.history, Message("user", self.question))
        return replace(self, question="", history=turns[-MOST_TURNS:])
