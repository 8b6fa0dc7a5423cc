"""``qtm bench``: measure systems and their costs on judged questions, and write reports."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.check import describe_error
from qtmiddleware.kit.cli import WORSE
from qtmiddleware.kit.cli.environment import load_config
from qtmiddleware.kit.cli.options import (
    Arguments,
    AsJson,
    ConfigFile,
    Embed,
    Function,
    QuestionCount,
    ReportFile,
    Sets,
    Systems,
)
from qtmiddleware.kit.cli.output import (
    check_report,
    open_progress_bar,
    out,
    show_table,
    show_warnings,
    write_json,
    write_note,
    write_report,
)
from qtmiddleware.kit.cli.searching import (
    has_own_settings,
    import_function,
    name_search_in_errors,
    parse_arguments,
    split_names,
)
from qtmiddleware.kit.evaluation import Comparison, report_comparison, verdict
from qtmiddleware.kit.evaluation.bench import Bench, FunctionSource, open_bench
from qtmiddleware.kit.evaluation.compare import require_extras
from qtmiddleware.kit.evaluation.gate import Baseline, compare_with_baseline
from qtmiddleware.kit.evaluation.report import HEADINGS, rows
from qtmiddleware.kit.evaluation.systems import FREE, MEASURED, OWN, USUAL, chosen
from qtmiddleware.preprocessing.text import format_count

# Columns that a narrow terminal leaves out, in this order.
_OPTIONAL_COLUMNS: Final = ("R@10", "calls", "$/1k", "searches", "+ms p50")
_MOST_CAUSES: Final = 3
_AS_TEXT: Final = "preprocessed as text"

System = Mapping[str, Any]


def command(
    data: Annotated[
        Path,
        Option(
            help=(
                "Folder with corpus.jsonl, queries.jsonl and qrels/*.tsv, or a CSV or JSON file"
                " for --function."
            )
        ),
    ],
    function: Function = None,
    arguments: Arguments = None,
    embed: Embed = None,
    systems: Systems = None,
    config: ConfigFile = None,
    sets: Sets = None,
    recordings: Annotated[
        Path | None,
        Option(help="Replay the recorded replies in this file instead of calling a model."),
    ] = None,
    record: Annotated[Path | None, Option(help="Write the model's replies to this file.")] = None,
    questions: QuestionCount = None,
    baseline: Annotated[
        Path | None,
        Option(
            help=(
                "Compare with this JSON file, written by --json or --report. Exit with code 3 if"
                " the run is worse by more than chance."
            )
        ),
    ] = None,
    report: ReportFile = None,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on judged questions.

    The systems are plain search (off), the rules and the transformations by a model.
    The system yours uses your config or, with --function, your wrapped function.

    With --function app:search the command measures your own function on its
    own index. Nothing is embedded or copied, and --data may be a CSV file with
    the columns question and id.

    Without --function the command embeds and searches the passages in --data.

    With --baseline the command says whether retrieval got worse than in an
    earlier run on the same questions and passages. Then the exit code is 3.
    """
    selection = None if systems is None else chosen(split_names(systems))
    loaded = load_config(config, sets)
    before = None if baseline is None else Baseline.read(baseline)
    if report is not None:
        check_report(report)
    # Checked before a data set is read, passages are embedded or a model is called.
    require_extras()
    source = _open_function(function, arguments, embed, config or sets)
    with (
        show_warnings(hidden_events=("retrieval_degraded",)),
        nullcontext() if function is None else name_search_in_errors(function),
        open_progress_bar() as update,
    ):
        opened = open_bench(
            data,
            loaded.settings,
            function=source,
            recordings=recordings,
            record=record,
            questions=questions,
            progress=update,
            check=None if before is None else before.check_dataset,
        )
        with opened as bench:
            contenders = _select_systems(bench, selection, loaded)
            if source is not None and source.is_wrapped:
                contenders[OWN] = {}
            if before is not None:
                before.check_systems(contenders)
            comparison = bench.measure(contenders, progress=update)
    # Messages may quote questions, so they are shown here, but kept out of the notes in files.
    causes = list(dict.fromkeys(map(describe_error, comparison.errors)))
    for remark in (*comparison.notes[len(bench.notes) :], *causes[:_MOST_CAUSES]):
        write_note(remark)
    gate = None
    if before is not None:
        gate = compare_with_baseline(before, comparison, model_name=bench.model_name)
    values = {
        **comparison.to_dict(),
        "verdict": verdict(comparison),
        "model": bench.model_name,
        "gate": None if gate is None else gate.to_dict(),
    }
    if report is not None:
        write_report(report, report_comparison(comparison, bench.dataset, gate), values)
    is_worse = gate is not None and gate.verdict == "worse"
    # A program that closes the pipe early still gets the exit code. The console raises SystemExit
    # for a closed pipe.
    with suppress(BrokenPipeError, SystemExit) if is_worse else nullcontext():
        if json_output:
            write_json(values)
        else:
            show_comparison(comparison)
            if gate is not None:
                out.write("\n" + "\n".join(gate.sentences))
    if is_worse:
        raise typer.Exit(WORSE)


def _open_function(
    function: str | None, arguments: list[str] | None, embed: str | None, settings: Any
) -> FunctionSource | None:
    if function is None:
        if arguments or embed:
            raise ConfigError("--arg and --embed need --function", path="--function")
        return None
    options: Any = {} if embed is None else {"embed": import_function(embed)}
    fn = import_function(function)
    source = FunctionSource(fn, function, parse_arguments(arguments), options)
    if source.is_wrapped and settings:
        raise ConfigError(
            f"{function} is already wrapped; set the options where you wrap it", path="--config"
        )
    return source


def _select_systems(
    bench: Bench, selection: Mapping[str, System] | None, config: Config
) -> dict[str, System]:
    systems = dict(selection or chosen(USUAL if bench.has_model else FREE))
    if has_own_settings(config, has_model=bench.has_model):
        values = config.to_dict(with_defaults=False)
        # Without a cache every call is counted, and no query log is written.
        fixed = {key: {**values.get(key, {}), **MEASURED[key]} for key in ("cache", "log")}
        systems[OWN] = {**values, **fixed}
    asking = [
        name
        for name, settings in systems.items()
        if settings.get("transformationType", "none") != "none"
    ]
    if asking and not bench.has_model:
        raise ConfigError(
            f"a language model is needed for {', '.join(asking)}: pass --recordings, or set"
            " OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    for remark in bench.notes:
        write_note(remark)
    return systems


def show_comparison(comparison: Comparison) -> None:
    """Write the table of all systems and the verdict to stdout."""
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    questions = format_count(comparison.questions, "question")
    out.write(f"{comparison.dataset}: {questions}{passages}\n")
    show_table(HEADINGS, rows(comparison), optional=_OPTIONAL_COLUMNS)
    if any(score.name == _AS_TEXT for score in comparison.systems):
        out.write(f"{_AS_TEXT}: the keywords are searched instead of the question.\n")
    out.write(verdict(comparison))
