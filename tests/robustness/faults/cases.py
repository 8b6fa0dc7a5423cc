"""The matrix: as few cases as hold every pair of values of any two of four dimensions.

What a case leaves open (whose client, which kind of search, which form of a fault) is drawn from
the seed and its name, so that a name and a seed are one case for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

MODELS: Final = (
    *(
        "ok",
        "slow",
        "hang",
        "trickle",
        "401",
        "429-retry-after",
        "429",
        "500",
        "503",
        "reset",
        "dns",
        "tls",
    ),
    *("trickled-500", "deep"),
    *("empty-body", "10mb", "bad-utf8", "wrong-schema", "refusal", "length", "reasoning"),
)
SEARCHES: Final = (
    "ok",
    "one-fails",
    "all-fail",
    "original-fails",
    "slow",
    "duplicates",
    "empty",
    "scores",
    "unsorted",
)
WAYS: Final = ("sync", "async")
KINDS: Final = ("rewrite", "decompose", "all", "combined", "auto")

BACKENDS: Final = ("search", "function")
"""``index.search``, and a function that returns the SDK's own classes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One place in the matrix."""

    model: str
    search: str
    way: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.model}+{self.search}+{self.way}+{self.kind}"

    def drawn(self, seed: int) -> Draw:
        """What the seed decides about this case."""
        random = Random(f"{seed} {self.name}")
        # JSON knows no NaN, and the SDK refuses null: only a function can give such scores.
        backend = "function" if self.search == "scores" else random.choice(BACKENDS)
        return Draw(
            backend, random.choice(("given", "own")), random.choice((0, 1)), random.random() < 0.25
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """*client* is the user's own or the one the middleware makes; *form* chooses between two forms of the fault."""

    backend: str
    client: str
    form: int
    evidence: bool

    def __str__(self) -> str:
        return f"{self.backend}, {self.client} client, form {self.form}{', keyword evidence' * self.evidence}"


def covering() -> list[Case]:
    """As few cases as can hold every pair of values of any two dimensions: as many as the two longest have pairs.

    Along each row and each column of model x search the sum of both places takes at least nine
    values in a row, which hold all five kinds, both ways, and (over all of them) each kind with
    each way.
    """
    return [
        Case(
            model,
            search,
            WAYS[(row + column) // len(KINDS) % len(WAYS)],
            KINDS[(row + column) % len(KINDS)],
        )
        for row, model in enumerate(MODELS)
        for column, search in enumerate(SEARCHES)
    ]
