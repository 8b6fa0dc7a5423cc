"""``qtm demo``: raw, preprocessed and transformed retrieval compared on the text that ships with the project."""

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
from qtmiddleware.kit.cli.console import AsJson, as_json, notes, out, show_progress, show_warnings
from qtmiddleware.kit.cli.environment import note_files
from qtmiddleware.kit.cli.playground import SEEDED, NoOpen, Port, serve_pages
from qtmiddleware.kit.cli.query import SHOWN_ANYWAY
from qtmiddleware.kit.demo import EXAMPLES, UnhurriedModel, dataset, has_recording, recorded_model
from qtmiddleware.kit.embedding import embedder_named
from qtmiddleware.kit.evaluation import TOP_K, USUAL, Dataset, Question, chosen, require_extras
from qtmiddleware.kit.evaluation.bench import Bench, build_index, open_index
from qtmiddleware.kit.evaluation.bench.recordings import EstimatedModel
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import open_socket, require_web
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.preprocessing.text import shorten
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.llms import as_language_model, has_language_model
from qtmiddleware.providers.llms.recorded import RecordedModel, RecordingModel
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_EXAMPLE = "combined"
_QUESTION = "q30"
"""Needs two passages, of which plain search finds one: every step has something to show."""
_INDEX = Path(".tmp/demo/index.sqlite")
_COLLECTIONS = {
    "data": "Handbook of an e-bike rental",
    "small": "Help centre of a parcel service",
}
_SMALL_COLLECTIONS = (
    "A small collection (20 to 100 passages on one topic) gains most from one model call: see"
    " docs/choose-a-tier.md."
)
_THINKING = 0.4
"""Seconds a recorded reply takes on the page, so that what runs meanwhile can be seen."""


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
    index: Annotated[Path, typer.Option(help="File of the demo's index.")] = _INDEX,
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
        _open_playground(
            model, index, recorded=recorded, record=record, port=port, opens=not no_open
        )
        return
    # Before anything is embedded.
    require_extras()
    data = dataset()
    asked = data.first(questions) if questions else data
    example = _find_question(data, question)
    note_files({"index": index if index == _INDEX else None}, config=True)
    answers, origin = _open_model(model, recorded=recorded, record=record)
    notes.print(origin)
    embedder = embedder_named("all-MiniLM-L6-v2")
    with show_progress() as update, build_index(data, index, embedder, progress=update) as store:
        bench = Bench(store, embedder, answers)
        comparison = bench.measure(
            asked,
            chosen(USUAL),
            progress=lambda name, done, count: update(f"comparing: {name}", done, count),
        )
        comparison = replace(comparison, counts_model_time=not isinstance(answers, RecordedModel))
        walked = bench.retrieve(chosen([_EXAMPLE])[_EXAMPLE], example)
    if json_output:
        as_json(
            {
                **comparison.to_dict(),
                "model": answers.name,
                "example": _example_to_dict(example, walked),
            }
        )
        return
    show_comparison(comparison)
    notes.print(_SMALL_COLLECTIONS)
    _walk_through(data, example, walked)


def _open_playground(
    model: str, index: Path, *, recorded: bool, record: Path | None, port: int | None, opens: bool
) -> None:
    """Serve the playground over the demo's index, its questions as examples, until Ctrl-C."""
    require_web()
    with open_socket(port) as listening, ExitStack() as stack:
        answers, origin = _open_model(model, recorded=recorded, record=record)
        is_recorded = isinstance(answers, RecordedModel)
        if is_recorded:
            origin = (
                "Recorded replies of a large language model, each given after"
                f" {_THINKING * 1e3:.0f} ms as if it had thought so long; tokens and money are"
                f" estimated by the prices of {model}."
            )
        embedder = embedder_named("all-MiniLM-L6-v2")
        pages: dict[str, Page] = {}
        shipped = {folder: dataset(folder) for folder in EXAMPLES}
        names = {
            folder: f"{_COLLECTIONS[folder]}, {len(data.passages)} passages"
            for folder, data in shipped.items()
        }
        for folder, data in shipped.items():
            with show_progress() as update:
                store = stack.enter_context(
                    open_index(data, index.parent, embedder, progress=update)
                )
            recording = recorded_model(folder) if is_recorded else None
            client = (
                answers
                if recording is None
                else UnhurriedModel(EstimatedModel(recording, model), _THINKING)
            )
            config = Config.load({"topK": 5}, environ={})
            opened = QueryMiddleware(config, client=client, store=store, embedder=embedder)
            middleware = stack.enter_context(opened)
            pages[folder] = _make_page(folder, data, middleware, recording, names, [origin])
        stack.enter_context(show_warnings(without=SHOWN_ANYWAY))
        page = pages.pop("data")
        serve_pages(page, listening, others=pages, notes=[origin], opens=opens)


def _make_page(
    folder: str,
    data: Dataset,
    middleware: QueryMiddleware,
    recording: RecordedModel | None,
    names: Mapping[str, str],
    notes: Sequence[str],
) -> Page:
    """Return the page over the collection of a *folder*; *names* are those of all, *recording* its replies if any."""
    is_covered = None if recording is None else partial(has_recording, recording)
    tiers = Tiers(middleware.retriever, remembers=recording is None, is_covered=is_covered)
    kinds = {id_: kind for kind, id_ in EXAMPLES[folder].items()}
    examples = [_find_question(data, id_) for id_ in kinds]
    tiers.warm_up(data.questions[:SEEDED], searches=True)
    links = {
        "data": "" if folder == "data" else "../",
        "small": "small/" if folder == "data" else "",
    }
    return Page(
        tiers,
        name=names[folder],
        examples=examples,
        notes=notes,
        qrels=data.qrels,
        judged=data.questions,
        kinds=kinds,
        collections=[(name, links[of]) for of, name in names.items()],
        folded=(
            "No reply is recorded for this question; the examples have recorded replies. With"
            " OPENAI_API_KEY set, a model answers every question."
        ),
    )


def _open_model(name: str, *, recorded: bool, record: Path | None) -> tuple[LanguageModel, str]:
    """The model to ask, and a plain sentence about where its replies come from."""
    settings = Settings(transformation_model=name)
    if recorded or not has_language_model(settings):
        why = "as asked" if recorded else "neither OPENAI_API_KEY nor QTM_LLM_BASE_URL is set"
        if record is not None:
            raise ConfigError(
                f"--record needs a language model, but recorded replies are replayed ({why})",
                path="record",
            )
        return (
            recorded_model(),
            (
                f"Replaying recorded replies of a large language model ({why}): "
                "no model is called, and neither its time nor its price is in the figures."
            ),
        )
    asked = as_language_model(None, settings)
    if record is not None:
        return RecordingModel(asked, record), f"Asking {name}; its replies are kept in {record}."
    return asked, f"Asking {name}."


def _find_question(data: Dataset, wanted: str) -> Question:
    for question in data.questions:
        if question.id == wanted:
            return question
    raise typer.BadParameter(
        f"the question must be one of q01 to q{len(data.questions):02d}, not {wanted!r}"
    )


def _walk_through(data: Dataset, question: Question, found: Retrieval) -> None:
    relevant = data.qrels.get(question.id, {})
    out.print(f"\nStep by step: question {question.id} with {_EXAMPLE!r}")
    for turn in question.history:
        out.print(f"  {turn.role}: {turn.content}")
    out.print(f"1. The question             {question.text}")
    out.print(
        f"2. Also searched            {len(found.variants) - 1} variants, from"
        f" {found.trace.llm_calls} model call"
    )
    for ranking in found.rankings:
        out.print(
            f"   {ranking.variant.kind:<11} weight {ranking.variant.weight:.2f} "
            f" {shorten(ranking.variant.text, 90)}"
        )
        out.print(
            f"   {'':<11} found        {_list_ids([key[1] for key in ranking.keys], relevant)}"
        )
    out.print(f"3. Fused                    {_list_ids([key[1] for key in found.fused], relevant)}")
    out.print(
        "4. Reranked by keywords    "
        f" {_list_ids([match.id or '' for match in found.matches], relevant)}"
    )
    out.print("   * answers the question, + helps")
    out.print(
        f"5. To the generator         the question, byte for byte, and {len(found.matches)}"
        f" passages ({found.status})"
    )


def _list_ids(ids: Sequence[str], relevant: Any, count: int = 5) -> str:
    mark = {2: "*", 1: "+"}
    return ", ".join(f"{id_}{mark.get(relevant.get(id_, 0), '')}" for id_ in ids[:count])


def _example_to_dict(question: Question, found: Retrieval) -> dict[str, Any]:
    return {
        "question": question.id,
        "query": question.text,
        "variants": [
            {"kind": it.kind, "text": it.text, "weight": it.weight} for it in found.variants
        ],
        "fused": [key[1] for key in found.fused[:TOP_K]],
        "final": [match.id for match in found.matches],
        "trace": found.trace.to_dict(),
    }
