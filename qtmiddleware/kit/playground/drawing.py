"""What is drawn, as numbers: the way of each passage from list to list, the trace over time, words marked in texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

from qtmiddleware.kit.evaluation.movement import Movement, Movements
from qtmiddleware.preprocessing.text import clean
from qtmiddleware.retrieval.question_words import locate_words
from qtmiddleware.types import Match, Stage, Trace

Way = Literal["new", "up", "down", "same", "gone", "hit"]
"""What became of a passage beside the plain list; a ``hit`` is one that a search itself put among the first."""

ROW: Final = 26.0
"""The height of a place, in pixels at the usual size of letters; the page's script moves it beside its passage."""
_SLOT: Final = 26.0
_GAP: Final = 6.0


@dataclass(frozen=True, slots=True)
class Node:
    """A passage (*key*) at its place in one list, at *x*, *y*; *text* is the place, a dash where it is in none."""

    x: float
    y: float
    text: str
    way: Way
    key: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The *path* of one passage (*key*) from list to list."""

    path: str
    way: Way
    key: str


@dataclass(frozen=True, slots=True)
class Moves:
    """Lists side by side, each with its *heading*, and the *lines* of the passages through them.

    Places beyond the list that is shown, which has *rows* places, stand below it.
    """

    headings: tuple[tuple[float, str], ...]
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]
    width: float
    height: float
    rows: int


def find_way(moved: Movement) -> Way:
    """What became of a passage beside the plain list."""
    if moved.place is None:
        return "gone"
    if moved.change is None:
        return "new"
    return "up" if moved.change > 0 else "down" if moved.change < 0 else "same"


def name_key(match: Match) -> str:
    """A short name that is the same for a passage wherever it stands on the page."""
    return f"{crc32(repr(match.key).encode()):08x}"


def draw_moves(moves: Movements, step: float = 40.0) -> Moves:
    """The way of every passage from the plain list to the result."""
    tracked = (*moves.passages, *moves.dropped)
    columns = [
        ("raw", [_find_start(moved) for moved in tracked]),
        ("result", [find_place(moved) for moved in tracked]),
    ]
    ways = [(name_key(moved.match), find_way(moved)) for moved in tracked]
    return _draw(columns, ways, _count_rows(moves), step=step, row=ROW, slot=_SLOT)


def draw_search(moves: Movements, search: int) -> Moves:
    """The way of the passages of the result from the list of one *search*, by its place among them, to the result."""
    shown = moves.passages
    places = [next((hit.place for hit in it.hits if hit.search == search), None) for it in shown]
    columns: list[tuple[str, list[int | None]]] = [
        ("here", places),
        ("result", [it.place for it in shown]),
    ]
    # Of a list that counts for the result what matters is who was high in it.
    ways: list[tuple[str, Way]] = [
        (name_key(it.match), "hit" if place is not None and place <= len(shown) else "same")
        for it, place in zip(shown, places, strict=True)
    ]
    return _draw(columns, ways, len(shown), step=58.0, row=26.0, slot=24.0)


def _find_start(moved: Movement) -> int | None:
    """The place in the plain list or, where that is too short for it, in the question's own one."""
    if moved.before is not None:
        return moved.before
    return next((hit.place for hit in moved.hits if hit.kind == "original"), None)


def find_place(moved: Movement) -> int | None:
    """Return the place of a passage in the result or, if it fell out of it, in the last list that it stood in."""
    return moved.place or moved.reranked_place or moved.weighed_place or moved.fused_place


def _count_rows(moves: Movements) -> int:
    return max(len(moves.passages), moves.depth)


def _draw(
    columns: Sequence[tuple[str, Sequence[int | None]]],
    ways: Sequence[tuple[str, Way]],
    rows: int,
    *,
    step: float,
    row: float,
    slot: float,
) -> Moves:
    margin = 18.0
    spots = [_place(places, rows, row, slot) for _, places in columns]
    nodes, lines = [], []
    for at, (_, places) in enumerate(columns):
        x = margin + at * step
        for place, y, (key, way) in zip(places, spots[at], ways, strict=True):
            is_shown = place is not None and place <= rows
            nodes.append(Node(x, y, "–" if place is None else str(place), way, key, is_shown))
    for number, (key, way) in enumerate(ways):
        points = [(margin + at * step, spot[number]) for at, spot in enumerate(spots)]
        lines.append(Line("".join(_curve(points)), way, key))
    # What moves is drawn over what stays.
    order = {"same": 0, "gone": 1, "down": 2, "up": 3, "hit": 3, "new": 4}
    lines.sort(key=lambda line: order[line.way])
    lowest = max((y for spot in spots for y in spot), default=0.0)
    return Moves(
        headings=tuple((margin + at * step, heading) for at, (heading, _) in enumerate(columns)),
        nodes=tuple(nodes),
        lines=tuple(lines),
        width=2 * margin + step * (len(columns) - 1),
        height=max(rows * row, lowest + slot / 2 + 2.0),
        rows=rows,
    )


def _place(places: Sequence[int | None], rows: int, row: float, slot: float) -> list[float]:
    """Where each of *places* lies: in its row or, beyond them, in the order of the places below."""
    found: dict[int, float] = {}
    taken: set[int] = set()
    beyond = []
    for number, place in enumerate(places):
        if place is not None and place <= rows and place not in taken:
            taken.add(place)
            found[number] = (place - 0.5) * row
        else:
            beyond.append(number)
    beyond.sort(key=lambda it: (places[it] is None, places[it] or 0))
    for at, number in enumerate(beyond):
        found[number] = rows * row + _GAP + (at + 0.5) * slot
    return [found[number] for number in range(len(places))]


def _curve(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    (x, y), *rest = points
    yield f"M{x:g} {y:g}"
    for to_x, to_y in rest:
        middle = (x + to_x) / 2
        yield f"C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"
        x, y = to_x, to_y


# --- the trace ------------------------------------------------------------------------------------

_STAGES: Final[Mapping[str, tuple[str, str]]] = {
    "preprocess": ("rules", "own"),
    "search.original": ("search, question", "search"),
    "search.variants": ("search, variants", "search"),
    "fuse": ("merge lists", "own"),
    "keyword_evidence": ("weigh words", "own"),
    "rerank": ("rerank", "model"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One stage over time, from *start* in hundredths of the whole, *wide*; *kind* is who works: own, search, model."""

    name: str
    kind: str
    start: float
    wide: float
    ms: float
    status: str

    @property
    def is_work(self) -> bool:
        """Whether it searches, embeds or asks a model."""
        return self.kind != "own" or self.name.startswith("embed")


def draw_trace(trace: Trace) -> tuple[Bar, ...]:
    """Every stage of *trace* in the order they began."""
    whole = (
        max([trace.total_ms, *(it.started_ms + it.ms for it in trace.stages)], default=0.0) or 1.0
    )
    return tuple(
        _draw_stage(it, whole)
        for it in sorted(trace.stages, key=lambda it: (it.started_ms, -it.ms))
    )


def _draw_stage(stage: Stage, whole: float) -> Bar:
    kind, _, what = stage.name.partition(".")
    name, who = _STAGES.get(
        stage.name, (f"model, {what}" if kind == "transform" else stage.name, "model")
    )
    if stage.name == "embed":
        name, who = (
            "embed question" if stage.detail == "original" else f"embed {stage.detail}",
            "own",
        )
    start = min(99.0, 100 * stage.started_ms / whole)
    wide = min(100 - start, max(0.7, 100 * stage.ms / whole))
    return Bar(
        name,
        who,
        round(start, 2),
        round(wide, 2),
        stage.ms,
        "" if stage.status == "ok" else stage.status,
    )


def measure_overlap(trace: Trace) -> float:
    """For how many milliseconds the question's own search ran while the model thought."""
    searches = [it for it in trace.stages if it.name == "search.original"]
    models = [it for it in trace.stages if it.name.startswith("transform.")]
    return max(
        (
            min(one.started_ms + one.ms, other.started_ms + other.ms)
            - max(one.started_ms, other.started_ms)
            for one in searches
            for other in models
        ),
        default=0.0,
    )


# --- words in texts -------------------------------------------------------------------------------

_SNIPPET: Final = 150
_CODE: Final = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\w+(?:[-./_:]\w+)+")
"""A word of letters and digits with a sign between them."""
_LETTER: Final = re.compile("[A-Za-z]")
_SIGNS: Final = re.compile("[-‐–/_]+")

Segment = tuple[str, str]
"""A piece of a text, and whose word it is: ``question``, ``model`` or nobody's."""


def split_word(word: str) -> list[str]:
    """Return the parts that *word* is searched by; a code such as L-15 is one."""
    return [word] if _CODE.fullmatch(word) else [part for part in _SIGNS.split(word) if part]


def mark_words(text: str, own: str, models: str, language: str = "") -> list[Segment]:
    """*text* in pieces, so that the keywords of the question, *own*, and those of the *models* can be marked.

    Forms of a word are those of the *language*, of which none are known by default.
    """
    pieces: list[Segment] = []
    last = 0
    for start, end, whose in _find_owners(text, own, models, language):
        pieces += [(text[last:start], ""), (text[start:end], whose)]
        last = end
    return [(piece, whose) for piece, whose in (*pieces, (text[last:], "")) if piece]


def cut_snippet(
    text: str, own: str, models: str, length: int = _SNIPPET, language: str = ""
) -> str:
    """The part of *text*, on one line, that holds most of the keywords; the question's count double."""
    whole = clean(text)
    if len(whole) <= length:
        return whole
    hits = [
        (start, 2 if whose == "question" else 1)
        for start, _, whose in _find_owners(whole, own, models, language)
    ]
    start = _find_densest(hits, max(1, length - 30))
    # Begun at a word, a little before the first one that counts.
    start = whole.rfind(" ", 0, max(0, start - 12)) + 1 if start > 20 else 0
    cut = whole[start : start + length]
    return ("… " if start else "") + cut + (" …" if start + length < len(whole) else "")


def _find_densest(hits: Sequence[tuple[int, int]], length: int) -> int:
    """Return where the *length* characters begin that hold most of the *hits*, each a place and its worth, in order."""
    best = most = held = end = 0
    for start, worth in hits:
        while end < len(hits) and hits[end][0] < start + length:
            held += hits[end][1]
            end += 1
        if held > most:
            best, most = start, held
        held -= worth
    return best


def _find_owners(text: str, own: str, models: str, language: str) -> Iterator[tuple[int, int, str]]:
    """Yield where each keyword stands in *text* and whose it is; one that is of both is the question's."""
    theirs = [(start, end, "question") for start, end in _locate(own, text, language)]
    last, taken = 0, {at for start, end, _ in theirs for at in range(start, end)}
    brought = [
        (start, end, "model")
        for start, end in _locate(models, text, language)
        if start not in taken
    ]
    for start, end, whose in sorted(theirs + brought):
        if start >= last:
            yield start, end, whose
            last = end


def _locate(words: str, text: str, language: str) -> list[tuple[int, int]]:
    """Return where the *words* stand in *text*, a code such as L-15 as a whole: its 15 alone is another number."""
    codes = dict.fromkeys(word for word in words.split() if _CODE.fullmatch(word))
    others = " ".join(word for word in words.split() if word not in codes)
    spans = locate_words(others, text, language) if others else []
    # The s of "dog's" is no word.
    spans = [
        (start, end)
        for start, end in spans
        if end - start > 1 or not _LETTER.fullmatch(text[start:end])
    ]
    for code in codes:
        pattern = rf"(?<!\w){re.escape(code)}(?!\w)"
        spans += [found.span() for found in re.finditer(pattern, text, re.IGNORECASE)]
    return sorted(spans)
