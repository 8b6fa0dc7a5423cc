"""Lists as arrays: scores, grades and each kind of evidence of every passage, and measures of an order of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.evidence.candidates import PARTS, WIDE, Asked, List, Listed
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.retrieval.fusion import measure_spread
from qtmiddleware.retrieval.keyword_evidence import add_keyword_evidence, score_by_keywords
from qtmiddleware.retrieval.question_words import (
    find_words,
    load_word_rules,
    measure_coverage,
    measure_word_scores,
    parse_question,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NO_SCORES: Final = "no scores"
FEATURES: Final = ("bm25", "near", "head", "coverage")
MEASURED_DEPTH: Final = 10
WEIGHT_OF_SUM: Final = 0.35
"""What one sum of BM25 weighs, as `keywordEvidence.weight: 0.35` does; it was the default until evidence had kinds."""


@dataclass
class Lists:
    """The lists of one *kind* of function for one *set*: a row per question, a column per passage, best first.

    *scores* are -inf behind the end of a list. *summed* are the scores with one sum of BM25 as
    evidence.
    """

    group: str
    name: str
    kind: str
    ids: Sequence[str]
    texts: Sequence[str]
    recorded: Any
    places: Any
    scores: Floats
    spread: Floats
    sizes: Any
    grades: Floats
    ideal: Floats
    best: Floats
    features: Mapping[str, Floats]
    summed: Floats


def build_lists(listed: Listed, kind: str) -> Lists | None:
    """Returns the lists of one *kind*; ``None`` if the set has none. Lists of less than two passages are left out."""
    import numpy as np

    base = "cosine" if kind == NO_SCORES else kind
    rows = [(asked, asked.lists[base]) for asked in listed.questions if base in asked.lists]
    rows = [(asked, found) for asked, found in rows if len(found.places) > 1]
    if not rows:
        return None
    size = len(rows)
    empty = np.zeros((size, WIDE))
    lists = Lists(
        listed.place.group, listed.place.name, kind, [asked.id for asked, _ in rows], [asked.text for asked, _ in rows],
        np.array([asked.is_recorded for asked, _ in rows]), np.full((size, WIDE), -1), np.full((size, WIDE), -np.inf),
        np.zeros(size), np.zeros(size, int), empty.copy(), np.ones(size), np.zeros(size),
        {name: empty.copy() for name in FEATURES}, np.full((size, WIDE), -np.inf),
    )  # fmt: skip
    for at, (asked, found) in enumerate(rows):
        _fill_row(lists, at, asked, found, listed)
    return lists


def _fill_row(lists: Lists, at: int, asked: Asked, found: List, listed: Listed) -> None:
    import numpy as np

    places, scores = list(found.places[:WIDE]), list(found.scores[:WIDE])
    if lists.kind == NO_SCORES:
        scores = [1.0 / rank for rank in range(1, len(places) + 1)]
    texts, size = [listed.texts[place] for place in places], len(places)
    spread = scores[0] - scores[-1] if lists.kind == NO_SCORES else measure_spread(scores)
    # A part of a set is a collection of its own.
    grades = {
        place: grade
        for place, grade in asked.grades.items()
        if lists.kind not in PARTS or place in places
    }
    lists.places[at, :size], lists.scores[at, :size] = places, scores
    lists.spread[at], lists.sizes[at] = spread if spread > 1e-12 else 1.0, size
    lists.grades[at, :size] = [max(0, grades.get(place, 0)) for place in places]
    ideal = sorted(grades.values(), reverse=True)[:MEASURED_DEPTH]
    lists.ideal[at] = (
        sum(max(0, grade) / np.log2(rank + 2) for rank, grade in enumerate(ideal)) or 1.0
    )
    lists.best[at] = max(ideal, default=0)
    prepared = extract_keywords(asked.text)
    rules = load_word_rules(prepared.language)
    words = parse_question(prepared.keywords, rules)
    words_found = find_words(words, texts, rules)
    if words.terms and any(words_found.held):
        lists.features["coverage"][at, :size] = measure_coverage(words, words_found)
        for name, numbers in measure_word_scores(words, words_found)._asdict().items():
            lists.features[name][at, :size] = numbers
    evidence = score_by_keywords([(prepared.keywords, 1.0)], texts)
    weighed = [WEIGHT_OF_SUM * share for share in evidence or ()]
    summed = (
        add_keyword_evidence(scores, weighed, 1.0 - WEIGHT_OF_SUM, spread)
        if evidence
        else range(size, 0, -1)
    )
    lists.summed[at, :size] = summed


def order(lists: Lists, scores: Floats) -> Any:
    """Returns the columns of each row, best first; equal ones in the function's order."""
    import numpy as np

    return np.argsort(-np.where(np.isfinite(lists.scores), scores, -np.inf), axis=1, kind="stable")


def measure(lists: Lists, columns: Any, depth: int = MEASURED_DEPTH) -> tuple[Floats, Floats]:
    """Returns nDCG@10 of each row in the order of *columns*, of which *depth* are seen, and whether its first is right.

    Right is a passage of the highest grade.
    """
    import numpy as np

    grades = np.take_along_axis(lists.grades, columns[:, :depth], 1)
    gain = (grades / np.log2(np.arange(2, 2 + depth))).sum(1) / lists.ideal
    return gain, (grades[:, 0] >= lists.best) & (lists.best > 0)


@dataclass(frozen=True)
class Outcome:
    """Means over the questions of one set: nDCG@10 raw and new, the share that does worse, right first results."""

    raw: float
    new: float
    worse: float
    helped: float
    first_raw: float
    first_new: float
    questions: int

    @property
    def gain(self) -> float:
        """In points."""
        return 100 * (self.new - self.raw)


def summarise(lists: Lists, columns: Any, rows: Any = None, depth: int = MEASURED_DEPTH) -> Outcome:
    """Returns the means of the order of *columns* over *rows*, all by default."""
    import numpy as np

    rows = np.ones(len(lists.ids), bool) if rows is None else rows
    raw, first_raw = measure(lists, np.arange(WIDE)[None].repeat(len(lists.ids), 0), depth)
    new, first_new = measure(lists, columns, depth)
    means = (raw, new, new < raw - 1e-9, new > raw + 1e-9, first_raw, first_new)
    return Outcome(*(float(value[rows].mean()) for value in means), int(rows.sum()))


Rank = Callable[[Lists], Any]
"""What makes an order of lists: the columns of each row, best first."""


def rank_by_sum(lists: Lists) -> Any:
    """The order with one sum of BM25 as evidence."""
    return order(lists, lists.summed)
