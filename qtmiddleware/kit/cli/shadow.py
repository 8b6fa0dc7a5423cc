"""``qtm shadow``: report on the searches in a query log that shadow mode wrote."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Final

from typer import Argument

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.options import AsJson
from qtmiddleware.kit.cli.output import out, write_json, write_note
from qtmiddleware.preprocessing.text import shorten_text

_NAME_CHARS: Final = 58
# The number of questions to show, those whose lists differ most.
_EXAMPLES: Final = 3


def command(
    log: Annotated[Path, Argument(help="Query log written in shadow mode.")],
    json_output: AsJson = False,
) -> None:
    """Show what qtmiddleware would change.

    The report says how often the lists would change, by how much, and what that
    would cost. Your callers got the plain function's results all the time. To
    write the log, set "shadow" to a share of the calls and log.path to a file.
    """
    from qtmiddleware.kit.evaluation.shadow import read_shadow_log

    report = read_shadow_log(log)
    if not report.questions:
        raise ConfigError(
            f'{log} has no records of shadow mode; set "shadow" to a share of the calls, such as'
            " 0.05",
            path=str(log),
        )
    if report.unreadable:
        write_note(f"{report.unreadable:,} lines of the log could not be read.")
    shown = report.pick_examples(_EXAMPLES)
    if json_output:
        rows = [{"query": row.query, "plain": row.plain, "ours": row.ours} for row in shown]
        write_json({**report.to_dict(), "examples": rows})
        return
    for sentence in report.sentences:
        out.write(sentence)
    for question in shown:
        out.write(f"\n{question.query}")
        for names in (("plain", "ours"), *zip_longest(question.plain, question.ours, fillvalue="")):
            plain, ours = (shorten_text(name, _NAME_CHARS) for name in names)
            out.write(f"  {plain:<{_NAME_CHARS}}  {ours}".rstrip())
