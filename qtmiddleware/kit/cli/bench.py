"""``qtm bench``: measure systems and their costs on judged questions, and write reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import typer
from rich import box
from rich.cells import cell_len
from rich.table import Table

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.check import Arguments
from qtmiddleware.kit.cli.console import AsJson, PlainConsole, Sets, out, write_json
from qtmiddleware.kit.cli.environment import ASSIGNED, override_options, report_default_files
from qtmiddleware.kit.cli.own_function import (
    Embed,
    Measured,
    Yes,
    confirm_searches,
    load_function_source,
    open_measurement_progress,
)
from qtmiddleware.kit.cli.reports import check_report, write_report
from qtmiddleware.kit.cli.terminal import WORSE, write_note
from qtmiddleware.kit.evaluation import (
    FREE,
    MEASURED,
    OWN,
    SYSTEMS,
    USUAL,
    Comparison,
    chosen,
    report_comparison,
    require_extras,
    verdict,
)
from qtmiddleware.kit.evaluation.bench import CACHE, READING, Bench, BenchOptions, open_bench
from qtmiddleware.kit.evaluation.gate import Baseline, GateResult, Rule, compare_with_baseline
from qtmiddleware.kit.evaluation.report import headings, rows

# Columns that a narrow terminal leaves out, in this order.
_OPTIONAL_COLUMNS = ("R@10", "p95", "calls", "$/1k", "searches", "reads $/1k", "+ms p50")
# A longer name would leave a narrow terminal no room for numbers.
_MAX_NAME_COLUMNS = 24

System = Mapping[str, Any]

# Settings that must be equal in all systems, because the systems share an index and a model.
_SHARED_KEYS = (
    "embeddingModel",
    "embeddingDimensions",
    "transformationModel",
    "llm.baseUrl",
    "store.readPrice",
)
# These groups override the files' settings: without a cache every call is counted, and no query log
# is written.
_FIXED_GROUPS: System = {group: MEASURED[group] for group in ("cache", "log")}


def bench_command(
    data: Annotated[
        Path,
        typer.Option(
            help=(
                "Folder with corpus.jsonl, queries.jsonl and qrels/*.tsv, one of its qrels files,"
                " or a CSV or JSON file for --function."
            )
        ),
    ],
    function: Measured = None,
    arguments: Arguments = None,
    embed: Embed = None,
    systems: Annotated[
        str | None,
        typer.Option(help="Systems to compare, separated by commas. Default: the usual ones."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Config file or preset to compare as one more system. Repeatable.",
        ),
    ] = None,
    sets: Sets = None,
    recordings: Annotated[
        Path | None,
        typer.Option(help="Replay the recorded replies in this file instead of calling a model."),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write the model's replies to this file.")
    ] = None,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Number of questions to ask. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed for drawing questions and resampling.")] = 0,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with this JSON file, written by --json or --report."),
    ] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help=(
                "Exit with code 3 if the run is 'worse' than the baseline by more than chance, or"
                " by a fixed bound: 'ndcg@10 -0.01'."
            ),
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report to this file: .md, .json or .html."),
    ] = None,
    yes: Yes = False,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on judged questions.

    The systems are plain search (raw), the rules and the transformations by a model.

    With --function app:search the command measures your own function on its
    own index. Nothing is embedded or copied, and --data may be a CSV file with
    the columns question and id. The command first says how often it calls the
    function.

    Without --function the command embeds and searches the passages in --data.

    With --baseline the command says whether retrieval got worse than in an
    earlier run on the same questions and passages. --fail-if makes that exit code 3.
    """
    selection = None if systems is None else chosen(split_system_names(systems))
    configs = {
        _name_config(name): override_options(Config.load(name), sets or ()) for name in config or ()
    }
    settings = _find_shared_settings(
        configs, config or (), sets or (), is_function_measured=function is not None
    )
    own_systems = {name: _build_explicit_system(loaded) for name, loaded in configs.items()}
    before, rule = _read_gate(baseline, fail_if)
    if report is not None:
        check_report(report)
    # Checked before a data set is read, passages are embedded or a model is called.
    require_extras()
    report_default_files({"replies and vectors": CACHE}, named_config=config)
    source = load_function_source(function, arguments, embed)

    with open_measurement_progress(source) as update:
        options = BenchOptions(
            options=settings, function=source, recordings=recordings, record=record,
            questions=questions, seed=seed, progress=update,
            check=None if before is None else before.check_dataset,
        )  # fmt: skip
        with open_bench(data, options) as bench:
            contenders = _select_systems(bench, selection, own_systems)
            if source is not None and source.is_wrapped:
                contenders[OWN] = {}
            if before is not None:
                before.check_systems(contenders, rule or Rule())
            if source is not None:
                price = bench.system.function.middleware.settings.store.read_price
                count = bench.count_searches(contenders)
                confirm_searches(count, price, source.name, is_confirmed=yes)
            comparison = bench.measure(contenders, seed=seed, progress=update)
    for remark in comparison.notes[len(bench.notes) :]:
        write_note(remark)
    gate = None
    if before is not None:
        gate = compare_with_baseline(before, comparison, rule, model_name=bench.model_name)
    values = {
        **comparison.to_dict(),
        "verdict": verdict(comparison),
        "model": bench.model_name,
        "gate": None if gate is None else gate.to_dict(),
    }
    if report is not None:
        write_report(report, report_comparison(comparison, bench.dataset, gate), values)
    is_worse = rule is not None and gate is not None and gate.verdict == "worse"
    # A program that closes the pipe early still gets the exit code. The console raises SystemExit
    # for a closed pipe.
    with suppress(BrokenPipeError, SystemExit) if is_worse else nullcontext():
        if json_output:
            write_json(values)
        else:
            _show(comparison, gate)
    if is_worse:
        raise typer.Exit(WORSE)


def _read_gate(path: Path | None, rule_text: str | None) -> tuple[Baseline | None, Rule | None]:
    if rule_text is not None and path is None:
        raise ConfigError("--fail-if needs --baseline", path="--fail-if")
    rule = None if rule_text is None else Rule.parse(rule_text)
    return None if path is None else Baseline.read(path), rule


def _show(comparison: Comparison, gate: GateResult | None) -> None:
    show_comparison(comparison)
    if gate is not None:
        out.print("\n" + "\n".join(gate.sentences))


def split_system_names(names_option: str) -> list[str]:
    """Split *names_option* at commas into the names of systems.

    A comma inside a built-in system's name, such as ``combined, auto``, does not split the name.
    """
    known_names = "|".join(map(re.escape, sorted(SYSTEMS, key=len, reverse=True)))
    return [
        name.strip()
        for name in re.findall(rf"(?:{known_names})(?=\s*(?:,|$))|[^,\s][^,]*", names_option)
    ]


def _find_shared_settings(
    configs: Mapping[str, Config],
    config_names: Sequence[str],
    assignments: Sequence[str],
    *,
    is_function_measured: bool,
) -> Settings:
    """Return the settings that all systems share, such as the models and the search price.

    Raises `ConfigError` if two config files differ in a shared setting, have the same name or the
    name of a system, or if one of *assignments* needs a config file.
    """
    shared_keys = (*_SHARED_KEYS, READING) if is_function_measured else _SHARED_KEYS
    # Each config is a system with the name of its file.
    if len(configs) < len(config_names):
        raise ConfigError(
            "two config files have the same name; rename one, because the name is that of the"
            " system",
            path="config",
        )
    if reserved_names := sorted(configs.keys() & SYSTEMS.keys()):
        raise ConfigError(
            f"the config file {reserved_names[0]} has the name of a system; rename the file",
            path="config",
        )
    # The settings of --set reach only the systems of config files. The standard systems have fixed
    # settings, so without a config file such a setting would change nothing.
    default_config = override_options(Config.load(None), assignments)
    strays = [
        key
        for key, _, origin in (() if configs else default_config.rows())
        if origin == ASSIGNED and key not in shared_keys and not key.startswith("llm.")
    ]
    if strays:
        message = (
            f"--set {strays[0]} needs --config, because it changes only the systems of config files"
        )
        raise ConfigError(message, path=strays[0], source=ASSIGNED)
    loaded_configs = list(configs.values()) or [default_config]
    for key in shared_keys:
        rows_of_key = (row for loaded in loaded_configs for row in loaded.rows() if row[0] == key)
        values = {str(value) for _, value, _ in rows_of_key}
        if len(values) > 1:
            raise ConfigError(
                f"the config files must have the same {key}; compare one at a time", path=key
            )
    return loaded_configs[0].settings


def _name_config(source: str) -> str:
    """Return the system name of a config: the file's name, or ``preset`` and the preset's name."""
    return f"preset {source}" if re.fullmatch(r"[\w-]+", source) else Path(source).stem


def _build_explicit_system(config: Config) -> System:
    values = config.to_dict(with_defaults=False)
    return {
        **values,
        **{group: {**values.get(group, {}), **fixed} for group, fixed in _FIXED_GROUPS.items()},
    }


def _select_systems(
    bench: Bench,
    named_systems: Mapping[str, System] | None,
    own_systems: Mapping[str, System],
) -> dict[str, System]:
    """Return the systems to measure, and write the notes of the bench.

    Raises `ConfigError` if a system needs a model or recorded replies that are missing.
    """
    systems = dict(
        named_systems if named_systems is not None else chosen(USUAL if bench.has_model else FREE)
    )
    unrecorded = {name for name, it in systems.items() if bench.list_missing_fields(it)}
    if named_systems is None:
        systems = {name: it for name, it in systems.items() if name not in unrecorded}
    systems |= own_systems
    asking = [
        name for name, it in systems.items() if it.get("transformationType", "none") != "none"
    ]
    if not bench.has_model and asking:
        raise ConfigError(
            f"a language model is needed for {', '.join(asking)}: pass --recordings, or set"
            " OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    if missing := [name for name, it in systems.items() if bench.list_missing_fields(it)]:
        raise ConfigError(
            f"the recording has no replies for {', '.join(missing)}; leave it out", path="systems"
        )
    if unrecorded:
        names = ", ".join(sorted(unrecorded))
        write_note(f"Skipped, because the recording has no replies for them: {names}.")
    for remark in bench.notes:
        write_note(remark)
    return systems


def show_comparison(comparison: Comparison) -> None:
    """Write the table of all systems and the verdict to stdout.

    A narrow terminal gets fewer columns.
    """
    titles, lines = headings(comparison), rows(comparison)
    columns, letters = list(range(len(titles))), dict[str, str]()
    if out.is_terminal:
        letters = _abbreviate_long_names([name for name, *_ in lines])
        lines = [[letters.get(name, name), *cells] for name, *cells in lines]
        for heading in _OPTIONAL_COLUMNS:
            if _measure_table_width(titles, lines, columns) > out.width and heading in titles:
                columns.remove(titles.index(heading))
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    out.print(f"{comparison.dataset}: {comparison.questions:,} questions{passages}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        least_width = max(cell_len(row[column]) for row in (titles, *lines)) if column else None
        table.add_column(
            titles[column],
            justify="right" if column else "left",
            no_wrap=True,
            min_width=least_width,
        )
    for row in lines:
        table.add_row(*(row[column] for column in columns))
    console = (
        out if out.is_terminal else PlainConsole(width=_measure_table_width(titles, lines, columns))
    )
    console.print(table, soft_wrap=False)
    for name, letter in letters.items():
        out.print(f"{letter} is {name}")
    out.print(verdict(comparison))


def _abbreviate_long_names(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each name that is too long for a narrow terminal."""
    long = [name for name in names if cell_len(name) > _MAX_NAME_COLUMNS]
    return dict(zip(long, ascii_uppercase, strict=False))


def _measure_table_width(
    titles: Sequence[str], lines: Sequence[Sequence[str]], column_indices: Sequence[int]
) -> int:
    return sum(
        3 + max(cell_len(row[column]) for row in (titles, *lines)) for column in column_indices
    )
