"""``qtm shadow``: what shadow mode logged, before anybody's results change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.console import AsJson, ConfigFile, Sets, as_json
from qtmiddleware.kit.cli.environment import NO_MODEL, load_config, note_files
from qtmiddleware.kit.cli.reports import check_places, require_jinja, write_report
from qtmiddleware.kit.cli.terminal import FAILED, note, say
from qtmiddleware.kit.evaluation.shadow import (
    ShadowQuestion,
    ShadowReport,
    Shown,
    judge_lists,
    read_shadow_log,
)
from qtmiddleware.providers.llms import as_language_model, has_language_model

app = typer.Typer(help="Read the shadow-mode log.", no_args_is_help=True)

_WIDE: Final = 58
_REPORTS: Final = ("shadow.md", "shadow.html", "shadow.json")


@app.callback()
def shadow() -> None:
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
            help="Write shadow.md, .html and .json to this folder. They quote the shown questions."
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
    orders. The log must then hold the texts of passages (log.passageText).
    """
    if report is not None:
        require_jinja()
        check_places(report, _REPORTS, "--report")
    found = read_shadow_log(log)
    if not found.questions:
        raise ConfigError(
            f'{log} has no records of shadow mode; set "shadow" to a share of the calls, such as'
            " 0.05",
            path=str(log),
        )
    if judge is not None:
        loaded = load_config(config, sets)
        note_files({}, config=config)
        if not has_language_model(loaded.settings):
            raise ConfigError(NO_MODEL, path="judge")
        settings = replace(loaded.settings, transformation_model=loaded.settings.chat_model)
        found = judge_lists(found, as_language_model(None, settings), count=judge, seed=seed)
    shown = found.pick_examples(examples)
    plain = {**found.to_dict(), "examples": [_to_dict(it) for it in shown]}
    if report is not None:
        _write_report(report, found, shown, plain)
    if json_output:
        as_json(plain)
    else:
        _show(found, shown)
    if set(found.count_better()) == {"failed"}:
        raise typer.Exit(FAILED)


def _write_report(
    folder: Path, found: ShadowReport, shown: list[ShadowQuestion], plain: dict[str, Any]
) -> None:
    from qtmiddleware.kit.evaluation import reporting

    texts = (
        reporting.shadow_markdown(found, shown),
        reporting.shadow_page(found, shown),
        json.dumps(plain, ensure_ascii=False, indent=2) + "\n",
    )
    write_report(folder, dict(zip(_REPORTS, texts, strict=True)))


def _to_dict(one: ShadowQuestion) -> dict[str, Any]:
    return {
        "query": one.query,
        "plain": [it.name for it in one.plain],
        "ours": [it.name for it in one.ours],
        "better": one.better,
    }


def _show(found: ShadowReport, examples: list[ShadowQuestion]) -> None:
    from qtmiddleware.kit.evaluation.reporting.shadow import write_shadow_verdict

    figures = found.to_dict()
    changed, plain, ours = figures["changed"], figures["plainMs"], figures["ms"]
    if found.unreadable:
        note(f"{found.unreadable:,} lines of the log could not be read.")
    dropped = (
        f" ({found.dropped:,} more were dropped, because too many were running)"
        if found.dropped
        else ""
    )
    cost = figures["costUsd"]
    price = "price not known" if cost is None else f"${cost * 1e3:,.2f} per 1,000 questions"
    say(write_shadow_verdict(found)[0])
    say()
    say(f"{figures['questions']:,} questions were retrieved in shadow mode{dropped}.")
    say()
    say(f"  {changed['passages']:>6.1%}  would get other passages: {figures['enteredPassages']:.1f} new ones of "
        f"{figures['passages']:.1f} on average")  # fmt: skip
    say(f"  {changed['order']:>6.1%}  would get the same passages in another order")
    say(f"  {changed['same']:>6.1%}  would get the same list")
    say(f"  {figures['otherFirst']:>6.1%}  would have another passage first")
    say()
    say(f"  searches      {figures['searches']:.2f} per question")
    say(
        f"  model calls   {figures['llmCalls']:.2f} per question, {figures['tokens']:,.0f} tokens;"
        f" {price}"
    )
    say(f"  time          {ours['median']:,.0f} ms instead of {plain['median']:,.0f} ms for half of the questions "
        f"(for 95%: {ours['p95']:,.0f} instead of {plain['p95']:,.0f})")  # fmt: skip
    say(f"  degraded      {figures['degraded']:.1%}")
    if found.judge:
        _show_verdict(found)
    for one in examples:
        say()
        verdict = "" if one.better in (None, "failed") else f"   [the judge prefers {one.better}]"
        say(f"{one.query}{verdict}")
        rows = max(len(one.plain), len(one.ours))
        say(f"  {'plain':<{_WIDE}}  ours")
        for place in range(rows):
            say(f"  {_name(one.plain, place):<{_WIDE}}  {_name(one.ours, place)}".rstrip())


def _name(shown: tuple[Shown, ...], place: int) -> str:
    name = " ".join(shown[place].name.split()) if place < len(shown) else ""
    return name if len(name) <= _WIDE else name[: _WIDE - 3] + "..."


def _show_verdict(found: ShadowReport) -> None:
    votes = found.count_better()
    judged = sum(votes.values())
    cost = "" if found.judge_cost_usd is None else f", ${found.judge_cost_usd:.4f}"
    say()
    say(
        f"{found.judge} compared {judged:,} pairs in both orders{cost}: ours is better in"
        f" {votes.get('ours', 0):,}, plain in {votes.get('plain', 0):,}, neither in"
        f" {votes.get('neither', 0):,}"
        + (f", {votes['failed']:,} failed." if votes.get("failed") else ".")
    )
