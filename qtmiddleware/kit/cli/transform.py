"""``qtm preprocess`` and ``qtm transform``: apply the rules and the language model to questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.cli.console import (
    AsJson,
    ConfigFile,
    EngineChoice,
    History,
    Kind,
    Queries,
    Sets,
    build_messages,
    format_question_heading,
    notes,
    out,
    read_questions,
    write_json,
)
from qtmiddleware.kit.cli.environment import load_config, report_default_files
from qtmiddleware.kit.cli.transform_file import (
    CONCURRENCY,
    MOST_CONCURRENT,
    check_file_options,
    transform_question_file,
)
from qtmiddleware.preprocessing import extract_keywords
from qtmiddleware.retrieval.call import validate_query
from qtmiddleware.transforms import NONE_NEEDED, SAME
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_ADVICE: Final = {
    "unauthorized": "set OPENAI_API_KEY, or QTM_LLM_BASE_URL for your own service",
    "unavailable": "check llm.baseUrl and the network",
    "rejected": "check transformationModel and llm.baseUrl",
    "rate_limited": "wait, or check your account's quota",
    "timeout": "raise limits.llmTimeoutMs",
    "truncated": "raise llm.maxTokens",
}
"""What to do about a model call that failed, by the reason."""


def preprocess_command(
    query: Queries = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the word list, as a code such as en, or auto.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
    json_output: AsJson = False,
) -> None:
    """Extract keywords from questions by rules."""
    settings = load_config(config, sets).settings
    report_default_files({}, named_config=config)
    options = settings.preprocess
    rows = []
    for text in read_questions(query):
        prepared = extract_keywords(
            validate_query(text, "query"),
            language=language or options.language,
            keep_words=options.keep_words,
            extra_words=options.extra_words,
        )
        if json_output:
            rows.append(
                {"query": text, "keywords": prepared.keywords, "language": prepared.language}
            )
        else:
            out.print(prepared.keywords)
    if json_output:
        write_json(rows)


def transform_command(
    query: Queries = None,
    kind: Kind = None,
    config: ConfigFile = None,
    sets: Sets = None,
    history: History = None,
    file: Annotated[
        str | None,
        typer.Option("--file", help="File of questions; needs --out. Use - for standard input."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--out",
            help=(
                "JSON-lines file to append to, one line per question of --file; questions already"
                " there are skipped."
            ),
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_CONCURRENT, help="Most model calls at the same time, with --file."
        ),
    ] = CONCURRENCY,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start --out from scratch.")
    ] = False,
    engine: EngineChoice = None,
    json_output: AsJson = False,
) -> None:
    """Show the variants a model writes.

    Without --type and without a config, one call asks for all forms (combined).
    With the type none the command shows the question and its keywords.

    With --file the questions of a file are transformed, several at a time, and
    each result is appended to --out. If the run is interrupted, run the same
    command again to continue.

    With --engine ray the workers of a Ray cluster call the model, each with its
    own rate and its own budget.
    """
    loaded = load_config(config, sets, transformation_type=kind)
    if loaded.origins["transformationType"] == "default":
        loaded = loaded.overridden({"transformationType": "combined"})
    if (file, output, engine) != (None, None, None):
        check_file_options(file, output, questions=query, history=history)
        report_default_files({}, named_config=config)
        transform_question_file(
            loaded,
            file or "",
            output or "",
            concurrency,
            should_overwrite=overwrite,
            should_write_json=json_output,
            on_ray=engine is not None,
        )
        return
    calls_model = loaded.settings.transformation_type != "none"
    rows: list[dict[str, Any]] = []
    report_default_files({}, named_config=config)
    with QueryMiddleware(loaded) as middleware:
        for text in read_questions(query):
            transformation = middleware.transform(text, history=build_messages(history))
            keywords = middleware.preprocess(text)
            rows.append({"query": text, "preprocessed": keywords, **asdict(transformation)})
            if json_output:
                continue
            if not query or len(query) > 1:
                out.print(("\n" if len(rows) > 1 else "") + format_question_heading(text))
            if not calls_model:
                out.print(f"query: {text}\npreprocessed: {keywords}")
            for name, row in TEXT_FIELDS.items():
                for variant in transformation.texts(name):
                    out.print(f"{row.label}: {variant}")
            for stage, remark in transformation.notes:
                notes.print(f"{stage}: {remark}")
    if json_output:
        write_json(rows)
    # One usable reply shows that the model works, so the command succeeds.
    if calls_model and rows and not any(map(_has_usable_reply, rows)):
        reasons = sorted({reason for row in rows for _, reason in row["notes"]})
        advice = "".join(f"; {_ADVICE[reason]}" for reason in reasons if reason in _ADVICE)
        message = f"the language model's reply was not usable ({', '.join(reasons)}){advice}"
        raise ModelError("unavailable", message)


def _has_usable_reply(row: Mapping[str, Any]) -> bool:
    """Return whether the model's reply contains a text, or says that no text is needed.

    *row* is the transformation as a dict. The notes in *row* say if no text is needed, for example
    because there is nothing to split.
    """
    return any(row[name] for name in TEXT_FIELDS) or any(
        remark in (NONE_NEEDED, SAME) for _, remark in row["notes"]
    )
