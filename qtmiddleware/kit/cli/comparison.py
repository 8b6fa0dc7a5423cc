"""What several systems made of a question, side by side: for people to read, at any width."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from rich import box
from rich.table import Table
from rich.text import Text

from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.cli.console import PlainConsole, out
from qtmiddleware.kit.cli.show import describe_match, list_texts
from qtmiddleware.kit.cli.terminal import measure, say
from qtmiddleware.kit.evaluation import BASELINE, AskedQuestion, Movement, Movements, SystemAnswer
from qtmiddleware.kit.evaluation.ranking import RankedAnswers, RankedSystems, Standing
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.types import Key, Match

_LABEL_CHARS: Final = 28
"""Columns that the name of a passage has at least, and twice as many where there is room."""
_QUESTION_CHARS: Final = 400
_SEPARATED: Final = 2
"""Columns between two of a table; the box has one of them."""
_COLORS: Final = {"up": "green", "down": "red", "new": "green", "out": "red"}


def show_question(
    row: AskedQuestion, ranking: RankedAnswers | None, *, is_one_of_many: bool
) -> None:
    """Show what every system made of a question: its costs, where it has each passage, and why it moved.

    Of one question of many that a judge ranked, only what the judge said.
    """
    say(shorten(row.question.text, _QUESTION_CHARS))
    if not (is_one_of_many and ranking is not None):
        _show_passages(row)
    for line in _list_ranking(ranking) if ranking is not None else ():
        say(line)


def _show_passages(row: AskedQuestion) -> None:
    moved = {one.system: it for one in row.systems if (it := row.explain(one.system)) is not None}
    _show_systems(row, moved)
    numbers = _number_passages(row)
    if numbers:
        _show_places(row, moved, numbers)
    else:
        say("No passage was found.")
    for number, match in numbers.values():
        score = "" if match.score is None else f" (score {match.score:.3f})"
        say(f"[{number}] {describe_match(match)}{score}")
        if match.text:
            say(f"    {shorten(match.text)}")
    told: dict[tuple[str, ...], str] = {}
    for one in row.systems:
        why = tuple(_explain_places(one, moved.get(one.system), numbers))
        before = told.setdefault(why, one.system)
        lines = why if before == one.system or not why else [f"  passages as in {before}"]
        if lines := [*_describe_searches(one), *lines, *_describe_answer(one, numbers)]:
            say(f"\n{one.system}")
            for line in lines:
                say(line)


def show_ranked(ranked: RankedSystems) -> None:
    """Show how the systems stand on all questions, the sentence for people first."""
    from qtmiddleware.kit.evaluation.reporting.ranking import write_ranking_verdict

    say()
    say(write_ranking_verdict(ranked))
    if len(ranked.questions) > 1 and ranked.standings:
        headings = ["", "place [95%]", f"before {BASELINE} [95%]  ", "best", "score"]
        _show_table(headings, [list(map(Text, _format_standing(it))) for it in ranked.standings])
    say(ranked.summary())


# --- the systems ----------------------------------------------------------------------------------


def _show_systems(row: AskedQuestion, moved: dict[str, Movements]) -> None:
    """A line for each system: how many passages moved, and what that took."""
    with_price = any(
        one.retrieval is not None and one.retrieval.trace.read_price is not None
        for one in row.systems
    )
    headings = ["", "new", "up", "down", "out", "searches", "calls", "seconds", "model $"]
    body = [
        [
            Text(one.system + (" !" if _has_trouble(one) else "")),
            *_count_movements(one, moved.get(one.system)),
            Text(_count(one, "searches")),
            Text(_count(one, "llm_calls")),
            Text(f"{one.seconds:.2f}"),
            Text(_format_cost(one, "cost_usd")),
            *([Text(_format_cost(one, "read_cost_usd"))] if with_price else []),
        ]
        for one in row.systems
    ]
    _show_table([*headings, "reads $"] if with_price else headings, body)
    if any(map(_has_trouble, row.systems)):
        say("! some steps failed or were skipped: see below\n")


def _has_trouble(one: SystemAnswer) -> bool:
    return one.error is not None or (
        one.retrieval is not None and one.retrieval.status == "degraded"
    )


def _count_movements(one: SystemAnswer, moved: Movements | None) -> list[Text]:
    if one.system == BASELINE or moved is None:
        return [Text("")] * 4
    changes = [it.change for it in moved.passages]
    counts = {
        "new": changes.count(None),
        "up": sum(change is not None and change > 0 for change in changes),
        "down": sum(change is not None and change < 0 for change in changes),
        "out": len(moved.dropped),
    }
    return [
        Text(str(count), style=_COLORS[name] if count else "") for name, count in counts.items()
    ]


def _count(one: SystemAnswer, what: str) -> str:
    return "-" if one.retrieval is None else str(getattr(one.retrieval.trace, what))


def _format_cost(one: SystemAnswer, what: str) -> str:
    cost = None if one.retrieval is None else getattr(one.retrieval.trace, what)
    return "?" if cost is None else f"{cost:.5f}" if cost else "0"


# --- the passages ---------------------------------------------------------------------------------


def _number_passages(row: AskedQuestion) -> dict[Key, tuple[int, Match]]:
    """Each passage that a system found, numbered in the order in which they are met."""
    met: dict[Key, Match] = {}
    for one in row.systems:
        for match in one.matches:
            met.setdefault(_name(match, met), match)
    return {key: (number, match) for number, (key, match) in enumerate(met.items(), start=1)}


def _name(match: Match, known: Iterable[Key]) -> Key:
    """What a passage is called in all lists: chunks that share an id are told apart where one list has several."""
    with_text = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    plain = (match.namespace, match.id) if match.id else with_text
    return with_text if "\0" in match.key[1] or with_text in known else plain


def _show_places(
    row: AskedQuestion, moved: dict[str, Movements], numbers: dict[Key, tuple[int, Match]]
) -> None:
    """At what place each system has each passage, and how far it moved; at narrow terminals some systems at a time."""
    cells: dict[str, dict[Key, Text]] = {}
    for one in row.systems:
        found = moved.get(one.system)
        places = (
            {} if found is None else {_name(it.match, numbers): it for it in found.passages[::-1]}
        )
        cells[one.system] = {key: _format_place(it) for key, it in places.items()}
        gone = () if found is None else found.dropped
        cells[one.system] |= {
            _name(it.match, numbers): Text("out   ", style=_COLORS["out"]) for it in gone
        }
    others = [one.system for one in row.systems if one.system != BASELINE]
    widths = {
        name: max(len(name), *(len(cell) for cell in cells[name].values() or [Text()]))
        for name in cells
    }
    width = _find_width()
    label = _LABEL_CHARS
    while True:
        left = float("inf") if width is None else width - label - _SEPARATED - widths[BASELINE]
        shown: list[str] = []
        while others and (not shown or left >= widths[others[0]] + _SEPARATED):
            left -= widths[others[0]] + _SEPARATED
            shown.append(others.pop(0))
        names = [BASELINE, *shown]
        held = [
            (key, it) for key, it in numbers.items() if any(key in cells[name] for name in names)
        ]
        room = label + (label if width is None else min(label, max(0, int(left))))
        body = [
            [
                Text(_cut(f"[{number}] {describe_match(match)}", room)),
                *(cells[name].get(key, Text("")) for name in names),
            ]
            for key, (number, match) in held
        ]
        _show_table(["place and change of place"[:room], *names], body)
        if not others:
            return


def _format_place(moved: Movement) -> Text:
    change = moved.change
    kind = "new" if change is None else "up" if change > 0 else "down" if change < 0 else ""
    text = "new" if change is None else f"{change:+d}" if change else ""
    return Text.assemble(f"{moved.place} ", (f"{text:<4}", _COLORS.get(kind, "")))


def _cut(text: str, columns: int) -> str:
    while measure(text) > columns:
        text = (
            text[: max(0, len(text) - 4)].rstrip() + "..."
            if not text.endswith("...")
            else text[:-4].rstrip() + "..."
        )
    return text


def _describe_searches(one: SystemAnswer) -> Iterator[str]:
    """What a system searched beside the question, and what went wrong."""
    if one.retrieval is not None:
        yield from (f"  {row}" for row in list_texts(one.retrieval))
    degradations = () if one.retrieval is None else one.retrieval.degradations
    for it in dict.fromkeys(
        (*degradations, *(one.answer.degradations if one.answer is not None else ()))
    ):
        yield f"  degraded: {it.stage} {it.reason}" + (f" ({it.detail})" if it.detail else "")
    if one.error is not None:
        yield (
            f"  {'no answer' if one.retrieval is not None else 'failed'}:"
            f" {_describe_error(one.error)}"
        )


def _explain_places(
    one: SystemAnswer, moved: Movements | None, numbers: dict[Key, tuple[int, Match]]
) -> Iterator[str]:
    """Which passages moved, and why."""
    if one.system != BASELINE and moved is not None:
        told = [it for it in moved.passages if it.change != 0]
        for it in (*told, *moved.dropped):
            number, _ = numbers.get(_name(it.match, numbers), ("-", None))
            yield f"  [{number}] {it.why}"
        if not told and not moved.dropped and moved.passages:
            yield f"  every passage in the same place as in {BASELINE}"


def _describe_answer(one: SystemAnswer, numbers: dict[Key, tuple[int, Match]]) -> Iterator[str]:
    """What the model answered, and the passages it cites, with their numbers in the tables."""
    if one.answer is not None:
        yield f"  answer: {one.answer.text}"
        cited = {it.number: it.match for it in one.answer.citations}
        for number, match in sorted(cited.items()):
            known = numbers.get(_name(match, numbers))
            beside = "" if known is None or known[0] == number else f", [{known[0]}] above"
            yield f"    [{number}] {describe_match(match)}{beside}"


def _describe_error(error: Exception) -> str:
    """What an error says; one that is not ours may be told by its name alone (``KeyError: 'id'``)."""
    is_told = isinstance(error, QtMiddlewareError | TimeoutError)
    return str(error) if is_told else f"{type(error).__name__}: {error}"


# --- the judge ------------------------------------------------------------------------------------


def _list_ranking(ranking: RankedAnswers) -> Iterator[str]:
    """The judge's ranking in its own words, or why there is none."""
    if ranking.error == "length":
        yield "\nNot counted: the judge preferred an answer merely because it was repeated."
    elif not ranking.reasons:
        yield (
            "\nAll answers are the same."
            if ranking.error == "equal"
            else f"\nThe judge failed: {ranking.error}."
        )
        return
    else:
        yield "\nJudged against the ideal answer:"
    for _, group in groupby(
        ranking.standings, key=lambda it: (it.rank, it.strengths, it.weaknesses, it.scores)
    ):
        yield from _list_judgement(list(group))
    for reason in ranking.reasons:
        yield f"  why: {reason.text} ({reason.legend})"
    if ranking.is_flip:
        yield "  With the answers in reverse order, another one was best."


def _list_judgement(equals: Sequence[Standing]) -> Iterator[str]:
    """What was said of one answer, which several systems may have given."""
    first = equals[0]
    scores = ", ".join(f"{name} {score:g}" for name, score in first.scores.items())
    yield f"  {first.rank}. {' = '.join(it.system for it in equals)}" + (
        f": {scores}" if scores else ""
    )
    for sign, texts in (("+", first.strengths), ("-", first.weaknesses)):
        for text in dict.fromkeys(filter(None, texts)):
            yield f"     {sign} {text}"


def _format_standing(one: Standing) -> list[str]:
    ahead = (
        ""
        if one.lead is None
        else f"{one.lead:+.2f}{_format_interval(one.lead_interval, '{:+.2f}')}"
    )
    return [
        f"{one.rank}. {one.system}",
        f"{one.place:.2f}{_format_interval(one.interval, '{:.2f}')}",
        f"{ahead} {'*' if one.is_ahead else ' '}",
        f"{one.firsts} of {one.questions}",
        f"{one.score:.1f}" if one.scores else "-",
    ]


def _format_interval(interval: tuple[float, float] | None, form: str) -> str:
    return "" if interval is None else f" [{', '.join(map(form.format, interval))}]"


# --- tables ---------------------------------------------------------------------------------------


def _find_width() -> int | None:
    """The columns there are; ``None`` in a file or a pipe, which has no width unless somebody sets it."""
    return out.width if out.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else None


def _show_table(headings: Sequence[str], body: Sequence[Sequence[Text]]) -> None:
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _SEPARATED - 1, 0, 0), show_edge=False
    )
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    width = _find_width() or sum(
        _SEPARATED + max(measure(str(cell)) for cell in (headings[at], *(row[at] for row in body)))
        for at in range(len(headings))
    )
    console = out if out.is_terminal else PlainConsole(width=width)
    console.print(table, soft_wrap=False)
    say()
