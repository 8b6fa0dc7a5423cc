"""``qtm demo``: compare plain, preprocessed and transformed retrieval on the demo's documents."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Final

from typer import Option

from qtmiddleware.config import Config
from qtmiddleware.kit.cli.bench import show_comparison
from qtmiddleware.kit.cli.compare import show_question
from qtmiddleware.kit.cli.options import AsJson, QuestionCount
from qtmiddleware.kit.cli.output import (
    open_progress_bar,
    out,
    show_warnings,
    write_json,
    write_note,
)
from qtmiddleware.kit.cli.playground import SEEDED, serve_page
from qtmiddleware.kit.demo import (
    EXAMPLES,
    load_dataset,
    load_recorded_model,
)
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import SYSTEMS, AskedQuestion, SystemAnswer
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.evaluation.compare import measure, require_extras
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.systems import BASELINE, USUAL, chosen, index_system
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import open_socket, require_web
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.protocols import Embedder, LanguageModel
from qtmiddleware.providers.embedding import CallableEmbedder
from qtmiddleware.providers.llms import has_language_model, make_language_model
from qtmiddleware.providers.llms.replies import Prices
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

_EXAMPLE: Final = "balanced"
_QUESTION: Final = "q30"
"""The id of the example question. It needs two passages, and plain search finds only one."""
_FOLDER: Final = Path(".tmp/demo")


def command(
    questions: QuestionCount = None,
    recorded: Annotated[
        bool,
        Option("--recorded", help="Replay the recorded replies even if a model is configured."),
    ] = False,
    playground: Annotated[
        bool,
        Option("--playground", help="Open a web page to ask questions and see what moves and why."),
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Compare search systems on a demo collection.

    The collection has real documents and real vectors. The systems are plain
    search (off), the rules and the transformations by a model.
    """
    # Of the user's settings, only the model's name and address count: everybody sees the same.
    user_settings = Config.load(None).settings
    model_name = user_settings.transformation_model
    recording = None
    if recorded or not has_language_model(user_settings):
        recording = load_recorded_model().priced_as(Prices(model_name))
        origin = (
            "Replaying recorded replies of a large language model: no model is called, and the"
            " times do not include one. Tokens and costs are estimated with the prices of"
            f" {model_name}. With OPENAI_API_KEY and without --recorded, a model answers."
        )
    else:
        origin = f"Asking {model_name}."
    client = recording or make_language_model(None, user_settings)
    if playground:
        _serve_playground(client, origin)
        return
    # Checked before passages are embedded.
    require_extras()
    dataset = load_dataset()
    asked = dataset.only({question.id for question in dataset.questions[:questions]})
    write_note(origin)
    embedder = find_embedder("all-MiniLM-L6-v2")
    with (
        open_progress_bar() as update,
        open_index(dataset, _FOLDER, embedder, progress=update) as store,
    ):
        texts = [question.text for question in asked.questions]
        system = index_system(store, _embed_once(embedder, texts), client, top_k=TOP_K)
        comparison = measure(system.with_each(chosen(USUAL)), asked, progress=update)
        (example,) = dataset.only({_QUESTION}).questions
        results = [
            SystemAnswer(name, system.with_settings(SYSTEMS[name]).retrieve(example))
            for name in (BASELINE, _EXAMPLE)
        ]
    if json_output:
        write_json({**comparison.to_dict(), "model": client.name})
        return
    show_comparison(comparison)
    right = ", ".join(dataset.qrels.get(example.id, {}))
    out.write(f"\nStep by step: question {example.id} with {_EXAMPLE!r}.")
    out.write(f"The right passages: {right}.")
    out.write(example.text)
    show_question(AskedQuestion(example, tuple(results)))


def _embed_once(embedder: Embedder, questions: list[str]) -> Embedder:
    """Return an embedder that embeds *questions* now, because every system searches for them."""
    known = dict(zip(questions, embedder.embed(questions), strict=True))

    def embed(texts: list[str]) -> list[list[float]]:
        return [known.get(text) or embedder.embed([text])[0] for text in texts]

    return CallableEmbedder(
        embed, takes_list=True, name=embedder.name, dimension=embedder.dimension
    )


def _serve_playground(client: LanguageModel, origin: str) -> None:
    require_web()
    dataset = load_dataset()
    embedder = find_embedder("all-MiniLM-L6-v2")
    with open_socket(None) as listener, ExitStack() as stack:
        with open_progress_bar() as update:
            store = stack.enter_context(open_index(dataset, _FOLDER, embedder, progress=update))
        # The demo ignores the user's settings, so that everybody sees the same results.
        config = Config.load({"topK": 5}, environ={})
        middleware = stack.enter_context(
            QueryMiddleware(config, client=client, store=store, embedder=embedder)
        )
        tiers = Tiers(middleware.retriever)
        tiers.warm_up(dataset.questions[:SEEDED])
        page = Page(
            tiers,
            name=f"Handbook of an e-bike rental, {len(dataset.passages)} passages",
            dataset=dataset,
            examples=EXAMPLES,
            notes=[origin],
        )
        stack.enter_context(show_warnings(hidden_events=("retrieval_degraded",)))
        serve_page(page, listener)
