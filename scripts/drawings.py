"""The drawings of docs/how-it-works.md: ``python -m scripts.drawings`` writes them to docs/drawings/.

That of the lists is one real retrieval, so its numbers are those the code gives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel

FOLDER = Path(__file__).parents[1] / "docs/drawings"
INK, PAPER, OURS, MODEL, QUIET = "#1f2933", "#ffffff", "#2f6f9f", "#a4541a", "#66717a"

QUESTION = "Does Jaco have any health concerns?"
REPLY = {
    "rewrite": "illnesses of the dog Jaco",
    "hyde": "The vet examined Jaco: heart, hips and teeth are well.",
}
PASSAGES = {
    "toys": "Does Jaco have any toys? A ball and a rope.",
    "walks": "Does anybody have any time to walk Jaco on Monday?",
    "health": "Jaco has no health concerns.",
    "food": "Jaco eats twice a day, any food he can have.",
    "vet": "The vet examined the dog: his heart and teeth are well.",
    "cats": "Do any cats have a bed of their own?",
    "fees": "Fees are due on Monday.",
    "garden": "The garden is closed for the winter.",
}


def search(query: str, top_k: int = 8) -> list[dict[str, Any]]:
    """What a poor search finds: by how much of the query's words, and of their beginnings, stand in a passage."""
    asked = set(re.findall(r"\w+", query.lower()))
    score = {}
    for name, text in PASSAGES.items():
        words = set(re.findall(r"\w+", text.lower()))
        near = sum(any(word[:3] == other[:3] for other in words) for word in asked)
        score[name] = (len(asked & words) + 0.25 * near) / (len(asked) + len(words)) ** 0.5
    best = sorted(score, key=lambda it: -score[it])[:top_k]
    return [{"id": name, "score": round(score[name], 3), "text": PASSAGES[name]} for name in best]


def draw_lists() -> str:
    """One question's lists, from the plain search to the result, and every passage's way through them."""
    plan = {"transformationType": "combined", "limits": {"maxSearches": 2}}
    wrapped = qtm.QueryMiddleware(plan, client=ScriptedModel(REPLY)).wrap(search)
    r = wrapped.retrieve(QUESTION, top_k=8)
    own, second = (
        next(it for it in r.rankings if (it.variant.kind == "original") is first)
        for first in (True, False)
    )
    columns = [
        (
            "your search",
            [(key[1], f"{score:.2f}") for key, score in zip(own.keys, own.scores, strict=True)],
        ),
        (
            "the model's words",
            [
                (key[1], f"{score:.2f}")
                for key, score in zip(second.keys, second.scores, strict=True)
            ],
        ),
        (
            "fused",
            [(key[1], f"{score:.2f}") for key, score in zip(r.fused, r.fused_scores, strict=True)],
        ),
        ("with keywords", [(it.id or "", f"{it.fused_score:.2f}") for it in r.matches]),
    ]
    wide, row, top = 190, 30, 66
    height = top + row * len(PASSAGES) + 12
    moved = {name for name, _ in columns[-1][1][:2]}
    drawn: list[str] = []
    for at, (heading, rows) in enumerate(columns):
        x = 20 + at * (wide + 50)
        drawn.append(_text(x, 26, heading, weight="bold", colour=MODEL if at == 1 else INK))
        drawn.append(_text(x, 46, _SAID[at], size=12, colour=QUIET))
        for place, (name, score) in enumerate(rows):
            y = top + place * row
            colour = OURS if name in moved else QUIET
            drawn.append(_rect(x, y, wide, row - 6, stroke=colour))
            drawn.append(
                _text(
                    x + 8,
                    y + 17,
                    f"{place + 1}  {name}",
                    size=13,
                    colour=INK if name in moved else QUIET,
                )
            )
            drawn.append(_text(x + wide - 8, y + 17, score, size=12, colour=QUIET, anchor="end"))
            if at + 1 < len(columns):
                places = {other: n for n, (other, _) in enumerate(columns[at + 1][1])}
                if name in places:
                    x1, y1, x2, y2 = x + wide, y + 12, x + wide + 50, top + places[name] * row + 12
                    bend = f"M{x1} {y1} C{x1 + 25} {y1} {x2 - 25} {y2} {x2} {y2}"
                    stroke = f'stroke="{colour}" stroke-width="{2.5 if name in moved else 1}"'
                    drawn.append(f'<path d="{bend}" fill="none" {stroke}/>')
    return _svg(
        20 + len(columns) * (wide + 50) - 30,
        height,
        drawn,
        f"How each passage moved for: {QUESTION}",
    )


_SAID = (
    "anchor: the question itself",
    "one search more",
    "a mean, the anchor counts most",
    "what is returned",
)


def draw_flow() -> str:
    """The way of a question: your search runs while the model thinks."""
    boxes = [
        (20, 90, 120, "question", INK), (180, 90, 120, "rules", OURS),
        (350, 30, 330, "your search: the question", INK), (350, 150, 90, "gate", OURS),
        (480, 150, 90, "model", MODEL), (610, 150, 70, "search", INK),
        (730, 90, 80, "fuse", OURS), (850, 90, 110, "keywords", OURS), (1000, 90, 100, "result", INK),
    ]  # fmt: skip
    arrows = [
        (140, 112, 180, 112), (300, 112, 350, 52), (300, 112, 350, 172), (440, 172, 480, 172), (570, 172, 610, 172),
        (680, 52, 730, 112), (680, 172, 730, 112), (810, 112, 850, 112), (960, 112, 1000, 112),
    ]  # fmt: skip
    drawn = [_MARKER]
    for x, y, wide, text, colour in boxes:
        drawn.append(_rect(x, y, wide, 44, fill=PAPER, stroke=colour))
        drawn.append(_text(x + wide / 2, y + 27, text, colour=colour, anchor="middle"))
    for x1, y1, x2, y2 in arrows:
        drawn.append(
            f'<path d="M{x1} {y1} L{x2 - 6} {y2}" stroke="{QUIET}" stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    dashed = 'stroke-dasharray="4 4" marker-end="url(#tip)"'
    late = "late, wrong or down: left out, and told in degradations"
    drawn += [
        _text(515, 20, "starts at once", size=12, colour=QUIET, anchor="middle"),
        _text(515, 216, late, size=12, colour=QUIET, anchor="middle"),
        f'<path d="M395 150 C395 110 600 110 724 108" fill="none" stroke="{QUIET}" {dashed}/>',
        _text(555, 104, "sure enough: no call", size=12, colour=QUIET, anchor="middle"),
    ]
    return _svg(1120, 230, drawn, "The way of a question through the middleware")


_MARKER = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0 0 L8 4 L0 8 z" fill="{QUIET}"/></marker></defs>'
)


def draw_gate() -> str:
    """Two first results, one sure and one not: percentiles of four signals, and the doubt they make."""
    signals = ("lead", "coverage", "agreement", "joint lead")
    cases = (
        ("a sure first result", (0.82, 0.9, 0.74, 0.7), "no call"),
        ("an unsure one", (0.2, 0.35, 0.1, 0.28), "call"),
    )
    threshold, drawn = 0.55, []
    for at, (heading, values, said) in enumerate(cases):
        left = 20 + at * 520
        drawn.append(_text(left, 26, heading, weight="bold"))
        for n, (name, value) in enumerate(zip(signals, values, strict=True)):
            y = 48 + n * 28
            drawn += [
                _text(left, y + 13, name, size=13),
                _rect(left + 90, y, 300, 18, stroke=QUIET),
                _rect(left + 90, y, 300 * value, 18, fill=OURS),
                _text(left + 400, y + 13, f"above {100 * value:.0f} %", size=12, colour=QUIET),
            ]
        doubt, y = 1 - sum(values) / len(values), 172
        edge = left + 90 + 300 * threshold
        drawn += [
            _text(left, y + 13, "doubt", size=13, weight="bold"),
            _rect(left + 90, y, 300, 18, stroke=QUIET),
            _rect(left + 90, y, 300 * doubt, 18, fill=MODEL),
            f'<path d="M{edge:.0f} {y - 6} V{y + 24}" stroke="{INK}" stroke-width="2"/>',
            _text(edge, y + 38, "threshold", size=12, colour=QUIET, anchor="middle"),
            _text(
                left + 400,
                y + 13,
                said,
                size=13,
                weight="bold",
                colour=MODEL if said == "call" else INK,
            ),
        ]
    return _svg(1040, 222, drawn, "How the gate decides")


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 14,
    colour: str = INK,
    anchor: str = "start",
    weight: str = "normal",
) -> str:
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{escape(text)}</text>'


def _rect(
    x: float, y: float, wide: float, high: float, *, fill: str = "none", stroke: str = "none"
) -> str:
    size = f'x="{x:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="4"'
    return f'<rect {size} fill="{fill}" stroke="{stroke}" stroke-width="1.5"/>'


def _svg(width: int, height: int, drawn: Sequence[str], title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">'
    paper = f'<rect width="{width}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *drawn, "</svg>"]) + "\n"


DRAWINGS = {"flow": draw_flow, "lists": draw_lists, "gate": draw_gate}


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
