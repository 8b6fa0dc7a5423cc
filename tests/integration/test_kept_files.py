"""Files that earlier versions wrote are read by this one: see tests/kept/README.md."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.bulk.batch.transforming import open_batch_work
from qtmiddleware.kit.bulk.run import transform_file
from qtmiddleware.kit.evaluation.bench.caches import CachedEmbedder, CachedModel
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.shadow import read_shadow_log
from qtmiddleware.kit.index.ingestion.reading import encode_path
from qtmiddleware.providers.llms.recorded import RecordedModel
from qtmiddleware.runtime.circuit_breaker import Breaker
from qtmiddleware.runtime.redis_cache import RedisCache
from qtmiddleware.types import Deadline, Transformation
from tests.support import kept_world as world
from tests.support.batch_service import BatchServer
from tests.support.redis_world import RedisServer


@pytest.fixture(params=world.FOLDERS, ids=lambda it: it.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files that one version wrote."""
    return world.unpack(request.param, tmp_path / "kept")


def test_every_release_and_the_present_version_have_a_folder() -> None:
    released = re.findall(
        r"^## (\d+\.\d+\.\d+)\b",
        (world.KEPT.parents[1] / "CHANGELOG.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert {"0.1.0", qtm.__version__, *released} <= {it.name for it in world.FOLDERS}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]


@contextmanager
def unless_prompts_changed(kept: Path, name: str) -> Iterator[None]:
    """The block must succeed, or be refused for the prompts *name* if these are other ones by now."""
    is_same = read_json(kept / "prompts.json")[name] == world.list_prompts()[name]
    with nullcontext() if is_same else pytest.raises(ConfigError, match="prompts"):
        yield


# --- configs --------------------------------------------------------------------------------------


def test_every_option_of_an_earlier_config_is_read_with_its_value(kept: Path) -> None:
    loaded = dict(world.flatten(Config.from_file(kept / "config.json", environ={}).to_dict()))
    expected = dict(world.flatten(read_json(kept / "config.json")))
    assert {name: loaded.get(name) for name in expected} == expected


def test_every_earlier_variable_of_the_environment_sets_its_option(kept: Path) -> None:
    loaded = dict(
        world.flatten(Config.load(environ=read_json(kept / "environment.json")).to_dict())
    )
    expected = dict(world.flatten(read_json(kept / "config.json")))
    assert {name: loaded.get(name) for name in expected} == expected


def test_every_earlier_short_form_of_a_group_means_the_same(kept: Path) -> None:
    short = read_json(kept / "short.config.json")
    loaded = dict(world.flatten(Config.load(short, environ={}).to_dict()))
    expected = read_json(kept / "short.meant.json")
    assert {name: loaded.get(name) for name in expected} == expected


# --- the index and its ledger ---------------------------------------------------------------------


def place_documents(kept: Path) -> Path:
    """The documents, in the folder that the ledger names from now on."""
    docs = kept / "docs"
    with closing(sqlite3.connect(kept / "docs.index.ingest", isolation_level=None)) as connection:
        for column in ("root", "file"):
            statement = f"UPDATE documents SET {column} = replace({column}, ?, ?)"
            connection.execute(statement, (world.PLACE, encode_path(str(docs.resolve()))))
    return docs


def search_index(path: Path, kind: str, query: str, **hybrid: Any) -> list[Any]:
    config = {**world.INGEST, "indexPath": str(path), "store": {"kind": kind}, "hybrid": hybrid}
    with qtm.QueryMiddleware(config, embedder=world.make_embedder()) as middleware:
        return list(middleware.retriever.retrieve(query, top_k=2).matches)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("lancedb", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "hybrid",
    [{}, {"enabled": True, "vectorWeight": 0.0, "bm25Weight": 1.0}],
    ids=["by vectors", "by words"],
)
def test_an_earlier_index_is_searched(kept: Path, kind: str, hybrid: dict[str, Any]) -> None:
    path = kept / ("docs.index" if kind == "sqlite" else "docs.lance")
    found = search_index(
        path, kind, "Jaco eats dry food twice a day and a carrot at noon", **hybrid
    )
    best = found[0]
    assert "a carrot at noon" in best.text
    assert best.id == "jaco.md#1"
    assert best.metadata["source"] == "jaco.md"
    assert best.metadata["title"] == "Jaco"
    assert best.metadata["context"] == "About the dogs of a shelter."
    assert search_index(path, kind, "Zoë keeps the keys ask her.", **hybrid)[0].id == "shelter.md#1"


def test_an_earlier_ledger_spares_all_embedding_and_all_contexts(kept: Path) -> None:
    config = {**world.INGEST, "indexPath": str(kept / "docs.index")}
    is_same = read_json(kept / "prompts.json")["context"] == world.list_prompts()["context"]
    model = world.make_silent_model() if is_same else world.make_model()
    counted = world.Counted()
    report = qtm.ingest(
        place_documents(kept), config=config, client=model, embedder=world.make_embedder(counted)
    )
    assert (report.documents, report.chunks, report.added, report.removed, report.skipped) == (
        2,
        4,
        0,
        0,
        (),
    )
    assert counted.texts == []
    assert search_index(kept / "docs.index", "sqlite", "carrot at noon")[0].id == "jaco.md#1"


def test_of_a_document_that_grew_since_an_earlier_ingest_the_new_text_alone_is_embedded(
    kept: Path,
) -> None:
    docs = place_documents(kept)
    with (docs / "shelter.md").open("a", encoding="utf-8") as file:
        file.write(
            "\nWalks are at eight and at six, in every weather, and last an hour or longer if it is dry.\n"
        )
    config, counted = {**world.INGEST, "indexPath": str(kept / "docs.index")}, world.Counted()
    report = qtm.ingest(
        docs, config=config, client=world.make_model(), embedder=world.make_embedder(counted)
    )
    assert report.changed == 1
    assert counted.texts
    assert not [it for it in counted.texts if "Jaco" in it or "The fee for an adoption" in it]


# --- caches and recordings ------------------------------------------------------------------------


def test_an_earlier_bench_cache_answers_in_place_of_embedder_and_model(kept: Path) -> None:
    counted = world.Counted()
    with closing(
        CachedEmbedder(world.make_embedder(counted), kept / "bench-cache.sqlite")
    ) as embedder:
        assert embedder.embed([world.QUESTION]) == world.embed([world.QUESTION])
    assert counted.texts == []
    with closing(
        CachedModel(world.make_silent_model(), kept / "bench-cache.sqlite", options="kept")
    ) as model:
        assert model.complete(world.PROMPT, Deadline()).text == "A kept reply."


def test_a_value_that_an_earlier_version_put_into_redis_is_found(
    kept: Path, stopped_server: RedisServer
) -> None:
    value = read_json(kept / "redis.json")
    stopped_server.start()
    stopped_server.admin.set(value["name"], value["value"].encode())
    with closing(
        RedisCache(stopped_server.url, timeout=20.0, ttl_seconds=60, breaker=Breaker(1, 60.0))
    ) as cache:
        found = cache.get(value["key"], lambda _: True)
    assert found == Transformation(
        standalone="Does Jaco, the dog, eat?",
        rewrite=world.REWRITE,
        step_back="Is it common?",
        sub_queries=("Who is Jaco?", "Wie geht es Zoë?"),
        paraphrases=("Is Jaco ill?",),
        hyde="Jaco is fit.",
        keywords=("vet",),
        notes=(("rewrite", "dropped"),),
    )


def test_an_earlier_recording_replays_its_replies(kept: Path) -> None:
    model = RecordedModel.from_file(kept / "recording.jsonl")
    with qtm.QueryMiddleware(
        {"transformationType": "combined", **world.PATIENT}, client=model
    ) as middleware:
        made = middleware.transform(world.QUESTION)
        later = middleware.transform(world.FOLLOW_UP, history=world.HISTORY)
    assert (made.standalone, made.rewrite) == (None, world.reword(world.QUESTION))
    assert later.standalone == world.reword(world.FOLLOW_UP)


# --- many questions -------------------------------------------------------------------------------


def test_a_finished_earlier_output_leaves_nothing_to_do(kept: Path) -> None:
    folder, config = kept / "bulk", Config.load(world.REWRITING, environ={})
    before = (folder / "out.jsonl").read_bytes()
    with unless_prompts_changed(kept, "rewrite"):
        report = transform_file(
            folder / "questions.jsonl",
            folder / "out.jsonl",
            config=config,
            client=world.make_silent_model(),
        )
        assert (report.before, report.made, report.broken_lines) == (3, 0, 0)
    assert (folder / "out.jsonl").read_bytes() == before


def test_an_earlier_output_with_a_line_missing_goes_on_with_that_line(kept: Path) -> None:
    folder, config = kept / "bulk", Config.load(world.REWRITING, environ={})
    *lines, _ = (folder / "out.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "out.jsonl").write_bytes(b"".join(lines))
    with unless_prompts_changed(kept, "rewrite"):
        report = transform_file(
            folder / "questions.jsonl",
            folder / "out.jsonl",
            config=config,
            client=world.make_model(),
        )
        assert (report.before, report.made) == (2, 1)


def collect(kept: Path, stage: str, url: str) -> tuple[Any, Any]:
    """What collecting the batches of an earlier command brings at the service at *url*."""
    config = Config.load({"transformationType": "rewrite"}, environ={})
    out, source = kept / "batch" / stage / "sent.jsonl", kept / "batch" / "questions.jsonl"
    with (
        openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client,
        open_batch_work(source, out, config=config, client=client) as (work, report),
    ):
        return work.collect(), report


def test_batches_that_an_earlier_version_sent_are_collected(
    kept: Path, httpserver: HTTPServer
) -> None:
    service = BatchServer(httpserver, world.answer)
    with openai.OpenAI(api_key="none", base_url=service.url) as client:
        uploaded = client.files.create(
            file=("kept.jsonl", kept / "batch" / "uploaded.jsonl"), purpose="batch"
        )
        client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    service.finish()
    with unless_prompts_changed(kept, "rewrite"):
        standing, _ = collect(kept, "submit", service.url)
        assert (standing.answered, standing.open, standing.missing) == (2, 0, 0)
        records = read_lines(kept / "batch" / "submit" / "sent.jsonl")
        assert {it["query"]: it["rewrite"] for it in records} == {
            it["query"]: world.reword(it["query"])
            for it in read_lines(kept / "batch" / "questions.jsonl")
        }


def test_batches_that_an_earlier_version_collected_are_done(
    kept: Path, httpserver: HTTPServer
) -> None:
    with unless_prompts_changed(kept, "rewrite"):
        standing, report = collect(kept, "collect", httpserver.url_for("/v1"))
        assert (standing.answered, standing.open, report.before) == (0, 0, 2)
    assert not httpserver.log


def test_replies_that_an_earlier_version_collected_are_read_again(
    kept: Path, httpserver: HTTPServer
) -> None:
    # As after the output was lost, which is made anew out of the state.
    (kept / "batch" / "collect" / "sent.jsonl").unlink()
    with unless_prompts_changed(kept, "rewrite"):
        standing, report = collect(kept, "collect", httpserver.url_for("/v1"))
        assert (standing.answered, standing.open) == (2, 0)
        assert (report.input_tokens, report.output_tokens) == (200, 40)
    assert not httpserver.log


# --- logs and data sets ---------------------------------------------------------------------------


def test_an_earlier_query_log_is_reported_on(kept: Path) -> None:
    report = read_shadow_log(kept / "queries.jsonl")
    (asked,) = report.questions
    assert (report.unreadable, report.dropped_calls) == (0, 0)
    assert (asked.query, asked.kept, asked.status) == (world.QUESTION, 3, "full")
    assert (asked.searches, asked.llm_calls) == (2, 1)
    assert {it.name: it.text for it in asked.plain} == {
        id_: text for id_, _, text in world.PASSAGES
    }
    assert {it.name for it in asked.ours} == {it.name for it in asked.plain}
    assert asked.plain_ms >= 0
    assert asked.ms > 0


def list_keys(value: Any, above: str = "") -> set[str]:
    """Every key of nested objects and of those in lists, dotted."""
    if isinstance(value, list):
        return set().union(*(list_keys(it, f"{above}[]") for it in value))
    if not isinstance(value, dict):
        return {above}
    return set().union(*(list_keys(it, f"{above}.{name}") for name, it in value.items()))


def test_a_record_of_the_query_log_has_all_keys_of_earlier_ones(kept: Path, tmp_path: Path) -> None:
    path = tmp_path / "now.jsonl"
    config = {**world.REWRITING, "log": {"path": str(path), "passageText": True}}
    with qtm.QueryMiddleware(config, client=world.make_model()) as middleware:
        middleware.wrap(world.find)(world.QUESTION, top_k=3)
    (now,) = read_lines(path)
    earlier = next(it for it in read_lines(kept / "queries.jsonl") if "shadow" not in it)
    assert list_keys(earlier) <= list_keys(now)


def test_an_earlier_test_set_is_loaded(kept: Path) -> None:
    data = Dataset.load(kept / "testset")
    assert len(data.passages) == 12
    assert [it.text for it in data.questions][-1] == "And who inspects it?"
    assert data.questions[-1].history[0].content == "When was Arlo Bridge opened?"
    assert data.qrels["later"] == {"Arlo#0": 1}


# --- objects --------------------------------------------------------------------------------------


def test_a_pipeline_of_haystack_that_an_earlier_version_saved_is_loaded_and_run(kept: Path) -> None:
    from haystack import Pipeline

    from tests.support.haystack_world import AsyncPipeline

    allowed: Any = (
        {"allowed_modules": ["qtmiddleware", "tests"]} if AsyncPipeline is Pipeline else {}
    )
    pipeline = Pipeline.loads((kept / "pipeline.yaml").read_text("utf-8"), **allowed)
    found = pipeline.run({"retriever": {"query": world.QUESTION}})["retriever"]
    assert len(found["documents"]) == 3
    assert found["documents"][0].id == "health"
    assert [it["kind"] for it in found["variants"]] == ["original", "rewrite"]


@pytest.mark.parametrize("name", ["wrapped", "renamed", "decorated"])
def test_a_function_that_an_earlier_version_pickled_is_called(kept: Path, name: str) -> None:
    search = pickle.loads((kept / f"{name}.pickle").read_bytes())
    found = search.retrieve(world.QUESTION)
    assert sorted(it.id for it in found.matches) == ["cats", "health", "toys"]
    assert (search is world.decorated) == (name == "decorated")
    assert found.transformation.rewrite == (None if name == "decorated" else world.REWRITE)


def test_settings_that_an_earlier_version_pickled_have_all_their_values(kept: Path) -> None:
    middleware = pickle.loads((kept / "middleware.pickle").read_bytes())
    loaded = dict(world.flatten(middleware.config.to_dict()))
    expected = dict(world.flatten(read_json(kept / "config.json")))
    advice = "a new option stands at the end of its group: see _take_values in config/settings.py"
    assert {name: loaded.get(name) for name in expected} == expected, advice
    assert middleware.config.origins["topK"].startswith("file")
