"""Explain each passage's rank after every stage, from the plain search to the caller's list.

A notebook's table, the agents' tool, the playground and the command line show these explanations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Final

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.preprocessing.hidden_characters import escape_hidden
from qtmiddleware.retrieval.question_words import find_matching_words, load_word_rules
from qtmiddleware.types import Key, Match, Retrieval, Variant

_SEARCH_LABELS: Final = {
    **{row.variant: f"the {row.label}" for row in TEXT_FIELDS.values() if row.variant},
    "original": "the question",
    JOINED: "the question and its variants in one text",
    "standalone": "the standalone form",
    "step_back": "the step-back question",
}
_Ranks = dict[Key, int]
_MOST_NAMED: Final = 4
"""A sentence names at most this many words or passages."""
_MOST_CHARS: Final = 160
"""The maximum number of characters that a notebook's table shows of a passage."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The rank, from 1, in one search: the one with this index in `Retrieval.rankings`."""

    search: int
    kind: str
    place: int


@dataclass(frozen=True, slots=True)
class Movement:
    """One passage's ranks, and the reason for its movement.

    Ranks start at 1. The plain list is the result of a search without qtmiddleware.

    Attributes:
        match: The passage.
        place: The rank in the final list; ``None`` if it is not there.
        before: The rank in the plain list; ``None`` if it is not there.
        hits: The rank in each search that found the passage.
        last_place: The rank after the last stage, from which the final list is cut.
        evidence: What keyword evidence added to the score; ``None`` if it was not used.
        keywords: The keywords in the passage's text, those of the question first.
        why: The movement and its reasons, in one sentence.
    """

    match: Match
    place: int | None
    before: int | None
    hits: tuple[Hit, ...] = ()
    last_place: int | None = None
    evidence: float | None = None
    keywords: tuple[str, ...] = field(default=(), repr=False)
    why: str = field(default="", repr=False)

    @property
    def change(self) -> int | None:
        """By how many ranks the passage rose; ``None`` if it is missing from one of the lists."""
        if self.place is None or self.before is None:
            return None
        return self.before - self.place

    @property
    def question_place(self) -> int | None:
        """The rank in the search for the unchanged question, or else in the plain list."""
        return next((hit.place for hit in self.hits if hit.kind == "original"), self.before)

    def to_dict(self) -> dict[str, Any]:
        """Return the movement as a dict, ready for JSON. The passage's text is left out."""
        return {
            "id": self.match.id,
            "namespace": self.match.namespace,
            "place": self.place,
            "before": self.before,
            "change": self.change,
            "keywords": list(self.keywords),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Movements:
    """The movements of all passages between the plain list and the final list of a retrieval.

    Attributes:
        passages: Those of the passages in the final list, in its order.
        dropped: Those of the passages that only the plain list holds.
    """

    passages: tuple[Movement, ...]
    dropped: tuple[Movement, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the movements as a dict, ready for JSON."""
        return {
            "passages": [movement.to_dict() for movement in self.passages],
            "dropped": [movement.to_dict() for movement in self.dropped],
        }


def explain_movement(found: Retrieval, before: Sequence[Match] | None = None) -> Movements:
    """Return each passage's rank after every stage, and the reason for its movement."""
    explainer = _Explainer(found, _find_plain_matches(found) if before is None else before)
    return Movements(
        passages=tuple(
            explainer.explain(match.key, match, place)
            for place, match in enumerate(found.matches, start=1)
        ),
        dropped=tuple(
            explainer.explain(key, match, None)
            for key, match in dict(explainer.plain_matches).items()
            if key not in explainer.final
        ),
    )


def render_html(retrieval: Retrieval) -> str:
    """Return *retrieval* as HTML: a summary, and a table with one row per passage."""
    rows = [("place", "before", "passage", "why")]
    for movement in explain_movement(retrieval).passages:
        text = (movement.match.text or "")[:_MOST_CHARS]
        passage = f"{movement.match.id}: {text}" if movement.match.id else text
        before = str(movement.before or "new")
        rows.append((str(movement.place), before, passage, movement.why))
    table = ""
    for row in rows:
        cells = "".join(f'<td dir="auto">{escape(escape_hidden(cell))}</td>' for cell in row)
        table += f"<tr>{cells}</tr>"
    return f"<p>{escape(repr(retrieval))}</p><table>{table}</table>"


def build_search_labels(variants: Iterable[Variant]) -> list[str]:
    """Return a label for each variant's search, such as ``the question`` or ``sub-query 2``."""
    kinds = [variant.kind for variant in variants]
    seen: Counter[str] = Counter()
    labels = []
    for kind in kinds:
        seen[kind] += 1
        label = _SEARCH_LABELS.get(kind, f"the {kind}")
        if kinds.count(kind) > 1:
            label = f"{label.removeprefix('the ')} {seen[kind]}"
        labels.append(label)
    return labels


def format_ordinal(number: int | None) -> str:
    """Return *number* as an English ordinal, such as 1st, 2nd or 11th; ``""`` for ``None``."""
    if number is None:
        return ""
    is_teen = number % 100 in (11, 12, 13)
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}th" if is_teen else f"{number}{ending}"


def find_question_language(retrieval: Retrieval) -> str:
    """Return the code of the question's language; ``""`` if the language is unknown."""
    if retrieval.evidence is not None and retrieval.evidence.language:
        return retrieval.evidence.language
    # A query that is not text is kept as it is.
    query: Any = retrieval.original_query
    return extract_keywords(query).language if isinstance(query, str) else ""


def drop_function_words(words: Sequence[str], language: str) -> list[str]:
    """Return *words* without the function words of *language*, such as "does" in English."""
    function_words = load_word_rules(language).function_words
    return [word for word in words if word.casefold() not in function_words]


class _Explainer:
    """The ranks of one retrieval's passages in all its lists, and the reasons in words."""

    def __init__(self, retrieval: Retrieval, before: Sequence[Match]) -> None:
        self._found = retrieval
        self._searches = [_rank(ranking.keys) for ranking in retrieval.rankings]
        self._labels = build_search_labels(ranking.variant for ranking in retrieval.rankings)
        self._shares: dict[Key, float] = {}
        self._matched: dict[Key, float] = {}
        weighed: tuple[Key, ...] = ()
        if evidence := retrieval.evidence:
            weighed = evidence.keys
            self._shares = dict(zip(weighed, evidence.shares, strict=True))
            self._matched = dict(zip(weighed, evidence.matched, strict=False))
        # Keyword evidence and the reranker may score only the first candidates. The other
        # candidates follow in their earlier order.
        self._fused = _rank(retrieval.fused)
        self._weighed = _rank(dict.fromkeys((*weighed, *self._fused)))
        self._reranked = _rank(dict.fromkeys((*retrieval.reranked, *self._weighed)))
        self.final = _rank(match.key for match in retrieval.matches)
        known = self.final.keys() | {key for ranks in self._searches for key in ranks}
        self.plain_matches: list[tuple[Key, Match]] = []
        for match in before:
            # If several passages share an id, their keys in the retrieval's lists hold the text.
            with_text = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
            is_shared = match.key not in known and with_text in known
            self.plain_matches.append((with_text if is_shared else match.key, match))
        self._plain = _rank(key for key, _ in self.plain_matches)
        self._language = find_question_language(retrieval)

    def explain(self, key: Key, match: Match, place: int | None) -> Movement:
        """Return the movement of one passage; *place* is its final rank."""
        keywords: tuple[str, ...] = ()
        if self._found.evidence and key in self._shares:
            words = " ".join(group for group, _ in self._found.evidence.keywords)
            language = self._found.evidence.language
            keywords = find_matching_words(words, match.text or "", language)
        movement = Movement(
            match=match,
            place=place,
            before=self._plain.get(key),
            hits=tuple(
                Hit(search, ranking.variant.kind, self._searches[search][key])
                for search, ranking in enumerate(self._found.rankings)
                if key in self._searches[search]
            ),
            last_place=self._reranked.get(key),
            evidence=self._shares.get(key),
            keywords=keywords,
        )
        reasons = "; ".join(self._list_reasons(key, movement))
        ranks = self._describe_ranks(movement)
        return replace(movement, why=f"{ranks}: {reasons}" if reasons else ranks)

    def _describe_ranks(self, movement: Movement) -> str:
        old, new, start = map(
            format_ordinal, (movement.before, movement.place, movement.question_place)
        )
        if not new:
            last = format_ordinal(movement.last_place)
            now = f"now {last}" if last else "no search found it"
            return f"was {old}, {now} and out of the {len(self.final)} shown"
        if old:
            return f"stays {new}" if old == new else f"from {old} to {new}"
        return f"new at {new}" + (f", from {start} in the question's own search" if start else "")

    def _list_reasons(self, key: Key, movement: Movement) -> Iterator[str]:
        """Yield the reasons for *movement* as phrases, such as ``holds no keyword``."""
        place, before = movement.place, movement.before
        weighed, reranked = self._weighed.get(key, 0), self._reranked.get(key, 0)
        is_down = place is None or (before is not None and place > before)
        if not is_down:
            yield from self._list_variant_searches(movement)
            if weighed <= self._fused.get(key, weighed):
                yield from self._list_evidence(key, movement)
        if is_down and movement.evidence is not None and not movement.keywords:
            yield "holds no keyword"
        if reranked != weighed and is_down == (reranked > weighed):
            yield f"the reranker puts it {format_ordinal(reranked)}"

    def _list_variant_searches(self, movement: Movement) -> Iterator[str]:
        """Yield which searches found the passage, beside the search for the question."""
        hits = [hit for hit in movement.hits if hit.kind != "original"]
        if hits:
            labels = [f"{self._labels[hit.search]} ({format_ordinal(hit.place)})" for hit in hits]
            also = "also " if len(hits) < len(movement.hits) else ""
            yield f"{also}found by {_join_texts(labels)}"

    def _list_evidence(self, key: Key, movement: Movement) -> Iterator[str]:
        """Yield the keywords and the metadata that raised the passage."""
        # A model's words are scored with their function words, which may be all that is held.
        words = drop_function_words(movement.keywords, self._language) or movement.keywords
        if movement.evidence and words:
            quoted = (f"'{word}'" for word in words)
            yield f"holds {_join_texts(quoted)}"
        if self._matched.get(key):
            notes = [note for stage, note in self._found.trace.notes if stage == "metadata"]
            yield f"its metadata match {_join_texts(notes or ['the question'])}"


def _rank(keys: Iterable[Key]) -> _Ranks:
    """Return the rank of each key, from 1. Of equal keys, the first one counts."""
    ranks: _Ranks = {}
    for place, key in enumerate(keys, start=1):
        ranks.setdefault(key, place)
    return ranks


def _find_plain_matches(retrieval: Retrieval) -> tuple[Match, ...]:
    """Return the passages that a search without qtmiddleware would have returned."""
    originals = [entry for entry in retrieval.rankings if entry.variant.kind == "original"]
    if not originals:
        return () if retrieval.rankings else retrieval.matches
    original, count = originals[0], len(retrieval.matches)
    return tuple(
        Match(
            id=passage.id,
            namespace=key[0],
            score=passage.score,
            text=passage.text,
            metadata=passage.metadata,
            raw=passage.item,
            key=key,
        )
        for key, passage in zip(original.keys[:count], original.passages[:count], strict=True)
    )


def _join_texts(texts: Iterable[str]) -> str:
    """Return *texts* as an English list. A long list is cut and ends in, say, ``and 3 more``."""
    *first, last = texts
    if not first:
        return last
    if len(first) >= _MOST_NAMED:
        more = len(first) + 1 - _MOST_NAMED
        return f"{', '.join(first[:_MOST_NAMED])} and {more} more"
    return f"{', '.join(first)} and {last}"
