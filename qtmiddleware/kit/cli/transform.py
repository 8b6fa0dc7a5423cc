"""``qtm preprocess`` and ``qtm transform``: what the rules and the language model make of questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.cli.batch import Batch, BatchOptions, BatchTokens, transform_by_batch
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    History,
    Kind,
    Queries,
    Sets,
    as_json,
    format_question_heading,
    lines,
    notes,
    out,
    to_messages,
)
from qtmiddleware.kit.cli.engines import EngineChoice, EngineName, Workers, refuse_engine
from qtmiddleware.kit.cli.environment import load_config, note_files
from qtmiddleware.kit.cli.transform_file import CONCURRENCY, MOST_CONCURRENT, refuse_others, transform_many
from qtmiddleware.preprocessing import prepare
from qtmiddleware.retrieval.request import validate_query
from qtmiddleware.transforms import NONE_NEEDED, SAME
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_NO_KEY = "unauthorized"


def preprocess_command(
    query: Queries = None,
    language: Annotated[str | None, typer.Option(help="Code of the word list, or auto.")] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    json_output: AsJson = False,
) -> None:
    """Turn questions into keywords, without a model."""
    settings = load_config(config, sets).settings
    note_files({}, config=config)
    options = settings.preprocess
    rows = []
    for text in lines(query):
        made = prepare(
            validate_query(text, "query", settings),
            language=language or options.language,
            keep_words=options.keep_words,
            extra_words=options.extra_words,
        )
        if json_output:
            rows.append({"query": text, "keywords": made.keywords, "language": made.language})
        else:
            out.print(made.keywords)
    if json_output:
        as_json(rows)


def transform_command(
    query: Queries = None,
    kind: Kind = None,
    config: ConfigFile = None,
    sets: Sets = None,
    history: History = None,
    file: Annotated[
        str | None, typer.Option("--file", help="File of many questions, for --out; - reads standard input.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--out", help="JSON lines, one for each question of --file; what is there is skipped.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, max=MOST_CONCURRENT, help="Calls of the model under way at most, with --file.")
    ] = CONCURRENCY,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin --out anew, whatever is in it.")] = False,
    engine: EngineChoice = EngineName.LOCAL,
    workers: Workers = 1,
    batch: Batch = None,
    batch_tokens: BatchTokens = None,
    json_output: AsJson = False,
) -> None:
    """Show the variants the language model makes of questions.

    Where nobody says which transformation, all forms are asked for in one call
    (combined). With none the question and its keywords are shown.

    With --file the questions of a file are transformed, many at a time, and what comes of each is
    appended to --out as it is done. Run again after it was interrupted or killed, it goes on.
    With --engine ray that is done by --workers of a Ray cluster, each at its own pace and with its own budget.
    With --batch they are asked by a Batch API: submit, then status and collect until all is there.
    """
    loaded = load_config(config, sets, kind=kind)
    if loaded.origins["transformationType"] == "default":
        loaded = loaded.overridden({"transformationType": "combined"})
    by_batch = batch is not None or batch_tokens is not None
    refuse_engine(engine, workers, is_used=file is not None and not by_batch)
    if by_batch or file is not None or output is not None:
        refuse_others(file, output, query=query, history=history)
        note_files({}, config=config)
        options = BatchOptions(batch, batch_tokens, overwrite=overwrite, as_json=json_output)
        transform = (
            partial(transform_by_batch, options=options)
            if by_batch
            else partial(
                transform_many,
                concurrency=concurrency,
                overwrite=overwrite,
                as_json=json_output,
                engine=engine,
                workers=workers,
            )
        )
        transform(loaded, file or "", output or "")
        return
    asks = loaded.settings.transformation_type != "none"
    rows: list[dict[str, Any]] = []
    note_files({}, config=config)
    with QueryMiddleware(loaded) as middleware:
        for text in lines(query):
            transformation = middleware.transform(text, history=to_messages(history))
            keywords = middleware.preprocess(text)
            rows.append({"query": text, "preprocessed": keywords, **asdict(transformation)})
            if json_output:
                continue
            if not query or len(query) > 1:
                out.print(("\n" if len(rows) > 1 else "") + format_question_heading(text))
            if not asks:
                out.print(f"query: {text}\npreprocessed: {keywords}")
            for name, row in TEXT_FIELDS.items():
                for variant in transformation.texts(name):
                    out.print(f"{row.label}: {variant}")
            for stage, what in transformation.notes:
                notes.print(f"{stage}: {what}")
    if json_output:
        as_json(rows)
    if asks and rows and not any(map(_is_answered, rows)):
        reasons = sorted({reason for row in rows for _, reason in row["notes"]})
        advice = "; set OPENAI_API_KEY, or QTM_LLM_BASE_URL for a service of your own" if _NO_KEY in reasons else ""
        raise ModelError("unavailable", f"the language model gave nothing usable ({', '.join(reasons)}){advice}")


def _is_answered(row: Mapping[str, Any]) -> bool:
    """Whether the model gave a text, or said that there is none to give: nothing to split, or nothing to improve."""
    return any(row[name] for name in TEXT_FIELDS) or any(what in (NONE_NEEDED, SAME) for _, what in row["notes"])
