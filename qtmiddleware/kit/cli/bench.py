"""``qtm bench``: systems compared on judged questions, with what each of them costs; its table and reports."""

from __future__ import annotations

import json
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

from qtmiddleware.config import ASSIGNED, Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.batch import Batch, BatchOptions, BatchTokens, ask_by_batch
from qtmiddleware.kit.cli.check import Arguments
from qtmiddleware.kit.cli.console import (
    AsJson,
    PlainConsole,
    Sets,
    ShowProgress,
    as_json,
    out,
)
from qtmiddleware.kit.cli.engines import Workers
from qtmiddleware.kit.cli.environment import NO_MODEL, note_files
from qtmiddleware.kit.cli.gating import Against, Comment, FailIf, Gating
from qtmiddleware.kit.cli.own_function import (
    AskedFor,
    Embed,
    Measured,
    Yes,
    confirm_searches,
    measuring,
    read_source,
)
from qtmiddleware.kit.cli.reports import check_places, require_jinja, write_report
from qtmiddleware.kit.cli.terminal import WORSE, note
from qtmiddleware.kit.engines import LocalEngine
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
from qtmiddleware.kit.evaluation.gate import Gate
from qtmiddleware.kit.evaluation.tuning import nested
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.llms import has_language_model

if TYPE_CHECKING:
    from qtmiddleware.kit.evaluation.judging import Judged

# What a narrow terminal does without, first of all the first.
_DISPENSABLE = ("R@100", "R@10", "p95", "calls", "$/1k", "searches", "reads $/1k", "+ms p50")
# A longer name would leave a narrow terminal no room for numbers.
_LONGEST_NAME = 24
_FEWER = "--questions, --systems or --no-deep"

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

# What must be one and the same for all systems, since they share an index and a model.
_SHARED = (
    "embeddingModel",
    "embeddingDimensions",
    "transformationModel",
    "llm.baseUrl",
    "store.readPrice",
)
_REPORTS = ("report.md", "report.html", "report.json")
# Laid over the files' own settings: every call is counted, and nobody's log is written to.
_MEASURED: System = {group: MEASURED[group] for group in ("cache", "log")}


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
        list[Path] | None,
        typer.Option(
            "--config", "-c", help="Config file to compare as one more system. Repeatable."
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
        Path | None, typer.Option(help="Write report.md, .html and .json to this folder.")
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
    workers: Workers = 1,
    batch: Batch = None,
    batch_tokens: BatchTokens = None,
    yes: Yes = False,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on judged questions.

    The systems are plain search (raw), the rules and the transformations by a model.

    With --function app:search the command measures your own function on its
    own index. Nothing is embedded or copied, and --data may be a CSV file with
    the columns question and id. The command first says how often it calls the
    function. After Ctrl-C, run the same command again to continue.

    Without --function the command embeds and searches the passages in --data.
    With --workers several processes embed the passages; the figures stay the same.

    With --batch the model's replies come from a Batch API: submit, then collect
    until all replies are there. The same command without --batch then measures with them.

    With --baseline the command says whether retrieval got worse than in an
    earlier run on the same questions and passages. --fail-if makes that exit code 3.
    """
    options = BatchOptions(batch, batch_tokens, as_json=json_output)
    if function is not None:
        _refuse_needless(
            {"--generate": generate, "--judge": judge, "--batch": batch, "--workers": workers > 1}
        )
    named = None if systems is None else chosen(split_names(systems))
    own = {path.stem: Config.from_file(path).assigned(sets or ()) for path in config or ()}
    settings = _find_shared_settings(
        own, config or (), model, sets or (), reads=function is not None
    )
    given = {name: _read_own_settings(loaded) for name, loaded in own.items()}
    _check_company(generate, docs, judge, recordings, baseline)
    gating = Gating.read(baseline, fail_if, comment)
    if report is not None:
        require_jinja()
        check_places(report, _REPORTS, "--report")
    # Before a data set is read, or anything is embedded or asked.
    require_extras()
    note_files({"replies and vectors": cache if cache == CACHE else None}, config=config)
    source = read_source(function, arguments, embed, top_k)
    # Not as others open theirs, who keep the standard output from Ray: the answer to --batch goes
    # there.
    engine = LocalEngine(workers=workers) if workers > 1 else None
    opening = BenchOptions(
        settings=settings, function=source, recordings=recordings, record=record, model_ms=model_ms, cache=cache,
        questions=questions, split=split, seed=seed, concurrency=concurrency, engine=engine,
        check=gating.check_data,
    )  # fmt: skip
    if options.is_given:
        if any(option is not None for option in (recordings, generate, judge, report, baseline)):
            raise ConfigError(
                "--batch only collects model replies; to measure, run the same command without"
                " --batch",
                path="--batch",
            )
        asked = {**(named if named is not None else chosen(USUAL)), **given}
        ask_by_batch(
            asked, data, replace(opening, record=record if batch == "collect" else None), options
        )
        return
    with measuring(source) as update:
        if generate is not None:
            generate_test_set(
                data, docs or (), settings, count=generate, cache=cache, seed=seed, update=update
            )
        with open_bench(data, replace(opening, progress=update)) as opened:
            compared = _select_systems(opened, named, given)
            if source is not None and source.is_wrapped:
                compared[OWN] = {}
            is_deep = deep if deep is not None else source is None
            gating.check_systems(compared, deep=is_deep)
            if source is not None:
                confirm_searches(
                    opened.forecast(compared, deep=is_deep), source.name, yes=yes, fewer=_FEWER
                )
            to_judge = () if judge is None else draw_judged_questions(opened, compared, judge, seed)
            comparison = opened.measure(compared, deep=is_deep, seed=seed, progress=update)
            for doubt in comparison.notes[len(opened.notes) :]:
                note(doubt)
            verdicts = (
                judge_answers(opened, comparison, compared, to_judge, update=update)
                if to_judge
                else None
            )
    if verdicts is not None:
        comparison = replace(comparison, notes=(*comparison.notes, verdicts.summary()))
    _tell(comparison, opened, verdicts, gating, report, json_output=json_output)


def _tell(
    comparison: Comparison,
    opened: OpenedBench,
    verdicts: Judged | None,
    gating: Gating,
    report: Path | None,
    *,
    json_output: bool,
) -> None:
    """Write the reports and the outcome; raises `typer.Exit` if it is worse than ``--fail-if`` allows."""
    gate = gating.apply(comparison, opened.model_name)
    plain = _to_dict(comparison, opened, verdicts, gate)
    _write_report(comparison, opened, report, verdicts, plain)
    is_worse = gating.fails(gate)
    # Whoever reads only the first lines still gets the exit code. The console leaves by SystemExit
    # then.
    with suppress(BrokenPipeError, SystemExit) if is_worse else nullcontext():
        if json_output:
            as_json(plain)
        else:
            _show(comparison, verdicts, gate)
    if is_worse:
        raise typer.Exit(WORSE)


def _check_company(
    generate: int | None,
    docs: Sequence[Path] | None,
    judge: int | None,
    recordings: Path | None,
    baseline: Path | None,
) -> None:
    """Raise `ConfigError` for options that need others, or do not go with them."""
    if (generate is None) != (docs is None):
        raise ConfigError("--generate needs --docs, and --docs needs --generate")
    if judge is not None and recordings is not None:
        raise ConfigError(
            "--judge needs a language model, because recordings hold no answers", path="judge"
        )
    if generate is not None and baseline is not None:
        raise ConfigError(
            "--baseline cannot be used with --generate, which writes new questions",
            path="--baseline",
        )


def _refuse_needless(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for what is for passages that are embedded here, beside a function of the user's own."""
    if given := [option for option, value in options.items() if value]:
        message = (
            f"{given[0]} cannot be used with --function, which does not embed passages; leave"
            " it out"
        )
        raise ConfigError(message, path=given[0])


def split_names(text: str) -> list[str]:
    """The names of systems in *text*, between commas; one may hold a comma itself (``combined, auto``)."""
    known = "|".join(map(re.escape, sorted(SYSTEMS, key=len, reverse=True)))
    return [name.strip() for name in re.findall(rf"(?:{known})(?=\s*(?:,|$))|[^,\s][^,]*", text)]


def _find_shared_settings(
    own: Mapping[str, Config],
    paths: Sequence[Path],
    model: str | None,
    sets: Sequence[str],
    *,
    reads: bool,
) -> Settings:
    """The settings that name the embedding model and the language model, and what a search costs.

    With *reads* also those that say how the results of the user's own function are read.
    """
    shared = (*_SHARED, *(f"keywordEvidence.{name}" for name in READING)) if reads else _SHARED
    if len(own) < len(paths):
        raise ConfigError(
            "two config files have the same name; rename one, because the name is that of the"
            " system",
            path="config",
        )
    if taken := sorted(own.keys() & SYSTEMS.keys()):
        raise ConfigError(
            f"the config file {taken[0]} has the name of a system; rename the file", path="config"
        )
    asked = {} if model is None else {"transformationModel": model}
    alone = () if own else Config.load(None).assigned(sets).rows()
    strays = [
        key
        for key, _, origin in alone
        if origin == ASSIGNED and key not in shared and not key.startswith("llm.")
    ]
    if strays:
        message = (
            f"--set {strays[0]} needs --config, because it changes only the systems of config files"
        )
        raise ConfigError(message, path=strays[0], source=ASSIGNED)
    configs = [loaded.overridden(asked) for loaded in own.values()] or [
        Config.load(None).assigned(sets).overridden(asked)
    ]
    rows = [
        {name: value for name, value, _ in loaded.rows() if name in shared} for loaded in configs
    ]
    for key in shared:
        if len({str(row[key]) for row in rows}) > 1:
            raise ConfigError(
                f"the config files must have the same {key}; compare one at a time", path=key
            )
    return configs[0].settings


def _read_own_settings(loaded: Config) -> System:
    """What a file sets, and no default: what it does not speak of is as with the systems it is compared with."""
    found = nested({name: value for name, value, origin in loaded.rows() if origin != "default"})
    return {
        **found,
        **{group: {**found.get(group, {}), **given} for group, given in _MEASURED.items()},
    }


def _select_systems(
    opened: OpenedBench, named: Mapping[str, System] | None, own: Mapping[str, System]
) -> dict[str, System]:
    """The systems to compare; what cannot be asked is refused where it was named, and left out where it was not."""
    found = dict(named if named is not None else chosen(USUAL if opened.has_model else FREE))
    unasked = {name for name, settings in found.items() if opened.lacks(settings)}
    if named is None:
        found = {name: settings for name, settings in found.items() if name not in unasked}
    found |= own
    if not opened.has_model and (
        asking := [name for name, settings in found.items() if _asks(settings)]
    ):
        raise ConfigError(
            f"a language model is needed for {', '.join(asking)}: pass --recordings, or set"
            " OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    if lost := [name for name, settings in found.items() if opened.lacks(settings)]:
        # Measured, they would be what is left without a model, at no price.
        raise ConfigError(
            f"the recording has no replies for {', '.join(lost)}; leave it out", path="systems"
        )
    if unasked:
        note(
            f"Skipped, because the recording has no replies for them: {', '.join(sorted(unasked))}."
        )
    for said in opened.notes:
        note(said)
    return found


def _asks(settings: System) -> bool:
    return bool(settings.get("transformationType", "none") != "none")


def _write_report(
    comparison: Comparison,
    opened: OpenedBench,
    folder: Path | None,
    verdicts: Any,
    plain: Mapping[str, Any],
) -> None:
    if folder is None:
        return
    from qtmiddleware.kit.evaluation import reporting

    texts = (
        reporting.markdown(comparison, opened.data),
        reporting.page(comparison, opened.data, judged=verdicts),
        json.dumps(plain, ensure_ascii=False, indent=2) + "\n",
    )
    write_report(folder, dict(zip(_REPORTS, texts, strict=True)))


def _to_dict(
    comparison: Comparison, opened: OpenedBench, verdicts: Any, gate: Gate | None
) -> dict[str, Any]:
    from qtmiddleware.kit.evaluation import reporting

    return {
        **comparison.to_dict(),
        "verdict": reporting.verdict(comparison),
        "model": opened.model_name,
        "judged": None if verdicts is None else verdicts.to_dict(),
        "gate": (
            None
            if gate is None
            else {**gate.to_dict(), "sentences": reporting.write_sentences(gate)}
        ),
    }


def generate_test_set(
    folder: Path,
    docs: Sequence[Path],
    settings: Settings,
    *,
    count: int,
    cache: Path,
    seed: int,
    update: ShowProgress,
) -> None:
    """Let the model write *count* questions about the documents at *docs*, and make a data set of them in *folder*."""
    from qtmiddleware.kit.evaluation.testsets import check_free, generate, passages_of, write

    if not has_language_model(settings):
        raise ConfigError(NO_MODEL, path="generate")
    check_free(folder)  # Before anything is paid for.
    require_extras()
    passages = passages_of(docs, settings)
    with open_model(settings, cache=cache) as model:
        made = generate(
            passages,
            model,
            count=count,
            seed=seed,
            name=folder.name,
            progress=lambda done, total: update("writing questions", done, total),
        )
    if not made.dataset.questions:
        raise ConfigError(
            f"the model wrote no usable question about the {len(passages):,} passages"
            f" ({_count_dropped(made)})"
        )
    write(made.dataset, folder)
    cost = "" if made.cost_usd is None else f", for ${made.cost_usd:.4f}"
    dropped = f"; dropped: {_count_dropped(made)}" if made.dropped else ""
    note(
        f"{len(made.dataset.questions)} questions about {len(passages):,} passages are in"
        f" {folder}{cost}{dropped}"
    )


def _count_dropped(made: Any) -> str:
    return ", ".join(f"{number} {why}" for why, number in made.dropped.items())


def draw_judged_questions(
    opened: OpenedBench, systems: System, count: int, seed: int
) -> tuple[Question, ...]:
    """The questions whose answers are judged: *count* of those with a reference answer, drawn by *seed*."""
    if len(systems) < 2:
        raise ConfigError("--judge needs a second system; name one with --systems", path="judge")
    if not opened.has_model:
        raise ConfigError(NO_MODEL, path="judge")
    answered = {
        one.id for one in opened.data.questions if str(one.metadata.get("answer") or "").strip()
    }
    if not answered:
        raise ConfigError(
            '--judge needs reference answers: in queries.jsonl, set "answer" in the metadata',
            path="judge",
        )
    return opened.data.only(answered).sampled(count, seed=seed).questions


def judge_answers(
    opened: OpenedBench,
    comparison: Comparison,
    systems: Mapping[str, System],
    questions: Sequence[Question],
    *,
    update: ShowProgress,
) -> Judged:
    """The model's answers from the baseline's passages and from those of the best challenger, judged by the model."""
    from qtmiddleware.kit.evaluation.judging import judge

    best = max(comparison.challengers, key=lambda score: score.difference.gain)
    model = cast(LanguageModel, opened.model)
    bench = replace(cast(Bench, opened.bench), model=model)

    def answers(name: str) -> Callable[[Question], str]:
        wrapped = bench.wrap(systems[name])
        return lambda question: wrapped.answer(question.text, history=question.history).text

    return judge(
        answers(comparison.baseline),
        answers(best.name),
        questions,
        model,
        baseline_name=comparison.baseline,
        challenger_name=best.name,
        seed=comparison.seed,
        progress=lambda done, total: update("judging answers", done, total),
    )


def _show(comparison: Comparison, verdicts: Judged | None, gate: Gate | None) -> None:
    from qtmiddleware.kit.evaluation import reporting

    show_comparison(comparison)
    if verdicts is not None:
        _show_judged(verdicts)
    if gate is not None:
        out.print("\n" + "\n".join(reporting.write_sentences(gate)))


def _show_judged(verdicts: Judged) -> None:
    """Write what the judge said of each question, a line each; the report has both orders."""
    from qtmiddleware.preprocessing.text import shorten

    out.print("\nJudged answers:")
    for verdict in verdicts.verdicts:
        why = "".join(f" {shorten(one.text, 400)} ({one.legend})" for one in verdict.reasons[:1])
        out.print(f"  {shorten(verdict.question, 60)}: {verdicts.describe(verdict)}.{why}")
    out.print(verdicts.summary())


def show_comparison(comparison: Comparison, *, headline: str = "") -> None:
    """Write the table of *comparison* to stdout, with what to take home from it: its verdict, or the *headline*."""
    from qtmiddleware.kit.evaluation import reporting

    headings, rows = reporting.headings(comparison), reporting.rows(comparison)
    columns, key = list(range(len(headings))), dict[str, str]()
    if out.is_terminal:
        key = _name_by_letters([name for name, *_ in rows])
        rows = [[key.get(name, name), *cells] for name, *cells in rows]
        for heading in _DISPENSABLE:
            if _measure_width(headings, rows, columns) > out.width and heading in headings:
                columns.remove(headings.index(heading))
    passages = "" if comparison.passages is None else f", {comparison.passages:,} passages"
    out.print(f"{comparison.dataset}: {comparison.questions:,} questions{passages}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in columns:
        # Where even that is too wide, names are cut, and numbers never.
        least = max(cell_len(row[at]) for row in (headings, *rows)) if at else None
        table.add_column(
            headings[at], justify="right" if at else "left", no_wrap=True, min_width=least
        )
    for row in rows:
        table.add_row(*(row[at] for at in columns))
    # A file or a pipe has no width.
    console = (
        out if out.is_terminal else PlainConsole(width=_measure_width(headings, rows, columns))
    )
    console.print(table, soft_wrap=False)
    for name, letter in key.items():
        out.print(f"{letter} is {name}")
    out.print(headline or reporting.verdict(comparison))


def _name_by_letters(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each of the *names* that is too long for a narrow table."""
    long = [name for name in names if cell_len(name) > _LONGEST_NAME]
    return dict(zip(long, ascii_uppercase, strict=False))


def _measure_width(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int]
) -> int:
    """The characters a table with these columns takes."""
    return sum(3 + max(cell_len(row[at]) for row in (headings, *rows)) for at in columns)
