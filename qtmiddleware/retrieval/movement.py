"""Explain each passage's rank after every stage, from the plain search to the caller's list.

All ranks and scores come from the retrieval, which recorded them while it ran. The notebook's
table, the agents' tool, the playground and the command line show these explanations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from itertools import zip_longest
from typing import Any, Final

from qtmiddleware.catalogue import JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.retrieval.question_words import find_matching_words, load_word_rules
from qtmiddleware.types import Key, Match, Retrieval, Variant

_SEARCH_LABELS: Final = {
    **{row.variant: f"the {row.label}" for row in TEXT_FIELDS.values() if row.variant},
    "original": "the question",
    JOINED: "the question and its variants in one text",
    TEXT_CLAUSE: "the keywords in a text clause",
    "standalone": "the standalone form",
    "step_back": "the step-back question",
}
_Ranks = dict[Key, tuple[int, Any]]
_NOWHERE: Final = (None, None)
_MOST_NAMED: Final = 4
"""A sentence names at most this many words or passages."""
_MOST_CHARS: Final = 160
"""The maximum number of characters that a notebook's table shows of a passage."""
# Notebooks have light and dark themes, so only properties that no theme sets are set here.
_CELL: Final = 'style="text-align:left;vertical-align:top"'


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage's rank and score in one search.

    Attributes:
        search: The index of the search in `Retrieval.rankings`, from 0.
        kind: The kind of the variant that was searched, such as ``original``.
        weight: The variant's weight in the fusion.
        place: The passage's rank in this search, from 1.
        score: The score that the backend gave the passage.
        added: The amount that this hit adds to the passage's fused score; ``None`` if the fusion
            method does not add up amounts.
    """

    search: int
    kind: str
    weight: float
    place: int
    score: float | None
    added: float | None


@dataclass(frozen=True, slots=True)
class Movement:
    """One passage's rank after each stage, and the reason for its movement.

    Ranks start at 1. A rank is ``None`` if the stage did not run or did not list the passage. The
    plain list is the result of a search without qtmiddleware.

    Attributes:
        match: The passage.
        place: The passage's rank in the final list.
        score: The passage's score in the final list.
        before: The passage's rank in the plain list.
        hits: The passage's rank and score in each search that found the passage.
        fused_place: The passage's rank after the fusion.
        fused_score: The passage's score after the fusion.
        weighed_place: The passage's rank after scoring by keyword evidence.
        weighed_score: The passage's score after scoring by keyword evidence.
        evidence: The amount that keyword evidence added to the passage's score.
        keywords: The keywords in the passage's text; keywords of the question come first.
        reranked_place: The passage's rank after the reranker.
        rerank_score: The reranker's score.
        passed_by: The final ranks of the passages that moved past this passage.
        ranks: The passage's old and new rank as text, such as ``from 5th to 2nd``.
        reasons: The reasons for the movement, as phrases.
    """

    match: Match
    place: int | None
    score: float | None
    before: int | None
    hits: tuple[Hit, ...] = ()
    fused_place: int | None = None
    fused_score: float | None = None
    weighed_place: int | None = None
    weighed_score: float | None = None
    evidence: float | None = None
    keywords: tuple[str, ...] = field(default=(), repr=False)
    reranked_place: int | None = None
    rerank_score: float | None = None
    passed_by: tuple[int, ...] = ()
    ranks: str = ""
    reasons: tuple[str, ...] = field(default=(), repr=False)

    @property
    def change(self) -> int | None:
        """The number of ranks by which the passage rose; negative if the passage fell.

        ``None`` if the passage is missing from the plain list or from the final list.
        """
        if self.place is None or self.before is None:
            return None
        return self.before - self.place

    @property
    def why(self) -> str:
        """The movement and its reasons, in one sentence."""
        return ": ".join(filter(None, (self.ranks, "; ".join(self.reasons))))

    @property
    def last_place(self) -> int | None:
        """The rank after the last stage, from which the final list is cut."""
        return self.reranked_place or self.weighed_place or self.fused_place

    @property
    def question_place(self) -> int | None:
        """The rank in the search for the unchanged question, or else in the plain list."""
        return next((hit.place for hit in self.hits if hit.kind == "original"), self.before)

    def to_dict(self) -> dict[str, Any]:
        """Return the movement as a dict, ready for JSON. The passage's text is left out."""
        ids = {"id": self.match.id, "namespace": self.match.namespace}
        return {**ids, **_convert_fields(self), "change": self.change, "why": self.why}


@dataclass(frozen=True, slots=True)
class Movements:
    """The movements of all passages between the plain list and the final list of a retrieval.

    The plain list is the result of a search without qtmiddleware.

    Attributes:
        passages: The movements of the passages in the final list, in the order of the list.
        dropped: The movements of the passages in the plain list that are not in the final list.
        depth: The number of passages in the plain list.
    """

    passages: tuple[Movement, ...]
    dropped: tuple[Movement, ...]
    depth: int

    def to_dict(self) -> dict[str, Any]:
        """Return the movements as a dict, ready for JSON."""
        return _convert_fields(self)


def _convert_fields(instance: Any) -> dict[str, Any]:
    names = (each.name for each in fields(instance) if each.name != "match")
    return {name: _convert_to_json(getattr(instance, name)) for name in names}


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(map(_convert_to_json, value))
    if isinstance(value, Movement):
        return value.to_dict()
    if isinstance(value, Hit):
        return _convert_fields(value)
    return round(value, 6) if isinstance(value, float) else value


def explain_movement(found: Retrieval, before: Sequence[Match] | None = None) -> Movements:
    """Return each passage's rank after every stage, and the reason for its movement.

    Args:
        found: The retrieval to explain.
        before: The passages that a plain search returned, such as `Retrieval.matches` of the
            system ``raw``. Default: the first passages in the search for the unchanged question.
    """
    if before is None:
        before = _find_plain_matches(found)
    return _Explainer(found, before).explain_retrieval()


def render_html(retrieval: Retrieval) -> str:
    """Return *retrieval* as HTML: a summary, and a table with one row per passage.

    All texts are escaped.
    """
    movements = explain_movement(retrieval).passages
    heads = "".join(
        f"<th {_CELL}>{heading}</th>" for heading in ("place", "before", "passage", "why")
    )
    rows = "".join(map(_render_table_row, movements))
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><p>{escape(repr(retrieval))}</p>{table}</div>"


def _render_table_row(movement: Movement) -> str:
    text = movement.match.text or ""
    id_ = movement.match.id
    excerpt = text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"
    name = f"<code>{escape(id_)}</code> " if id_ else ""
    cells = (
        str(movement.place),
        str(movement.before or "new"),
        f'{name}<span dir="auto">{escape(excerpt)}</span>',
        escape("; ".join(movement.reasons)),
    )
    return f"<tr>{''.join(f'<td {_CELL}>{cell}</td>' for cell in cells)}</tr>"


def build_search_labels(variants: Iterable[Variant]) -> list[str]:
    """Return a label for the search of each variant, such as ``the question``.

    If several variants are of the same kind, their labels have numbers.
    """
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
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


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
    """Explains how the passages of one retrieval moved."""

    def __init__(self, retrieval: Retrieval, before: Sequence[Match]) -> None:
        """Look up each passage's rank in all lists of *retrieval* and in the list *before*."""
        self._retrieval = retrieval
        self._searches = [_rank(ranking.keys, ranking.scores) for ranking in retrieval.rankings]
        self._labels = build_search_labels(ranking.variant for ranking in retrieval.rankings)
        self._fused = _rank(retrieval.fused, retrieval.fused_scores)
        self._weighed: _Ranks = {}
        self._shares: _Ranks = {}
        self._matched: _Ranks = {}
        self._reranked: _Ranks = {}
        # Keyword evidence and the reranker may score only the first candidates. The other
        # candidates follow in their earlier order.
        order = retrieval.fused
        if evidence := retrieval.evidence:
            order = tuple(dict.fromkeys((*evidence.keys, *order)))
            self._weighed = _rank(order, evidence.scores)
            self._shares = _rank(evidence.keys, evidence.shares)
            self._matched = _rank(evidence.keys, evidence.matched)
        if retrieval.reranked:
            order = tuple(dict.fromkeys((*retrieval.reranked, *order)))
            self._reranked = _rank(order, retrieval.rerank_scores)
        self._final = _rank(match.key for match in retrieval.matches)
        known_keys = {*self._final, *(key for places in self._searches for key in places)}
        self._before = [(_find_passage_key(match, known_keys), match) for match in before]
        self._plain = _rank(key for key, _ in self._before)
        self._language = find_question_language(retrieval)

    def explain_retrieval(self) -> Movements:
        """Return the movements of the passages in the final list and in the plain list."""
        final = enumerate(self._retrieval.matches, start=1)
        dropped = (row for row in dict(self._before).items() if row[0] not in self._final)
        return Movements(
            passages=tuple(self._explain_passage(match.key, match, it) for it, match in final),
            dropped=tuple(self._explain_passage(key, match, None) for key, match in dropped),
            depth=len(self._before),
        )

    def _explain_passage(self, key: Key, match: Match, place: int | None) -> Movement:
        """Return the movement of one passage; *place* is its final rank."""
        if place is not None and place != self._final[key][0]:
            # If lists are joined without merging, a passage occurs once per search that found it.
            return Movement(match, place, match.fused_score, None, ranks="listed here again")
        score = match.score if match.fused_score is None else match.fused_score
        fused_place, fused_score = self._fused.get(key, _NOWHERE)
        weighed_place, weighed_score = self._weighed.get(key, _NOWHERE)
        reranked_place, rerank_score = self._reranked.get(key, _NOWHERE)
        movement = Movement(
            match=match,
            place=place,
            score=None if place is None else score,
            before=self._plain.get(key, _NOWHERE)[0],
            hits=tuple(self._list_hits(key)),
            fused_place=fused_place,
            fused_score=fused_score,
            weighed_place=weighed_place,
            weighed_score=weighed_score,
            evidence=self._shares.get(key, _NOWHERE)[1],
            keywords=self._find_keywords(match.text or "") if key in self._shares else (),
            reranked_place=reranked_place,
            rerank_score=rerank_score,
            passed_by=tuple(self._list_overtaking_ranks(key, place)),
        )
        reasons = tuple(self._list_reasons(movement))
        return replace(movement, ranks=self._describe_ranks(movement), reasons=reasons)

    def _list_hits(self, key: Key) -> Iterator[Hit]:
        gains = self._retrieval.gains
        for search, ranks in enumerate(self._searches):
            if key in ranks:
                place, score = ranks[key]
                variant = self._retrieval.rankings[search].variant
                added = gains[search][place - 1] if gains else None
                yield Hit(search, variant.kind, variant.weight, place, score, added)

    def _find_keywords(self, text: str) -> tuple[str, ...]:
        evidence = self._retrieval.evidence
        words = " ".join(group for group, _ in evidence.keywords) if evidence else ""
        return find_matching_words(words, text, evidence.language if evidence else "")

    def _list_overtaking_ranks(self, key: Key, place: int | None) -> Iterator[int]:
        """Yield the final ranks of the passages that are above a passage, but were not before."""
        if key not in self._plain:
            return
        before = self._plain[key][0]
        for other_key, (other_place, _) in self._final.items():
            is_above = place is None or other_place < place
            # A passage that is not in the plain list counts as below all passages that are.
            if is_above and self._plain.get(other_key, (before + 1, None))[0] > before:
                yield other_place

    # --- in words ---------------------------------------------------------------------------------

    def _describe_ranks(self, movement: Movement) -> str:
        old, new, start = map(
            format_ordinal, (movement.before, movement.place, movement.question_place)
        )
        if not new:
            last = format_ordinal(movement.last_place)
            now = f"now {last}" if last else "no search found it"
            return f"was {old}, {now} and out of the {len(self._retrieval.matches)} shown"
        if old:
            return f"stays {new}" if old == new else f"from {old} to {new}"
        return f"new at {new}" + (f", from {start} in the question's own search" if start else "")

    def _list_reasons(self, movement: Movement) -> Iterator[str]:
        """Yield the reasons for *movement* as phrases, such as ``holds no keyword``.

        A stage that moved the passage in the opposite direction is not given as a reason.
        """
        place, before = movement.place, movement.before
        stages = (movement.fused_place, movement.weighed_place, movement.reranked_place)
        by_fusion, by_words, by_reranker = (
            _has_risen(old, new)
            for old, new in zip((movement.question_place, *stages), stages, strict=False)
        )
        is_down: bool = place is None or (before is not None and place > before)
        if not is_down:
            yield from self._list_variant_searches(movement, by_fusion)
            if by_words is not False:
                yield from self._list_evidence(movement)
        elif movement.passed_by:
            who = "the passage" if len(movement.passed_by) == 1 else "those"
            yield f"passed by {who} now {_join_texts(map(format_ordinal, movement.passed_by))}"
        if is_down and by_fusion is False:
            yield "the other searches raise other passages"
        if is_down and by_words is False and movement.keywords:
            yield "its keywords add less"
        has_no_keyword = movement.evidence is not None and not movement.keywords
        if has_no_keyword and (is_down or by_words is False):
            yield "holds no keyword"
        if by_reranker is (not is_down) and movement.rerank_score is not None:
            yield f"the reranker puts it {format_ordinal(movement.reranked_place)}"
        is_cut = (movement.last_place or 0) > len(self._retrieval.matches)
        if is_cut and place is not None and before is not None:
            yield "kept, because the plain search returned it"

    def _list_variant_searches(self, movement: Movement, by_fusion: bool | None) -> Iterator[str]:
        """Yield which searches found the passage, beside the search for the question."""
        hits = [hit for hit in movement.hits if hit.kind != "original"]
        is_found_by_question = len(hits) < len(movement.hits)
        if not hits or (is_found_by_question and by_fusion is False):
            return
        labels = [f"{self._labels[hit.search]} ({format_ordinal(hit.place)})" for hit in hits]
        sentence = f"found by {_join_texts(labels)}"
        if is_found_by_question:
            yield f"also {sentence}"
        elif any(ranking.variant.kind == "original" for ranking in self._retrieval.rankings):
            yield f"{sentence}, not by the question's own search"
        else:
            yield sentence

    def _list_evidence(self, movement: Movement) -> Iterator[str]:
        """Yield the keywords and the metadata that raised the passage."""
        words: Sequence[str] = drop_function_words(movement.keywords, self._language)
        # A model's words are scored with their function words, which may be all that is held.
        if not words and movement.evidence:
            words = movement.keywords
        if words:
            quoted = (f"'{word}'" for word in words)
            yield f"holds {_join_texts(quoted)}"
        if self._matched.get(movement.match.key, _NOWHERE)[1]:
            notes = [note for subject, note in self._retrieval.trace.notes if subject == "metadata"]
            yield f"its metadata match {_join_texts(notes or ['the question'])}"


def _has_risen(old_rank: int | None, new_rank: int | None) -> bool | None:
    """Return whether a passage that moved from *old_rank* to *new_rank* moved up.

    Returns ``None`` if the ranks are equal or a rank is ``None``.
    """
    if old_rank is None or new_rank is None or old_rank == new_rank:
        return None
    return new_rank < old_rank


def _rank(keys: Iterable[Key], values: Iterable[float | None] = ()) -> _Ranks:
    """Return the rank of each key, from 1, and its value. Of equal keys, the first one counts."""
    ranks: _Ranks = {}
    for place, (key, value) in enumerate(zip_longest(keys, values), start=1):
        ranks.setdefault(key, (place, value))
    return ranks


def _find_passage_key(match: Match, known_keys: Collection[Key]) -> Key:
    """Return the key of the passage *match*.

    Usually, this is the passage's id with its namespace. If several passages have the same id,
    their keys in *known_keys* include the text. Then this function returns the key with the text.
    """
    with_text = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    # A match that was built by hand has no key.
    key = match.key if match.key[1] else (match.namespace, match.id or with_text[1])
    return with_text if key not in known_keys and with_text in known_keys else key


def _find_plain_matches(retrieval: Retrieval) -> tuple[Match, ...]:
    """Return the passages that a search without qtmiddleware would have returned.

    These are the first passages in the search for the unchanged question. There are at most as many
    as in the final list. If only variants were searched, the result is empty. If *retrieval* has no
    record of its searches, the result is the final list.
    """
    originals = (entry for entry in retrieval.rankings if entry.variant.kind == "original")
    ranking = next(originals, None)
    if ranking is None:
        return () if retrieval.rankings else retrieval.matches
    rows = zip(ranking.keys, ranking.passages, retrieval.matches, strict=False)
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
        for key, passage, _ in rows
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
