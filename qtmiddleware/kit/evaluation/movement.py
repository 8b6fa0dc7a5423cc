"""Explain each passage's rank after every stage, from the plain search to the caller's list.

All ranks and scores come from the retrieval, which recorded them while it ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.catalogue import JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.retrieval.question_words import find_matching_words, load_word_rules
from qtmiddleware.types import Key, Match, Retrieval, Variant

_SEARCH_LABELS: Final = {
    "original": "the question",
    JOINED: "the question and its variants in one text",
    TEXT_CLAUSE: "the keywords in a text clause",
    **{
        text_field.variant: f"the {text_field.label}"
        for text_field in TEXT_FIELDS.values()
        if text_field.variant
    },
    "standalone": "the standalone form",
    "step_back": "the step-back question",
}
_MOST_NAMED: Final = 4
"""A sentence names at most this many words or passages."""


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

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as a dict, ready for JSON."""
        return {
            "search": self.search,
            "kind": self.kind,
            "weight": round(self.weight, 4),
            "place": self.place,
            "score": _round_number(self.score),
            "added": _round_number(self.added),
        }


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
        why: The movement and its reasons, in one sentence.
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
    why: str = field(default="", repr=False)

    @property
    def change(self) -> int | None:
        """The number of ranks by which the passage rose; negative if the passage fell.

        ``None`` if the passage is missing from the plain list or from the final list.
        """
        return None if self.place is None or self.before is None else self.before - self.place

    def to_dict(self) -> dict[str, Any]:
        """Return the movement as a dict, ready for JSON. The passage's text is left out."""
        return {
            "id": self.match.id,
            "namespace": self.match.namespace,
            "place": self.place,
            "score": _round_number(self.score),
            "before": self.before,
            "change": self.change,
            "hits": [hit.to_dict() for hit in self.hits],
            "fused_place": self.fused_place,
            "fused_score": _round_number(self.fused_score),
            "weighed_place": self.weighed_place,
            "weighed_score": _round_number(self.weighed_score),
            "evidence": _round_number(self.evidence),
            "keywords": list(self.keywords),
            "reranked_place": self.reranked_place,
            "rerank_score": _round_number(self.rerank_score),
            "passed_by": list(self.passed_by),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Movements:
    """The movements of all passages between the plain list and the final list of a retrieval.

    The plain list is the result of a search without qtmiddleware.

    Attributes:
        passages: The movements of the passages in the final list, in the order of the list.
        dropped: The movements of the passages in the plain list that are not in the final list.
        depth: The number of passages in the plain list.
        evidence_weight: The weight of keyword evidence in the score; ``None`` if keyword evidence
            did not run.
    """

    passages: tuple[Movement, ...]
    dropped: tuple[Movement, ...]
    depth: int
    evidence_weight: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the movements as a dict, ready for JSON."""
        return {
            "passages": [movement.to_dict() for movement in self.passages],
            "dropped": [movement.to_dict() for movement in self.dropped],
            "depth": self.depth,
            "evidence_weight": _round_number(self.evidence_weight),
        }


def explain_movement(found: Retrieval, before: Sequence[Match] | None = None) -> Movements:
    """Return each passage's rank after every stage, and the reason for its movement.

    Args:
        found: The retrieval to explain.
        before: The passages that a plain search returned, such as `Retrieval.matches` of the
            system ``raw``. Default: the first passages in the search for the unchanged question.
    """
    return _Explainer(
        found, _find_plain_matches(found) if before is None else before
    ).explain_retrieval()


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
        labels.append(
            f"{label.removeprefix('the ')} {seen[kind]}" if kinds.count(kind) > 1 else label
        )
    return labels


def format_ordinal(number: int) -> str:
    """Return *number* as an English ordinal, such as 1st, 2nd, 3rd or 11th."""
    ending = (
        {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        if number % 100 not in (11, 12, 13)
        else "th"
    )
    return f"{number}{ending}"


def find_question_language(retrieval: Retrieval) -> str:
    """Return the code of the question's language; ``""`` if the language is unknown."""
    # A query that is not text is kept as it is.
    query: Any = retrieval.original_query
    language = "" if retrieval.evidence is None else retrieval.evidence.language
    return language or (extract_keywords(query).language if isinstance(query, str) else "")


def drop_function_words(words: Sequence[str], language: str) -> list[str]:
    """Return *words* without the function words of *language*, such as "does" in English."""
    function_words = load_word_rules(language).function_words
    return [word for word in words if word.casefold() not in function_words]


class _Explainer:
    """Explains how the passages of one retrieval moved."""

    def __init__(self, retrieval: Retrieval, before: Sequence[Match]) -> None:
        """Look up each passage's rank in all lists of *retrieval* and in the list *before*."""
        self._retrieval = retrieval
        self._before = before
        evidence = retrieval.evidence
        # Keyword evidence and the reranker may score only the first candidates. The other
        # candidates follow in their earlier order.
        order = retrieval.fused if evidence is None else _merge_keys(evidence.keys, retrieval.fused)
        self._lists = [_rank_keys(ranking.keys) for ranking in retrieval.rankings]
        self._labels = build_search_labels(ranking.variant for ranking in retrieval.rankings)
        self._fused = _rank_keys(retrieval.fused)
        self._weighed = {} if evidence is None else _rank_keys(order)
        self._scores = (
            {} if evidence is None else dict(zip(evidence.keys, evidence.scores, strict=True))
        )
        self._shares = (
            {} if evidence is None else dict(zip(evidence.keys, evidence.shares, strict=True))
        )
        self._reranked = (
            _rank_keys(_merge_keys(retrieval.reranked, order)) if retrieval.reranked else {}
        )
        self._rerank_scores = dict(zip(retrieval.reranked, retrieval.rerank_scores, strict=True))
        self._final = _rank_keys([match.key for match in retrieval.matches])
        known_keys = self._final.keys() | {
            key for ranking in retrieval.rankings for key in ranking.keys
        }
        self._keys_before = [_find_passage_key(match, known_keys) for match in before]
        self._plain = _rank_keys(self._keys_before)

    def explain_retrieval(self) -> Movements:
        """Return the movements of the passages in the final list and in the plain list."""
        retrieval = self._retrieval
        matches_before = dict(zip(self._keys_before, self._before, strict=True))
        return Movements(
            passages=tuple(
                self._explain_movement(match.key, match, place)
                for place, match in enumerate(retrieval.matches, start=1)
            ),
            dropped=tuple(
                self._explain_movement(key, match, None)
                for key, match in matches_before.items()
                if key not in self._final
            ),
            depth=len(self._before),
            evidence_weight=None if retrieval.evidence is None else retrieval.evidence.weight,
        )

    def _explain_movement(self, passage_key: Key, match: Match, final_rank: int | None) -> Movement:
        """Return the movement of one passage, with the reason.

        Args:
            passage_key: The passage's key.
            match: The passage.
            final_rank: The passage's rank in the final list; ``None`` if the passage is not in the
                list.
        """
        if final_rank is not None and final_rank != self._final[passage_key]:
            # If lists are joined without merging, a passage occurs once per search that found it.
            return Movement(match, final_rank, match.fused_score, None, why="listed here again")
        fused_place = self._fused.get(passage_key)
        scores = self._retrieval.fused_scores
        share = self._shares.get(passage_key)
        movement = Movement(
            match=match,
            place=final_rank,
            score=(
                None
                if final_rank is None
                else match.score
                if match.fused_score is None
                else match.fused_score
            ),
            before=self._plain.get(passage_key),
            hits=tuple(self._list_hits(passage_key)),
            fused_place=fused_place,
            fused_score=None
            if fused_place is None or len(scores) < fused_place
            else scores[fused_place - 1],
            weighed_place=self._weighed.get(passage_key),
            weighed_score=self._scores.get(passage_key),
            evidence=share,
            keywords=() if share is None else self._find_keywords(match.text or ""),
            reranked_place=self._reranked.get(passage_key),
            rerank_score=self._rerank_scores.get(passage_key),
            passed_by=tuple(self._list_overtaking_ranks(passage_key, final_rank)),
        )
        return replace(
            movement,
            why=": ".join(
                filter(
                    None, (self._describe_ranks(movement), "; ".join(self._list_reasons(movement)))
                )
            ),
        )

    def _list_hits(self, passage_key: Key) -> Iterator[Hit]:
        """Yield a hit for each search that found the passage with *passage_key*."""
        gains = self._retrieval.gains
        for search, (ranking, places) in enumerate(
            zip(self._retrieval.rankings, self._lists, strict=True)
        ):
            if (place := places.get(passage_key)) is not None:
                added = gains[search][place - 1] if gains else None
                variant = ranking.variant
                yield Hit(
                    search, variant.kind, variant.weight, place, ranking.scores[place - 1], added
                )

    def _find_keywords(self, passage_text: str) -> tuple[str, ...]:
        """Return the retrieval's keywords that occur in *passage_text*."""
        evidence = self._retrieval.evidence
        if evidence is None:
            return ()
        return find_matching_words(
            " ".join(words for words, _ in evidence.keywords), passage_text, evidence.language
        )

    def _list_overtaking_ranks(self, passage_key: Key, final_rank: int | None) -> Iterator[int]:
        """Yield the final ranks of the passages that overtook the passage with *passage_key*.

        An overtaking passage is above this passage in the final list, but was not above this
        passage in the plain list. *final_rank* is this passage's rank in the final list; ``None``
        if this passage is not in the final list.
        """
        before = self._plain.get(passage_key)
        if before is None:
            return
        # A passage that is not in the plain list counts as below all passages that are.
        for other_key, other_place in self._final.items():
            if (final_rank is None or other_place < final_rank) and self._plain.get(
                other_key, before + 1
            ) > before:
                yield other_place

    # --- in words ---------------------------------------------------------------------------------

    def _describe_ranks(self, movement: Movement) -> str:
        """Return a passage's old and new rank as text, such as ``from 5th to 2nd``."""
        old, place = movement.before, movement.place
        if place is None:
            last = movement.reranked_place or movement.weighed_place or movement.fused_place
            now = "no search found it" if last is None else f"now {format_ordinal(last)}"
            return (
                f"was {format_ordinal(old or 0)}, {now} and out of the"
                f" {len(self._retrieval.matches)} shown"
            )
        now = format_ordinal(place)
        if old is not None:
            return f"stays {now}" if old == place else f"from {format_ordinal(old)} to {now}"
        start = self._get_original_rank(movement)
        origin = (
            f", from {format_ordinal(start)} in the question's own search"
            if start is not None
            else ""
        )
        return f"new at {now}{origin}"

    def _list_reasons(self, movement: Movement) -> Iterator[str]:
        """Yield the reasons for *movement* as phrases, such as ``holds no keyword``.

        A stage that moved the passage in the opposite direction is not given as a reason.
        """
        start, place = self._get_original_rank(movement), movement.place
        stages = (movement.fused_place, movement.weighed_place, movement.reranked_place)
        by_fusion, by_words, by_reranker = (
            _has_risen(before, after)
            for before, after in zip((start, *stages), stages, strict=False)
        )
        is_down = place is None or (movement.before is not None and place > movement.before)
        if not is_down:
            other_hits = [hit for hit in movement.hits if hit.kind != "original"]
            is_found_by_question = len(other_hits) < len(movement.hits)
            if other_hits and (by_fusion is not False or not is_found_by_question):
                labels = [
                    f"{self._labels[hit.search]} ({format_ordinal(hit.place)})"
                    for hit in other_hits
                ]
                is_missed_by_question = not is_found_by_question and any(
                    ranking.variant.kind == "original" for ranking in self._retrieval.rankings
                )
                prefix, suffix = (
                    "also " if is_found_by_question else "",
                    ", not by the question's own search" if is_missed_by_question else "",
                )
                yield f"{prefix}found by {_join_texts(labels)}{suffix}"
            if (words := self._drop_function_words(movement.keywords)) and by_words is not False:
                yield f"holds {_join_texts([repr(word) for word in words])}"
        elif movement.passed_by:
            who = "the passage" if len(movement.passed_by) == 1 else "those"
            yield (
                f"passed by {who} now {_join_texts(list(map(format_ordinal, movement.passed_by)))}"
            )
        if is_down and by_fusion is False:
            yield "the other searches raise other passages"
        if is_down and by_words is False and movement.keywords:
            yield "its keywords add less"
        if (
            movement.evidence is not None
            and not movement.keywords
            and (is_down or by_words is False)
        ):
            yield "holds no keyword"
        if (
            by_reranker is not None
            and by_reranker is not is_down
            and movement.rerank_score is not None
        ):
            yield f"the reranker puts it {format_ordinal(movement.reranked_place or 0)}"
        last = movement.reranked_place or movement.weighed_place or movement.fused_place
        if (
            place is not None
            and last is not None
            and last > len(self._retrieval.matches)
            and movement.before is not None
        ):
            yield "kept, because the plain search returned it"

    def _drop_function_words(self, words: Sequence[str]) -> list[str]:
        return drop_function_words(words, find_question_language(self._retrieval)) if words else []

    def _get_original_rank(self, movement: Movement) -> int | None:
        """Return a passage's rank in the search for the unchanged question.

        If this search did not find the passage, returns the passage's rank in the plain list.
        """
        return next((hit.place for hit in movement.hits if hit.kind == "original"), movement.before)


def _has_risen(old_rank: int | None, new_rank: int | None) -> bool | None:
    """Return whether a passage that moved from *old_rank* to *new_rank* moved up.

    Returns ``None`` if the ranks are equal or a rank is ``None``.
    """
    return (
        None
        if old_rank is None or new_rank is None or old_rank == new_rank
        else new_rank < old_rank
    )


def _merge_keys(keys: Sequence[Key], other_keys: Sequence[Key]) -> tuple[Key, ...]:
    """Return *keys*, followed by *other_keys*, without duplicates."""
    return tuple(dict.fromkeys((*keys, *other_keys)))


def _rank_keys(keys: Iterable[Key]) -> dict[Key, int]:
    """Return the rank of each key, from 1. If a key occurs twice, its first rank counts."""
    places: dict[Key, int] = {}
    for place, key in enumerate(keys, start=1):
        places.setdefault(key, place)
    return places


def _find_passage_key(match: Match, known_keys: Collection[Key]) -> Key:
    """Return the key of the passage *match*.

    Usually, this is the passage's id with its namespace. If several passages have the same id,
    their keys in *known_keys* include the text. Then this function returns the key with the text.
    """
    with_text = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    # A match that was built by hand has no key.
    key = match.key if match.key[1] else (match.namespace, match.id) if match.id else with_text
    return with_text if key not in known_keys and with_text in known_keys else key


def _find_plain_matches(retrieval: Retrieval) -> tuple[Match, ...]:
    """Return the passages that a search without qtmiddleware would have returned.

    These are the first passages in the search for the unchanged question. There are at most as many
    as in the final list. If only variants were searched, the result is empty. If *retrieval* has no
    record of its searches, the result is the final list.
    """
    ranking = next(
        (entry for entry in retrieval.rankings if entry.variant.kind == "original"), None
    )
    if ranking is None:
        return () if retrieval.rankings else retrieval.matches
    # A key that includes the text has the id before the null character (see `_find_passage_key`).
    rows = zip(ranking.keys, ranking.passages, ranking.scores, retrieval.matches, strict=False)
    return tuple(
        Match(
            id=key[1].partition("\0")[0] or None,
            namespace=key[0],
            score=score,
            text=passage.text,
            metadata=passage.metadata,
            raw=passage.item,
            key=key,
        )
        for key, passage, score, _ in rows
    )


def _join_texts(texts: Sequence[str]) -> str:
    """Return *texts* as an English list. A long list is cut and ends in, say, ``and 3 more``."""
    if len(texts) > _MOST_NAMED:
        return f"{', '.join(texts[:_MOST_NAMED])} and {len(texts) - _MOST_NAMED} more"
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _round_number(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
