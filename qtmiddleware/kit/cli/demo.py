"""``qtm demo``: compare raw, preprocessed and transformed retrieval on the demo's documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.bench import show_comparison
from qtmiddleware.kit.cli.console import (
    AsJson,
    notes,
    open_progress_bar,
    out,
    show_warnings,
    write_json,
)
from qtmiddleware.kit.cli.environment import report_default_files
from qtmiddleware.kit.cli.playground import SEEDED, NoOpen, Port, serve_pages
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY
from qtmiddleware.kit.demo import (
    EXAMPLES,
    DelayedModel,
    has_recording,
    load_dataset,
    load_recorded_model,
)
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import (
    SYSTEMS,
    TOP_K,
    USUAL,
    Dataset,
    Question,
    chosen,
    index_system,
    measure_systems,
    require_extras,
)
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.evaluation.recorded import EstimatedModel, RecordedModel, RecordingModel
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import open_socket, require_web
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.preprocessing.text import format_count, shorten_text
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.llms import has_language_model, make_language_model
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_EXAMPLE = "combined"
_QUESTION = "q30"
"""The id of the example question. It needs two passages, and plain search finds only one."""
_FOLDER = Path(".tmp/demo")
_COLLECTIONS = {
    "data": "Handbook of an e-bike rental",
    "small": "Help centre of a parcel service",
}
_SMALL_COLLECTIONS = (
    "A small collection (20 to 100 passages on one topic) gains most from one model call: see"
    " docs/choose-a-tier.md."
)
_REPLY_SECONDS = 0.4
"""The delay of a recorded reply on the page, in seconds. It imitates a model's response time."""


def demo_command(
    question: Annotated[
        str, typer.Option("--question", "-q", help="Question to show step by step.")
    ] = _QUESTION,
    questions: Annotated[
        int | None, typer.Option(min=1, help="Number of questions to ask. Default: all.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Language model, if a key or address is set.")
    ] = "gpt-6-luna",
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", help="Replay the recorded replies even if a model is configured."
        ),
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="Write the model's replies to this file.")
    ] = None,
    playground: Annotated[
        bool,
        typer.Option(
            "--playground", help="Open a web page to ask questions and see what moves and why."
        ),
    ] = False,
    port: Port = None,
    no_open: NoOpen = False,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on a demo collection.

    The collection has real documents and real vectors. The systems are plain
    search (raw), the rules and the transformations by a model.
    """
    if playground:
        _serve_playground(
            model,
            should_replay=recorded,
            record_file=record,
            port=port,
            should_open_browser=not no_open,
        )
        return
    # Checked before passages are embedded.
    require_extras()
    dataset = load_dataset()
    asked_dataset = dataset.only({it.id for it in dataset.questions[:questions]})
    example = _find_question(dataset, question)
    # The demo reads no config, so the note must not name the file in QTM_CONFIG.
    report_default_files({"indexes": _FOLDER}, named_config=True)
    client, origin = _open_described_model(model, should_replay=recorded, record_file=record)
    notes.print(origin)
    embedder = find_embedder("all-MiniLM-L6-v2")
    with (
        open_progress_bar() as update,
        open_index(dataset, _FOLDER, embedder, progress=update) as store,
    ):
        system = index_system(store, embedder, client, top_k=TOP_K)
        comparison = measure_systems(
            system,
            asked_dataset,
            chosen(USUAL),
            progress=lambda name, done, count: update(f"comparing: {name}", done, count),
        )
        # Recorded replies come at once, so their times say nothing about a model.
        comparison = replace(comparison, counts_model_time=not isinstance(client, RecordedModel))
        retrieval = system.with_settings(SYSTEMS[_EXAMPLE]).retrieve(example)
    if json_output:
        write_json(
            {
                **comparison.to_dict(),
                "model": client.name,
                "example": _build_example_dict(example, retrieval),
            }
        )
        return
    show_comparison(comparison)
    notes.print(_SMALL_COLLECTIONS)
    _show_retrieval_steps(dataset, example, retrieval)


def _serve_playground(
    model_name: str,
    *,
    should_replay: bool,
    record_file: Path | None,
    port: int | None,
    should_open_browser: bool,
) -> None:
    """Serve the playground with the demo's collections until Ctrl-C."""
    require_web()
    with open_socket(port) as listener, ExitStack() as stack:
        language_model, origin = _open_described_model(
            model_name, should_replay=should_replay, record_file=record_file
        )
        is_recorded = isinstance(language_model, RecordedModel)
        if is_recorded:
            origin = (
                "Recorded replies of a large language model, each given after"
                f" {_REPLY_SECONDS * 1e3:.0f} ms as if it had thought so long; tokens and money are"
                f" estimated by the prices of {model_name}."
            )
        embedder = find_embedder("all-MiniLM-L6-v2")
        pages: dict[str, Page] = {}
        data_by_folder = {folder: load_dataset(folder) for folder in EXAMPLES}
        names = {
            folder: f"{_COLLECTIONS[folder]}, {len(dataset.passages)} passages"
            for folder, dataset in data_by_folder.items()
        }
        for folder, dataset in data_by_folder.items():
            with open_progress_bar() as update:
                store = stack.enter_context(open_index(dataset, _FOLDER, embedder, progress=update))
            recording = load_recorded_model(folder) if is_recorded else None
            client = (
                language_model
                if recording is None
                else DelayedModel(EstimatedModel(recording, model_name), _REPLY_SECONDS)
            )
            # The demo ignores the user's settings, so that everybody sees the same results.
            config = Config.load({"topK": 5}, environ={})
            new_middleware = QueryMiddleware(config, client=client, store=store, embedder=embedder)
            middleware = stack.enter_context(new_middleware)
            pages[folder] = _build_page(folder, dataset, middleware, recording, names, [origin])
        stack.enter_context(show_warnings(hidden_events=SHOWN_ANYWAY))
        by_path = {"/": pages["data"], "/small/": pages["small"]}
        serve_pages(by_path, listener, notes=[origin], should_open_browser=should_open_browser)


def _build_page(
    folder: str,
    dataset: Dataset,
    middleware: QueryMiddleware,
    recorded_model: RecordedModel | None,
    collection_names: Mapping[str, str],
    notes: Sequence[str],
) -> Page:
    """Return the playground's page for one demo collection.

    Args:
        folder: The collection's folder.
        dataset: The collection's passages and questions.
        middleware: Searches the collection.
        recorded_model: Replays the collection's recorded replies; ``None`` if the page uses a real
            model.
        collection_names: The names of all collections, by folder.
        notes: Sentences to show on the page.
    """
    has_recorded_reply = None if recorded_model is None else partial(has_recording, recorded_model)
    tiers = Tiers(middleware.retriever, has_recorded_reply=has_recorded_reply)
    tiers.warm_up(dataset.questions[:SEEDED])
    # The page of the second collection is one level below that of the first.
    links = {
        "data": "" if folder == "data" else "../",
        "small": "small/" if folder == "data" else "",
    }
    return Page(
        tiers,
        name=collection_names[folder],
        dataset=dataset,
        examples={id_: kind for kind, id_ in EXAMPLES[folder].items()},
        notes=notes,
        collections={name: links[other] for other, name in collection_names.items()},
        skip_reason=(
            "No reply is recorded for this question; the examples have recorded replies. With"
            " OPENAI_API_KEY set, a model answers every question."
        ),
    )


def _open_described_model(
    model_name: str, *, should_replay: bool, record_file: Path | None
) -> tuple[LanguageModel, str]:
    """Return the language model, and a sentence on the source of the model's replies.

    If *should_replay* is true or no model is configured, the model replays recorded replies.
    Otherwise, the model is real, and its replies are saved to *record_file*.

    Raises `ConfigError` if *record_file* is set although the model replays recorded replies.
    """
    settings = Settings(transformation_model=model_name)
    if should_replay or not has_language_model(settings):
        reason = (
            "as asked" if should_replay else "neither OPENAI_API_KEY nor QTM_LLM_BASE_URL is set"
        )
        if record_file is not None:
            raise ConfigError(
                f"--record needs a language model, but recorded replies are replayed ({reason})",
                path="record",
            )
        return (
            load_recorded_model(),
            (
                f"Replaying recorded replies of a large language model ({reason}): "
                "no model is called, and neither its time nor its price is in the figures."
            ),
        )
    model = make_language_model(None, settings)
    if record_file is not None:
        return (
            RecordingModel(model, record_file),
            f"Asking {model_name}; its replies are kept in {record_file}.",
        )
    return model, f"Asking {model_name}."


def _find_question(dataset: Dataset, question_id: str) -> Question:
    for question in dataset.questions:
        if question.id == question_id:
            return question
    raise typer.BadParameter(
        f"the question must be one of q01 to q{len(dataset.questions):02d}, not {question_id!r}"
    )


def _show_retrieval_steps(dataset: Dataset, question: Question, retrieval: Retrieval) -> None:
    """Write to stdout the steps of the retrieval for *question*, with the passages of each step."""
    relevant = dataset.qrels.get(question.id, {})
    out.print(f"\nStep by step: question {question.id} with {_EXAMPLE!r}")
    for turn in question.history:
        out.print(f"  {turn.role}: {turn.content}")
    out.print(f"1. The question             {question.text}")
    out.print(
        f"2. Also searched            {format_count(len(retrieval.variants) - 1, 'variant')}, from"
        f" {format_count(retrieval.trace.llm_calls, 'model call')}"
    )
    for ranking in retrieval.rankings:
        out.print(
            f"   {ranking.variant.kind:<11} weight {ranking.variant.weight:.2f} "
            f" {shorten_text(ranking.variant.text, 90)}"
        )
        out.print(
            f"   {'':<11} found        {_format_ids([key[1] for key in ranking.keys], relevant)}"
        )
    out.print(
        f"3. Fused                    {_format_ids([key[1] for key in retrieval.fused], relevant)}"
    )
    out.print(
        "4. Reranked by keywords    "
        f" {_format_ids([match.id or '' for match in retrieval.matches], relevant)}"
    )
    out.print("   * answers the question, + helps")
    out.print(
        f"5. To the generator         the question, byte for byte, and {len(retrieval.matches)}"
        f" passages ({retrieval.status})"
    )


def _format_ids(passage_ids: Sequence[str], grades: Any, max_count: int = 5) -> str:
    """Return the first *max_count* of *passage_ids* as text, with a mark after relevant passages.

    ``*`` marks a passage that answers the question (grade 2), and ``+`` marks a passage that helps
    (grade 1). *grades* contains the grades by passage id.
    """
    mark = {2: "*", 1: "+"}
    return ", ".join(f"{id_}{mark.get(grades.get(id_, 0), '')}" for id_ in passage_ids[:max_count])


def _build_example_dict(question: Question, retrieval: Retrieval) -> dict[str, Any]:
    return {
        "question": question.id,
        "query": question.text,
        "variants": [
            {"kind": variant.kind, "text": variant.text, "weight": variant.weight}
            for variant in retrieval.variants
        ],
        "fused": [key[1] for key in retrieval.fused[:TOP_K]],
        "final": [match.id for match in retrieval.matches],
        "trace": retrieval.trace.to_dict(),
    }
