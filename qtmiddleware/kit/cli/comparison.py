"""Show a comparison of systems as text that fits the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.cli.asking import list_degradations
from qtmiddleware.kit.cli.output import find_output_width, out, show_table
from qtmiddleware.kit.cli.show import (
    describe_degradation,
    describe_passage_source,
    list_variant_texts,
)
from qtmiddleware.kit.evaluation import (
    BASELINE,
    AskedQuestion,
    Movements,
    SideBySide,
    SystemAnswer,
)
from qtmiddleware.kit.evaluation.compare import describe_error
from qtmiddleware.kit.evaluation.judge import RankedAnswers
from qtmiddleware.kit.evaluation.report import build_standing_row, describe_ranking
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.types import Key, Match

_LABEL_CHARS: Final = 28
"""The width of a passage's name in a table, in columns."""
_QUESTION_CHARS: Final = 400
_COLORS: Final = {"new": "green", "up": "green", "down": "red", "out": "red"}


def show_side_by_side(comparison: SideBySide) -> None:
    """Show how the systems compare on each question, and the judge's rankings if there are any."""
    for number, asked in enumerate(comparison.questions):
        if number:
            out.write()
        out.write(shorten_text(asked.question.text, _QUESTION_CHARS))
        ranking = comparison.ranking(asked.question)
        # Of many judged questions, the rankings are enough to read.
        if ranking is None or len(comparison.questions) == 1:
            _show_question(asked)
        if ranking is not None:
            out.write("\n".join(_describe_ranking(ranking)))
    ranked = comparison.ranked
    if ranked is None:
        return
    out.write(f"\n{describe_ranking(ranked)}")
    if len(ranked.questions) > 1 and ranked.standings:
        show_table(
            ["", "place", f"before {BASELINE} [95%]  ", "best", "of", "score"],
            [
                [*build_standing_row(it), f"{it.score:.1f}" if it.scores else "-"]
                for it in ranked.standings
            ],
        )
    out.write(ranked.summary())


def _show_question(asked: AskedQuestion) -> None:
    """Show a table of systems, tables of passages, and the searches and answer of each system."""
    movements = {
        result.system: moved
        for result in asked.systems
        if (moved := asked.explain(result.system)) is not None
    }
    numbers = _number_passages(asked)
    _show_systems(asked, movements)
    if numbers:
        _show_places(asked, movements, numbers)
    else:
        out.write("No passage was found.")
    for number, match in numbers.values():
        score = "" if match.score is None else f" (score {match.score:.3f})"
        out.write(f"[{number}] {describe_passage_source(match)}{score}")
        if match.text:
            out.write(f"    {shorten_text(match.text)}")
    explained: dict[tuple[str, ...], str] = {}
    for result in asked.systems:
        # Systems that move the same passages for the same reasons are explained once.
        reasons = tuple(_explain_movements(result, movements.get(result.system), numbers))
        same = explained.setdefault(reasons, result.system)
        if reasons and same != result.system:
            reasons = (f"passages as in {same}",)
        lines = [*_describe_steps(result), *reasons, *_describe_answer(result, numbers)]
        if lines:
            out.write("\n  ".join([f"\n{result.system}", *lines]))


def _show_systems(asked: AskedQuestion, movements: Mapping[str, Movements]) -> None:
    """Show a table with one row per system: movements, searches, model calls, time and cost."""
    traces = [result.retrieval.trace for result in asked.systems if result.retrieval is not None]
    headings = ["", *_COLORS, "searches", "calls", "seconds", "model $"]
    has_price = any(trace.read_price is not None for trace in traces)
    rows: list[list[Text | str]] = []
    has_problems = False
    for result in asked.systems:
        retrieval = result.retrieval
        failed = result.error is not None or (
            retrieval is not None and retrieval.status == "degraded"
        )
        has_problems = has_problems or failed
        row = [result.system + (" !" if failed else ""), *_count_movements(result, movements)]
        if retrieval is None:
            row += ["-", "-", f"{result.seconds:.2f}", "?", "?"]
        else:
            trace = retrieval.trace
            row += [str(trace.searches), str(trace.llm_calls), f"{result.seconds:.2f}"]
            row += map(_format_cost, (trace.cost_usd, trace.read_cost_usd))
        rows.append(row if has_price else row[:-1])
    show_table([*headings, "reads $"] if has_price else headings, rows)
    if has_problems:
        out.write("! some steps failed or were skipped: see below\n")


def _count_movements(
    result: SystemAnswer, movements: Mapping[str, Movements]
) -> Iterator[Text | str]:
    """Yield four cells: how many passages are new, moved up, moved down and dropped out."""
    moved = None if result.system == BASELINE else movements.get(result.system)
    changes = [] if moved is None else [it.change for it in moved.passages]
    counts = {
        "new": changes.count(None),
        "up": sum(change is not None and change > 0 for change in changes),
        "down": sum(change is not None and change < 0 for change in changes),
        "out": 0 if moved is None else len(moved.dropped),
    }
    for name, count in counts.items():
        yield "" if moved is None else Text(str(count), _COLORS[name] if count else "")


def _format_cost(cost: float | None) -> str:
    return "?" if cost is None else f"{cost:.5f}" if cost else "0"


def _number_passages(asked: AskedQuestion) -> dict[Key, tuple[int, Match]]:
    """Number the passages of all systems in order of appearance, from 1."""
    matches: dict[Key, Match] = {}
    for result in asked.systems:
        for match in result.matches:
            matches.setdefault(_choose_key(match, matches), match)
    return {key: (number, match) for number, (key, match) in enumerate(matches.items(), start=1)}


def _choose_key(match: Match, known_keys: Iterable[Key]) -> Key:
    """Return a key that identifies the passage in *match* in the lists of all systems.

    It contains the passage's id, and its text if there is no id or several chunks have the same id.
    """
    text_key = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    is_shared = "\0" in match.key[1] or text_key in known_keys
    return (match.namespace, match.id) if match.id and not is_shared else text_key


def _show_places(
    asked: AskedQuestion,
    movements: Mapping[str, Movements],
    numbers: Mapping[Key, tuple[int, Match]],
) -> None:
    """Show each passage's place and change of place in each system, as a table.

    On a narrow terminal, several tables show a few systems each. Each of them begins with the
    baseline, so that every table shows what moved against it.
    """
    cells: dict[str, dict[Key, Text]] = {}
    for result in asked.systems:
        moved = movements.get(result.system)
        column = cells[result.system] = {}
        # In reverse order, so that the best place remains if two chunks have the same key.
        for it in reversed(() if moved is None else (*moved.passages, *moved.dropped)):
            column[_choose_key(it.match, numbers)] = _format_place(it.place, it.change)
    systems = [name for name in cells if name != BASELINE]
    widths = {name: max(len(name), len("10 new ")) + 2 for name in cells}
    limit = find_output_width()
    while True:
        names, width = [BASELINE], _LABEL_CHARS + widths[BASELINE]
        while systems and (len(names) == 1 or limit is None or width + widths[systems[0]] <= limit):
            width += widths[systems[0]]
            names.append(systems.pop(0))
        show_table(
            ["place and change of place", *names],
            [
                [
                    _shorten(f"[{number}] {describe_passage_source(match)}"),
                    *(cells[name].get(key, Text()) for name in names),
                ]
                for key, (number, match) in numbers.items()
                if any(key in cells[name] for name in names)
            ],
        )
        if not systems:
            return


def _format_place(place: int | None, change: int | None) -> Text:
    """Return a place and the change of place, such as ``2 +1``."""
    if place is None:
        return Text("out   ", _COLORS["out"])
    if change is None:
        return Text.assemble(f"{place} ", ("new ", _COLORS["new"]))
    text = f"{change:+d}" if change else ""
    return Text.assemble(f"{place} ", (f"{text:<4}", _COLORS["up" if change > 0 else "down"]))


def _shorten(label: str) -> Text:
    text = Text(label)
    text.truncate(_LABEL_CHARS)
    return text


def _describe_steps(result: SystemAnswer) -> Iterator[str]:
    """Yield lines on a system's variants of the question, its degradations and its error."""
    if result.retrieval is not None:
        yield from list_variant_texts(result.retrieval)
    for entry in list_degradations(result.retrieval, result.answer):
        yield f"degraded: {describe_degradation(entry)}"
    if (error := result.error) is not None:
        # The message of another package's exception may say little: a KeyError says only 'id'.
        is_clear = isinstance(error, QtMiddlewareError | TimeoutError)
        problem = "failed" if result.retrieval is None else "no answer"
        yield f"{problem}: {error if is_clear else describe_error(error)}"


def _explain_movements(
    result: SystemAnswer, moved: Movements | None, numbers: Mapping[Key, tuple[int, Match]]
) -> Iterator[str]:
    """Yield one line per moved passage, with its number and the reason for the movement."""
    if result.system == BASELINE or moved is None:
        return
    changed = [it for it in (*moved.passages, *moved.dropped) if it.change != 0]
    for it in changed:
        number, _ = numbers.get(_choose_key(it.match, numbers), ("-", None))
        yield f"[{number}] {it.why}"
    if not changed and moved.passages:
        yield f"every passage in the same place as in {BASELINE}"


def _describe_answer(
    result: SystemAnswer, numbers: Mapping[Key, tuple[int, Match]]
) -> Iterator[str]:
    """Yield the model's answer, then one line per cited passage, with both of its numbers."""
    if result.answer is None:
        return
    yield f"answer: {result.answer.text}"
    cited = {citation.number: citation.match for citation in result.answer.citations}
    for number, match in sorted(cited.items()):
        above, _ = numbers.get(_choose_key(match, numbers), (number, None))
        note = "" if above == number else f", [{above}] above"
        yield f"  [{number}] {describe_passage_source(match)}{note}"


def _describe_ranking(ranking: RankedAnswers) -> Iterator[str]:
    """Yield lines with the judge's ranking and the reasons for it, or why there is no ranking."""
    if not ranking.reasons:
        is_equal = ranking.error == "equal"
        yield "\nAll answers are the same." if is_equal else f"\nThe judge failed: {ranking.error}."
        return
    yield "\nJudged against the ideal answer:"
    # The judge saw equal answers as one answer; their systems share a line.
    for _, group in groupby(
        ranking.standings, key=lambda it: (it.rank, it.strengths, it.weaknesses, it.scores)
    ):
        standings = list(group)
        standing = standings[0]
        names = " = ".join(it.system for it in standings)
        scores = ", ".join(f"{name} {score:g}" for name, score in standing.scores.items())
        yield f"  {standing.rank}. {names}" + (f": {scores}" if scores else "")
        yield from _list_remarks("+", standing.strengths)
        yield from _list_remarks("-", standing.weaknesses)
    for reason in ranking.reasons:
        yield f"  why: {reason.text} ({reason.legend})"
    if ranking.is_flip:
        yield "  With the answers in reverse order, another one was best."


def _list_remarks(sign: str, remarks: Sequence[str]) -> Iterator[str]:
    for text in dict.fromkeys(filter(None, remarks)):
        yield f"     {sign} {text}"
