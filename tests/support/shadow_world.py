"""What shadow mode logs of questions whose lists are given as letters, one for each passage."""

from __future__ import annotations

from typing import Any

from qtmiddleware.kit.evaluation.shadow import ListedPassage, ShadowQuestion, ShadowReport


def build_question(
    plain: str, ours: str, *, query: str = "Who?", words: str = "passage", **changed: Any
) -> ShadowQuestion:
    """A question whose caller got the passages *plain*, while ours are *ours*; *words* are in every text."""

    def show(names: str) -> tuple[ListedPassage, ...]:
        return tuple(ListedPassage(f"{words} {it}", f"{words} about {it}") for it in names)

    kept = len(set(plain) & set(ours))
    figures: dict[str, Any] = {
        "status": "full", "searches": 2, "llm_calls": 1, "tokens": 120, "cost_usd": 0.002, "plain_ms": 40.0, "ms": 90.0,
    }  # fmt: skip
    return ShadowQuestion(
        query=query, plain=show(plain), ours=show(ours), kept=kept, is_first_same=plain[:1] == ours[:1],
        is_order_same=plain == ours, **{**figures, **changed},
    )  # fmt: skip


def build_shadow_report(*, words: str = "passage", **changed: Any) -> ShadowReport:
    """Four questions: one with the same list, one in another order, one with a new passage, one with all new ones."""
    lists = {"same": "abc", "order": "acb", "one": "dab", "all": "xyz"}
    questions = (
        build_question("abc", ours, query=f"What about {it}? {words}", words=words)
        for it, ours in lists.items()
    )
    return ShadowReport(tuple(questions), **changed)
