"""What must come of each case, written down from the design alone.

`REASONS` is the table of `qtmiddleware.errors.ModelError`; the rest is what DESIGN says of bad
days: one prompt that failed is one degradation, one variant whose search failed is one, and below
``minSuccesses`` the original stands alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from tests.robustness.faults.cases import Case, Draw
from tests.robustness.faults.world import HYDE, QUERY, REWRITE, STEP_BACK, SUBS, TEXTS

REASONS: Final = {
    "slow": "timeout",
    "hang": "timeout",
    "trickle": "timeout",
    "401": "unauthorized",
    "429-retry-after": "rate_limited",
    "429": "rate_limited",
    "500": "unavailable",
    "503": "unavailable",
    "reset": "unavailable",
    "dns": "unavailable",
    "tls": "unavailable",
    "trickled-500": "timeout",
    "deep": "unparsable",
    "empty-body": "unparsable",
    "10mb": "unparsable",
    "bad-utf8": "unparsable",
    "wrong-schema": "unparsable",
    "refusal": "refused",
    "length": "truncated",
    "reasoning": "truncated",
}
MODES: Final = {
    "rewrite": ("rewrite",),
    "decompose": ("decompose",),
    "all": ("rewrite", "stepback", "decompose"),
    "combined": ("combined",),
    "auto": ("combined",),
}
Texts = tuple[tuple[str, str], ...]
_SUBS: Final[Texts] = tuple(("sub_query", text) for text in SUBS)
WHOLE: Final[dict[str, Texts]] = {
    "rewrite": (("rewrite", REWRITE),),
    "stepback": (("step_back", STEP_BACK),),
    "decompose": _SUBS,
    "combined": (("rewrite", REWRITE), *_SUBS, ("hyde", HYDE), ("step_back", STEP_BACK)),
}
"""The variants in a whole reply, by prompt."""
SALVAGED: Final[dict[str, Texts]] = {
    "decompose": _SUBS[:1],
    "combined": (("rewrite", REWRITE), _SUBS[0], ("step_back", STEP_BACK)),
}
"""The variants in a reply that breaks off in the second sub-query; of a single text nothing is left."""

MIN_SUCCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class Expected:
    """*raises* the function's own error, or these *troubles*; *variants* are searched and those of *came* found.

    *excused* are reasons that may stand in place of the model's *own*.
    """

    raises: bool
    troubles: Counter[tuple[str, str]]
    variants: Texts
    came: Texts
    own: str
    excused: frozenset[str]


def expected(case: Case, draw: Draw) -> Expected:
    """What must come of *case*."""
    troubles: Counter[tuple[str, str]] = Counter()
    variants: Texts = ()
    # `auto` asks after the first search, for which there may be no time any more.
    model = "slow" if case.kind == "auto" and case.search == "slow" and draw.form else case.model
    for mode in MODES[case.kind]:
        if model == "ok":
            variants += WHOLE[mode]
        elif model == "length" and mode in SALVAGED:
            variants += SALVAGED[mode]
        else:
            troubles[f"transform.{mode}", REASONS[model]] += 1
    failing = broken(case, draw, variants)
    if case.search != "slow":
        lost = tuple(it for it in variants if it[1] in failing)
        troubles.update((f"search.{kind}", "failed") for kind, _ in lost)
    else:
        lost = variants
        troubles.update((f"search.{kind}", "timeout") for kind, _ in lost)
    came = tuple(it for it in variants if it not in lost)
    if len(came) < min(MIN_SUCCESSES, len(variants)):
        troubles["search", "too_few_successes"] += 1
        came = ()
    excused: set[str] = set()
    if model == "dns":
        # How long the system looks for a name is its own affair.
        excused.add("timeout")
    if model == "429-retry-after" and len(MODES[case.kind]) > 1:
        # The first prompt that is told when to come back opens the breaker for those not sent yet.
        excused.add("circuit_open")
    if model == "trickled-500":
        # Its status came; whether its body's end or the deadline comes first is a matter of
        # milliseconds.
        excused.add("unavailable")
    own = REASONS.get(model, "")
    return Expected(
        case.search == "original-fails", troubles, variants, came, own, frozenset(excused)
    )


def broken(case: Case, draw: Draw, variants: Texts | None = None) -> tuple[str, ...]:
    """The texts whose search fails in *case*."""
    if case.search == "original-fails":
        return (QUERY,)
    if case.search == "all-fail":
        return TEXTS[1:]
    if case.search != "one-fails":
        return ()
    if variants is None:
        variants = expected(case, draw).variants
    return (variants[-draw.form][1],) if variants else (REWRITE,)
