"""Convert between the playground's address and its state: question, tiers and settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode

from qtmiddleware.catalogue import FUSION_METHODS, TEXT_FIELDS
from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.types import Message

MOST_TURNS: Final = 20
"""The maximum number of messages before the question. No prompt contains more messages."""
_ROLES: Final = ("user", "assistant")
_FOLLOW_UP: Final = "then"
"""The query parameter that the button for a follow-up question sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting that the user can change on the playground's page.

    Attributes:
        key: The setting's config key.
        label: The setting's name on the page.
        meaning: A description of the setting's effect.
        usual: The default value, as text.
        low: The lowest allowed number.
        high: The highest allowed number.
        step: The step between allowed numbers.
        choices: The allowed values of a setting that is not a number.
    """

    key: str
    label: str
    meaning: str
    usual: str
    low: float = 0.0
    high: float = 1.0
    step: float = 0.05
    choices: tuple[str, ...] = ()


TOP_K: Final = "topK"
_WEIGHTS: Final = "fusion.weights."
KNOBS: Final[Mapping[str, Knob]] = {
    knob.key: knob
    for knob in (
        Knob(
            key=TOP_K,
            label="passages",
            meaning="Number of passages.",
            usual="",
            low=1,
            high=50,
            step=1,
        ),
        Knob(
            key="keywordEvidence.weight",
            label="words’ weight",
            meaning="Share of the keywords in the order; the rest is the search's own score.",
            usual="auto",
        ),
        Knob(
            key="fusion.method",
            label="fusion",
            meaning="How several result lists are merged.",
            usual="",
            choices=tuple(name for name, row in FUSION_METHODS.items() if row.merges),
        ),
        Knob(
            key=f"{_WEIGHTS}original",
            label="question’s weight",
            meaning="The user's own question.",
            usual="1",
            high=5,
        ),
        *(
            Knob(
                key=_WEIGHTS + to_camel_case(row.name),
                label=f"{row.label}’s weight",
                meaning=row.meaning,
                usual=f"{row.weight:g}",
                high=5,
            )
            for row in TEXT_FIELDS.values()
            if row.variant
        ),
    )
}
"""All settings that the user can change on the page, by config key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """The playground's state, which the address of the page contains.

    Attributes:
        question: The question to ask.
        history: The messages before the question.
        tiers: The names of the tiers to ask.
        settings: The values of changed settings, by flat config key.
        problems: One sentence per invalid parameter in the address.
    """

    question: str = field(default="", repr=False)
    history: tuple[Message, ...] = field(default=(), repr=False)
    tiers: tuple[str, ...] = ()
    settings: Mapping[str, float | int | str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @classmethod
    def from_parameters(
        cls,
        parameters: Iterable[tuple[str, str]],
        known_tiers: Sequence[str],
        default_tiers: Sequence[str],
    ) -> PageState:
        """Return the state that the query parameters of an address describe.

        Ignores invalid parameters. The state's `problems` describe these parameters.

        Args:
            parameters: The names and values of the query parameters.
            known_tiers: The names of the tiers that the user can choose.
            default_tiers: The names of the tiers that the playground asks by default.
        """
        question, history, requested, settings, problems = (
            "",
            list[Message](),
            set[str](),
            dict[str, Any](),
            list[str](),
        )
        for name, value in parameters:
            if name == "q":
                question = value
                if value and not value.strip():
                    problems.append("The question must not be blank.")
            elif name in _ROLES and value.strip():
                history.append(Message(name, value))
            elif name == "tier" and value in known_tiers:
                requested.add(value)
            elif name == "tier" and value.strip():
                problems.append(f"There is no tier {value!r} here.")
            elif name in KNOBS and value.strip():
                try:
                    settings[name] = _parse_value(KNOBS[name], value.strip())
                except ValueError:
                    problems.append(
                        f"{name} must be {_describe_limits(KNOBS[name])}; it was ignored."
                    )
        if len(history) > MOST_TURNS:
            problems.append(f"Only the last {MOST_TURNS} earlier turns are used.")
        # The plain list is always asked, because all others are compared with it.
        tiers = tuple(
            name
            for name in known_tiers
            if name == known_tiers[0] or name in (requested or default_tiers)
        )
        return cls(
            question=question,
            history=tuple(history[-MOST_TURNS:]),
            tiers=tiers,
            settings={key: settings[key] for key in KNOBS if key in settings},
            problems=tuple(problems),
        )

    def list_parameters(self, default_tiers: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Return the names and values of the query parameters for this state.

        Omits default values. *default_tiers* names the tiers that the playground asks by default.
        """
        parameters = [("q", self.question)] if self.question.strip() else []
        parameters += [(turn.role, turn.content) for turn in self.history]
        # The plain list is always asked, so the address names it only if it is the only tier.
        chosen = self.tiers[1:] or self.tiers
        parameters += (
            [("tier", name) for name in chosen]
            if set(self.tiers[1:]) != set(default_tiers[1:])
            else []
        )
        return parameters + [
            (key, value if isinstance(value, str) else f"{value:g}")
            for key, value in self.settings.items()
        ]

    def format_query_string(self, default_tiers: Sequence[str] = ()) -> str:
        """Return the query string of the page's address, beginning with ``?``.

        Omits default values. *default_tiers* names the tiers that the playground asks by default.
        """
        # A lone surrogate in a text cannot be encoded.
        return "?" + urlencode(self.list_parameters(default_tiers), errors="replace")

    def build_follow_up(self) -> PageState:
        """Return the state for a follow-up question, with the current question in the history."""
        message = [Message("user", self.question)] if self.question.strip() else []
        return replace(self, question="", history=(*self.history, *message)[-MOST_TURNS:])


def is_follow_up_request(parameters: Iterable[tuple[str, str]]) -> bool:
    """Return whether *parameters* come from the button for a follow-up question."""
    return any(name == _FOLLOW_UP for name, _ in parameters)


def _parse_value(knob: Knob, value_text: str) -> float | int | str:
    """Return the value in *value_text* for the setting *knob*.

    Raises `ValueError` if the setting does not allow the value.
    """
    if knob.choices:
        if value_text not in knob.choices:
            raise ValueError
        return value_text
    value = int(value_text) if knob.key == TOP_K else float(value_text)
    # NaN fails this test too, because every comparison with NaN is false.
    if not knob.low <= value <= knob.high:
        raise ValueError
    return value


def _describe_limits(knob: Knob) -> str:
    """Return a phrase with the values that the setting *knob* allows, for an error message."""
    if knob.choices:
        return f"one of {', '.join(knob.choices)}"
    return f"a {'whole ' if knob.key == TOP_K else ''}number from {knob.low:g} to {knob.high:g}"
