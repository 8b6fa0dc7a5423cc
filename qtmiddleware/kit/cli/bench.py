"""``qtm bench``: measure systems and their costs on judged questions, and write reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich import box
from rich.cells import cell_len
from rich.table import Table

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.check import Arguments
from qtmiddleware.kit.cli.console import (
    AsJson,
    PlainConsole,
    Sets,
    ShowProgress,
    out,
    write_json,
)
from qtmiddleware.kit.cli.environment import (
    ASSIGNED,
    NO_MODEL,
    override_options,
    report_default_files,
)
from qtmiddleware.kit.cli.gating import Against, Comment, FailIf, Gating
from qtmiddleware.kit.cli.own_function import (
    AskedFor,
    Embed,
    Measured,
    Yes,
    confirm_searches,
    load_function_source,
    open_measurement_progress,
)
from qtmiddleware.kit.cli.reports import check_report, format_json, write_report
from qtmiddleware.kit.cli.terminal import WORSE, write_note
from qtmiddleware.kit.evaluation import (
    FREE,
    MEASURED,
    SYSTEMS,
    USUAL,
    Comparison,
    Question,
    chosen,
    require_extras,
)
from qtmiddleware.kit.evaluation.bench import (
    CACHE,
    READING,
    Bench,
    BenchOptions,
    OpenedBench,
    open_bench,
    open_model,
)
from qtmiddleware.kit.evaluation.compare import OWN
from qtmiddleware.kit.evaluation.gate import GateResult
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.llms import has_language_model

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.judging import Judged

# Columns that a narrow terminal leaves out, in this order.
_OPTIONAL_COLUMNS = ("R@100", "R@10", "p95", "calls", "$/1k", "searches", "reads $/1k", "+ms p50")
# A longer name would leave a narrow terminal no room for numbers.
_MAX_NAME_COLUMNS = 24

Data = Annotated[
    Path,
    typer.Option(
        help=(
            "Folder with corpus.jsonl, queries.jsonl and qrels/*.tsv, or a CSV or JSON file for"
            " --function."
        )
    ),
]
Recordings = Annotated[
    Path | None,
    typer.Option(help="Replay the recorded replies in this file instead of calling a model."),
]
Record = Annotated[Path | None, typer.Option(help="Write the model's replies to this file.")]
Model = Annotated[str | None, typer.Option(help="Language model; overrides transformationModel.")]
ModelMs = Annotated[
    float, typer.Option(min=0, max=600_000, help="Milliseconds to count for each recorded reply.")
]
Questions = Annotated[
    int | None, typer.Option(min=1, help="Number of questions to ask. Default: all.")
]
Split = Annotated[
    str, typer.Option(help="Judgement file to use, such as test. Default: all files.")
]
Cache = Annotated[Path, typer.Option(help="Folder that keeps the index, vectors and replies.")]

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
    data: Data,
    function: Measured = None,
    arguments: Arguments = None,
    embed: Embed = None,
    top_k: AskedFor = None,
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
    recordings: Recordings = None,
    record: Record = None,
    model: Model = None,
    model_ms: ModelMs = 0.0,
    questions: Questions = None,
    split: Split = "",
    deep: Annotated[
        bool | None,
        typer.Option(
            help="Also measure R@100, with one more search per system. Default without --function."
        ),
    ] = None,
    cache: Cache = CACHE,
    seed: Annotated[int, typer.Option(help="Seed for drawing questions and resampling.")] = 0,
    concurrency: Annotated[
        int, typer.Option(min=1, max=256, help="Questions sent to the model at the same time.")
    ] = 8,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a report to this file: .md, .json or .html."),
    ] = None,
    baseline: Against = None,
    fail_if: FailIf = None,
    comment: Comment = None,
    generate: Annotated[
        int | None,
        typer.Option(
            min=1, help="First let the model write this many questions about --docs into --data."
        ),
    ] = None,
    docs: Annotated[
        list[Path] | None,
        typer.Option(
            help="Document, folder or glob (in quotes) to write questions about. Repeatable."
        ),
    ] = None,
    judge: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "Let the model answer this many questions from raw and best, and judge the answers."
            ),
        ),
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
    if function is not None:
        _refuse_index_options({"--generate": generate, "--judge": judge})
    selection = None if systems is None else chosen(split_system_names(systems))
    configs = {
        _name_config(name): override_options(Config.load(name), sets or ()) for name in config or ()
    }
    settings = _find_shared_settings(
        configs, config or (), model, sets or (), is_function_measured=function is not None
    )
    own_systems = {name: _build_explicit_system(loaded) for name, loaded in configs.items()}
    _check_option_combinations(generate, docs, judge, recordings, baseline)
    gating = Gating.from_options(baseline, fail_if, comment)
    if report is not None:
        check_report(report)
    # Checked before a data set is read, passages are embedded or a model is called.
    require_extras()
    report_default_files(
        {"replies and vectors": cache if cache == CACHE else None}, named_config=config
    )
    source = load_function_source(function, arguments, embed, top_k)
    bench_options = BenchOptions(
        settings=settings, function=source, recordings=recordings, record=record,
        model_ms=model_ms, cache=cache, questions=questions, split=split, seed=seed,
        concurrency=concurrency, check=gating.check_dataset,
    )  # fmt: skip
    with open_measurement_progress(source) as update:
        if generate is not None:
            generate_test_set(
                data,
                docs or (),
                settings,
                question_count=generate,
                cache_file=cache,
                seed=seed,
                show_progress=update,
            )
        with open_bench(data, replace(bench_options, progress=update)) as opened_bench:
            contenders = _select_systems(opened_bench, selection, own_systems)
            if source is not None and source.is_wrapped:
                contenders[OWN] = {}
            is_deep = deep if deep is not None else source is None
            gating.check_systems(contenders, is_deep=is_deep)
            if source is not None:
                confirm_searches(
                    opened_bench.forecast_searches(contenders, deep=is_deep),
                    source.name,
                    is_confirmed=yes,
                )
            sample = (
                ()
                if judge is None
                else draw_judged_questions(opened_bench, contenders, judge, seed)
            )
            comparison = opened_bench.measure(contenders, deep=is_deep, seed=seed, progress=update)
            for remark in comparison.notes[len(opened_bench.notes) :]:
                write_note(remark)
            judged_answers = (
                judge_answers(opened_bench, comparison, contenders, sample, show_progress=update)
                if sample
                else None
            )
    if judged_answers is not None:
        comparison = replace(comparison, notes=(*comparison.notes, judged_answers.summary()))
    _report_benchmark_result(
        comparison, opened_bench, judged_answers, gating, report, should_write_json=json_output
    )


def _report_benchmark_result(
    comparison: Comparison,
    opened_bench: OpenedBench,
    judged_answers: Judged | None,
    gating: Gating,
    report_file: Path | None,
    *,
    should_write_json: bool,
) -> None:
    """Show the results of a run and, if *report_file* is set, write the report to that file.

    Raises `typer.Exit` with code 3 if retrieval got worse than ``--fail-if`` allows.
    """
    gate_result = gating.judge_comparison(comparison, opened_bench.model_name)
    json_values = _build_report_dict(comparison, opened_bench, judged_answers, gate_result)
    if report_file is not None:
        text = _format_report(
            comparison, opened_bench, judged_answers, json_values, report_file.suffix
        )
        write_report(report_file, text)
    is_worse = gating.is_rule_violated(gate_result)
    # A program that closes the pipe early still gets the exit code. The console raises SystemExit
    # for a closed pipe.
    with suppress(BrokenPipeError, SystemExit) if is_worse else nullcontext():
        if should_write_json:
            write_json(json_values)
        else:
            _show_benchmark_result(comparison, judged_answers, gate_result)
    if is_worse:
        raise typer.Exit(WORSE)


def _check_option_combinations(
    generated_count: int | None,
    docs: Sequence[Path] | None,
    judged_count: int | None,
    recordings: Path | None,
    baseline: Path | None,
) -> None:
    """Raise `ConfigError` if two options exclude each other, or if a required option is missing."""
    if (generated_count is None) != (docs is None):
        raise ConfigError("--generate needs --docs, and --docs needs --generate")
    if judged_count is not None and recordings is not None:
        raise ConfigError(
            "--judge needs a language model, because recordings hold no answers", path="judge"
        )
    if generated_count is not None and baseline is not None:
        raise ConfigError(
            "--baseline cannot be used with --generate, which writes new questions",
            path="--baseline",
        )


def _refuse_index_options(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if an option is set that ``--function`` excludes.

    Args:
        options: The values of the excluded options, by option name.
    """
    if needless := [option for option, value in options.items() if value]:
        message = (
            f"{needless[0]} cannot be used with --function, which does not embed passages; leave"
            " it out"
        )
        raise ConfigError(message, path=needless[0])


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
    model_name: str | None,
    assignments: Sequence[str],
    *,
    is_function_measured: bool,
) -> Settings:
    """Return the settings that all systems share, such as the models and the search price.

    Args:
        configs: The configs to compare, by the name of their file.
        config_names: The config files and presets, as the user named them.
        model_name: The language model that ``--model`` names, or ``None``.
        assignments: The values of ``--set``.
        is_function_measured: Whether the command measures the user's function. If so, all systems
            also share the settings for reading the function's results.

    Raises:
        ConfigError: Two config files differ in a shared setting, two files have the same name, a
            file has the name of a system, or one of *assignments* needs a config file.
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
    model_override = {} if model_name is None else {"transformationModel": model_name}
    # The settings of --set reach only the systems of config files. The standard systems have fixed
    # settings, so without a config file such a setting would change nothing.
    default_config = override_options(Config.load(None), assignments)
    default_rows = () if configs else default_config.rows()
    strays = [
        key
        for key, _, origin in default_rows
        if origin == ASSIGNED and key not in shared_keys and not key.startswith("llm.")
    ]
    if strays:
        message = (
            f"--set {strays[0]} needs --config, because it changes only the systems of config files"
        )
        raise ConfigError(message, path=strays[0], source=ASSIGNED)
    loaded_configs = [loaded.overridden(model_override) for loaded in configs.values()] or [
        default_config.overridden(model_override)
    ]
    rows = [
        {name: value for name, value, _ in loaded.rows() if name in shared_keys}
        for loaded in loaded_configs
    ]
    for key in shared_keys:
        if len({str(row[key]) for row in rows}) > 1:
            raise ConfigError(
                f"the config files must have the same {key}; compare one at a time", path=key
            )
    return loaded_configs[0].settings


def _name_config(source: str) -> str:
    """Return the name of the system that the file or preset *source* defines."""
    return f"preset {source}" if re.fullmatch(r"[\w-]+", source) else Path(source).stem


def _build_explicit_system(config: Config) -> System:
    """Return a system with the settings that *config* sets, without default values.

    Fixed settings replace the config's settings of the cache and the log, so that all systems share
    the cache and the log.
    """
    values = config.to_dict(with_defaults=False)
    return {
        **values,
        **{group: {**values.get(group, {}), **fixed} for group, fixed in _FIXED_GROUPS.items()},
    }


def _select_systems(
    opened_bench: OpenedBench,
    named_systems: Mapping[str, System] | None,
    own_systems: Mapping[str, System],
) -> dict[str, System]:
    """Return the settings of each system to compare, by the system's name.

    Args:
        opened_bench: Holds the data set, and the model or the recorded replies.
        named_systems: The systems that ``--systems`` names. If ``None``, the command compares the
            default systems. A note names the default systems that are skipped because they have
            no recorded replies.
        own_systems: One system per config file of the user.

    Raises:
        ConfigError: A system needs a model but no model is configured, or a system that the user
            chose has no recorded replies.
    """
    systems = dict(
        named_systems
        if named_systems is not None
        else chosen(USUAL if opened_bench.has_model else FREE)
    )
    unrecorded = {
        name for name, settings in systems.items() if opened_bench.list_missing_fields(settings)
    }
    if named_systems is None:
        systems = {name: settings for name, settings in systems.items() if name not in unrecorded}
    systems |= own_systems
    if not opened_bench.has_model and (
        model_systems := [name for name, settings in systems.items() if _has_model_calls(settings)]
    ):
        raise ConfigError(
            f"a language model is needed for {', '.join(model_systems)}: pass --recordings, or set"
            " OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    if missing := [
        name for name, settings in systems.items() if opened_bench.list_missing_fields(settings)
    ]:
        # Without replies they would be measured as if they had no model, at no cost.
        raise ConfigError(
            f"the recording has no replies for {', '.join(missing)}; leave it out", path="systems"
        )
    if unrecorded:
        write_note(
            "Skipped, because the recording has no replies for them:"
            f" {', '.join(sorted(unrecorded))}."
        )
    for remark in opened_bench.notes:
        write_note(remark)
    return systems


def _has_model_calls(settings: System) -> bool:
    """Return whether a system with *settings* calls the language model."""
    return bool(settings.get("transformationType", "none") != "none")


def _format_report(
    comparison: Comparison,
    opened_bench: OpenedBench,
    judged_answers: Any,
    json_values: Mapping[str, Any],
    ending: str,
) -> str:
    """Return the report in the format that *ending* names, such as ``.md``."""
    from qtmiddleware.kit.evaluation import reporting

    if ending == ".json":
        return format_json(json_values)
    if ending == ".md":
        return reporting.markdown(comparison, opened_bench.dataset)
    return reporting.page(comparison, opened_bench.dataset, judged=judged_answers)


def _build_report_dict(
    comparison: Comparison,
    opened_bench: OpenedBench,
    judged_answers: Any,
    gate_result: GateResult | None,
) -> dict[str, Any]:
    """Return the results of a run as a dict, ready for JSON.

    Args:
        comparison: The results of the systems.
        opened_bench: Holds the name of the model.
        judged_answers: The judge's verdicts, or ``None`` without ``--judge``.
        gate_result: The comparison with the baseline, or ``None`` without ``--baseline``.
    """
    from qtmiddleware.kit.evaluation import reporting

    return {
        **comparison.to_dict(),
        "verdict": reporting.verdict(comparison),
        "model": opened_bench.model_name,
        "judged": None if judged_answers is None else judged_answers.to_dict(),
        "gate": (
            None
            if gate_result is None
            else {**gate_result.to_dict(), "sentences": reporting.write_sentences(gate_result)}
        ),
    }


def generate_test_set(
    folder: Path,
    docs: Sequence[Path],
    settings: Settings,
    *,
    question_count: int,
    cache_file: Path,
    seed: int,
    show_progress: ShowProgress,
) -> None:
    """Let the model write questions about *docs*, and save them to *folder* as a data set.

    Raises `ConfigError` if no model is configured, or if the model writes no usable question.
    """
    from qtmiddleware.kit.evaluation.testsets import (
        check_free,
        generate,
        passages_of,
        write,
    )

    if not has_language_model(settings):
        raise ConfigError(NO_MODEL, path="generate")
    check_free(folder)  # Before the model costs money.
    require_extras()
    passages = passages_of(docs, settings)
    with open_model(settings, cache=cache_file) as model:
        generated = generate(
            passages,
            model,
            count=question_count,
            seed=seed,
            name=folder.name,
            progress=lambda done, total: show_progress("writing questions", done, total),
        )
    if not generated.dataset.questions:
        raise ConfigError(
            f"the model wrote no usable question about the {len(passages):,} passages"
            f" ({_describe_dropped_drafts(generated)})"
        )
    write(generated.dataset, folder)
    cost = "" if generated.cost_usd is None else f", for ${generated.cost_usd:.4f}"
    dropped = f"; dropped: {_describe_dropped_drafts(generated)}" if generated.dropped else ""
    write_note(
        f"{len(generated.dataset.questions)} questions about {len(passages):,} passages are in"
        f" {folder}{cost}{dropped}"
    )


def _describe_dropped_drafts(test_set: Any) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in test_set.dropped.items())


def draw_judged_questions(
    opened_bench: OpenedBench, systems: System, question_count: int, seed: int
) -> tuple[Question, ...]:
    """Draw *question_count* random questions that have a reference answer, for ``--judge``.

    The same *seed* draws the same questions.

    Raises:
        ConfigError: No question has a reference answer, there is no model, or there is only one
            system.
    """
    if len(systems) < 2:
        raise ConfigError("--judge needs a second system; name one with --systems", path="judge")
    if not opened_bench.has_model:
        raise ConfigError(NO_MODEL, path="judge")
    answered = {
        question.id
        for question in opened_bench.dataset.questions
        if str(question.metadata.get("answer") or "").strip()
    }
    if not answered:
        raise ConfigError(
            '--judge needs reference answers: in queries.jsonl, set "answer" in the metadata',
            path="judge",
        )
    return opened_bench.dataset.only(answered).sampled(question_count, seed=seed).questions


def judge_answers(
    opened_bench: OpenedBench,
    comparison: Comparison,
    systems: Mapping[str, System],
    questions: Sequence[Question],
    *,
    show_progress: ShowProgress,
) -> Judged:
    """Let the model answer each of *questions* twice and judge which of the two answers is better.

    One answer uses the baseline's passages. The other answer uses the passages of the system with
    the best results, apart from the baseline.
    """
    from qtmiddleware.kit.evaluation.judging import judge

    best = max(comparison.challengers, key=lambda score: score.difference.gain)
    model = cast(LanguageModel, opened_bench.model)
    bench = replace(cast(Bench, opened_bench.bench), model=model)

    def make_answer_function(system_name: str) -> Callable[[Question], str]:
        wrapped = bench.build_wrapped_function(systems[system_name])
        return lambda question: wrapped.answer(question.text, history=question.history).text

    return judge(
        make_answer_function(comparison.baseline),
        make_answer_function(best.name),
        questions,
        model,
        baseline_name=comparison.baseline,
        challenger_name=best.name,
        seed=comparison.seed,
        progress=lambda done, total: show_progress("judging answers", done, total),
    )


def _show_benchmark_result(
    comparison: Comparison, judged_answers: Judged | None, gate_result: GateResult | None
) -> None:
    from qtmiddleware.kit.evaluation import reporting

    show_comparison(comparison)
    if judged_answers is not None:
        _show_judgements(judged_answers)
    if gate_result is not None:
        out.print("\n" + "\n".join(reporting.write_sentences(gate_result)))


def _show_judgements(judged_answers: Judged) -> None:
    """Write the judge's verdict on each question as one line, then a summary of all verdicts."""
    from qtmiddleware.preprocessing.text import shorten_text

    out.print("\nJudged answers:")
    for verdict in judged_answers.verdicts:
        reason = "".join(
            f" {shorten_text(judge_reason.text, 400)} ({judge_reason.legend})"
            for judge_reason in verdict.reasons[:1]
        )
        out.print(
            f"  {shorten_text(verdict.question, 60)}: {judged_answers.describe(verdict)}.{reason}"
        )
    out.print(judged_answers.summary())


def show_comparison(comparison: Comparison) -> None:
    """Write the table of *comparison* to stdout, with the verdict below the table."""
    from qtmiddleware.kit.evaluation import reporting

    headings, rows = reporting.headings(comparison), reporting.rows(comparison)
    columns, letters = list(range(len(headings))), dict[str, str]()
    if out.is_terminal:
        letters = _abbreviate_long_names([name for name, *_ in rows])
        rows = [[letters.get(name, name), *cells] for name, *cells in rows]
        for heading in _OPTIONAL_COLUMNS:
            if _measure_table_width(headings, rows, columns) > out.width and heading in headings:
                columns.remove(headings.index(heading))
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    out.print(f"{comparison.dataset}: {comparison.questions:,} questions{passages}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # If the table is still too wide, names are cut, but never numbers.
        least_width = max(cell_len(row[column]) for row in (headings, *rows)) if column else None
        table.add_column(
            headings[column],
            justify="right" if column else "left",
            no_wrap=True,
            min_width=least_width,
        )
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    # A file or a pipe has no width.
    console = (
        out
        if out.is_terminal
        else PlainConsole(width=_measure_table_width(headings, rows, columns))
    )
    console.print(table, soft_wrap=False)
    for name, letter in letters.items():
        out.print(f"{letter} is {name}")
    out.print(reporting.verdict(comparison))


def _abbreviate_long_names(names: Sequence[str]) -> dict[str, str]:
    """Return a one-letter abbreviation for each name that is too long for a narrow table."""
    long = [name for name in names if cell_len(name) > _MAX_NAME_COLUMNS]
    return dict(zip(long, ascii_uppercase, strict=False))


def _measure_table_width(
    headings: Sequence[str], rows: Sequence[Sequence[str]], column_indices: Sequence[int]
) -> int:
    """Return the width of a table in characters.

    Args:
        headings: The headings of all columns.
        rows: The cells of each row.
        column_indices: The indices of the columns to show.
    """
    # The padding and the box of the table take three characters per column.
    return sum(
        3 + max(cell_len(row[column]) for row in (headings, *rows)) for column in column_indices
    )
