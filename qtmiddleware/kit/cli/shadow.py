"""``qtm shadow``: report on the searches in a query log that shadow mode wrote."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

import typer

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.console import AsJson, write_json
from qtmiddleware.kit.cli.terminal import write_note, write_output
from qtmiddleware.kit.evaluation.shadow import ShadowQuestion, read_shadow_log
from qtmiddleware.preprocessing.text import shorten_text

_NAME_CHARS: Final = 58


def shadow_command(
    log: Annotated[Path, typer.Argument(help="Query log written in shadow mode.")],
    examples: Annotated[
        int, typer.Option(min=0, help="Number of questions to show, those whose lists differ most.")
    ] = 3,
    json_output: AsJson = False,
) -> None:
    """Show what qtmiddleware would change.

    The report says how often the lists would change, by how much, and what that
    would cost. Your callers got the plain function's results all the time. To
    write the log, set "shadow" to a share of the calls and log.path to a file.
    """
    report = read_shadow_log(log)
    if not report.questions:
        raise ConfigError(
            f'{log} has no records of shadow mode; set "shadow" to a share of the calls, such as'
            " 0.05",
            path=str(log),
        )
    if report.unreadable:
        write_note(f"{report.unreadable:,} lines of the log could not be read.")
    shown = report.pick_examples(examples)
    if json_output:
        rows = [{"query": it.query, "plain": it.plain, "ours": it.ours} for it in shown]
        write_json({**report.to_dict(), "examples": rows})
        return
    for sentence in report.sentences:
        write_output(sentence)
    for question in shown:
        _show_example(question)


def _show_example(question: ShadowQuestion) -> None:
    write_output()
    write_output(question.query)
    for names in (("plain", "ours"), *zip_longest(question.plain, question.ours, fillvalue="")):
        plain, ours = (shorten_text(name, _NAME_CHARS) for name in names)
        write_output(f"  {plain:<{_NAME_CHARS}}  {ours}".rstrip())
