"""``qtm compare``: ask several systems the same questions and compare the results side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Argument, Option

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import FAILED
from qtmiddleware.kit.cli.asking import Outcome
from qtmiddleware.kit.cli.comparison import show_side_by_side
from qtmiddleware.kit.cli.environment import NO_MODEL
from qtmiddleware.kit.cli.options import (
    Arguments,
    AsJson,
    ConfigFile,
    Function,
    QuestionFile,
    ReportFile,
    Sets,
    Systems,
)
from qtmiddleware.kit.cli.output import (
    check_report,
    open_progress_bar,
    write_json,
    write_note,
    write_report,
)
from qtmiddleware.kit.cli.searching import (
    Search,
    name_search_in_errors,
    open_search,
    parse_arguments,
    split_names,
)
from qtmiddleware.kit.evaluation import (
    BASELINE,
    OWN,
    AskedQuestion,
    Question,
    SideBySide,
    SystemAnswer,
    ask_systems,
    asks_a_model,
    load_questions,
    report_ranking,
)
from qtmiddleware.kit.evaluation.judge import MOST_SYSTEMS
from qtmiddleware.kit.evaluation.side_by_side import SHOWN


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
    report: ReportFile = None,
    json_output: AsJson = False,
) -> None:
    """Compare systems side by side.

    The command shows what each system searched and found, its time and cost, and
    why passages moved compared with plain search (off). No judgements are needed.
    The system yours uses your config or, with --function, your wrapped function.

    With --reference, or with ideal answers in the file of --questions, the model
    ranks the systems' answers. The exit code is 1 if a system or the judge failed.
    """
    if (question is None) == (questions is None) or (reference and questions is not None):
        raise ConfigError("pass a question or --questions FILE", path="question")
    if questions is not None:
        entries = list(load_questions(questions).questions)
    else:
        entries = [
            Question(
                "question", question or "", metadata={"answer": reference} if reference else {}
            )
        ]
    is_judged = any(entry.reference for entry in entries)
    if report is not None:
        if not is_judged:
            raise ConfigError(
                "--report needs ideal answers; pass --reference or --questions", path="--report"
            )
        check_report(report)
    with open_search(function, config, sets) as search:
        has_model = search.wrapped.middleware.engine.has_model
        if not has_model:
            if answers or is_judged:
                raise ConfigError(NO_MODEL, path="answers")
            write_note(f"{NO_MODEL} Only systems that need no model are compared.")
        names = _choose_systems(systems, search, has_model=has_model, is_judged=is_judged)
        with open_progress_bar() as update, name_search_in_errors(search.name):
            comparison = ask_systems(
                search.wrapped,
                entries,
                names,
                answers=answers,
                arguments=parse_arguments(arguments),
                progress=update,
            )
    values = _build_dict(comparison)
    if report is not None:
        write_report(report, report_ranking(comparison), values)
    if json_output:
        write_json(values)
    else:
        show_side_by_side(comparison)
    failed = any(_has_failed(it) for asked in comparison.questions for it in asked.systems)
    if failed or (comparison.ranked is not None and comparison.ranked.failed):
        raise typer.Exit(FAILED)


def _choose_systems(
    option: str | None, search: Search, *, has_model: bool, is_judged: bool
) -> list[str]:
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
    # The baseline is always asked, even if the user does not name it.
    if is_judged and len({BASELINE, *names}) > MOST_SYSTEMS:
        raise ConfigError(
            f"a judge ranks at most {MOST_SYSTEMS} systems, not {len(names)}", path="systems"
        )
    return names


def _has_failed(answer: SystemAnswer) -> bool:
    """Return whether the system in *answer* raised an error or returned an unreadable response."""
    degradations = () if answer.retrieval is None else answer.retrieval.degradations
    return answer.error is not None or any(
        (entry.stage, entry.reason) == ("response", "unreadable") for entry in degradations
    )


def _build_dict(comparison: SideBySide) -> dict[str, Any]:
    """Return *comparison* as a dict, ready for JSON."""
    rows = []
    for asked in comparison.questions:
        ranking = comparison.ranking(asked.question)
        rows.append(
            {
                "id": asked.question.id,
                "question": asked.question.text,
                "reference": asked.question.reference or None,
                "systems": [_build_system_dict(asked, it) for it in asked.systems],
                "ranking": None if ranking is None else ranking.to_dict(),
            }
        )
    ranked = comparison.ranked
    return {"questions": rows, "ranked": None if ranked is None else ranked.to_dict()}


def _build_system_dict(asked: AskedQuestion, result: SystemAnswer) -> Mapping[str, Any]:
    outcome = Outcome(
        question=asked.question.text,
        retrieval=result.retrieval,
        answer=result.answer,
        error=result.error,
        seconds=result.seconds,
    )
    movements = asked.explain(result.system)
    return {
        "system": result.system,
        **outcome.to_dict(),
        "movement": None if movements is None else movements.to_dict(),
    }
