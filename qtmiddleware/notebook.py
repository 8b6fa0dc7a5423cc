"""How a notebook shows a `Retrieval`: as a table of its passages, with where each stood before and why it moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

# `types` shows its nouns by this module, so their classes cannot be named here: a retrieval is a
# `Retrieval`, a match a `Match`.
Key = tuple[str, str]

MOST_CHARS: Final = 160
"""Characters of a passage that are shown."""
# A notebook has a style of its own, light or dark: only what no theme decides is set here.
_CELL: Final = 'style="text-align:left;vertical-align:top"'


def render_html(retrieval: Any) -> str:
    """Return *retrieval* as HTML: a sentence about it, and a row per passage. Every text is escaped."""
    heads = "".join(f"<th {_CELL}>{it}</th>" for it in ("place", "before", "passage", "why"))
    rows = "".join(_render_row(*row) for row in list_rows(retrieval))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><p>{escape(describe(retrieval))}</p>{table}</div>"


def describe(retrieval: Any) -> str:
    """Return what a retrieval came to, in one line without any text of the query or of passages."""
    trace, matches = retrieval.trace, len(retrieval.matches)
    problems = ", ".join(f"{it.stage} {it.reason}" for it in retrieval.degradations)
    parts = [
        f"{matches} match{'' if matches == 1 else 'es'}",
        f"degraded: {problems}" if problems else retrieval.status,
        f"{trace.searches} search{'' if trace.searches == 1 else 'es'}",
        f"{trace.llm_calls} model call{'' if trace.llm_calls == 1 else 's'}",
        f"{trace.total_ms:.0f} ms",
    ]
    if retrieval.confidence is not None:
        parts.append(
            f"confidence {retrieval.confidence:.2f}{' (unsure)' if retrieval.is_unsure else ''}"
        )
    return ", ".join(parts)


def list_rows(retrieval: Any) -> list[tuple[int, str, Any, str]]:
    """Return each passage with its place, its place in the plain list, and why it moved."""
    own = next((it.keys for it in retrieval.rankings if it.variant.kind == "original"), None)
    before = (
        {}
        if own is None
        else {key: place for place, key in reversed(list(enumerate(own, start=1)))}
    )
    evidence = retrieval.evidence
    shares = {} if evidence is None else dict(zip(evidence.keys, evidence.shares, strict=True))
    return [
        (place, _describe_before(match.key, before), match, _explain(match, place, before, shares))
        for place, match in enumerate(retrieval.matches, start=1)
    ]


def _describe_before(key: Key, before: Mapping[Key, int]) -> str:
    if not before:
        return ""
    return str(before[key]) if key in before else "new"


def _explain(match: Any, place: int, before: Mapping[Key, int], shares: Mapping[Key, float]) -> str:
    """Why a passage moved; empty for one that stands where it stood, or where that is not known."""
    was = before.get(match.key)
    if not before or was == place:
        return ""
    reasons = []
    variants = [kind for kind in match.found_by if kind != "original"]
    if variants:
        reasons.append(f"found by {_join(variants)}")
    if shares.get(match.key, 0.0) > 0.0:
        reasons.append("holds keywords")
    if match.rerank_score is not None:
        reasons.append("reranked")
    if was is not None and was < place and not reasons:
        return "others moved up"
    return ", ".join(reasons)


def _join(kinds: Sequence[str]) -> str:
    return " and ".join(it.replace("_", " ") for it in kinds)


def _render_row(place: int, before: str, match: Any, why: str) -> str:
    text = match.text or ""
    shown = text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"
    name = f"<code>{escape(match.id)}</code> " if match.id else ""
    cells = (str(place), before, f'{name}<span dir="auto">{escape(shown)}</span>', escape(why))
    return f"<tr>{''.join(f'<td {_CELL}>{it}</td>' for it in cells)}</tr>"
