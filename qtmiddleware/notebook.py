"""Show a `Retrieval` in a notebook: a table of passages that says why each passage moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

# The module `types` imports this module, so its classes cannot be imported here. *retrieval* is a
# `Retrieval`, and *match* is a `Match`.
Key = tuple[str, str]

MOST_CHARS: Final = 160
"""The maximum number of characters that the table shows of a passage."""
# Notebooks have light and dark themes, so only properties that no theme sets are set here.
_CELL: Final = 'style="text-align:left;vertical-align:top"'


def render_html(retrieval: Any) -> str:
    """Return *retrieval* as HTML: a summary, and a table with one row per passage.

    All texts are escaped.
    """
    heads = "".join(
        f"<th {_CELL}>{heading}</th>" for heading in ("place", "before", "passage", "why")
    )
    rows = "".join(_render_table_row(*row) for row in list_table_rows(retrieval))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><p>{escape(describe_retrieval(retrieval))}</p>{table}</div>"


def describe_retrieval(retrieval: Any) -> str:
    """Return a one-line summary of *retrieval* without any query or passage text."""
    trace, matches = retrieval.trace, len(retrieval.matches)
    problems = ", ".join(
        f"{degradation.stage} {degradation.reason}" for degradation in retrieval.degradations
    )
    phrases = [
        f"{matches} match{'' if matches == 1 else 'es'}",
        f"degraded: {problems}" if problems else retrieval.status,
        f"{trace.searches} search{'' if trace.searches == 1 else 'es'}",
        f"{trace.llm_calls} model call{'' if trace.llm_calls == 1 else 's'}",
        f"{trace.total_ms:.0f} ms",
    ]
    if retrieval.confidence is not None:
        phrases.append(
            f"confidence {retrieval.confidence:.2f}{' (unsure)' if retrieval.is_unsure else ''}"
        )
    return ", ".join(phrases)


def list_table_rows(retrieval: Any) -> list[tuple[int, str, Any, str]]:
    """Return one table row per passage of *retrieval*.

    A row has four values: the passage's position, its position without qtmiddleware, its match, and
    the reason why the passage moved.
    """
    plain_keys = next(
        (ranking.keys for ranking in retrieval.rankings if ranking.variant.kind == "original"), None
    )
    former_positions = (
        {}
        if plain_keys is None
        # Reversed, so that a repeated passage gets its first position.
        else {key: position for position, key in reversed(list(enumerate(plain_keys, start=1)))}
    )
    evidence = retrieval.evidence
    shares = {} if evidence is None else dict(zip(evidence.keys, evidence.shares, strict=True))
    return [
        (
            position,
            _describe_former_position(match.key, former_positions),
            match,
            _explain_move(match, position, former_positions, shares),
        )
        for position, match in enumerate(retrieval.matches, start=1)
    ]


def _describe_former_position(key: Key, former_positions: Mapping[Key, int]) -> str:
    if not former_positions:
        return ""
    return str(former_positions[key]) if key in former_positions else "new"


def _explain_move(
    match: Any, position: int, former_positions: Mapping[Key, int], shares: Mapping[Key, float]
) -> str:
    """Return the reason why the passage of *match* moved.

    Returns ``""`` if the passage did not move, or if *former_positions* is empty.

    Args:
        match: The passage.
        position: The passage's position in the result, from 1.
        former_positions: The positions without qtmiddleware, by key.
        shares: The amounts that keywords added to the passages' scores, by key.
    """
    former_position = former_positions.get(match.key)
    if not former_positions or former_position == position:
        return ""
    reasons = []
    variants = [kind for kind in match.found_by if kind != "original"]
    if variants:
        reasons.append(f"found by {_join_variant_kinds(variants)}")
    if shares.get(match.key, 0.0) > 0.0:
        reasons.append("holds keywords")
    if match.rerank_score is not None:
        reasons.append("reranked")
    if former_position is not None and former_position < position and not reasons:
        return "others moved up"
    return ", ".join(reasons)


def _join_variant_kinds(kinds: Sequence[str]) -> str:
    return " and ".join(kind.replace("_", " ") for kind in kinds)


def _render_table_row(position: int, former_position: str, match: Any, reason: str) -> str:
    text = match.text or ""
    excerpt = text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"
    name = f"<code>{escape(match.id)}</code> " if match.id else ""
    cells = (
        str(position),
        former_position,
        f'{name}<span dir="auto">{escape(excerpt)}</span>',
        escape(reason),
    )
    return f"<tr>{''.join(f'<td {_CELL}>{cell}</td>' for cell in cells)}</tr>"
