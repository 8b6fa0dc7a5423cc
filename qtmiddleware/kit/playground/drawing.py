"""Draw passages' movements and a timeline for the playground's page, and mark keywords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal
from zlib import crc32

from qtmiddleware.preprocessing.text import clean_text
from qtmiddleware.retrieval.movement import Movement, Movements
from qtmiddleware.retrieval.question_words import locate_words
from qtmiddleware.types import Match, Stage, Trace

Way = Literal["new", "up", "down", "same", "gone", "hit"]
"""How a passage moved. ``hit`` means that a search ranked the passage high."""

ROW: Final = 26.0
"""The height of a row, in pixels at the default font size. The page's script adjusts the height."""
_SLOT: Final = 26.0
_GAP: Final = 6.0


@dataclass(frozen=True, slots=True)
class Node:
    """A passage at its rank in one list of the drawing.

    Attributes:
        x: The horizontal position, in pixels.
        y: The vertical position, in pixels.
        text: The rank as text; a dash if the passage is not in the list.
        way: The direction in which the passage moved.
        key: Identifies the passage on the page.
        is_shown: Whether the passage has a row. If not, the passage is drawn below the last row.
    """

    x: float
    y: float
    text: str
    way: Way
    key: str
    is_shown: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line that connects the ranks of one passage in all lists of the drawing.

    Attributes:
        path: The SVG path.
        way: The direction in which the passage moved.
        key: Identifies the passage on the page.
    """

    path: str
    way: Way
    key: str


@dataclass(frozen=True, slots=True)
class MovementDrawing:
    """A drawing of ranked lists side by side, in which a line connects each passage's ranks.

    Passages that rank too low for a row are drawn below the last row.

    Attributes:
        headings: The horizontal position and the text of each list's heading.
        nodes: The passages in each list, with their positions.
        lines: The lines that connect the ranks, one per passage.
        width: The width of the drawing, in pixels.
        height: The height of the drawing, in pixels.
        rows: The number of rows.
    """

    headings: tuple[tuple[float, str], ...]
    nodes: tuple[Node, ...]
    lines: tuple[Line, ...]
    width: float
    height: float
    rows: int


def find_direction(movement: Movement) -> Way:
    """Return how a passage moved from its rank in the plain search to its rank in the result."""
    if movement.place is None:
        return "gone"
    if movement.change is None:
        return "new"
    return "up" if movement.change > 0 else "down" if movement.change < 0 else "same"


def make_passage_key(match: Match) -> str:
    """Return a short key that identifies the passage in *match* in all lists on the page."""
    # The key becomes an HTML attribute, and a passage's id may contain any characters.
    return f"{crc32(repr(match.key).encode()):08x}"


def draw_movements(movements: Movements, list_distance: float = 40.0) -> MovementDrawing:
    """Draw how each passage moved from the plain search's list to the result.

    *list_distance* is the distance between the two lists, in pixels.
    """
    tracked = (*movements.passages, *movements.dropped)
    named_rank_lists = [
        ("raw", [_find_original_rank(movement) for movement in tracked]),
        ("result", [find_last_rank(movement) for movement in tracked]),
    ]
    keys_and_directions = [
        (make_passage_key(movement.match), find_direction(movement)) for movement in tracked
    ]
    return _draw_lists(
        named_rank_lists,
        keys_and_directions,
        _count_rows(movements),
        list_distance=list_distance,
        row_height=ROW,
        slot_height=_SLOT,
    )


def draw_search_movements(movements: Movements, search_index: int) -> MovementDrawing:
    """Draw how each passage of the result moved from one search's list to the result.

    *search_index* is the index of the search in the tier's searches.
    """
    passages = movements.passages
    places = [
        next((hit.place for hit in movement.hits if hit.search == search_index), None)
        for movement in passages
    ]
    named_rank_lists: list[tuple[str, list[int | None]]] = [
        ("here", places),
        ("result", [movement.place for movement in passages]),
    ]
    # For a single search, only passages that it ranked high matter.
    keys_and_directions: list[tuple[str, Way]] = [
        (
            make_passage_key(movement.match),
            "hit" if place is not None and place <= len(passages) else "same",
        )
        for movement, place in zip(passages, places, strict=True)
    ]
    return _draw_lists(
        named_rank_lists,
        keys_and_directions,
        len(passages),
        list_distance=58.0,
        row_height=26.0,
        slot_height=24.0,
    )


def _find_original_rank(movement: Movement) -> int | None:
    """Return the passage's rank in the plain search.

    If the plain search did not return the passage, returns the rank in the tier's own search for
    the question. Returns ``None`` if neither search returned the passage.
    """
    if movement.before is not None:
        return movement.before
    return next((hit.place for hit in movement.hits if hit.kind == "original"), None)


def find_last_rank(movement: Movement) -> int | None:
    """Return the passage's rank in the result.

    If the passage dropped out, returns the passage's last known rank: after reranking, keyword
    evidence or fusion. Returns ``None`` if no stage ranked the passage.
    """
    return movement.place or movement.last_place


def _count_rows(movements: Movements) -> int:
    """Return the number of rows to draw, which is the length of the longer list."""
    return max(len(movements.passages), movements.depth)


def _draw_lists(
    named_rank_lists: Sequence[tuple[str, Sequence[int | None]]],
    keys_and_directions: Sequence[tuple[str, Way]],
    row_count: int,
    *,
    list_distance: float,
    row_height: float,
    slot_height: float,
) -> MovementDrawing:
    """Draw several ranked lists side by side, and connect each passage's ranks with a line.

    Args:
        named_rank_lists: The heading of each list, and the rank of every passage in the list.
        keys_and_directions: The key of each passage, and how the passage moved.
        row_count: The number of rows. Passages with a worse rank are drawn below the last row.
        list_distance: The distance between two lists, in pixels.
        row_height: The height of a row, in pixels.
        slot_height: The height of each passage below the last row, in pixels.
    """
    margin = 18.0
    heights = [
        _find_vertical_positions(places, row_count, row_height, slot_height)
        for _, places in named_rank_lists
    ]
    nodes, lines = [], []
    for column, (_, places) in enumerate(named_rank_lists):
        x = margin + column * list_distance
        for place, y, (key, way) in zip(places, heights[column], keys_and_directions, strict=True):
            is_shown = place is not None and place <= row_count
            nodes.append(Node(x, y, "–" if place is None else str(place), way, key, is_shown))
    for number, (key, way) in enumerate(keys_and_directions):
        points = [
            (margin + column * list_distance, column_heights[number])
            for column, column_heights in enumerate(heights)
        ]
        lines.append(Line("".join(_draw_curve(points)), way, key))
    # Later lines cover earlier lines, so the lines of moving passages come last.
    order = {"same": 0, "gone": 1, "down": 2, "up": 3, "hit": 3, "new": 4}
    lines.sort(key=lambda line: order[line.way])
    lowest = max((y for column_heights in heights for y in column_heights), default=0.0)
    return MovementDrawing(
        headings=tuple(
            (margin + column * list_distance, heading)
            for column, (heading, _) in enumerate(named_rank_lists)
        ),
        nodes=tuple(nodes),
        lines=tuple(lines),
        width=2 * margin + list_distance * (len(named_rank_lists) - 1),
        height=max(row_count * row_height, lowest + slot_height / 2 + 2.0),
        rows=row_count,
    )


def _find_vertical_positions(
    ranks: Sequence[int | None], row_count: int, row_height: float, slot_height: float
) -> list[float]:
    """Return the vertical position of the passage at each of *ranks*, in pixels.

    A passage with a rank up to *row_count* gets a row. All other passages go below the last row,
    in order of rank.
    """
    heights: dict[int, float] = {}
    used_ranks: set[int] = set()
    below_rows = []
    for number, rank in enumerate(ranks):
        # Two passages can have the same rank, if one of them was ranked by another search.
        if rank is not None and rank <= row_count and rank not in used_ranks:
            used_ranks.add(rank)
            heights[number] = (rank - 0.5) * row_height
        else:
            below_rows.append(number)
    below_rows.sort(key=lambda index: (ranks[index] is None, ranks[index] or 0))
    for position, number in enumerate(below_rows):
        heights[number] = row_count * row_height + _GAP + (position + 0.5) * slot_height
    return [heights[number] for number in range(len(ranks))]


def _draw_curve(points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the commands of an SVG path that draws a curve through *points*."""
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
"""The name of each stage on the page, and the stage's type of work."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of one stage on the timeline.

    Attributes:
        name: The stage's name.
        kind: The type of work: ``own``, ``search`` or ``model``.
        start: The start of the stage, in percent of the total time.
        width: The duration of the stage, in percent of the total time.
        ms: The duration of the stage, in milliseconds.
        status: The status of the stage; empty for ``ok``.
    """

    name: str
    kind: str
    start: float
    width: float
    ms: float
    status: str

    @property
    def is_work(self) -> bool:
        """``True`` if the stage searches, embeds or calls a model."""
        return self.kind != "own" or self.name.startswith("embed")


def build_timeline(trace: Trace) -> tuple[Bar, ...]:
    """Return one timeline bar per stage of *trace*, in order of start time."""
    total_ms = (
        max([trace.total_ms, *(stage.started_ms + stage.ms for stage in trace.stages)], default=0.0)
        or 1.0
    )
    return tuple(
        _build_bar(stage, total_ms)
        for stage in sorted(trace.stages, key=lambda stage: (stage.started_ms, -stage.ms))
    )


def _build_bar(stage: Stage, total_ms: float) -> Bar:
    """Return the timeline bar of *stage*. *total_ms* is the duration of the whole timeline."""
    kind, _, transform = stage.name.partition(".")
    name, worker = _STAGES.get(
        stage.name, (f"model, {transform}" if kind == "transform" else stage.name, "model")
    )
    if stage.name == "embed":
        name, worker = (
            "embed question" if stage.detail == "original" else f"embed {stage.detail}",
            "own",
        )
    start = min(99.0, 100 * stage.started_ms / total_ms)
    # Even the shortest stage is visible.
    width = min(100 - start, max(0.7, 100 * stage.ms / total_ms))
    return Bar(
        name,
        worker,
        round(start, 2),
        round(width, 2),
        stage.ms,
        "" if stage.status == "ok" else stage.status,
    )


def measure_overlap(trace: Trace) -> float:
    """Return how long the question's search and a model call overlapped, in milliseconds.

    The number is zero or negative if the search and the call did not overlap.
    """
    searches = [stage for stage in trace.stages if stage.name == "search.original"]
    models = [stage for stage in trace.stages if stage.name.startswith("transform.")]
    return max(
        (
            min(search.started_ms + search.ms, model.started_ms + model.ms)
            - max(search.started_ms, model.started_ms)
            for search in searches
            for model in models
        ),
        default=0.0,
    )


# --- words in texts -------------------------------------------------------------------------------

_SNIPPET: Final = 150
"""The maximum number of characters of a snippet."""
_CODE: Final = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\w+(?:[-./_:]\w+)+")
"""Matches a code of letters and digits with a punctuation mark inside, such as L-15."""
_LETTER: Final = re.compile("[A-Za-z]")
_SIGNS: Final = re.compile("[-‐–/_]+")

Segment = tuple[str, str]
"""A piece of a text, and the piece's owner.

The owner is ``question`` or ``model`` if the piece is a keyword from there, else empty.
"""


def split_word(word: str) -> list[str]:
    """Split *word* at hyphens, slashes and underscores. A code such as L-15 is not split."""
    return [word] if _CODE.fullmatch(word) else [part for part in _SIGNS.split(word) if part]


def mark_words(
    text: str, question_words: str, model_words: str, language: str = ""
) -> list[Segment]:
    """Split *text* into segments: the keywords, each with its owner, and the text between them.

    Args:
        text: The passage's text.
        question_words: The question's keywords, separated by spaces.
        model_words: The model's keywords, separated by spaces.
        language: The language whose word forms are recognised; none by default.
    """
    pieces: list[Segment] = []
    last = 0
    for start, end, owner in _locate_owned_keywords(text, question_words, model_words, language):
        pieces += [(text[last:start], ""), (text[start:end], owner)]
        last = end
    return [(piece, owner) for piece, owner in (*pieces, (text[last:], "")) if piece]


def cut_snippet(
    text: str, question_words: str, model_words: str, length: int = _SNIPPET, language: str = ""
) -> str:
    """Return the excerpt of *text* with the most keywords, on one line.

    Returns all of a short *text*.

    Args:
        text: The passage's text.
        question_words: The question's keywords, separated by spaces. These keywords count double.
        model_words: The model's keywords, separated by spaces.
        length: The maximum number of characters of the excerpt.
        language: The language whose word forms are recognised; none by default.
    """
    full_text = clean_text(text)
    if len(full_text) <= length:
        return full_text
    weighted_positions = [
        (start, 2 if owner == "question" else 1)
        for start, _, owner in _locate_owned_keywords(
            full_text, question_words, model_words, language
        )
    ]
    start = _find_densest_window_start(weighted_positions, max(1, length - 30))
    # Begin at a whole word, a little before the first keyword.
    start = full_text.rfind(" ", 0, max(0, start - 12)) + 1 if start > 20 else 0
    cut = full_text[start : start + length]
    return ("… " if start else "") + cut + (" …" if start + length < len(full_text) else "")


def _find_densest_window_start(weighted_positions: Sequence[tuple[int, int]], length: int) -> int:
    """Return the start of the window of *length* characters with the highest total weight.

    *weighted_positions* contains the position and the weight of each keyword, in order of position.
    """
    best = highest = worth_in_window = end = 0
    for start, worth in weighted_positions:
        while end < len(weighted_positions) and weighted_positions[end][0] < start + length:
            worth_in_window += weighted_positions[end][1]
            end += 1
        if worth_in_window > highest:
            best, highest = start, worth_in_window
        worth_in_window -= worth
    return best


def _locate_owned_keywords(
    text: str, question_words: str, model_words: str, language: str
) -> Iterator[tuple[int, int, str]]:
    """Yield the start, the end and the owner of each keyword in *text*.

    The owner is ``question`` or ``model``. A keyword of both belongs to the question.
    """
    of_question = [
        (start, end, "question") for start, end in _locate_words(question_words, text, language)
    ]
    last, marked = 0, {position for start, end, _ in of_question for position in range(start, end)}
    of_model = [
        (start, end, "model")
        for start, end in _locate_words(model_words, text, language)
        if start not in marked
    ]
    for start, end, owner in sorted(of_question + of_model):
        if start >= last:
            yield start, end, owner
            last = end


def _locate_words(words: str, text: str, language: str) -> list[tuple[int, int]]:
    """Return the start and the end of each occurrence of *words* in *text*.

    Spaces separate *words*. A code such as L-15 must match as a whole, because 15 alone means
    something else.
    """
    codes = dict.fromkeys(word for word in words.split() if _CODE.fullmatch(word))
    plain_words = " ".join(word for word in words.split() if word not in codes)
    spans = locate_words(plain_words, text, language) if plain_words else []
    # A single letter, such as the s of "dog's", is not a word.
    spans = [
        (start, end)
        for start, end in spans
        if end - start > 1 or not _LETTER.fullmatch(text[start:end])
    ]
    for code in codes:
        pattern = rf"(?<!\w){re.escape(code)}(?!\w)"
        spans += [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
    return sorted(spans)
