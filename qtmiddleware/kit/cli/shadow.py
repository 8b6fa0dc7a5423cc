"""``qtm shadow``: report on the searches in a query log that shadow mode wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.console import AsJson, ConfigFile, Sets, write_json
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config, report_default_files
from qtmiddleware.kit.cli.reports import check_report, format_json, write_report
from qtmiddleware.kit.cli.terminal import FAILED, write_note, write_output
from qtmiddleware.kit.evaluation.shadow import (
    ListedPassage,
    ShadowQuestion,
    ShadowReport,
    judge_lists,
    read_shadow_log,
)
from qtmiddleware.providers.llms import has_language_model, make_language_model

app = typer.Typer(help="Read the shadow-mode log.", no_args_is_help=True)

_NAME_CHARS: Final = 58
_FORMATS: Final = (".md", ".json")


@app.callback()
def group_shadow_commands() -> None:
    """Read the shadow-mode log.

    To write such a log, set "shadow" to a share of the calls and log.path to a file.
    """


@app.command("report")
def report_command(
    log: Annotated[Path, typer.Argument(help="Query log written in shadow mode.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Number of questions to show, those whose lists differ most.")
    ] = 3,
    judge: Annotated[
        int | None,
        typer.Option(
            min=1, help="Let the model judge which list answers better, for this many questions."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for drawing the questions to judge.")] = 0,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a report to this file: .md or .json. It quotes the shown questions.",
        ),
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    json_output: AsJson = False,
) -> None:
    """Show what qtmiddleware would change.

    The report says how often the lists would change, by how much, and what that
    would cost. Your callers got the plain function's results all the time.

    With --judge a language model compares both lists of a question, in both
    orders. The log must then hold the texts of passages (log.texts: all).
    """
    if report is not None:
        check_report(report, _FORMATS)
    summary = read_shadow_log(log)
    if not summary.questions:
        raise ConfigError(
            f'{log} has no records of shadow mode; set "shadow" to a share of the calls, such as'
            " 0.05",
            path=str(log),
        )
    if judge is not None:
        loaded = load_config(config, sets)
        report_default_files({}, named_config=config)
        if not has_language_model(loaded.settings):
            raise ConfigError(NO_MODEL, path="judge")
        # The chat model judges, but `make_language_model` opens the transformation model.
        settings = replace(loaded.settings, transformation_model=loaded.settings.chat_model)
        summary = judge_lists(
            summary, make_language_model(None, settings), max_questions=judge, seed=seed
        )
    sample = summary.pick_examples(examples)
    json_values = {
        **summary.to_dict(),
        "examples": [_build_example_dict(question) for question in sample],
    }
    if report is not None:
        _write_report(report, summary, sample, json_values)
    if json_output:
        write_json(json_values)
    else:
        _show_report(summary, sample)
    # The command fails only if the judge failed on every question.
    if set(summary.count_verdicts()) == {"failed"}:
        raise typer.Exit(FAILED)


def _write_report(
    file: Path,
    shadow_report: ShadowReport,
    examples: list[ShadowQuestion],
    json_values: dict[str, Any],
) -> None:
    from qtmiddleware.kit.evaluation import reporting

    is_json = file.suffix == ".json"
    write_report(
        file,
        format_json(json_values) if is_json else reporting.shadow_markdown(shadow_report, examples),
    )


def _build_example_dict(question: ShadowQuestion) -> dict[str, Any]:
    return {
        "query": question.query,
        "plain": [passage.name for passage in question.plain],
        "ours": [passage.name for passage in question.ours],
        "better": question.better,
    }


def _show_report(shadow_report: ShadowReport, examples: list[ShadowQuestion]) -> None:
    """Write the verdict on a shadow-mode log, the log's figures and *examples* to stdout."""
    from qtmiddleware.kit.evaluation.reporting.shadow import format_shadow_headline_and_details

    figures = shadow_report.to_dict()
    changed, plain, ours = figures["changed"], figures["plainMs"], figures["ms"]
    if shadow_report.unreadable:
        write_note(f"{shadow_report.unreadable:,} lines of the log could not be read.")
    dropped = (
        f" ({shadow_report.dropped_calls:,} more were dropped, because too many were running)"
        if shadow_report.dropped_calls
        else ""
    )
    cost = figures["costUsd"]
    price = "price not known" if cost is None else f"${cost * 1e3:,.2f} per 1,000 questions"
    write_output(format_shadow_headline_and_details(shadow_report)[0])
    write_output()
    write_output(f"{figures['questions']:,} questions were retrieved in shadow mode{dropped}.")
    write_output()
    write_output(
        f"  {changed['passages']:>6.1%}  would get other passages:"
        f" {figures['enteredPassages']:.1f} new ones of {figures['passages']:.1f} on average"
    )
    write_output(f"  {changed['order']:>6.1%}  would get the same passages in another order")
    write_output(f"  {changed['same']:>6.1%}  would get the same list")
    write_output(f"  {figures['otherFirst']:>6.1%}  would have another passage first")
    write_output()
    write_output(f"  searches      {figures['searches']:.2f} per question")
    write_output(
        f"  model calls   {figures['llmCalls']:.2f} per question, {figures['tokens']:,.0f} tokens;"
        f" {price}"
    )
    write_output(
        f"  time          {ours['median']:,.0f} ms instead of {plain['median']:,.0f} ms for half of"
        f" the questions (for 95%: {ours['p95']:,.0f} instead of {plain['p95']:,.0f})"
    )
    write_output(f"  degraded      {figures['degraded']:.1%}")
    if shadow_report.judge:
        _show_judgements(shadow_report)
    for question in examples:
        write_output()
        verdict = (
            ""
            if question.better in (None, "failed")
            else f"   [the judge prefers {question.better}]"
        )
        write_output(f"{question.query}{verdict}")
        rows = max(len(question.plain), len(question.ours))
        write_output(f"  {'plain':<{_NAME_CHARS}}  ours")
        for index in range(rows):
            write_output(
                (
                    f"  {_get_short_passage_name(question.plain, index):<{_NAME_CHARS}}"
                    f"  {_get_short_passage_name(question.ours, index)}"
                ).rstrip()
            )


def _get_short_passage_name(passages: tuple[ListedPassage, ...], index: int) -> str:
    """Return a short name for ``passages[index]``, or ``""`` if there is no such passage."""
    name = " ".join(passages[index].name.split()) if index < len(passages) else ""
    return name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 3] + "..."


def _show_judgements(shadow_report: ShadowReport) -> None:
    """Write how often the judge preferred the function's list, qtmiddleware's list or neither."""
    votes = shadow_report.count_verdicts()
    pairs = sum(votes.values())
    cost = "" if shadow_report.judge_cost_usd is None else f", ${shadow_report.judge_cost_usd:.4f}"
    write_output()
    write_output(
        f"{shadow_report.judge} compared {pairs:,} pairs in both orders{cost}: ours is better in"
        f" {votes.get('ours', 0):,}, plain in {votes.get('plain', 0):,}, neither in"
        f" {votes.get('neither', 0):,}"
        + (f", {votes['failed']:,} failed." if votes.get("failed") else ".")
    )
