"""``qtm bench``: systems compared on judged questions, with what each of them costs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from qtmiddleware.cli.bench_files import check_places, require_jinja, write_report
from qtmiddleware.cli.bench_model import generated, judgeable, judged
from qtmiddleware.cli.bench_show import line, note, progress, show, warnings_noted
from qtmiddleware.cli.console import AsJson, as_json
from qtmiddleware.cli.environment import note_files
from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.evaluation import FREE, MEASURED, SYSTEMS, USUAL, Comparison, chosen
from qtmiddleware.evaluation.bench import CACHE, OpenedBench, open_bench
from qtmiddleware.evaluation.tuning import nested

System = Mapping[str, Any]

# What must be one and the same for all systems, since they share an index and a model.
_SHARED = ("embeddingModel", "embeddingDimensions", "transformationModel", "llm.baseUrl")
_REPORTS = ("report.md", "report.html", "report.json")
# Laid over the files' own settings: every call is counted, and nobody's log is written to.
_MEASURED: System = {group: MEASURED[group] for group in ("cache", "log")}


def bench_command(
    data: Annotated[Path, typer.Option(help="Folder with corpus.jsonl, queries.jsonl and qrels/*.tsv.")],
    systems: Annotated[
        str | None, typer.Option(help="Names with commas between them; the usual ones by default.")
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option("--config", "-c", help="Config file, compared as one more system; repeatable.")
    ] = None,
    recordings: Annotated[Path | None, typer.Option(help="Replay the recorded replies in this file.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the model's replies to this file.")] = None,
    model: Annotated[str | None, typer.Option(help="Language model, in place of transformationModel.")] = None,
    model_ms: Annotated[float, typer.Option(min=0, help="Milliseconds that stand for each recorded reply.")] = 0.0,
    questions: Annotated[int | None, typer.Option(min=1, help="How many are asked; all by default.")] = None,
    split: Annotated[str, typer.Option(help="The one file of judgements to use, as test; all by default.")] = "",
    deep: Annotated[bool, typer.Option(help="Measure R@100 too, which asks every system once more.")] = True,
    cache: Annotated[Path, typer.Option(help="Where index, vectors and replies are kept.")] = CACHE,
    seed: Annotated[int, typer.Option(help="Of every draw and resampling.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="How many questions the model gets at once.")] = 8,
    report: Annotated[Path | None, typer.Option(help="Write report.md, .html and .json to this folder.")] = None,
    generate: Annotated[
        int | None, typer.Option(min=1, help="Let the model write so many questions about --docs into --data first.")
    ] = None,
    docs: Annotated[
        list[Path] | None, typer.Option(help="Document, folder or glob (in quotes) to ask about; repeatable.")
    ] = None,
    judge: Annotated[
        int | None, typer.Option(min=1, help="Let the model answer so many questions from raw and best; judge them.")
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Compare raw, preprocessed and transformed retrieval on your own judged questions."""
    named = None if systems is None else chosen(_names(systems))
    own = {path.stem: Config.from_file(path) for path in config or ()}
    settings = _settings(own, config or (), model)
    given = {name: _given(loaded) for name, loaded in own.items()}
    if (generate is None) != (docs is None):
        raise ConfigError("--generate and --docs belong together: how many questions, about which documents")
    if judge is not None and recordings is not None:
        raise ConfigError("--judge needs a model that answers; recordings hold none of its answers", path="judge")
    if report is not None:
        require_jinja()
        check_places(report, _REPORTS, "--report")
    note_files({"replies and vectors": cache if cache == CACHE else None}, config=config)
    with progress() as told, warnings_noted():
        if generate is not None:
            generated(data, docs or (), settings, count=generate, cache=cache, seed=seed, told=told)
        with open_bench(
            data, settings=settings, recordings=recordings, record=record, model_ms=model_ms, cache=cache,
            questions=questions, split=split, seed=seed, concurrency=concurrency, progress=told,
        ) as opened:  # fmt: skip
            compared = _compared(opened, named, given)
            to_judge = () if judge is None else judgeable(opened, compared, judge, seed)
            comparison = opened.measure(compared, deep=deep, seed=seed, progress=told)
            for doubt in comparison.notes[len(opened.notes) :]:
                note(doubt)
            verdicts = judged(opened, comparison, compared, to_judge, told=told) if to_judge else None
    if verdicts is not None:
        comparison = replace(comparison, notes=(*comparison.notes, verdicts.summary()))
    if json_output:
        as_json(_plain(comparison, opened, verdicts))
    else:
        show(comparison)
        if verdicts is not None:
            line(f"\n{verdicts.summary()}")
    _written(comparison, opened, report, verdicts)


def _names(text: str) -> list[str]:
    """The names in *text*; a comma that is followed by a space may be part of one (``combined, auto``)."""
    found: list[str] = []
    for part in re.split(r",(?! )", text):
        pieces = [piece.strip() for piece in part.split(",")]
        while pieces:
            length = 2 if ", ".join(pieces[:2]) in SYSTEMS else 1
            found.append(", ".join(pieces[:length]))
            pieces = pieces[length:]
    return [name for name in found if name]


def _settings(own: Mapping[str, Config], paths: Sequence[Path], model: str | None) -> Settings:
    """The settings that name the embedding model and the language model."""
    if len(own) < len(paths):
        raise ConfigError("two config files have the same name, which is that of their system", path="config")
    if taken := sorted(own.keys() & SYSTEMS.keys()):
        raise ConfigError(f"a config file is named as a system is: {taken[0]}; rename it", path="config")
    asked = {} if model is None else {"transformationModel": model}
    configs = [loaded.overridden(asked) for loaded in own.values()] or [Config.load(None).overridden(asked)]
    rows = [{name: value for name, value, _ in loaded.rows() if name in _SHARED} for loaded in configs]
    for key in _SHARED:
        if len({str(row[key]) for row in rows}) > 1:
            raise ConfigError(f"the config files name more than one {key}; compare one at a time", path=key)
    return configs[0].settings


def _given(loaded: Config) -> System:
    """What a file sets, and no default: what it does not speak of is as with the systems it is compared with."""
    found = nested({name: value for name, value, origin in loaded.rows() if origin != "default"})
    return {**found, **{group: {**found.get(group, {}), **given} for group, given in _MEASURED.items()}}


def _compared(opened: OpenedBench, named: Mapping[str, System] | None, own: Mapping[str, System]) -> dict[str, System]:
    """The systems to compare; what cannot be asked is refused where it was named, and left out where it was not."""
    found = dict(named if named is not None else chosen(USUAL if opened.has_model else FREE))
    unasked = {name for name, settings in found.items() if opened.lacks(settings)}
    if named is None:
        found = {name: settings for name, settings in found.items() if name not in unasked}
    found |= own
    if not opened.has_model and (asking := [name for name, settings in found.items() if _asks(settings)]):
        raise ConfigError(
            f"{', '.join(asking)} cannot be compared without a language model: give --recordings, or set "
            "OPENAI_API_KEY or QTM_LLM_BASE_URL",
            path="systems",
        )
    if lost := [name for name, settings in found.items() if opened.lacks(settings)]:
        # Measured, they would be what is left without a model, at no price.
        raise ConfigError(f"nothing was recorded that {', '.join(lost)} would ask for; leave it out", path="systems")
    if unasked:
        note(f"Nothing was recorded that they ask for, so they are left out: {', '.join(sorted(unasked))}.")
    for said in opened.notes:
        note(said)
    return found


def _asks(settings: System) -> bool:
    return bool(settings.get("transformationType", "none") != "none")


def _written(comparison: Comparison, opened: OpenedBench, folder: Path | None, verdicts: Any) -> None:
    if folder is None:
        return
    from qtmiddleware.evaluation import reporting

    plain = json.dumps(_plain(comparison, opened, verdicts), ensure_ascii=False, indent=2)
    texts = reporting.markdown(comparison, opened.data), reporting.page(comparison, opened.data), plain + "\n"
    write_report(folder, dict(zip(_REPORTS, texts, strict=True)))


def _plain(comparison: Comparison, opened: OpenedBench, verdicts: Any) -> dict[str, Any]:
    from qtmiddleware.evaluation import reporting

    said = {"verdict": reporting.verdict(comparison), "model": opened.model.name if opened.has_model else None}
    return {**comparison.to_dict(), **said, "judged": None if verdicts is None else verdicts.to_dict()}
