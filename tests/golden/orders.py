"""Measure the orders of a case, write them, and find what differs from the kept ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import qtmiddleware as qtm
from tests.golden.cases import Case, Collection, Question, load
from tests.golden.functions import TOP_K, Retrieve, build_functions
from tests.golden.replies import replay
from tests.golden.vectors import StoredVectors

DIGITS: Final = 6
# Other processors add up the same numbers in another order.
TOLERANCE: Final = 2e-5
FREE: Final = ("off", "rules")
PRESETS: Final = (*FREE, "words", "balanced", "thorough", "auto")
# No cache may save a call that the next version would make, and no busy machine may be too slow.
SETTINGS: Final = {
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 60_000, "deadlineMs": 120_000},
}

Found = tuple[str, float | None, float | None]
"""Of one passage its id, the score its caller sees and that of the fusion."""
Orders = dict[str, dict[str, dict[str, list[Found]]]]
"""By kind of function, preset and question."""


def wrap(collection: Collection, fn: Retrieve, preset: str) -> Any:
    """*fn*, wrapped with *preset* and the recorded replies. What one function learns no other one sees."""
    model = replay(collection) if collection.replies else None
    config = qtm.Config.load(preset, environ={}).overridden(SETTINGS)
    return qtm.QueryMiddleware(config, client=model).wrap(fn)


def measure(case: Case, vectors: StoredVectors | None = None) -> Orders:
    """What each kind of function returns for each question of *case* under each preset, one after the other."""
    collection = load(case)
    functions = build_functions(collection, vectors or StoredVectors(case.path("npz")))
    orders: Orders = {}
    for kind, fn in functions.items():
        for preset in PRESETS if case.is_recorded else FREE:
            search = wrap(collection, fn, preset)
            orders.setdefault(kind, {})[preset] = {
                question.id: ask(search, question) for question in collection.questions
            }
    return orders


def ask(search: Any, question: Question) -> list[Found]:
    """The passages that the wrapped *search* returns for *question*."""
    return read_order(search.retrieve(question.text, top_k=TOP_K, history=question.history))


def read_order(retrieval: qtm.Retrieval) -> list[Found]:
    """The passages of *retrieval*, in which nothing may have gone wrong."""
    if retrieval.status != "full":
        raise AssertionError(f"nothing may be degraded here: {retrieval.degradations}")
    return [
        (str(match.id), _round(match.score), _round(match.fused_score))
        for match in retrieval.matches
    ]


def _round(score: float | None) -> float | None:
    return None if score is None else round(score, DIGITS)


def read(case: Case) -> Orders:
    """The orders that were kept."""
    return json.loads(case.path("json").read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def format_lines(orders: Orders) -> str:
    """*orders* as JSON with a line for each question, so that a change shows which ones it moves."""
    return "{\n" + ",\n".join(_format_level(orders, 2)) + "\n}\n"


def _format_level(level: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, inner in level.items():
        if depth:
            yield f"{json.dumps(name)}: {{\n" + ",\n".join(_format_level(inner, depth - 1)) + "\n}"
        else:
            yield f"{json.dumps(name)}: {json.dumps(inner, ensure_ascii=False)}"


def find_differences(kept: Orders, now: Orders) -> list[str]:
    """The questions whose ids differ, or scores by more than the tolerance; those of one side alone too."""
    before, after = _flatten(kept), _flatten(now)
    return [
        ", ".join(place)
        for place in {**before, **after}
        if not _are_equal(before.get(place), after.get(place))
    ]


def _flatten(orders: Orders) -> dict[tuple[str, str, str], list[Found]]:
    return {
        (kind, preset, question): order
        for kind, presets in orders.items()
        for preset, questions in presets.items()
        for question, order in questions.items()
    }


def _are_equal(before: list[Found] | None, after: list[Found] | None) -> bool:
    if before is None or after is None or len(before) != len(after):
        return False
    return all(
        old[0] == new[0] and all(map(_are_close, old[1:], new[1:]))
        for old, new in zip(before, after, strict=True)
    )


def _are_close(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return abs(before - after) <= TOLERANCE
