"""``qtm compare``: ask several systems the same questions and compare the results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
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
    AskedQuestion,
    Movements,
    Question,
    SideBySide,
    SystemAnswer,
    ask_systems,
    load_questions,
)
from qtmiddleware.kit.evaluation.judge import RankedAnswers
from qtmiddleware.kit.evaluation.side_by_side import SHOWN
from qtmiddleware.kit.evaluation.systems import BASELINE, OWN, asks_a_model
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.types import Match

_QUESTION_CHARS: Final = 400

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


def _choose_systems(
    option: str | None,
    search: Search,
    *,
    has_model: bool,
) -> list[str]:
    if option is None:
        names = [name for name in SHOWN if has_model or not asks_a_model(name)]
        return [*names, OWN] if search.has_own_settings else names
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
    out.write(f"{ranked.headline} {ranked.remarks}".strip())


def show_question(asked: AskedQuestion) -> None:
    """Show the systems, their lists, the passages, and the searches and answer of each system."""
    matches: dict[tuple[Any, ...], Match] = {}
    for result in asked.systems:
        for match in result.matches:
            matches.setdefault(_identify(match), match)
    numbers = {key: number for number, key in enumerate(matches, start=1)}
    _show_systems(asked)
    if matches:
        _show_lists(asked, numbers)
    else:
        out.write("No passage was found.")
    for key, match in matches.items():
        score = "" if match.score is None else f" (score {match.score:.3f})"
        out.write(f"[{numbers[key]}] {describe_passage_source(match)}{score}")
        if match.text:
            out.write(f"    {shorten_text(match.text)}")
    for result in asked.systems:
        lines = list(_describe_steps(_build_outcome(asked, result)))
        if result.system != BASELINE:
            lines += _explain_movements(asked.explain(result.system), numbers)
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
        is_failed = result.error is not None
        searches = calls = "-"
        cost = "?"
        if retrieval is not None:
            is_failed = is_failed or retrieval.status == "degraded"
            searches = str(retrieval.trace.searches)
            calls = str(retrieval.trace.llm_calls)
            if retrieval.trace.cost_usd is not None:
                cost = f"{retrieval.trace.cost_usd:.5f}"
        name = result.system
        if is_failed:
            name += " !"
            has_problem = True
        rows.append([name, searches, calls, f"{result.seconds:.2f}", cost])
    show_table(["", "searches", "calls", "seconds", "model $"], rows)
    if has_problem:
        out.write("! some steps failed or were skipped: see below\n")


def _show_lists(asked: AskedQuestion, numbers: _Numbers) -> None:
    """Write a line per system with the numbers of its passages."""
    out.write("passages, best first")
    width = max(len(result.system) for result in asked.systems)
    for result in asked.systems:
        marks = [f"[{numbers[_identify(match)]}]" for match in result.matches]
        out.write(f"  {result.system:<{width}}  {' '.join(marks)}".rstrip())
    out.write()


def _describe_steps(outcome: Outcome) -> Iterator[str]:
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


def _explain_movements(moved: Movements | None, numbers: _Numbers) -> Iterator[str]:
    if moved is None:
        return
    changed = [movement for movement in (*moved.passages, *moved.dropped) if movement.change != 0]
    for movement in changed:
        yield f"[{numbers[_identify(movement.match)]}] {movement.why}"
    if not changed and moved.passages:
        yield f"every passage in the same place as in {BASELINE}"


def _describe_ranking(ranking: RankedAnswers) -> Iterator[str]:
    """Yield lines with the judge's ranking and the reasons for it, or why there is no ranking."""
    if not ranking.reasons:
        is_equal = ranking.error == "equal"
        yield "\nAll answers are the same." if is_equal else f"\nThe judge failed: {ranking.error}."
        return
    yield "\nJudged against the ideal answer:"
    for standing in ranking.standings:
        scores = ", ".join(f"{name} {score:g}" for name, score in standing.scores.items())
        yield f"  {standing.rank}. {standing.system}" + (f": {scores}" if scores else "")
        for sign, remarks in (("+", standing.strengths), ("-", standing.weaknesses)):
            for text in dict.fromkeys(filter(None, remarks)):
                yield f"     {sign} {text}"
    for reason in ranking.reasons:
        yield f"  why: {reason}"
    if ranking.is_flip:
        yield "  With the answers in reverse order, another one was best."
