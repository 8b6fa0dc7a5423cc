"""``qtm bench``: measure systems and their costs on judged questions, and write reports."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli import WORSE
from qtmiddleware.kit.cli.environment import ASSIGNED, override_options
from qtmiddleware.kit.cli.options import (
    Arguments,
    AsJson,
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
    import_function,
    name_search_in_errors,
    parse_arguments,
    split_names,
)
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
from qtmiddleware.kit.evaluation.bench import (
    READING,
    Bench,
    FunctionSource,
    open_bench,
)
from qtmiddleware.kit.evaluation.gate import Baseline, Rule, compare_with_baseline
from qtmiddleware.kit.evaluation.report import HEADINGS, rows

MOST_UNASKED: Final = 1_000
"""The maximum number of searches by the user's function without confirmation."""
# Columns that a narrow terminal leaves out, in this order.
_OPTIONAL_COLUMNS: Final = ("R@10", "p95", "calls", "$/1k", "searches", "+ms p50")

System = Mapping[str, Any]

# Settings that must be equal in all systems, because the systems share an index and a model.
_SHARED_KEYS: Final = (
    "embeddingModel",
    "embeddingDimensions",
    "transformationModel",
    "llm.baseUrl",
)


def command(
    data: Annotated[
        Path,
        Option(
            help=(
                "Folder with corpus.jsonl, queries.jsonl and qrels/*.tsv, one of its qrels files,"
                " or a CSV or JSON file for --function."
            )
        ),
    ],
    function: Function = None,
    arguments: Arguments = None,
    embed: Embed = None,
    systems: Systems = None,
    config: Annotated[
        list[str] | None,
        Option(
            "--config",
            "-c",
            help="Config file or preset to compare as one more system. Repeatable.",
        ),
    ] = None,
    sets: Sets = None,
    recordings: Annotated[
        Path | None,
        Option(help="Replay the recorded replies in this file instead of calling a model."),
    ] = None,
    record: Annotated[Path | None, Option(help="Write the model's replies to this file.")] = None,
    questions: QuestionCount = None,
    baseline: Annotated[
        Path | None, Option(help="Compare with this JSON file, written by --json or --report.")
    ] = None,
    fail_if: Annotated[
        str | None,
        Option(
            metavar="RULE",
            help=(
                "Exit with code 3 if the run is 'worse' than the baseline by more than chance, or"
                " by a fixed bound: 'ndcg@10 -0.01'."
            ),
        ),
    ] = None,
    report: ReportFile = None,
    yes: Annotated[
        bool,
        Option(
            "--yes", "-y", help=f"Make more than {MOST_UNASKED:,} searches without asking first."
        ),
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on judged questions.

    The systems are plain search (off), the rules and the transformations by a model.

    With --function app:search the command measures your own function on its
    own index. Nothing is embedded or copied, and --data may be a CSV file with
    the columns question and id. The command first says how often it calls the
    function.

    Without --function the command embeds and searches the passages in --data.

    With --baseline the command says whether retrieval got worse than in an
    earlier run on the same questions and passages. --fail-if makes that exit code 3.
    """
    selection = None if systems is None else chosen(split_names(systems))
    configs = _load_configs(config or (), sets or ())
    shared_keys = _SHARED_KEYS if function is None else (*_SHARED_KEYS, READING)
    settings = _find_shared_settings(configs, sets or (), shared_keys)
    if fail_if is not None and baseline is None:
        raise ConfigError("--fail-if needs --baseline", path="--fail-if")
    rule = Rule() if fail_if is None else Rule.parse(fail_if)
    before = None if baseline is None else Baseline.read(baseline)
    if report is not None:
        check_report(report)
    # Checked before a data set is read, passages are embedded or a model is called.
    require_extras()
    source = _open_function(function, arguments, embed)
    with (
        show_warnings(hidden_events=("retrieval_degraded",)),
        nullcontext() if function is None else name_search_in_errors(function),
        open_progress_bar() as update,
    ):
        opened = open_bench(
            data,
            settings,
            function=source,
            recordings=recordings,
            record=record,
            questions=questions,
            progress=update,
            check=None if before is None else before.check_dataset,
        )
        with opened as bench:
            contenders = _select_systems(bench, selection, configs)
            if source is not None and source.is_wrapped:
                contenders[OWN] = {}
            if before is not None:
                before.check_systems(contenders, rule)
            if source is not None:
                _confirm_searches(bench, contenders, source.name, is_confirmed=yes)
            comparison = bench.measure(contenders, progress=update)
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
    is_worse = fail_if is not None and gate is not None and gate.verdict == "worse"
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


def _load_configs(names: Sequence[str], assignments: Sequence[str]) -> dict[str, Config]:
    """Return the config files by the names of their systems: the files' own names."""
    configs: dict[str, Config] = {}
    for source in names:
        name = f"preset {source}" if re.fullmatch(r"[\w-]+", source) else Path(source).stem
        if name in configs:
            raise ConfigError(
                f"two config files have the same name, {name}; rename one", path="config"
            )
        if name in SYSTEMS:
            raise ConfigError(
                f"the config file {name} has the name of a system; rename the file", path="config"
            )
        configs[name] = override_options(Config.load(source), assignments)
    return configs


def _find_shared_settings(
    configs: Mapping[str, Config], assignments: Sequence[str], shared_keys: Sequence[str]
) -> Settings:
    """Return the settings that all systems share, such as the models and the search price."""
    if not configs:
        config = override_options(Config.load(None), assignments)
        # The standard systems have fixed settings, so such a setting would change nothing.
        for key, _, origin in config.rows():
            if origin == ASSIGNED and key not in shared_keys and not key.startswith("llm."):
                raise ConfigError(
                    f"--set {key} needs --config, because it changes only the systems of config"
                    " files",
                    path=key,
                    source=ASSIGNED,
                )
        return config.settings
    first, *others = [
        {key: value for key, value, _ in config.rows() if key in shared_keys}
        for config in configs.values()
    ]
    for key in first:
        if any(other[key] != first[key] for other in others):
            raise ConfigError(
                f"the config files must have the same {key}; compare one at a time", path=key
            )
    return next(iter(configs.values())).settings


def _open_function(
    function: str | None, arguments: list[str] | None, embed: str | None
) -> FunctionSource | None:
    """Import and return the function that *function* names; ``None`` without a name."""
    if function is None:
        if arguments or embed:
            option = "--arg" if arguments else "--embed"
            raise ConfigError(f"{option} needs --function", path=option)
        return None
    fn = import_function(function)
    if not callable(fn):
        raise ConfigError(
            f"{function} must be a function, not {type(fn).__name__}", path="--function"
        )
    options: Any = {} if embed is None else {"embed": import_function(embed)}
    source = FunctionSource(fn, function, parse_arguments(arguments), options)
    if options and source.is_wrapped:
        raise ConfigError(
            "the function is already wrapped; pass embed= where you wrap it", path="--embed"
        )
    return source


def _select_systems(
    bench: Bench, selection: Mapping[str, System] | None, configs: Mapping[str, Config]
) -> dict[str, System]:
    """Return the systems to measure: the *selection* or the usual ones, and the config files."""
    systems = dict(selection or chosen(USUAL if bench.has_model else FREE))
    if selection is None:
        skipped = sorted(name for name, it in systems.items() if bench.list_missing_fields(it))
        systems = {name: it for name, it in systems.items() if name not in skipped}
        if skipped:
            names = ", ".join(skipped)
            write_note(f"Skipped, because the recording has no replies for them: {names}.")
    for name, config in configs.items():
        values = config.to_dict(with_defaults=False)
        # Without a cache every call is counted, and no query log is written.
        fixed = {key: {**values.get(key, {}), **MEASURED[key]} for key in ("cache", "log")}
        systems[name] = {**values, **fixed}
    asking = [
        name for name, it in systems.items() if it.get("transformationType", "none") != "none"
    ]
    if asking and not bench.has_model:
        raise ConfigError(
            f"a language model is needed for {', '.join(asking)}: pass --recordings, or set"
            " OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    if missing := [name for name, it in systems.items() if bench.list_missing_fields(it)]:
        raise ConfigError(
            f"the recording has no replies for {', '.join(missing)}; leave it out", path="systems"
        )
    for remark in bench.notes:
        write_note(remark)
    return systems


def _confirm_searches(
    bench: Bench, systems: Mapping[str, System], function_name: str, *, is_confirmed: bool
) -> None:
    """Write a note on the largest number of searches, and ask the user to confirm many searches."""
    count = bench.count_searches(systems)
    write_note(f"{function_name} is called at most {count:,} times.")
    if is_confirmed or count <= MOST_UNASKED:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"more than {MOST_UNASKED:,} searches must be confirmed; this measurement makes up to"
            f" {count:,}. Add --yes, or reduce the number with --questions or --systems",
            path="--yes",
        )
    if not typer.confirm("Go on?", err=True):
        write_note("Nothing was searched.")
        raise typer.Exit


def show_comparison(comparison: Comparison) -> None:
    """Write the table of all systems and the verdict to stdout."""
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    out.write(f"{comparison.dataset}: {comparison.questions:,} questions{passages}\n")
    show_table(HEADINGS, rows(comparison), optional=_OPTIONAL_COLUMNS)
    out.write(verdict(comparison))
