"""Where each passage of a retrieval stood at every stage, and why: from the plain search to the list the caller gets.

Nothing is reckoned again here: places, gains and shares are those that the retrieval wrote down
while it ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qtmiddleware.catalogue import GLOSSARY, JOINED, TEXT_CLAUSE, TEXT_FIELDS
from qtmiddleware.preprocessing import prepare
from qtmiddleware.retrieval.question_words import find_held_words, load_word_rules
from qtmiddleware.retrieval.responses import get_raw, read_metadata, read_text
from qtmiddleware.types import Key, Match, Retrieval, Variant

_SAID: Final = {
    "original": "the question",
    JOINED: "the question and its variants in one text",
    TEXT_CLAUSE: "the keywords in a text clause",
    GLOSSARY: "the question with the glossary's forms",
    **{it.variant: f"the {it.label}" for it in TEXT_FIELDS.values() if it.variant},
    "standalone": "the standalone form",
    "step_back": "the step-back question",
}
_MOST_SAID: Final = 4
"""Words, or passages, that a sentence names."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One search that found a passage.

    *search* is which of `Retrieval.rankings` it is, from 0; *kind* and *weight* are its variant's.
    *place*, from 1, and
    *score*, the backend's own, are the passage's in that list. *added* is what that place added to
    the fused score, ``None`` where the fusion adds nothing up.
    """

    search: int
    kind: str
    weight: float
    place: int
    score: float | None
    added: float | None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "search": self.search,
            "kind": self.kind,
            "weight": round(self.weight, 4),
            "place": self.place,
            "score": _round(self.score),
            "added": _round(self.added),
        }


@dataclass(frozen=True, slots=True)
class Movement:
    """The way of one passage. Places count from 1; ``None`` where it stood in no such list, or there was none.

    *place* is that in the final list, ``None`` for one that dropped out of it, and *score* what it
    is sorted by there.
    *before* is its place in the plain list, *hits* are the searches that found it, in their order.
    *fused_place* and
    *fused_score* are those after the fusion; *weighed_place* and *weighed_score* those after
    keyword evidence, of which
    *evidence* is the part that the keywords added and *keywords* are the words that stand in its
    text, the question's first; *reranked_place* and *rerank_score* are the reranker's. *passed_by*
    are the places of the passages that are before it now and were not. *why* says all of it in a
    sentence.
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
        """How many places it went up, below 0 down; ``None`` where it is new or dropped out."""
        return None if self.place is None or self.before is None else self.before - self.place

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data; the passage itself is there by its id."""
        return {
            "id": self.match.id,
            "namespace": self.match.namespace,
            "place": self.place,
            "score": _round(self.score),
            "before": self.before,
            "change": self.change,
            "hits": [hit.to_dict() for hit in self.hits],
            "fused_place": self.fused_place,
            "fused_score": _round(self.fused_score),
            "weighed_place": self.weighed_place,
            "weighed_score": _round(self.weighed_score),
            "evidence": _round(self.evidence),
            "keywords": list(self.keywords),
            "reranked_place": self.reranked_place,
            "rerank_score": _round(self.rerank_score),
            "passed_by": list(self.passed_by),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Movements:
    """How a retrieval's list came about beside the plain one, which has *depth* passages.

    *passages* are those of the final list, in its order; *dropped* those of the plain list that are
    not in it.
    *evidence_weight* is what keywords counted beside the scores, ``None`` where they were not
    weighed.
    """

    passages: tuple[Movement, ...]
    dropped: tuple[Movement, ...]
    depth: int
    evidence_weight: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "passages": [it.to_dict() for it in self.passages],
            "dropped": [it.to_dict() for it in self.dropped],
            "depth": self.depth,
            "evidence_weight": _round(self.evidence_weight),
        }


def explain_movement(found: Retrieval, before: Sequence[Match] | None = None) -> Movements:
    """Say where each passage of *found* stood at every stage, and why it moved from its place in the list *before*.

    *before* is what the plain function gives, such as the `Retrieval.matches` of the system
    ``raw``. Without it the question's own list within *found* stands in, as far as the plain call
    would have shown it.
    """
    return _Account(found, _find_plain_list(found) if before is None else before).explain()


def label_searches(variants: Iterable[Variant]) -> list[str]:
    """Return what people call each of several searches, with numbers where there are several of a kind."""
    kinds = [variant.kind for variant in variants]
    seen: Counter[str] = Counter()
    labels = []
    for kind in kinds:
        seen[kind] += 1
        label = _SAID.get(kind, f"the {kind}")
        labels.append(
            f"{label.removeprefix('the ')} {seen[kind]}" if kinds.count(kind) > 1 else label
        )
    return labels


def format_place(place: int) -> str:
    """Return *place* as an ordinal number: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = (
        {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
        if place % 100 not in (11, 12, 13)
        else "th"
    )
    return f"{place}{ending}"


def find_language(found: Retrieval) -> str:
    """Return the code of the question's language; empty if it is unknown."""
    # A query that was no text is kept as it was.
    query: Any = found.original_query
    known = "" if found.evidence is None else found.evidence.language
    return known or (prepare(query).language if isinstance(query, str) else "")


def drop_function_words(words: Sequence[str], language: str) -> list[str]:
    """Return the *words* that a reason may name: no function words such as "does", which explain nothing."""
    function_words = load_word_rules(language).function_words
    return [word for word in words if word.casefold() not in function_words]


class _Account:
    """The lists of *found*, as places by passage."""

    def __init__(self, found: Retrieval, before: Sequence[Match]) -> None:
        self._found = found
        self._before = before
        held = found.evidence
        order = found.fused if held is None else _put_first(held.keys, found.fused)
        self._lists = [_find_places(ranking.keys) for ranking in found.rankings]
        self._labels = label_searches(ranking.variant for ranking in found.rankings)
        self._fused = _find_places(found.fused)
        self._weighed = {} if held is None else _find_places(order)
        self._scores = {} if held is None else dict(zip(held.keys, held.scores, strict=True))
        self._shares = {} if held is None else dict(zip(held.keys, held.shares, strict=True))
        self._reranked = _find_places(_put_first(found.reranked, order)) if found.reranked else {}
        self._rerank_scores = dict(zip(found.reranked, found.rerank_scores, strict=True))
        self._final = _find_places([match.key for match in found.matches])
        known = self._final.keys() | {key for ranking in found.rankings for key in ranking.keys}
        self._keys_before = [_find_key(match, known) for match in before]
        self._plain = _find_places(self._keys_before)

    def explain(self) -> Movements:
        """Follow every passage of both lists."""
        found = self._found
        gone = dict(zip(self._keys_before, self._before, strict=True))
        return Movements(
            passages=tuple(
                self._follow(it.key, it, place) for place, it in enumerate(found.matches, start=1)
            ),
            dropped=tuple(
                self._follow(key, it, None) for key, it in gone.items() if key not in self._final
            ),
            depth=len(self._before),
            evidence_weight=None if found.evidence is None else found.evidence.weight,
        )

    def _follow(self, key: Key, match: Match, place: int | None) -> Movement:
        if place is not None and place != self._final[key]:
            # Lists that stand one after the other hold a passage as often as it was found.
            return Movement(match, place, match.fused_score, None, why="listed here again")
        fused = self._fused.get(key)
        scores = self._found.fused_scores
        share = self._shares.get(key)
        moved = Movement(
            match=match,
            place=place,
            score=(
                None
                if place is None
                else match.score
                if match.fused_score is None
                else match.fused_score
            ),
            before=self._plain.get(key),
            hits=tuple(self._list_hits(key)),
            fused_place=fused,
            fused_score=None if fused is None or len(scores) < fused else scores[fused - 1],
            weighed_place=self._weighed.get(key),
            weighed_score=self._scores.get(key),
            evidence=share,
            keywords=() if share is None else self._find_keywords(match.text or ""),
            reranked_place=self._reranked.get(key),
            rerank_score=self._rerank_scores.get(key),
            passed_by=tuple(self._find_passing(key, place)),
        )
        return replace(
            moved,
            why=": ".join(filter(None, (self._say_where(moved), "; ".join(self._say_why(moved))))),
        )

    def _list_hits(self, key: Key) -> Iterator[Hit]:
        gains = self._found.gains
        for at, (ranking, places) in enumerate(zip(self._found.rankings, self._lists, strict=True)):
            if (place := places.get(key)) is not None:
                added = gains[at][place - 1] if gains else None
                variant = ranking.variant
                yield Hit(at, variant.kind, variant.weight, place, ranking.scores[place - 1], added)

    def _find_keywords(self, text: str) -> tuple[str, ...]:
        evidence = self._found.evidence
        if evidence is None:
            return ()
        return find_held_words(
            " ".join(words for words, _ in evidence.keywords), text, evidence.language
        )

    def _find_passing(self, key: Key, place: int | None) -> Iterator[int]:
        """The places of those that are before it now, and were behind it, or nowhere, in the plain list."""
        before = self._plain.get(key)
        if before is None:
            return
        for other, now in self._final.items():
            if (place is None or now < place) and self._plain.get(other, before + 1) > before:
                yield now

    # --- in words
    # -----------------------------------------------------------------------------------------------------

    def _say_where(self, moved: Movement) -> str:
        before, place = moved.before, moved.place
        if place is None:
            last = moved.reranked_place or moved.weighed_place or moved.fused_place
            now = "no search found it" if last is None else f"now {format_place(last)}"
            return (
                f"was {format_place(before or 0)}, {now} and out of the {len(self._found.matches)}"
                " shown"
            )
        now = format_place(place)
        if before is not None:
            return f"stays {now}" if before == place else f"from {format_place(before)} to {now}"
        start = self._find_start(moved)
        own = (
            f", from {format_place(start)} in the question's own search"
            if start is not None
            else ""
        )
        return f"new at {now}{own}"

    def _say_why(self, moved: Movement) -> Iterator[str]:
        """What moved it the way it went; each stage that moved it the other way is passed over."""
        start, place = self._find_start(moved), moved.place
        stages = (moved.fused_place, moved.weighed_place, moved.reranked_place)
        by_fusion, by_words, by_reranker = (
            _goes_up(before, after) for before, after in zip((start, *stages), stages, strict=False)
        )
        is_down = place is None or (moved.before is not None and place > moved.before)
        if not is_down:
            others = [hit for hit in moved.hits if hit.kind != "original"]
            is_own = len(others) < len(moved.hits)
            if others and (by_fusion is not False or not is_own):
                named = [
                    f"{self._labels[hit.search]} ({format_place(hit.place)})" for hit in others
                ]
                alone = not is_own and any(
                    it.variant.kind == "original" for it in self._found.rankings
                )
                also, apart = (
                    "also " if is_own else "",
                    ", not by the question's own search" if alone else "",
                )
                yield f"{also}found by {_join(named)}{apart}"
            if (words := self._drop_function_words(moved.keywords)) and by_words is not False:
                yield f"holds {_join([repr(word) for word in words])}"
        elif moved.passed_by:
            one = "the passage" if len(moved.passed_by) == 1 else "those"
            yield f"passed by {one} now {_join(list(map(format_place, moved.passed_by)))}"
        if is_down and by_fusion is False:
            yield "the other searches raise other passages"
        if is_down and by_words is False and moved.keywords:
            yield "its keywords add less"
        if moved.evidence is not None and not moved.keywords and (is_down or by_words is False):
            yield "holds no keyword"
        if (
            by_reranker is not None
            and by_reranker is not is_down
            and moved.rerank_score is not None
        ):
            yield f"the reranker puts it {format_place(moved.reranked_place or 0)}"
        last = moved.reranked_place or moved.weighed_place or moved.fused_place
        if (
            place is not None
            and last is not None
            and last > len(self._found.matches)
            and moved.before is not None
        ):
            yield "kept, because the plain search returned it"

    def _drop_function_words(self, words: Sequence[str]) -> list[str]:
        return drop_function_words(words, find_language(self._found)) if words else []

    def _find_start(self, moved: Movement) -> int | None:
        """Its place in the question's own search."""
        return next((hit.place for hit in moved.hits if hit.kind == "original"), moved.before)


def _goes_up(before: int | None, after: int | None) -> bool | None:
    """Whether a passage went up from one list to the next; ``None`` where it stayed, or is not in both."""
    return None if before is None or after is None or before == after else after < before


def _put_first(keys: Sequence[Key], others: Sequence[Key]) -> tuple[Key, ...]:
    """*keys*, and behind them the *others* in their order."""
    return tuple(dict.fromkeys((*keys, *others)))


def _find_places(keys: Iterable[Key]) -> dict[Key, int]:
    """The first place of each of *keys*, from 1."""
    places: dict[Key, int] = {}
    for place, key in enumerate(keys, start=1):
        places.setdefault(key, place)
    return places


def _find_key(match: Match, known: Collection[Key]) -> Key:
    """What the passage is called among the *known*; chunks that share an id are told apart by their text there."""
    with_text = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    # One that was made by hand has no key.
    key = match.key if match.key[1] else (match.namespace, match.id) if match.id else with_text
    return with_text if key not in known and with_text in known else key


def _find_plain_list(found: Retrieval) -> tuple[Match, ...]:
    """What the plain call would have shown, from the question's own list; the result itself where nothing was fused."""
    own = next((ranking for ranking in found.rankings if ranking.variant.kind == "original"), None)
    if own is None:
        return () if found.rankings else found.matches
    rows = zip(own.keys, own.items, own.scores, found.matches, strict=False)
    return tuple(
        Match(
            id=key[1].partition("\0")[0] or None,
            namespace=key[0],
            score=score,
            text=read_text(item, None),
            metadata=read_metadata(item),
            raw=get_raw(item),
            key=key,
        )
        for key, item, score, _ in rows
    )


def _join(texts: Sequence[str]) -> str:
    """*texts* as people list them, the first few of many."""
    if len(texts) > _MOST_SAID:
        return f"{', '.join(texts[:_MOST_SAID])} and {len(texts) - _MOST_SAID} more"
    return " and ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def _round(value: float | None) -> float | None:
    return None if value is None else round(float(value), 6)
