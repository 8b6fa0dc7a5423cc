"""Passages about bridges that do not exist, and a model that writes questions about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qtmiddleware.protocols import Passage, Prompt

NAMES = (
    "Arlo", "Benta", "Corvey", "Dunmar", "Elstow", "Fenrick", "Gilder", "Harrow", "Isling", "Jorvik", "Kelmar",
    "Lunden", "Marwick", "Norby", "Ostrel", "Pentle", "Quarne", "Rostow", "Selby", "Tarbet", "Ulver", "Vardo",
    "Wexley", "Yarrow",
)  # fmt: skip
ASKED = "test_question"


def sentence(name: str) -> str:
    year = 1850 + NAMES.index(name)
    return f"After delays and a change of the builder, traffic was let onto {name} Bridge for the first time in {year}."


def bridge(name: str, *, document: str = "", number: int = 0) -> Passage:
    text = (
        f"{sentence(name)} Divers inspect its foundations every other spring, because the river moves a great deal of "
        "gravel and has more than once laid bare the piles below the waterline."
    )
    return Passage(f"{document or name}#{number}", text, {"source": f"{document or name}.txt"})


def bridges(count: int) -> list[Passage]:
    return [bridge(name) for name in NAMES[:count]]


def shown(prompt: Prompt) -> dict[str, str]:
    given: dict[str, str] = json.loads(prompt.user)
    return given


def name_in(prompt: Prompt) -> str:
    return next(name for name in NAMES if f"{name} Bridge" in shown(prompt)["passage"])


def writer(prompt: Prompt) -> Mapping[str, Any]:
    """Good questions, which their passages answer."""
    name = name_in(prompt)
    if prompt.mode == ASKED:
        return {
            "question": f"When could people drive over {name} Bridge?",
            "answer": f"In {sentence(name)[-5:-1]}.",
        }
    return {"answers": "yes"}


def asking(question: str, answer: str = "In 1850.") -> Any:
    """A writer whose every question is the same."""
    return lambda prompt: (
        {"question": question, "answer": answer} if prompt.mode == ASKED else writer(prompt)
    )


def checking(reply: Any) -> Any:
    """A writer whose every check is the same."""
    return lambda prompt: writer(prompt) if prompt.mode == ASKED else reply
