"""``qtm tune``: find the best settings on half of the questions, and test them on the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from qtmiddleware.config import Config, list_key_names
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.bench import (
    Cache,
    Data,
    Model,
    ModelMs,
    Questions,
    Record,
    Recordings,
    Split,
    show_comparison,
)
from qtmiddleware.kit.cli.check import Arguments
from qtmiddleware.kit.cli.console import AsJson, ShowProgress, out, write_json
from qtmiddleware.kit.cli.engines import Workers
from qtmiddleware.kit.cli.environment import report_default_files
from qtmiddleware.kit.cli.own_function import (
    AskedFor,
    Embed,
    Measured,
    Yes,
    confirm_searches,
    load_function_source,
    open_measurement_progress,
)
from qtmiddleware.kit.cli.reports import (
    check_files_writable,
    name_option_in_errors,
    require_jinja,
    write_report,
)
from qtmiddleware.kit.cli.terminal import FAILED, write_note
from qtmiddleware.kit.engines import LocalEngine
from qtmiddleware.kit.evaluation import SYSTEMS, Dataset, load_judged, require_extras
from qtmiddleware.kit.evaluation.bench import (
    CACHE,
    READING,
    BenchOptions,
    FunctionSource,
    OpenedBench,
    open_bench,
)
from qtmiddleware.kit.evaluation.own_function import OwnFunction
from qtmiddleware.kit.evaluation.tuning import (
    FREE_TIERS,
    TIERS,
    Budget,
    Tuned,
    flat,
    forecast_tuning,
    nested,
    tune,
)
from qtmiddleware.kit.evaluation.tuning import split as divide_dataset
from qtmiddleware.runtime.files import replace_file

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.reporting import Decision

_OUT: Final = Path("query-transform.config.json")
_SCHEMA_FILE: Final = "schema.json"
_REPORTS: Final = ("tune.md", "tune.html", "tune.json")
_EMBEDDER_KEYS: Final = ("embeddingModel", "embeddingDimensions")
_READING_KEYS: Final = tuple(f"keywordEvidence.{name}" for name in READING)
_MODEL_KEYS: Final = (
    *(
        "llm.baseUrl",
        "llm.temperature",
        "llm.maxTokens",
        "llm.structuredOutput",
        "llm.reasoningEffort",
    ),
    *(key for key in list_key_names() if key.startswith("llm.temperatures.")),
)


def tune_command(
    data: Data,
    function: Measured = None,
    arguments: Arguments = None,
    embed: Embed = None,
    top_k: AskedFor = None,
    recordings: Recordings = None,
    record: Record = None,
    model: Model = None,
    model_ms: ModelMs = 0.0,
    max_call_rate: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="Most questions that may call the model, as a share from 0 to 1."
        ),
    ] = None,
    max_added_ms: Annotated[
        float | None, typer.Option(min=0.0, help="Most added milliseconds for 95 of 100 questions.")
    ] = None,
    max_usd_per_thousand: Annotated[
        float | None,
        typer.Option(min=0.0, help="Most US dollars for the model per 1,000 questions."),
    ] = None,
    max_searches: Annotated[
        float | None,
        typer.Option(min=1.0, help="Most searches per question, including the question's own."),
    ] = None,
    max_hurt_rate: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Most questions that may get worse than raw, as a share from 0 to 1.",
        ),
    ] = None,
    questions: Questions = None,
    split: Split = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed for choosing the held-out questions.")] = 0,
    cache: Cache = CACHE,
    workers: Workers = 1,
    out_file: Annotated[
        Path, typer.Option("--out", "-o", help="JSON config file to write.")
    ] = _OUT,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Folder for the Markdown and HTML reports.")
    ] = None,
    yes: Yes = False,
    json_output: AsJson = False,
) -> None:
    """Tune the settings on judged questions.

    The settings must stay within the budget that you set. If the tuned config is
    better, the command writes it to a file; otherwise the exit code is 1.

    With --function app:search the settings are tuned to your function on its own
    index, as in 'qtm bench'. With --workers several processes embed the
    passages; the figures stay the same.
    """
    budget = Budget(
        max_call_rate=max_call_rate,
        max_added_ms=max_added_ms,
        max_usd_per_thousand=max_usd_per_thousand,
        max_searches=max_searches,
        max_hurt_rate=max_hurt_rate,
    )
    config = Config.load().overridden({"transformationModel": model} if model else {})
    settings = config.settings
    _check_output_paths(out_file, report, can_overwrite=force)
    require_extras()
    report_default_files({"replies and vectors": cache if cache == CACHE else None})
    source = _load_plain_function_source(function, arguments, embed, top_k, workers)
    data_set = Dataset.load(data, split=split) if source is None else load_judged(data, split=split)
    # Raises an error for too few questions before any passage is embedded.
    divide_dataset(
        data_set if questions is None else data_set.sampled(questions, seed=seed),
        seed=seed,
    )
    options = BenchOptions(
        settings=settings, function=source, recordings=recordings, record=record,
        model_ms=model_ms, cache=cache, questions=questions, seed=seed,
        engine=LocalEngine(workers=workers) if workers > 1 else None,
    )  # fmt: skip
    with (
        open_measurement_progress(source) as update,
        open_bench(data_set, replace(options, progress=update)) as opened_bench,
    ):
        for text in opened_bench.notes:
            write_note(text)
        if source is not None:
            _confirm_tuning(opened_bench, source, seed, is_confirmed=yes)
        result = _tune_settings(opened_bench, budget, seed, update)
        config_values = _build_config_values(result, config) if result.is_better else None
        if config_values is not None:
            write_config(out_file, config_values)
        if report is not None:
            _write_report(report, result, opened_bench, config_values)
    if json_output:
        write_json({**result.to_dict(), "written": str(out_file) if result.is_better else None})
    else:
        out.print("Measured on the held-out half of the questions:")
        show_comparison(result.comparison, headline=_format_headline(result, config_values))
        out.print(f"\n{result.summary()}")
        out.print(f"Written to {out_file}." if result.is_better else f"{out_file} was not written.")
    if not result.is_better:
        raise typer.Exit(FAILED)


def _load_plain_function_source(
    function: str | None,
    arguments: list[str] | None,
    embed: str | None,
    top_k: int | None,
    workers: int,
) -> FunctionSource | None:
    """Import and return the function to tune; ``None`` if *function* is ``None``.

    Raises `ConfigError` if the function is already wrapped, or if *workers* is more than 1.
    """
    source = load_function_source(function, arguments, embed, top_k)
    if source is not None and source.is_wrapped:
        message = f"{source.name} is already wrapped; name the plain function to tune it"
        raise ConfigError(message, path="--function")
    if source is not None and workers > 1:
        raise ConfigError(
            "--workers cannot be used with --function, which does not embed passages; leave it out"
        )
    return source


def _confirm_tuning(
    opened_bench: OpenedBench, source: FunctionSource, seed: int, *, is_confirmed: bool
) -> None:
    """Show the maximum number of searches, and ask the user to confirm a large number.

    If *is_confirmed* is true, does not ask the user.
    """
    bench = cast(OwnFunction, opened_bench.bench)
    forecast = forecast_tuning(
        bench,
        opened_bench.dataset,
        _choose_tier_names(opened_bench),
        has_model=opened_bench.has_model,
        seed=seed,
    )
    confirm_searches(
        forecast, source.name, is_confirmed=is_confirmed, reducing_options="--questions"
    )


def _check_output_paths(out_file: Path, report_folder: Path | None, *, can_overwrite: bool) -> None:
    """Check before the first model call that the command can write the result files.

    Raises `ConfigError` if the command cannot write a file, or if *out_file* exists and
    *can_overwrite* is false.
    """
    if out_file.is_dir():
        raise ConfigError(
            f"{out_file} is a folder; name a file in it with --out",
            path="--out",
            value=str(out_file),
        )
    if out_file.exists() and not can_overwrite:
        message = (
            f"{out_file} already exists; overwrite it with --force, or name another file with --out"
        )
        raise ConfigError(message, path="--out", value=str(out_file))
    # A config file may be TOML, but this command writes only JSON.
    if out_file.suffix.lower() == ".toml":
        raise ConfigError(f"--out must end in .json, not {out_file}", path="--out")
    check_files_writable(out_file.parent, (out_file.name,), "--out")
    if report_folder is not None:
        require_jinja()
        check_files_writable(report_folder, _REPORTS, "--report")


def _tune_settings(
    opened_bench: OpenedBench, budget: Budget, seed: int, show_progress: ShowProgress
) -> Tuned:
    """Tune the settings on the data in *opened_bench*, and return the result.

    The comparison in the result also contains the notes of *opened_bench*.
    """
    tiers = _choose_tier_names(opened_bench)
    # First, the model writes the texts that all trials share, for several questions at a time. The
    # trials themselves would ask for them one after another.
    train, _ = divide_dataset(opened_bench.dataset, seed=seed)
    systems = {tier: SYSTEMS[tier] for tier in tiers}
    opened_bench.ask_model_ahead(train, systems, show_progress)
    result = tune(
        opened_bench.bench,
        opened_bench.dataset,
        budget=budget,
        tiers=tiers,
        seed=seed,
        progress=show_progress,
    )
    notes = (*opened_bench.notes, *result.comparison.notes)
    comparison = replace(
        result.comparison, notes=notes, counts_model_time=opened_bench.counts_model_time
    )
    return replace(result, comparison=comparison)


def _choose_tier_names(opened_bench: OpenedBench) -> Sequence[str]:
    """Return the names of the tiers (transformation types and rules) to try.

    Without a model, returns only tiers that call no model. If recorded replies replace the model,
    returns only tiers with recorded replies.
    """
    if not opened_bench.has_model:
        return FREE_TIERS
    return [tier for tier in TIERS if not opened_bench.list_missing_fields(SYSTEMS[tier])]


def _build_config_values(result: Tuned, config: Config) -> dict[str, Any]:
    """Return the tuned settings, together with these settings of *config*.

    - the embedding model
    - the settings for reading results
    - the language model, if the tuned settings call a model

    Omits default values, except the transformation type and the language model's name.
    """
    kind = result.config.get("transformationType", "none")
    has_model_calls = kind != "none"
    values: dict[str, Any] = {"transformationType": kind}
    if has_model_calls:
        values["transformationModel"] = config.settings.transformation_model
    kept_keys = (
        (*_EMBEDDER_KEYS, *_READING_KEYS, *_MODEL_KEYS)
        if has_model_calls
        else (*_EMBEDDER_KEYS, *_READING_KEYS)
    )
    models = {
        key: value
        for key, value, origin in config.rows()
        if key in kept_keys and origin != "default"
    }
    return {**values, **nested({**models, **flat(result.config)})}


def write_config(path: Path, config_values: dict[str, Any]) -> None:
    """Write *config_values* to *path* as JSON. An interrupt leaves an existing file unchanged.

    A new file gets the default permissions, because teams share configs and a config contains no
    secrets.
    """
    # `qtm config init` may have written the schema; editors then check this config too.
    if (path.parent / _SCHEMA_FILE).is_file():
        config_values = {"$schema": f"./{_SCHEMA_FILE}", **config_values}
    with name_option_in_errors(path, "--out"):
        replace_file(path, (json.dumps(config_values, indent=2) + "\n").encode())


def _format_headline(result: Tuned, config_values: dict[str, Any] | None) -> str:
    from qtmiddleware.kit.evaluation import reporting

    return reporting.verdict(result.comparison, _build_decision(result, config_values))


def _build_decision(result: Tuned, config_values: dict[str, Any] | None) -> Decision:
    """Return the report's decision: whether to use the tuned settings, and why."""
    from qtmiddleware.kit.evaluation.reporting import Decision

    return Decision(
        system=result.chosen,
        is_recommended=result.is_better,
        headline=result.headline,
        sentences=tuple(result.summary().splitlines()),
        beyond=result.beyond,
        config="" if config_values is None else json.dumps(config_values, indent=2),
    )


def _write_report(
    folder: Path, result: Tuned, opened_bench: OpenedBench, config_values: dict[str, Any] | None
) -> None:
    from qtmiddleware.kit.evaluation import reporting

    decision = _build_decision(result, config_values)
    texts = (
        reporting.markdown(result.comparison, opened_bench.dataset, decision=decision),
        reporting.page(result.comparison, opened_bench.dataset, decision=decision),
        json.dumps(result.to_dict(), ensure_ascii=False, indent=2) + "\n",
    )
    write_report(folder, dict(zip(_REPORTS, texts, strict=True)))
