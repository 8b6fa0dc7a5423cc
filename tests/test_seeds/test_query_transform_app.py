"""Seed 000: an application that ingests documents and asks them, with three transformations to choose from.

Its config file stands here as the seed has it. The application is run as its users run it, in a
pipe and at a terminal; what needs no process is tested through the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, StoreError
from qtmiddleware.testing import ScriptedModel
from tests.support.command_line import Ended
from tests.support.conversing import environ
from tests.support.model_server import failure
from tests.support.terminal import Terminal
from tests.test_seeds.world import (
    PATIENT,
    Asked,
    Script,
    Service,
    Shelf,
    embed,
    run_qtm,
)

CONFIG_FILE: Final = "config/query-transform.config.json"
SEED_CONFIG: Final = """\
{
  "chunkSize": 800,
  "chunkOverlap": 200,
  "topK": 4,
  "embeddingModel": "text-embedding-3-small",
  "chatModel": "gpt-4o-mini",
  "dataPath": "../../shared/assets/data",
  "indexPath": ".tmp/index/query-transform.index.json",
  "transformationType": "all",
  "transformationModel": "gpt-4o-mini",
  "maxSubQueries": 4
}
"""

STRATEGY: Final = "What is Nike's strategy?"
STRATEGY_REWRITTEN: Final = (
    "What are Nike's specific business strategies, competitive advantages, and strategic"
    " initiatives?"
)
REVENUE: Final = "What is the revenue for Q3 2023?"
REVENUE_STEP_BACK: Final = (
    "What are the financial performance trends and quarterly revenue patterns?"
)
CLIMATE: Final = "What is climate change?"
CLIMATE_REWRITTEN: Final = (
    "What are the specific causes, effects, and scientific evidence of climate change?"
)
IMPACTS: Final = "What are the impacts of climate change?"
ASPECTS: Final = (
    "What are the impacts of climate change on biodiversity?",
    "How does climate change affect the oceans?",
    "What are the effects of climate change on agriculture?",
    "What are the impacts of climate change on human health?",
)
IMPACTS_REWRITTEN: Final = (
    "What are the impacts and effects of climate change on biodiversity, oceans and agriculture?"
)
IMPACTS_STEP_BACK: Final = "How does climate change affect human health and the environment?"
RIVALS: Final = "What do Nike's rivals do?"
KEY: Final = "key-of-the-env-file"
NEVER_ASKED: Final = "Is this line still read?"
ANSWER: Final = "Nike sells straight to its customers [1]."
MENU: Final = (
    "Available transformation types:",
    "1. rewrite - Query rewriting (makes queries more specific)",
    "2. stepback - ",
    "3. decompose - Sub-query decomposition (breaks complex queries into simpler ones)",
    "4. all - ",
)

REPORT: Final = "The annual report says that"
NIKE: Final = " ".join(
    f"{REPORT} the strategy of Nike in {year} was to sell straight to {year - 2000} million customers."
    for year in range(2008, 2024)
)
WEATHER: Final = "The climate report finds that"
CLIMATE_NOTES: Final = "# Climate change\n\n" + " ".join(
    f"{WEATHER} climate change is bad for {what}." for what in ("oceans", "harvests", "health")
)


def transform(asked: Asked) -> Any:
    """What the model writes for a question, each transformation with the seed's own words."""
    if RIVALS in asked.text:
        return failure(500)
    # Each request takes the field that it asks for.
    return {
        "rewrite": STRATEGY_REWRITTEN,
        "step_back": REVENUE_STEP_BACK,
        "sub_queries": ASPECTS,
    }


@dataclass(frozen=True)
class Application:
    """The folder of the seed's project, with its config and its documents, and the service that it asks."""

    folder: Path
    service: Service
    environment: dict[str, str]

    def run(self, *arguments: str, text: str = "") -> Ended:
        return run_qtm(*arguments, folder=self.folder, text=text, **self.environment)


@pytest.fixture(scope="module")
def app(
    tmp_path_factory: pytest.TempPathFactory, host: HTTPServer, one_authority: str | None
) -> Iterator[Application]:
    root = tmp_path_factory.mktemp("repository")
    folder = root / "projects" / "query-transform"
    data = root / "shared" / "assets" / "data"
    (folder / "config").mkdir(parents=True)
    data.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(SEED_CONFIG, encoding="utf-8")
    (data / "nike.txt").write_text(NIKE, encoding="utf-8")
    (data / "climate.md").write_text(CLIMATE_NOTES, encoding="utf-8")
    (folder / ".env").write_text(f"OPENAI_API_KEY={KEY}\n", encoding="utf-8")
    (folder / ".env").chmod(0o600)
    (data / "logo.bin").write_bytes(b"\x00\x01")
    script = Script(passages=[REPORT, WEATHER], transformation=transform, answer=ANSWER)
    service = Service(host, "/app/v1", script)
    # The seed's documents stand outside its folder, so the user has to name the config that says so.
    environment = {"QTM_CONFIG": CONFIG_FILE, "OPENAI_BASE_URL": service.url}
    if one_authority:
        environment["SSL_CERT_FILE"] = one_authority
    yield Application(folder, service, environment)
    service.released.set()


@dataclass(frozen=True)
class Ingested:
    """How ``qtm query`` ended before there was an index, how ``qtm ingest`` did, and what it asked."""

    too_early: Ended
    ended: Ended
    completions: int

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ended.err.splitlines() if line.startswith("{")]

    def meta(self, message: str) -> dict[str, Any]:
        (meta,) = [record["meta"] for record in self.log if record["message"] == message]
        return dict(meta)


@pytest.fixture(scope="module")
def ingested(app: Application) -> Ingested:
    too_early = app.run("query", text=f"{STRATEGY}\n")
    before = len(app.service.completions)
    ended = app.run("ingest")
    return Ingested(too_early, ended, len(app.service.completions) - before)


@pytest.fixture(scope="module")
def piped(app: Application, ingested: Ingested) -> tuple[Ended, Sequence[Asked]]:
    """A whole session in a pipe, and what the service was asked meanwhile."""
    lines = [
        "1",
        STRATEGY,
        "tt",
        "3",
        IMPACTS,
        "tt",
        "",
        "tt",
        "2",
        RIVALS,
        "exit",
        NEVER_ASKED,
    ]
    before = len(app.service.completions)
    ended = app.run("query", text="\n".join(lines))
    return ended, app.service.completions[before:]


@pytest.fixture(scope="module")
def typed(app: Application, ingested: Ingested) -> dict[str, str]:
    """The session of the seed, typed at a terminal: what appeared, by the step, as one line each."""
    shown: dict[str, str] = {}
    environment = environ(app.folder, **app.environment, TERM="dumb")
    with Terminal("query", folder=app.folder, environ=environment) as terminal:
        shown["start"] = terminal.wait_for("type [all]:")
        terminal.type("1")
        shown["chosen"] = terminal.wait_for("to quit", "\n>")
        terminal.type(STRATEGY)
        shown["rewrite"] = terminal.wait_for("Scores:", "\n>")
        terminal.type("tt")
        shown["tt"] = terminal.wait_for("type [rewrite]:")
        terminal.type("3")
        shown["changed"] = terminal.wait_for("Transformation type set to: decompose", "\n>")
        terminal.type(IMPACTS)
        shown["decompose"] = terminal.wait_for("Scores:", "\n>")
        terminal.type("exit")
        shown["code"] = str(terminal.ended())
    return {step: " ".join(text.split()) for step, text in shown.items()}


# The config file


def test_the_seeds_config_file_is_valid_as_it_is(app: Application) -> None:
    ended = app.run("config", "show", CONFIG_FILE)
    assert ended.code == 0, ended.err
    assert "valid" in ended.out + ended.err


def test_every_key_of_the_seeds_config_file_means_what_the_seed_says(app: Application) -> None:
    settings = qtm.QueryMiddleware(app.folder / CONFIG_FILE).settings
    assert (settings.chunk_size, settings.chunk_overlap, settings.top_k) == (800, 200, 4)
    assert settings.embedding_model == "text-embedding-3-small"
    assert (settings.chat_model, settings.transformation_model) == (
        "gpt-4o-mini",
        "gpt-4o-mini",
    )
    assert settings.data_path == "../../shared/assets/data"
    assert settings.index_path == ".tmp/index/query-transform.index.json"
    assert (settings.transformation_type, settings.max_sub_queries) == ("all", 4)


# Ingestion


def test_a_missing_index_is_told_together_with_the_command_that_makes_it(
    ingested: Ingested, tmp_path: Path
) -> None:
    assert ingested.too_early.code == 1
    assert "qtm ingest" in ingested.too_early.err
    assert "Traceback" not in ingested.too_early.err
    config = {"indexPath": str(tmp_path / "none.json")}
    with (
        qtm.QueryMiddleware(config, client=ScriptedModel("-"), embedder=embed) as middleware,
        pytest.raises(StoreError, match="ingest"),
    ):
        middleware.retriever.answer(STRATEGY)


def test_ingest_needs_no_arguments_and_names_the_files_that_it_cannot_read(
    app: Application, ingested: Ingested
) -> None:
    assert ingested.ended.code == 0, ingested.ended.err
    assert "2 documents" in ingested.ended.out
    assert "1 .bin" in ingested.ended.err
    assert (app.folder / ".tmp" / "index" / "query-transform.index.json").stat().st_size > 0


def test_ingest_logs_its_steps_as_lines_of_json_in_the_seeds_order(ingested: Ingested) -> None:
    seeds = [
        "Loading config",
        "Reading documents",
        "Loaded documents",
        "Created chunks",
        "Persisted vector index",
    ]
    assert [it["message"] for it in ingested.log if it["message"] in seeds] == seeds
    assert {it["level"] for it in ingested.log} == {"info"}
    assert ingested.meta("Loading config")["path"] == CONFIG_FILE
    assert ingested.meta("Loaded documents")["count"] == 2
    chunks = ingested.meta("Created chunks")["count"]
    assert ingested.meta("Persisted vector index")["chunks"] == chunks >= 4


def test_ingest_embeds_every_chunk_by_the_model_of_the_config_and_transforms_nothing(
    app: Application, ingested: Ingested
) -> None:
    chunks = ingested.meta("Created chunks")["count"]
    batches = [body["input"] for body in app.service.embedded if REPORT in str(body["input"])]
    assert sum(len(batch) for batch in batches) == chunks
    assert {body["model"] for body in app.service.embedded} == {"text-embedding-3-small"}
    assert ingested.completions == 0


# A session in a pipe and at a terminal


def test_a_session_in_a_pipe_answers_its_questions_with_what_was_searched_and_scores(
    piped: tuple[Ended, Sequence[Asked]],
) -> None:
    ended, _ = piped
    assert ended.code == 0, ended.err
    answers = ended.out.split("Question: ")[1:]
    for question, answer in zip((STRATEGY, IMPACTS, RIVALS), answers, strict=True):
        assert answer.startswith(question)
        assert ANSWER in answer
    assert all("Scores: [1] " in answer for answer in answers[:2])
    assert STRATEGY_REWRITTEN in answers[0]
    assert all(aspect in answers[1] for aspect in ASPECTS)


def test_a_type_is_chosen_and_changed_in_a_pipe_as_at_a_terminal(
    piped: tuple[Ended, Sequence[Asked]],
) -> None:
    ended, _ = piped
    marker = "Transformation type set to: "
    chosen = [line for line in ended.err.splitlines() if line.startswith(marker)]
    # An empty line keeps the type that was chosen last.
    expected = ["rewrite", "decompose", "decompose", "stepback"]
    assert [line.removeprefix(marker) for line in chosen] == expected
    assert all(entry in ended.err for entry in MENU)


def test_a_model_that_answers_500_costs_its_transformation_and_not_the_answer(
    app: Application, piped: tuple[Ended, Sequence[Asked]]
) -> None:
    ended, asked = piped
    assert ANSWER in ended.out.split("Question: ")[-1]
    assert "degraded: transform.stepback unavailable" in ended.out + ended.err
    refused = [it for it in asked if it.kind == "transformation" and RIVALS in it.text]
    assert len(refused) == 1
    # The models of the config are asked, with the key of the .env file.
    assert {it.body["model"] for it in asked} == {"gpt-4o-mini"}
    assert set(app.service.keys) == {f"Bearer {KEY}"}


def test_the_session_at_a_terminal_is_that_of_the_seed(typed: dict[str, str]) -> None:
    assert typed["start"].endswith("Select transformation type [all]:")
    assert "Current transformation type: rewrite" in typed["chosen"]
    assert "Type 'tt' to change transformation type, 'exit' to quit" in typed["chosen"]
    for step in ("start", "tt"):
        assert all(entry in typed[step] for entry in MENU)
    assert "Select transformation type [rewrite]:" in typed["tt"]
    assert "Transformation type set to: decompose" in typed["changed"]
    for step, texts in {"rewrite": [STRATEGY_REWRITTEN], "decompose": ASPECTS}.items():
        assert all(text in typed[step] for text in (ANSWER, *texts))
    assert "Scores: [1] " in typed["rewrite"] + typed["tt"]
    assert typed["code"] == "0"


# Chunks and the index, through the library


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The seed's settings with an index of its documents, and vectors made here."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "docs").mkdir()
    (folder / "docs" / "nike.txt").write_text(NIKE, encoding="utf-8")
    (folder / "docs" / "climate.md").write_text(CLIMATE_NOTES, encoding="utf-8")
    config = json.loads(SEED_CONFIG) | PATIENT
    config |= {
        "dataPath": str(folder / "docs"),
        "indexPath": str(folder / "index" / "docs.json"),
    }
    qtm.ingest(config=config, embedder=embed)
    return dict(config)


def chunks_of(config: dict[str, Any], source: str) -> list[Any]:
    """The chunks of one document in the order of its text."""
    off = {"transformationType": "none"}
    with qtm.QueryMiddleware(config | off, client=ScriptedModel("-"), embedder=embed) as middleware:
        matches = middleware.retriever.retrieve("annual report", top_k=100).matches
    chunks = [match for match in matches if match.metadata["source"] == source]
    return sorted(chunks, key=lambda match: match.metadata["start"])


@pytest.mark.parametrize(("size", "overlap"), [(800, 200), (1000, 200), (300, 0)])
def test_a_chunk_has_chunk_size_characters_and_shares_chunk_overlap_with_the_next(
    size: int, overlap: int, indexed: dict[str, Any], tmp_path: Path
) -> None:
    config = indexed | {
        "chunkSize": size,
        "chunkOverlap": overlap,
        "chunkBoundary": "character",
    }
    config["indexPath"] = str(tmp_path / "docs.json")
    qtm.ingest(config=config, embedder=embed)
    texts = [chunk.text for chunk in chunks_of(config, "nike.txt")]
    assert texts == [NIKE[at : at + size] for at in range(0, len(NIKE), size - overlap)]


# Transformations and retrieval, through the library

SHELF: Final = {
    "strategy": "Nike's strategy is to sell straight to customers.",
    "initiatives": "Strategic initiatives and competitive advantages of the business.",
    "trends": "Quarterly revenue patterns and financial performance trends.",
    "biodiversity": "Climate change and its impacts on biodiversity.",
    "oceans": "How the oceans are affected by climate change.",
    "agriculture": "Effects of climate change on agriculture.",
    "health": "Climate change and its impacts on human health.",
    "unrelated": "A recipe for bread.",
}
REPLIES: Final = {
    "rewrite": IMPACTS_REWRITTEN,
    "step_back": IMPACTS_STEP_BACK,
    "sub_queries": list(ASPECTS),
}


def retrieve(
    question: str, config: dict[str, Any], **reply: Any
) -> tuple[qtm.Retrieval, Shelf, ScriptedModel]:
    shelf, model = Shelf(SHELF), ScriptedModel(REPLIES | reply)
    middleware = qtm.QueryMiddleware(PATIENT | config, client=model)
    return middleware.wrap(shelf.search).retrieve(question), shelf, model


@pytest.mark.parametrize(
    ("kind", "question", "variant", "texts"),
    [
        ("rewrite", STRATEGY, "rewrite", [STRATEGY_REWRITTEN]),
        ("rewrite", CLIMATE, "rewrite", [CLIMATE_REWRITTEN]),
        ("stepback", REVENUE, "step_back", [REVENUE_STEP_BACK]),
        ("decompose", IMPACTS, "sub_query", ASPECTS),
    ],
)
def test_each_transformation_alone_is_chosen_by_the_config_and_searched(
    kind: str, question: str, variant: str, texts: Sequence[str]
) -> None:
    reply = {"sub_queries": texts} if kind == "decompose" else {variant: texts[0]}
    found, shelf, model = retrieve(question, {"transformationType": kind}, **reply)
    assert [(it.kind, it.text) for it in found.variants[1:]] == [(variant, text) for text in texts]
    assert sorted(shelf.searched) == sorted([question, *texts])
    assert len(model.prompts) == 1
    assert found.status == "full"


def test_all_transformations_are_three_calls_and_every_text_is_searched() -> None:
    found, shelf, model = retrieve(IMPACTS, {"transformationType": "all"})
    assert len(model.prompts) == 3
    assert sorted(shelf.searched) == sorted(
        [IMPACTS, IMPACTS_REWRITTEN, IMPACTS_STEP_BACK, *ASPECTS]
    )
    assert {it.kind for it in found.variants} == {
        "original",
        "rewrite",
        "step_back",
        "sub_query",
    }


def wrap_shelf(kind: str = "all", client: Any = None, **config: Any) -> Any:
    settings = PATIENT | {"transformationType": kind} | config
    return qtm.QueryMiddleware(settings, client=client or ScriptedModel(REPLIES)).wrap(
        Shelf(SHELF).search
    )


def test_a_new_type_for_one_call_needs_no_new_config() -> None:
    found = wrap_shelf().retrieve(IMPACTS, config={"transformationType": "stepback"})
    assert [it.kind for it in found.variants] == ["original", "step_back"]


def test_the_transformations_can_be_had_without_a_search() -> None:
    config = {"transformationType": "all", **PATIENT}
    written = qtm.QueryMiddleware(config, client=ScriptedModel(REPLIES)).transform(IMPACTS)
    assert (written.rewrite, written.step_back) == (IMPACTS_REWRITTEN, IMPACTS_STEP_BACK)
    assert tuple(written.sub_queries) == ASPECTS


@pytest.mark.parametrize("most", [2, 3, 4, 6])
def test_no_more_sub_queries_than_max_sub_queries_are_searched(most: int) -> None:
    written = [f"What is part {number} of climate change?" for number in range(1, 8)]
    config = {"transformationType": "decompose", "maxSubQueries": most}
    found, shelf, _ = retrieve(IMPACTS, config, sub_queries=written)
    assert [it.text for it in found.variants if it.kind == "sub_query"] == written[:most]
    assert len(shelf.searched) == 1 + most


@pytest.mark.parametrize("most", [1, 7])
def test_max_sub_queries_is_from_two_to_six(most: int) -> None:
    with pytest.raises(ConfigError, match=r"maxSubQueries .* 2 to 6"):
        qtm.QueryMiddleware({"maxSubQueries": most})


@pytest.mark.parametrize("top_k", [1, 4, 7])
def test_top_k_passages_come_back_whatever_was_searched(top_k: int) -> None:
    for kind in ("none", "rewrite", "stepback", "decompose", "all"):
        assert len(wrap_shelf(kind)(IMPACTS, top_k=top_k)) == top_k


def test_top_k_of_the_config_is_what_the_index_gives(indexed: dict[str, Any]) -> None:
    for top_k in (1, 4):
        config = indexed | {"topK": top_k}
        model = ScriptedModel(REPLIES)
        with qtm.QueryMiddleware(config, client=model, embedder=embed) as middleware:
            assert len(middleware.retriever(STRATEGY)) == top_k


def test_each_sub_query_brings_its_own_passages() -> None:
    found, _, _ = retrieve(IMPACTS, {"transformationType": "decompose"})
    assert {"biodiversity", "oceans", "agriculture", "health"} == {it.id for it in found.matches}
    assert len(found.rankings) == 1 + len(ASPECTS)


def test_a_passage_that_several_searches_find_comes_once_and_scores_fall() -> None:
    found, _, _ = retrieve(IMPACTS, {"transformationType": "all"})
    ids = [it.id for it in found.matches]
    assert len(ids) == len(set(ids)) == 4
    shared = next(it for it in found.matches if it.id == "biodiversity")
    assert {"original", "sub_query"} <= set(shared.found_by)
    scores = [it.fused_score for it in found.matches]
    assert scores == sorted(scores, key=lambda score: -(score or 0))


def test_by_the_seeds_own_fusion_the_best_similarity_of_any_search_decides() -> None:
    config = {"transformationType": "all", "fusion": "max", "keywordEvidence": False}
    found, shelf, _ = retrieve(IMPACTS, config)
    best: dict[str, float] = {}
    for query in dict.fromkeys(shelf.searched):
        for hit in Shelf(SHELF).search(query, 50):
            best[hit["id"]] = max(hit["score"], best.get(hit["id"], 0.0))
    assert [it.id for it in found.matches] == sorted(best, key=lambda id_: -best[id_])[:4]


def test_the_answer_is_written_from_the_merged_passages_and_the_users_own_question(
    host: HTTPServer,
) -> None:
    script = Script(["oceans are affected"], REPLIES, "They warm [1].")
    service = Service(host, "/app-answer/v1", script)
    answer = wrap_shelf("decompose", service.client()).answer(IMPACTS, top_k=6)
    (asked,) = service.of_kind("answer")
    assert IMPACTS in asked.text
    assert all(
        SHELF[id_] in asked.text for id_ in ("biodiversity", "oceans", "agriculture", "health")
    )
    assert (answer.text, answer.status) == ("They warm [1].", "full")
    assert [it.text for it in answer.retrieval.variants[1:]] == list(ASPECTS)


def test_transformations_and_answers_may_have_a_model_each(host: HTTPServer) -> None:
    service = Service(host, "/app-models/v1", Script(["strategy is to sell"], REPLIES, ANSWER))
    models = {"transformationModel": "gpt-4o", "chatModel": "gpt-4o-mini"}
    wrap_shelf("rewrite", service.client(), **models).answer(STRATEGY)
    asked = [(it.kind, it.body["model"]) for it in service.completions]
    assert asked == [("transformation", "gpt-4o"), ("answer", "gpt-4o-mini")]


def test_the_query_log_tells_transformations_scores_and_counts(tmp_path: Path) -> None:
    log = tmp_path / "queries.jsonl"
    retrieve(IMPACTS, {"transformationType": "all", "log": {"path": str(log)}})
    (record,) = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    told = json.dumps(record)
    assert all(text in told for text in (IMPACTS, IMPACTS_REWRITTEN, IMPACTS_STEP_BACK, *ASPECTS))
    final = record["retrieval_steps"]["final"]
    assert len(final) == 4
    assert all(isinstance(passage["score"], float) for passage in final)
    assert len(record["retrieval_steps"]["searches"]) == 7
