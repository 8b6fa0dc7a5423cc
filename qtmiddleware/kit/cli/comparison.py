"""Show a comparison of systems as text that fits the width of the terminal."""

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
from qtmiddleware.kit.cli.show import describe_passage_source, list_variant_texts
from qtmiddleware.kit.cli.terminal import measure_width, write_output
from qtmiddleware.kit.evaluation import BASELINE, AskedQuestion, Movement, Movements, SystemAnswer
from qtmiddleware.kit.evaluation.judge import RankedAnswers, RankedSystems, Standing
from qtmiddleware.kit.evaluation.report import build_standing_row, describe_ranking
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.types import Key, Match

_LABEL_CHARS: Final = 28
"""The minimum width of a passage's name, in columns. The maximum width is twice this number."""
_QUESTION_CHARS: Final = 400
_COLUMN_GAP: Final = 2
"""The number of columns between two cells of a table. The table's box draws one of them."""
_COLORS: Final = {"up": "green", "down": "red", "new": "green", "out": "red"}


def show_question_results(
    asked_question: AskedQuestion,
    ranking: RankedAnswers | None,
    *,
    is_one_of_several_questions: bool,
) -> None:
    """Show how the systems compare on one question: their costs, and how the passages move.

    Args:
        asked_question: The question, and the results of all systems.
        ranking: The judge's ranking of the answers, or ``None`` without a judge.
        is_one_of_several_questions: Whether the command asks several questions. If so, and if
            there is a ranking, the function shows only the ranking.
    """
    write_output(shorten_text(asked_question.question.text, _QUESTION_CHARS))
    if not (is_one_of_several_questions and ranking is not None):
        _show_system_results(asked_question)
    for line in _describe_ranking(ranking) if ranking is not None else ():
        write_output(line)


def _show_system_results(asked_question: AskedQuestion) -> None:
    """Show a table of systems, tables of passages, and the searches and answer of each system."""
    movements = {
        answer.system: system_movements
        for answer in asked_question.systems
        if (system_movements := asked_question.explain(answer.system)) is not None
    }
    _show_system_table(asked_question, movements)
    numbered_passages = _number_passages(asked_question)
    if numbered_passages:
        _show_rank_tables(asked_question, movements, numbered_passages)
    else:
        write_output("No passage was found.")
    for number, match in numbered_passages.values():
        score = "" if match.score is None else f" (score {match.score:.3f})"
        write_output(f"[{number}] {describe_passage_source(match)}{score}")
        if match.text:
            write_output(f"    {shorten_text(match.text)}")
    first_systems: dict[tuple[str, ...], str] = {}
    for answer in asked_question.systems:
        # Systems that move the same passages for the same reasons are explained once.
        reasons = tuple(_explain_movements(answer, movements.get(answer.system), numbered_passages))
        same_system = first_systems.setdefault(reasons, answer.system)
        lines = (
            reasons
            if same_system == answer.system or not reasons
            else [f"  passages as in {same_system}"]
        )
        if lines := [
            *_describe_variants_and_problems(answer),
            *lines,
            *_describe_answer(answer, numbered_passages),
        ]:
            write_output(f"\n{answer.system}")
            for line in lines:
                write_output(line)


def show_ranking(ranked_systems: RankedSystems) -> None:
    """Write the judge's ranking of the systems over all questions to stdout."""
    write_output()
    write_output(describe_ranking(ranked_systems))
    if len(ranked_systems.questions) > 1 and ranked_systems.standings:
        headings = ["", "place", f"before {BASELINE} [95%]  ", "best", "of", "score"]
        _show_table(
            headings,
            [
                [
                    *map(Text, build_standing_row(standing)),
                    Text(f"{standing.score:.1f}" if standing.scores else "-"),
                ]
                for standing in ranked_systems.standings
            ],
        )
    write_output(ranked_systems.summary())


# --- the systems ----------------------------------------------------------------------------------


def _show_system_table(asked_question: AskedQuestion, movements: dict[str, Movements]) -> None:
    """Show a table with one row per system: movements, searches, model calls, time and cost."""
    with_price = any(
        answer.retrieval is not None and answer.retrieval.trace.read_price is not None
        for answer in asked_question.systems
    )
    headings = ["", "new", "up", "down", "out", "searches", "calls", "seconds", "model $"]
    body = [
        [
            Text(answer.system + (" !" if _has_failed_step(answer) else "")),
            *_format_movement_counts(answer, movements.get(answer.system)),
            Text(_format_trace_count(answer, "searches")),
            Text(_format_trace_count(answer, "llm_calls")),
            Text(f"{answer.seconds:.2f}"),
            Text(_format_trace_cost(answer, "cost_usd")),
            *([Text(_format_trace_cost(answer, "read_cost_usd"))] if with_price else []),
        ]
        for answer in asked_question.systems
    ]
    _show_table([*headings, "reads $"] if with_price else headings, body)
    if any(map(_has_failed_step, asked_question.systems)):
        write_output("! some steps failed or were skipped: see below\n")


def _has_failed_step(answer: SystemAnswer) -> bool:
    """Return whether the system failed, or whether one of its steps failed or was skipped."""
    return answer.error is not None or (
        answer.retrieval is not None and answer.retrieval.status == "degraded"
    )


def _format_movement_counts(answer: SystemAnswer, movements: Movements | None) -> list[Text]:
    """Return four table cells: how many passages are new, moved up, moved down and dropped out.

    The cells are blank for the baseline, and for a system with unknown movements.
    """
    if answer.system == BASELINE or movements is None:
        return [Text("")] * 4
    changes = [movement.change for movement in movements.passages]
    counts = {
        "new": changes.count(None),
        "up": sum(change is not None and change > 0 for change in changes),
        "down": sum(change is not None and change < 0 for change in changes),
        "out": len(movements.dropped),
    }
    return [
        Text(str(count), style=_COLORS[name] if count else "") for name, count in counts.items()
    ]


def _format_trace_count(answer: SystemAnswer, field_name: str) -> str:
    return "-" if answer.retrieval is None else str(getattr(answer.retrieval.trace, field_name))


def _format_trace_cost(answer: SystemAnswer, field_name: str) -> str:
    cost = None if answer.retrieval is None else getattr(answer.retrieval.trace, field_name)
    return "?" if cost is None else f"{cost:.5f}" if cost else "0"


# --- the passages ---------------------------------------------------------------------------------


def _number_passages(asked_question: AskedQuestion) -> dict[Key, tuple[int, Match]]:
    """Number the passages of all systems in order of appearance, from 1.

    Returns a dict from each passage's key to its number and match.
    """
    matches: dict[Key, Match] = {}
    for answer in asked_question.systems:
        for match in answer.matches:
            matches.setdefault(_choose_passage_key(match, matches), match)
    return {key: (number, match) for number, (key, match) in enumerate(matches.items(), start=1)}


def _choose_passage_key(match: Match, known_keys: Iterable[Key]) -> Key:
    """Return a key that identifies the passage in *match* in the lists of all systems.

    The key contains the passage's id. The key also contains the passage's text if there is no id,
    or if several chunks have the same id.
    """
    text_key = (match.namespace, f"{match.id or ''}\0{match.text or ''}")
    id_key = (match.namespace, match.id) if match.id else text_key
    return text_key if "\0" in match.key[1] or text_key in known_keys else id_key


def _show_rank_tables(
    asked_question: AskedQuestion,
    movements: dict[str, Movements],
    numbered_passages: dict[Key, tuple[int, Match]],
) -> None:
    """Show each passage's rank and movement in each system, as a table.

    On a narrow terminal, several tables show a few systems each.
    """
    cells: dict[str, dict[Key, Text]] = {}
    for answer in asked_question.systems:
        system_movements = movements.get(answer.system)
        # In reverse order, so that the best rank remains if two chunks have the same key.
        places = (
            {}
            if system_movements is None
            else {
                _choose_passage_key(movement.match, numbered_passages): movement
                for movement in system_movements.passages[::-1]
            }
        )
        cells[answer.system] = {
            key: _format_rank_change(movement) for key, movement in places.items()
        }
        dropped = () if system_movements is None else system_movements.dropped
        cells[answer.system] |= {
            _choose_passage_key(movement.match, numbered_passages): Text(
                "out   ", style=_COLORS["out"]
            )
            for movement in dropped
        }
    other_systems = [
        answer.system for answer in asked_question.systems if answer.system != BASELINE
    ]
    widths = {
        name: max(len(name), *(len(cell) for cell in cells[name].values() or [Text()]))
        for name in cells
    }
    width = _find_output_width()
    label = _LABEL_CHARS
    # Each table begins with the baseline, so that every table shows what moved against it.
    while True:
        free_columns = (
            float("inf") if width is None else width - label - _COLUMN_GAP - widths[BASELINE]
        )
        # Each table has at least one system, even if the system does not fit.
        fitting_systems: list[str] = []
        while other_systems and (
            not fitting_systems or free_columns >= widths[other_systems[0]] + _COLUMN_GAP
        ):
            free_columns -= widths[other_systems[0]] + _COLUMN_GAP
            fitting_systems.append(other_systems.pop(0))
        names = [BASELINE, *fitting_systems]
        numbered_rows = [
            (key, numbered)
            for key, numbered in numbered_passages.items()
            if any(key in cells[name] for name in names)
        ]
        label_width = label + (label if width is None else min(label, max(0, int(free_columns))))
        body = [
            [
                Text(
                    _shorten_to_width(f"[{number}] {describe_passage_source(match)}", label_width)
                ),
                *(cells[name].get(key, Text("")) for name in names),
            ]
            for key, (number, match) in numbered_rows
        ]
        _show_table(["place and change of place"[:label_width], *names], body)
        if not other_systems:
            return


def _format_rank_change(movement: Movement) -> Text:
    """Return a passage's rank and the change in rank, such as ``2 +1``."""
    change = movement.change
    kind = "new" if change is None else "up" if change > 0 else "down" if change < 0 else ""
    text = "new" if change is None else f"{change:+d}" if change else ""
    return Text.assemble(f"{movement.place} ", (f"{text:<4}", _COLORS.get(kind, "")))


def _shorten_to_width(text: str, max_columns: int) -> str:
    """Return *text* in at most *max_columns* columns. A shortened text ends with ``...``."""
    # Characters differ in width, so the text gets shorter step by step.
    while measure_width(text) > max_columns:
        text = (
            text[: max(0, len(text) - 4)].rstrip() + "..."
            if not text.endswith("...")
            else text[:-4].rstrip() + "..."
        )
    return text


def _describe_variants_and_problems(answer: SystemAnswer) -> Iterator[str]:
    """Yield lines on a system's variants of the question, its degradations and its error."""
    if answer.retrieval is not None:
        yield from (f"  {text}" for text in list_variant_texts(answer.retrieval))
    degradations = () if answer.retrieval is None else answer.retrieval.degradations
    for entry in dict.fromkeys(
        (*degradations, *(answer.answer.degradations if answer.answer is not None else ()))
    ):
        yield f"  degraded: {entry.stage} {entry.reason}" + (
            f" ({entry.detail})" if entry.detail else ""
        )
    if answer.error is not None:
        yield (
            f"  {'no answer' if answer.retrieval is not None else 'failed'}:"
            f" {_describe_error(answer.error)}"
        )


def _explain_movements(
    answer: SystemAnswer,
    movements: Movements | None,
    numbered_passages: dict[Key, tuple[int, Match]],
) -> Iterator[str]:
    """Yield one line per moved passage, with its number and the reason for the movement.

    *numbered_passages* contains the number of each passage. Yields nothing for the baseline.
    """
    if answer.system != BASELINE and movements is not None:
        changed = [movement for movement in movements.passages if movement.change != 0]
        for movement in (*changed, *movements.dropped):
            number, _ = numbered_passages.get(
                _choose_passage_key(movement.match, numbered_passages), ("-", None)
            )
            yield f"  [{number}] {movement.why}"
        if not changed and not movements.dropped and movements.passages:
            yield f"  every passage in the same place as in {BASELINE}"


def _describe_answer(
    system_answer: SystemAnswer, numbered_passages: dict[Key, tuple[int, Match]]
) -> Iterator[str]:
    """Yield the model's answer, then one line per cited passage.

    If a passage has different numbers in the answer and in *numbered_passages*, its line shows
    both. Yields nothing without an answer.
    """
    if system_answer.answer is not None:
        yield f"  answer: {system_answer.answer.text}"
        cited_matches = {
            citation.number: citation.match for citation in system_answer.answer.citations
        }
        for number, match in sorted(cited_matches.items()):
            numbered = numbered_passages.get(_choose_passage_key(match, numbered_passages))
            table_note = (
                "" if numbered is None or numbered[0] == number else f", [{numbered[0]}] above"
            )
            yield f"    [{number}] {describe_passage_source(match)}{table_note}"


def _describe_error(error: Exception) -> str:
    """Return the message of *error*, after the class name if another package raised *error*.

    The message alone may say little: a ``KeyError`` says only ``'id'``.
    """
    is_clear = isinstance(error, QtMiddlewareError | TimeoutError)
    return str(error) if is_clear else f"{type(error).__name__}: {error}"


# --- the judge ------------------------------------------------------------------------------------


def _describe_ranking(ranking: RankedAnswers) -> Iterator[str]:
    """Yield lines with the judge's ranking and the reasons for the ranking.

    If there is no ranking, the lines say why.
    """
    if not ranking.reasons:
        yield (
            "\nAll answers are the same."
            if ranking.error == "equal"
            else f"\nThe judge failed: {ranking.error}."
        )
        return
    yield "\nJudged against the ideal answer:"
    # The judge saw equal answers as one answer; their systems share a line.
    for _, group in groupby(
        ranking.standings,
        key=lambda standing: (
            standing.rank,
            standing.strengths,
            standing.weaknesses,
            standing.scores,
        ),
    ):
        yield from _describe_judgement(list(group))
    for reason in ranking.reasons:
        yield f"  why: {reason.text} ({reason.legend})"
    if ranking.is_flip:
        yield "  With the answers in reverse order, another one was best."


def _describe_judgement(standings: Sequence[Standing]) -> Iterator[str]:
    """Yield lines with the judge's verdict on one answer, and the systems that gave the answer."""
    standing = standings[0]
    scores = ", ".join(f"{name} {score:g}" for name, score in standing.scores.items())
    yield f"  {standing.rank}. {' = '.join(standing.system for standing in standings)}" + (
        f": {scores}" if scores else ""
    )
    for sign, texts in (("+", standing.strengths), ("-", standing.weaknesses)):
        for text in dict.fromkeys(filter(None, texts)):
            yield f"     {sign} {text}"


# --- tables ---------------------------------------------------------------------------------------


def _find_output_width() -> int | None:
    """Return the width of the output in columns.

    Returns ``None`` for a file or a pipe, unless the variable ``COLUMNS`` is set.
    """
    return out.width if out.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else None


def _show_table(headings: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Write a table to stdout. A table in a file or a pipe keeps the full width of all columns."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, _COLUMN_GAP - 1, 0, 0), show_edge=False
    )
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = _find_output_width() or sum(
        _COLUMN_GAP
        + max(
            measure_width(str(cell)) for cell in (headings[column], *(row[column] for row in rows))
        )
        for column in range(len(headings))
    )
    console = out if out.is_terminal else PlainConsole(width=width)
    console.print(table, soft_wrap=False)
    write_output()
