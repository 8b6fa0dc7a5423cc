"""``qtm compare``: ask several systems the same questions and compare the results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text
from typer import Argument, Option

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.check import describe_error
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.environment import NO_MODEL
from qtmiddleware.kit.cli.options import (
    Arguments,
    AsJson,
    ConfigFile,
    Function,
    QuestionFile,
    Sets,
    Systems,
)
from qtmiddleware.kit.cli.output import (
    find_width,
    open_progress_bar,
    out,
    show_table,
    write_json,
    write_note,
)
from qtmiddleware.kit.cli.searching import (
    Search,
    name_search_in_errors,
    open_search,
    parse_arguments,
    split_names,
)
from qtmiddleware.kit.cli.show import (
    Outcome,
    describe_degradation,
    describe_passage_source,
    list_variant_texts,
)
from qtmiddleware.kit.evaluation import (
    BASELINE,
    OWN,
    AskedQuestion,
    Movements,
    Question,
    SideBySide,
    SystemAnswer,
    ask_systems,
    asks_a_model,
    load_questions,
)
from qtmiddleware.kit.evaluation.figures import UNKNOWN
from qtmiddleware.kit.evaluation.judge import RankedAnswers, Standing
from qtmiddleware.kit.evaluation.side_by_side import SHOWN
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.types import Match

_QUESTION_CHARS: Final = 400
_COLUMN_WIDTH: Final = 13
"""The width of a system's column of places, which fits ``multi_query``."""

_Movements = Mapping[str, Movements]
_Numbers = Mapping[tuple[Any, ...], int]


def command(
    question: Annotated[
        str | None, Argument(help="Question to ask; without it, use --questions.")
    ] = None,
    systems: Systems = None,
    function: Function = None,
    arguments: Arguments = None,
    config: ConfigFile = None,
    sets: Sets = None,
    answers: Annotated[
        bool, Option("--answers", help="Let the model answer from each system's list.")
    ] = False,
    reference: Annotated[
        str, Option(help="Ideal answer, against which the model ranks each system's answer.")
    ] = "",
    questions: QuestionFile = None,
    json_output: AsJson = False,
) -> None:
    """Compare systems side by side.

    The command shows what each system searched and found, its time and cost, and
    why passages moved compared with plain search (off). No judgements are needed.
    The system yours uses your config or, with --function, your wrapped function.

    With --reference, or with ideal answers in the file of --questions, the model
    ranks the systems' answers. The exit code is 1 if a system or the judge failed.
    """
    entries = _load_entries(question, questions, reference)
    is_judged = any(entry.reference for entry in entries)
    with open_search(function, config, sets) as search:
        has_model = search.wrapped.middleware.engine.has_model
        if not has_model and (answers or is_judged):
            raise ConfigError(NO_MODEL, path="answers")
        if not has_model:
            write_note(f"{NO_MODEL} Only systems that need no model are compared.")
        names = _choose_systems(systems, search, has_model=has_model)
        with open_progress_bar() as update, name_search_in_errors(search.name):
            comparison = ask_systems(
                search.wrapped,
                entries,
                names,
                answers=answers,
                arguments=parse_arguments(arguments),
                progress=update,
            )
    if json_output:
        write_json(_build_dict(comparison))
    else:
        _show_side_by_side(comparison)
    if _has_failed(comparison):
        raise typer.Exit(FAILED)


def _load_entries(
    question: str | None,
    questions: Path | None,
    reference: str,
) -> list[Question]:
    if question is not None and questions is None:
        metadata = {"answer": reference} if reference else {}
        return [Question("question", question, metadata=metadata)]
    # The file has the ideal answers of its own questions.
    if question is None and questions is not None and not reference:
        return list(load_questions(questions).questions)
    raise ConfigError("pass a question or --questions FILE", path="question")


def _choose_systems(option: str | None, search: Search, *, has_model: bool) -> list[str]:
    """Return the names of the systems to compare: those of the *option* or the usual ones."""
    if option is None:
        names = [name for name in SHOWN if has_model or not asks_a_model(name)]
        # The user's own config is compared too, if it can differ from the default systems.
        asks = search.config.settings.transformation_type != "none"
        return [*names, OWN] if search.has_own_settings and (has_model or not asks) else names
    names = split_names(option)
    asking = [name for name in names if name != OWN and asks_a_model(name)]
    if asking and not has_model:
        raise ConfigError(f"{', '.join(asking)} cannot be compared. {NO_MODEL}", path="systems")
    return names


def _has_failed(comparison: SideBySide) -> bool:
    if comparison.ranked is not None and comparison.ranked.failed:
        return True
    results = [result for asked in comparison.questions for result in asked.systems]
    return any(result.error is not None for result in results)


def _build_outcome(asked: AskedQuestion, result: SystemAnswer) -> Outcome:
    return Outcome(
        question=asked.question.text,
        retrieval=result.retrieval,
        answer=result.answer,
        error=result.error,
        seconds=result.seconds,
    )


def _build_dict(comparison: SideBySide) -> dict[str, Any]:
    rows = []
    for asked in comparison.questions:
        ranking = comparison.ranking(asked.question)
        systems = []
        for result in asked.systems:
            movements = asked.explain(result.system)
            systems.append(
                {
                    "system": result.system,
                    **_build_outcome(asked, result).to_dict(),
                    "movement": movements and movements.to_dict(),
                }
            )
        rows.append(
            {
                "id": asked.question.id,
                "question": asked.question.text,
                "reference": asked.question.reference or None,
                "systems": systems,
                "ranking": ranking and ranking.to_dict(),
            }
        )
    return {"questions": rows, "ranked": comparison.ranked and comparison.ranked.to_dict()}


def _show_side_by_side(comparison: SideBySide) -> None:
    for number, asked in enumerate(comparison.questions):
        if number:
            out.write()
        out.write(shorten_text(asked.question.text, _QUESTION_CHARS))
        ranking = comparison.ranking(asked.question)
        # Of many judged questions, the rankings are enough to read.
        if ranking is None or len(comparison.questions) == 1:
            show_question(asked)
        if ranking is not None:
            out.write("\n".join(_describe_ranking(ranking)))
    ranked = comparison.ranked
    if ranked is None:
        return
    out.write()
    if len(ranked.questions) > 1 and ranked.standings:
        show_table(
            ["", "place", f"before {BASELINE} [95%]  ", "best", "of", "score"],
            [_build_standing_row(standing) for standing in ranked.standings],
        )
    out.write(f"{ranked.headline} {ranked.remarks}".strip())


def _build_standing_row(standing: Standing) -> list[str]:
    lead, text = standing.lead, UNKNOWN
    if lead is not None:
        mark = "*" if standing.is_ahead else " "
        text = f"{lead.gain:+.2f} [{lead.low:+.2f}, {lead.high:+.2f}]{mark}"
    counts = (str(standing.firsts), str(standing.questions))
    score = f"{standing.score:.1f}" if standing.scores else "-"
    return [standing.system, f"{standing.place:.2f}", text, *counts, score]


def show_question(asked: AskedQuestion) -> None:
    """Show a table of systems, tables of passages, and the searches and answer of each system."""
    movements = {
        result.system: moved
        for result in asked.systems
        if (moved := asked.explain(result.system)) is not None
    }
    matches: dict[tuple[Any, ...], Match] = {}
    for result in asked.systems:
        for match in result.matches:
            matches.setdefault(_identify(match), match)
    numbers = {key: number for number, key in enumerate(matches, start=1)}
    _show_systems(asked)
    if matches:
        _show_places(movements, numbers)
    else:
        out.write("No passage was found.")
    for key, match in matches.items():
        score = "" if match.score is None else f" (score {match.score:.3f})"
        out.write(f"[{numbers[key]}] {describe_passage_source(match)}{score}")
        if match.text:
            out.write(f"    {shorten_text(match.text)}")
    first_systems: dict[tuple[str, ...], str] = {}
    for result in asked.systems:
        lines = list(_describe_steps(_build_outcome(asked, result)))
        reasons = tuple(_explain_movements(result, movements.get(result.system), numbers))
        # Systems that move the same passages for the same reasons are explained once.
        first = first_systems.setdefault(reasons, result.system)
        if reasons and first != result.system:
            lines.append(f"passages as in {first}")
        else:
            lines.extend(reasons)
        if lines:
            out.write("\n  ".join([f"\n{result.system}", *lines]))


def _identify(match: Match) -> tuple[Any, ...]:
    # Several chunks may have the same id.
    return match.namespace, match.id, match.text


def _show_systems(asked: AskedQuestion) -> None:
    rows: list[list[str]] = []
    has_problem = False
    for result in asked.systems:
        retrieval = result.retrieval
        is_failed = result.error is not None or retrieval is None or retrieval.status == "degraded"
        has_problem = has_problem or is_failed
        searches = calls = "-"
        cost = "?"
        if retrieval is not None:
            searches = str(retrieval.trace.searches)
            calls = str(retrieval.trace.llm_calls)
            if retrieval.trace.cost_usd is not None:
                cost = f"{retrieval.trace.cost_usd:.5f}"
        name = result.system + (" !" if is_failed else "")
        rows.append([name, searches, calls, f"{result.seconds:.2f}", cost])
    show_table(["", "searches", "calls", "seconds", "model $"], rows)
    if has_problem:
        out.write("! some steps failed or were skipped: see below\n")


def _show_places(movements: _Movements, numbers: _Numbers) -> None:
    cells = {
        name: {
            _identify(movement.match): _format_place(movement.place, movement.change)
            for movement in (*moved.passages, *moved.dropped)
        }
        for name, moved in movements.items()
    }
    others = [name for name in cells if name != BASELINE]
    step = max(1, find_width() // _COLUMN_WIDTH - 2)
    out.write("place and change of place")
    for start in range(0, len(others) or 1, step):
        names = [BASELINE, *others[start : start + step]]
        rows: list[list[Text | str]] = [
            [f"[{number}]", *(cells[name].get(key, Text()) for name in names)]
            for key, number in numbers.items()
            if any(key in cells[name] for name in names)
        ]
        show_table(["", *names], rows)


def _format_place(place: int | None, change: int | None) -> Text:
    """Return a place and the change of place, such as ``2 +1``."""
    if place is None:
        return Text("out   ", "red")
    if change is None:
        return Text.assemble(f"{place} ", ("new ", "green"))
    text = f"{change:+d}" if change else ""
    return Text.assemble(f"{place} ", (f"{text:<4}", "green" if change > 0 else "red"))


def _describe_steps(outcome: Outcome) -> Iterator[str]:
    """Yield lines on a system's variants of the question, degradations, error and answer."""
    if outcome.retrieval is not None:
        yield from list_variant_texts(outcome.retrieval)
    for entry in outcome.degradations:
        yield f"degraded: {describe_degradation(entry)}"
    if (error := outcome.error) is not None:
        problem = "failed" if outcome.retrieval is None else "no answer"
        yield f"{problem}: {describe_error(error)}"
    if outcome.answer is not None:
        yield f"answer: {outcome.answer.text}"
        cited = {citation.number: citation.match for citation in outcome.answer.citations}
        for number, match in sorted(cited.items()):
            yield f"  [{number}] {describe_passage_source(match)}"


def _explain_movements(
    result: SystemAnswer, moved: Movements | None, numbers: _Numbers
) -> Iterator[str]:
    """Yield one line per moved passage, with its number and the reason for the movement."""
    if result.system == BASELINE or moved is None:
        return
    changed = [movement for movement in (*moved.passages, *moved.dropped) if movement.change != 0]
    for movement in changed:
        yield f"[{numbers.get(_identify(movement.match), '-')}] {movement.why}"
    if not changed and moved.passages:
        yield f"every passage in the same place as in {BASELINE}"


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
        names = " = ".join(equal.system for equal in standings)
        scores = ", ".join(f"{name} {score:g}" for name, score in standing.scores.items())
        yield f"  {standing.rank}. {names}" + (f": {scores}" if scores else "")
        for sign, remarks in (("+", standing.strengths), ("-", standing.weaknesses)):
            for text in dict.fromkeys(filter(None, remarks)):
                yield f"     {sign} {text}"
    for reason in ranking.reasons:
        yield f"  why: {reason}"
    if ranking.is_flip:
        yield "  With the answers in reverse order, another one was best."
