"""The page of the playground: its parts as HTML, each made when there is something to show in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.catalogue import JOINED, TEXT_FIELDS
from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.documents.place import describe_place
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.movement import Movement, Movements, explain_movement, format_place, label_searches
from qtmiddleware.kit.evaluation.reporting import figures
from qtmiddleware.kit.evaluation.reporting.page import read_file
from qtmiddleware.kit.evaluation.systems import BASELINE
from qtmiddleware.kit.playground import drawing
from qtmiddleware.kit.playground.asked import KNOBS, TOP_K, Asked, Knob
from qtmiddleware.kit.playground.drawing import Bar, Moves, Segment
from qtmiddleware.kit.playground.tiers import Tier, TierAnswer, Tiers
from qtmiddleware.preprocessing import preprocess
from qtmiddleware.preprocessing.text import clean, shorten
from qtmiddleware.types import Degradation, Match, Retrieval

if TYPE_CHECKING:
    import jinja2

MOST_SHOWN: Final = 4_000
"""Characters of a passage, or of a searched text, that are shown."""
FEW: Final = 8
"""Examples that are shown beside results."""
_TITLE: Final = 90
_SAME: Final = "The same list"
_REASONS: Final = {
    "unrecorded": "no reply is recorded for this question",
    "empty": "the model's reply was not usable",
    "unreadable": "the function's result has no list of passages; run qtm check to see how to fix that",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One passage of a list: where it stands, what it is called, what moved it, and its text with the words marked."""

    key: str
    place: int | None
    title: str
    source: str
    way: str
    badge: str
    spoken: str
    why: str
    snippet: tuple[Segment, ...]
    text: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """One search: what was searched for, with what weight, and what it brought for the result."""

    label: str
    text: str
    weight: float
    found: int
    moves: Moves
    spoken: str


@dataclass(frozen=True, slots=True)
class Card:
    """What one tier found, ready to be shown.

    *answers* counts the passages that are judged to answer the question; 0 is a question that nobody judged. *answer*
    is the best place of them among the *rows*, *lost* the one behind these that the best of them fell to.
    """

    tier: Tier
    headline: str
    answers: int = 0
    answer: int | None = None
    lost: int | None = None
    problem: str = ""
    rows: tuple[Row, ...] = ()
    dropped: tuple[Row, ...] = ()
    moves: Moves | None = None
    searches: tuple[Search, ...] = ()
    texts: tuple[tuple[str, str], ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    degradations: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    overlap: float = 0.0
    total_ms: float = 0.0
    decision: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    config: str = ""

    @property
    def is_baseline(self) -> bool:
        """Whether it is the plain list, which nothing moves in."""
        return self.tier.name == BASELINE


class Page:
    """The page over *tiers*, called *name*; *examples* are questions to begin with, *notes* what to know of it all.

    *qrels* grade passages by the ids of examples and passages, as those of a `Dataset` do.
    """

    def __init__(
        self,
        tiers: Tiers,
        *,
        name: str,
        examples: Sequence[Question] = (),
        notes: Sequence[str] = (),
        qrels: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.tiers = tiers
        self._answers = {
            (one.text.strip(), one.history): _find_best(grades)
            for one in examples
            if (grades := (qrels or {}).get(one.id))
        }
        self.name = name
        self.examples = tuple(examples)
        self.notes = tuple(notes)
        self._environment = _load_environment()

    def write_head(self, asked: Asked, nonce: str, *, is_running: bool) -> str:
        """Return the beginning of the page: the form, and a place for each answer that is to come."""
        shown = self.tiers.shown
        examples = self.examples[:FEW] if is_running else self.examples
        chosen = [tier for tier in self.tiers.all if tier.name in asked.tiers]
        return self._write(
            "head",
            asked=asked,
            nonce=nonce,
            style=read_file("house.css") + _read_file("page.css"),
            script=_read_file("page.js"),
            waiting=_read_file("waiting.css"),
            page=self,
            chosen=chosen,
            is_running=is_running,
            knobs=[knob for knob in KNOBS.values() if knob.key != TOP_K or self.tiers.takes_top_k],
            describe_usual=self._describe_usual,
            follow_up=asked.follow_up().write(shown),
            examples=[(one, replace(asked, question=one.text, history=one.history).write(shown)) for one in examples],
        )

    def write_card(self, card: Card) -> str:
        """Return what one tier found."""
        return self._write("card", card=card)

    def write_tail(self, asked: Asked, cards: Sequence[Card], problem: str = "") -> str:
        """Return the end of the page: every tier beside the others, and what to say of it all."""
        listed = {card.tier.name: card for card in cards}
        ordered = [listed[tier.name] for tier in self.tiers.all if tier.name in listed]
        return self._write(
            "tail",
            asked=asked,
            cards=ordered,
            problem=problem,
            table=list(_compare(ordered)),
            sums=list(_list_sums(ordered)),
            unrecorded=bool(ordered)
            and any("unrecorded" in reason for card in ordered for reason in card.degradations),
            headline="" if problem else _find_headline(ordered),
            unanswered=[name for name in asked.tiers if name not in listed],
        )

    def write_foot(self, *, is_running: bool) -> str:
        """Return what closes the page."""
        return self._write("foot", is_running=is_running)

    def describe(self, answer: TierAnswer, asked: Asked, baseline: Retrieval | None) -> Card:
        """Return what *answer* has to show beside the plain list of *baseline*."""
        config = json.dumps(self.tiers.build_config(answer.tier, asked), indent=2, ensure_ascii=False)
        found = answer.retrieval
        if found is None:
            return Card(answer.tier, "No answer", problem=answer.problem, config=config, total_ms=answer.seconds * 1e3)
        moves = explain_movement(found, None if baseline is None else baseline.matches)
        own, models = _find_keywords(asked, found)
        is_baseline = answer.tier.name == BASELINE
        rows = tuple(_describe_row(it, own, models, is_baseline=is_baseline) for it in moves.passages)
        is_merged = len(found.rankings) > 1
        answers = self._answers.get((asked.question.strip(), asked.history), frozenset())
        return Card(
            tier=answer.tier,
            answers=len(answers),
            answer=_find_first(it.place for it in moves.passages if it.match.id in answers),
            lost=_find_first(drawing.find_place(it) for it in moves.dropped if it.match.id in answers),
            headline=_sum_up(moves) if not is_baseline else _count(len(found.matches), "passage"),
            rows=rows,
            dropped=tuple(_describe_row(it, own, models) for it in moves.dropped),
            moves=None if is_baseline or not rows else drawing.draw_moves(moves, is_merged=is_merged),
            searches=tuple(_describe_searches(found, moves)) if is_merged else (),
            texts=tuple(_list_texts(found)),
            figures=tuple(_list_figures(found, answer.seconds)),
            degradations=tuple(map(_describe_degradation, found.degradations)),
            bars=drawing.draw_trace(found.trace),
            overlap=drawing.measure_overlap(found.trace),
            total_ms=found.trace.total_ms,
            decision=_describe_decision(found),
            notes=tuple(found.trace.notes),
            config=config,
        )

    def _describe_usual(self, knob: Knob) -> str:
        """What stands in the field of *knob* where nothing was entered."""
        settings = self.tiers.settings
        if knob.key == TOP_K:
            return str(settings.top_k)
        if knob.choices:
            return str(settings.fusion.method)
        return knob.usual

    def _write(self, part: str, **values: Any) -> str:
        template = self._environment.get_template(f"{part}.html.jinja")
        return template.render(figures=figures, rem=_to_rem, clean=_hide_unseen, **values)


# --- what is shown of an answer -------------------------------------------------------------------------------------


def _describe_row(moved: Movement, own: str, models: str, *, is_baseline: bool = False) -> Row:
    match, way = moved.match, drawing.find_way(moved)
    text = match.text or ""
    shown = text[:MOST_SHOWN] + (" …" if len(text) > MOST_SHOWN else "")
    snippet = drawing.cut_snippet(text[: 4 * MOST_SHOWN], own, models)
    title, source = _name_passage(match)
    change = abs(moved.change or 0)
    badge = {"new": "new", "up": f"▲ {change}", "down": f"▼ {change}", "same": "=", "gone": "out"}[way]
    spoken = {
        "new": "new here",
        "up": f"up {change}",
        "down": f"down {change}",
        "same": "unmoved",
        "gone": "dropped out",
    }
    return Row(
        key=drawing.name_key(match),
        place=moved.place,
        title=title,
        source=source,
        way="same" if is_baseline else way,
        badge="" if is_baseline else badge,
        spoken="" if is_baseline else spoken[way],
        why="" if is_baseline else moved.why,
        snippet=tuple(drawing.mark_words(snippet, own, models)),
        text=tuple(drawing.mark_words(_hide_unseen(shown), own, models)),
    )


def _name_passage(match: Match) -> tuple[str, str]:
    """What a passage is called, and where it stands."""
    held = match.metadata
    names = [held.get("title"), held.get("source"), held.get("url"), match.id]
    known = [name for name in (clean(str(it)) for it in names if isinstance(it, str | int)) if name]
    title = known[0] if known else clean(match.text or "") or "a passage without an id"
    where = [it for it in known[1:] if it != title][:1] + [it for it in [describe_place(held)] if it]
    return shorten(title, _TITLE), shorten(", ".join(where), _TITLE)


def _find_keywords(asked: Asked, found: Retrieval) -> tuple[str, str]:
    """The keywords of the question, and those that the model brought."""
    texts = [*found.transformation.keywords]
    texts += [text for name, row in TEXT_FIELDS.items() if row.is_evidence for text in found.transformation.texts(name)]
    return preprocess(asked.question), " ".join(map(preprocess, texts))


def _sum_up(moves: Movements) -> str:
    ways = [drawing.find_way(it) for it in (*moves.passages, *moves.dropped)]
    said: dict[drawing.Way, str] = {"new": "new", "up": "up", "down": "down", "gone": "out"}
    listed = ", ".join(f"{ways.count(way)} {word}" for way, word in said.items() if way in ways)
    if not moves.passages:
        return "Nothing was found"
    return listed or _SAME


def _describe_searches(found: Retrieval, moves: Movements) -> Iterator[Search]:
    labels = label_searches(ranking.variant for ranking in found.rankings)
    for at, (ranking, label) in enumerate(zip(found.rankings, labels, strict=True)):
        places = {it.place: hit.place for it in moves.passages for hit in it.hits if hit.search == at}
        spoken = "; ".join(f"result {place} was at {was}" for place, was in places.items()) or "not in the result"
        yield Search(
            label="joined text" if ranking.variant.kind == JOINED else label.removeprefix("the "),
            text=shorten(ranking.variant.text, 400),
            weight=ranking.variant.weight,
            found=len(ranking.keys),
            moves=drawing.draw_search(moves, at),
            spoken=f"In the list of {label}: {spoken}.",
        )


def _list_texts(found: Retrieval) -> Iterator[tuple[str, str]]:
    """What the model wrote, and what became of it where its list is not among those that were merged."""
    merged = {ranking.variant.text for ranking in found.rankings}
    searched = {variant.text for variant in found.variants}
    for name, row in TEXT_FIELDS.items():
        for text in found.transformation.texts(name):
            what = "" if text in merged or not row.variant else ", without a search of its own"
            if what and text in searched:
                what = ", searched, with weight 0"
            yield row.label + what, text[:MOST_SHOWN]


def _list_figures(found: Retrieval, seconds: float) -> Iterator[tuple[str, str]]:
    trace = found.trace
    yield "took", figures.format_duration(seconds * 1e3)
    yield "added", figures.format_duration(trace.added_ms)
    yield "searches", str(trace.searches)
    if trace.read_units != trace.searches:
        yield "units read", f"{trace.read_units:g}"
    if trace.read_cost_usd is not None:
        yield "reads", figures.format_dollars(trace.read_cost_usd)
    yield "calls", "0, remembered" if trace.cache_hits and not trace.llm_calls else str(trace.llm_calls)
    if trace.llm_calls:
        yield "tokens", f"{trace.input_tokens:,} + {trace.output_tokens:,}"
        yield "model", "unknown" if trace.cost_usd is None else figures.format_dollars(trace.cost_usd)


def _describe_degradation(degradation: Degradation) -> str:
    why = _REASONS.get(degradation.reason, degradation.detail)
    return f"{degradation.stage}: {degradation.reason}" + (f" ({why})" if why else "")


def _describe_decision(found: Retrieval) -> str:
    decision = found.trace.decision
    if decision is None:
        return ""
    return ("The model was called: " if decision.call else "The model was not called: ") + decision.reason + "."


def _find_headline(cards: Sequence[Card]) -> str:
    """What happened to the list, in a sentence or two."""
    moved = [card for card in cards if not card.is_baseline and not card.problem]
    if not moved:
        return "There is no plain list, so no tier ran." if cards and not cards[0].rows else "The plain list."
    unheard = sum(any(it.startswith("transform") for it in card.degradations) for card in moved)
    said = f" The model gave nothing usable to {_count(unheard, 'tier')}." if unheard else ""
    if cards[0].is_baseline and cards[0].answers:
        return f"{_describe_answer(cards[0], moved)}{said}"
    most, card = max(((sum(row.way == "new" for row in card.rows), card) for card in moved), key=itemgetter(0))
    if most:
        return f"{card.tier.name} changes {most} of the {_count(len(card.rows), 'passage')} shown.{said}"
    if ordered := [card.tier.name for card in moved if card.headline != _SAME]:
        return f"Every tier shows the passages of the plain search; {_join(ordered)} in another order.{said}"
    return f"Every tier gives the plain list.{said}"


def _describe_answer(plain: Card, moved: Sequence[Card]) -> str:
    """Say where the passage that answers the question stands in the *plain* list and in those of the *moved* tiers."""
    shown: dict[int, list[str]] = {}
    lost: list[str] = []
    for card in moved:
        if card.answer is not None:
            shown.setdefault(card.answer, []).append(card.tier.name)
        else:
            is_known = card.lost is not None and card.lost > len(card.rows)
            lost.append(card.tier.name + (f" ({format_place(card.lost or 0)})" if is_known else ""))
    what = "The answer" if plain.answers == 1 else f"The first of {plain.answers} answers"
    if plain.answer is None and not shown:
        return f"{what}: in none of the lists."
    if plain.answer is not None and [plain.answer] == [*shown] and not lost:
        return f"{what}: {format_place(plain.answer)} in the plain list and with every tier."
    said = ["not in the plain list" if plain.answer is None else f"{format_place(plain.answer)} in the plain list"]
    said += [f"{format_place(place)} with {_join(names)}" for place, names in sorted(shown.items())]
    if lost:
        how = "not found" if plain.answer is None else f"lost from the {len(plain.rows)} shown"
        said.append(f"{how} with {_join(lost)}")
    return f"{what}: {', '.join(said)}."


def _find_best(grades: Mapping[str, int]) -> frozenset[str]:
    """The passages of the highest of the *grades*: those that answer the question, and not only help."""
    best = max(grades.values(), default=0)
    return frozenset(id_ for id_, grade in grades.items() if grade == best > 0)


def _find_first(places: Iterable[int | None]) -> int | None:
    return min((place for place in places if place is not None), default=None)


def _join(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One passage beside all tiers: its place in each, and what became of it there."""

    key: str
    title: str
    cells: tuple[tuple[str, str], ...]


def _compare(cards: Sequence[Card]) -> Iterator[ComparedRow]:
    """Yield a row for each passage of any tier, in the order they first appear."""
    shown = [{row.key: row for row in card.rows} for card in cards]
    titles = {key: row.title for rows in shown for key, row in reversed(rows.items())}
    for key in dict.fromkeys(key for rows in shown for key in rows):
        cells = [(str(rows[key].place), rows[key].way) if key in rows else ("–", "none") for rows in shown]
        yield ComparedRow(key, titles[key], tuple(cells))


def _list_sums(cards: Sequence[Card]) -> Iterator[tuple[str, list[str]]]:
    """Yield what each tier took and cost, by what that is called."""
    found = [dict(card.figures) for card in cards]
    for name in dict.fromkeys(name for listed in found for name in listed):
        yield name, [listed.get(name, figures.UNKNOWN) for listed in found]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _to_rem(pixels: float) -> str:
    return f"{pixels / 16:g}rem"


_UNSEEN: Final = {
    **dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "�"),
    # What turns the direction of what follows; a text's own direction is found out by the browser.
    **dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A))),
}


def _hide_unseen(text: str) -> str:
    """*text* without what turns or hides it, and with a sign for what controls a terminal."""
    return text.translate(_UNSEEN)


@cache
def _load_environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtra("jinja2", "web") from error
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = shorten
    return environment


@cache
def _read_file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
