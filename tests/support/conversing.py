"""The passages that are asked about, and the environment they are asked in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from qtmiddleware.protocols import Passage

QUESTION: Final = "Does Jaco have any health concerns?"
HEALTH: Final = "Jaco has no health concerns, says the vet."
PASSAGES: Final = (
    Passage("health", HEALTH, {"source": "vet.pdf", "title": "The vet's report", "page": 3}),
    Passage(
        "food",
        "Jaco eats dry food twice a day: naïve, but \x1b[31mgood\x07 for him.",
        {"source": "food.txt"},
    ),
    Passage("illness", "Older dogs suffer from arthritis and obesity.", {"source": "dogs.txt"}),
    Passage("fees", "The fee for the allotment is due in March.", {"source": "fees.txt"}),
)
PATIENCE: Final = {"QTM_LIMITS_LLM_TIMEOUT_MS": "60000", "QTM_LIMITS_DEADLINE_MS": "90000"}
"""What a command is started with whose answers must not depend on how busy the machine is."""
INDEX: Final = Path(".tmp/index/qtmiddleware.sqlite")


def read_plain_environment() -> dict[str, str]:
    """The environment without what would decide which model is asked."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_"))
    }


def environ(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a terminal, without a key."""
    own = {"TERM": "xterm", "XDG_STATE_HOME": str(folder / "state")}
    return {**read_plain_environment(), **PATIENCE, **own, **more}
