"""Write the files that later versions must read: ``python -m tests.kept.make tests/kept/0.1.0``.

The folder is named for the version whose code writes it, and must be new. See README.md beside this
file.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import openai
from haystack import Pipeline
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.config import Config
from qtmiddleware.config.keys import (
    SHORTHANDS,
    Key,
    convert_to_json_value,
    list_all_keys,
    to_camel_case,
)
from qtmiddleware.integrations.haystack import QueryTransformRetriever
from qtmiddleware.kit.bulk.batch.transforming import open_batch_work
from qtmiddleware.kit.bulk.run import transform_file
from qtmiddleware.kit.evaluation.bench.caches import CachedEmbedder, CachedModel
from qtmiddleware.kit.evaluation.testsets.writing import write
from qtmiddleware.providers.llms.recorded import RecordingModel
from qtmiddleware.runtime.redis_cache import _build_redis_key, encode_transformation
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Transformation
from tests.support import kept_world as world
from tests.support.batch_service import BatchServer
from tests.support.bench_world import bridges_data
from tests.support.haystack_world import CountingRetriever

QUESTIONS = [
    {"id": "a", "query": world.QUESTION},
    {"id": 2, "query": "Who feeds Zoë's dog?", "history": []},
    {
        "query": world.FOLLOW_UP,
        "history": [{"role": it.role, "content": it.content} for it in world.HISTORY],
    },
]
VALUES: dict[str, Any] = {
    "transformationType": "combined",
    "llm.baseUrl": "https://models.example/v1",
    "llm.prompts": {"rewrite": "Rewrite the query for a catalogue."},
    "store.host": "index.example",
    "store.sparseHost": "sparse.example",
    "cache.redisUrl": "redis://cache.example:6379/1",
    # Not beside a sparse index.
    "store.integrated": False,
}
"""Values that no rule makes."""


def choose_value(key: Key) -> Any:
    """A value of *key* that is allowed and not its default."""
    if key.name in VALUES:
        return VALUES[key.name]
    low, high = key.limits.get("ge"), key.limits.get("le")
    match key.kind:
        case "bool":
            return not key.default
        case "choice":
            return next(it for it in key.choices if it != key.default)
        case "int":
            value = (low or 0) + 1 if key.default is None else key.default + 1
            return value if high is None or value <= high else key.default - 1
        case "float":
            value = (low or 0) + 0.25 if key.default is None else key.default + 0.25
            return value if high is None or value <= high else key.default - 0.25
        case "list":
            return ["alpha", "béta"]
        case _:
            return f"kept-{key.path[-1]}"


def write_config(folder: Path) -> None:
    """Every option with another value than its default, as a file and as variables, and every short form of a group."""
    chosen = [(key, choose_value(key)) for key in list_all_keys()]
    nested: dict[str, Any] = {}
    for key, value in chosen:
        *groups, last = key.name.split(".")
        holder = nested
        for group in groups:
            holder = holder.setdefault(group, {})
        holder[last] = value
    write_json(folder / "config.json", nested)
    environment = {
        key.environment_variable: it if isinstance(it, str) else json.dumps(it, ensure_ascii=False)
        for key, it in chosen
    }
    write_json(folder / "environment.json", environment)
    keys = {key.path: key for key in list_all_keys()}
    short = {
        group: convert_to_json_value(choose_value(keys[group, name]))
        for group, name in SHORTHANDS.items()
    }
    write_json(
        folder / "short.config.json",
        {to_camel_case(group): value for group, value in short.items()},
    )
    meant = {
        f"{to_camel_case(group)}.{to_camel_case(name)}": short[group]
        for group, name in SHORTHANDS.items()
    }
    write_json(folder / "short.meant.json", meant)


def write_index(folder: Path, work: Path) -> None:
    """An index with its ledger, and the same in LanceDB."""
    docs = work / "docs"
    docs.mkdir()
    for name, text in world.DOCUMENTS.items():
        (docs / name).write_text(text, encoding="utf-8")
    for kind, path in (("sqlite", "docs.index"), ("lancedb", "docs.lance")):
        config = {**world.INGEST, "indexPath": str(work / path), "store": {"kind": kind}}
        report = qtm.ingest(
            docs, config=config, client=world.make_model(), embedder=world.make_embedder()
        )
        assert report.contexts == report.chunks > 3
    ledger = work / "docs.index.ingest"
    with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        # Absolute names of files are those of another machine wherever this is read.
        for column in ("root", "file"):
            connection.execute(
                f"UPDATE documents SET {column} = replace({column}, ?, ?)", (str(docs), world.PLACE)
            )
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
        connection.execute("PRAGMA journal_mode = WAL")
    shutil.copytree(docs, folder / "docs")
    world.pack(work / "docs.index", folder / "docs.index.gz")
    world.pack(ledger, folder / "docs.index.ingest.gz")
    world.pack(work / "docs.lance", folder / "docs.lance.zip")


def write_caches(folder: Path, work: Path) -> None:
    """The cache of a bench, with a vector and a reply, and a value of the shared cache in Redis."""
    path = work / "bench.sqlite"
    embedder = CachedEmbedder(world.make_embedder(), path)
    embedder.embed([world.QUESTION])
    embedder.close()
    model = CachedModel(ScriptedModel("A kept reply.", name="kept-model"), path, options="kept")
    model.complete(world.PROMPT, Deadline())
    model.close()
    world.pack(path, folder / "bench-cache.sqlite.gz")
    transformation = Transformation(
        standalone="Does Jaco, the dog, eat?",
        rewrite=world.REWRITE,
        hyde="Jaco is fit.",
        sub_queries=("Who is Jaco?", "Wie geht es Zoë?"),
        paraphrases=("Is Jaco ill?",),
        step_back="Is it common?",
        keywords=("vet",),
        notes=(("rewrite", "dropped"),),
    )
    value = encode_transformation(transformation)
    assert value is not None
    write_json(
        folder / "redis.json",
        {"name": _build_redis_key("c0ffee"), "key": "c0ffee", "value": value.decode()},
    )


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "".join(json.dumps(it, ensure_ascii=False) + "\n" for it in records), encoding="utf-8"
    )
    return path


def write_bulk(folder: Path, work: Path) -> None:
    """The output of a run over a file of questions, with the ``.run`` beside it."""
    source = write_lines(folder / "bulk" / "questions.jsonl", QUESTIONS)
    out = work / "out.jsonl"
    report = transform_file(
        source, out, config=Config.load(world.REWRITING, environ={}), client=world.make_model()
    )
    assert report.asked == len(QUESTIONS)
    shutil.copy(out, folder / "bulk")
    world.pack(work / "out.jsonl.run", folder / "bulk" / "out.jsonl.run.gz")


def write_batch(folder: Path, work: Path) -> None:
    """The state of a run by batches when they were sent, and when they were collected."""
    source = write_lines(folder / "batch" / "questions.jsonl", QUESTIONS[:2])
    config = Config.load({"transformationType": "rewrite"}, environ={})
    with HTTPServer(host="127.0.0.1") as server:
        service = BatchServer(server, world.answer)
        service.now = lambda: 1_700_000_000.0
        client = openai.OpenAI(api_key="none", base_url=service.url)
        for name in ("submit", "collect"):
            with open_batch_work(source, work / "sent.jsonl", config=config, client=client) as (
                batches,
                _,
            ):
                getattr(batches, name)()
            service.finish()
            target = folder / "batch" / name
            target.mkdir()
            for path in work.glob("sent.jsonl*"):
                plain = path.suffix == ".jsonl"
                shutil.copy(path, target) if plain else world.pack(path, target / f"{path.name}.gz")
        (folder / "batch" / "uploaded.jsonl").write_bytes(service.files["file-1"][1])
        client.close()


def write_logs(folder: Path, work: Path) -> None:
    """The query log of a plain retrieval and of one in the shadow."""
    path = work / "queries.jsonl"
    log = {"path": str(path), "passageText": True}
    for more in ({}, {"shadow": 1.0}):
        config = {**world.REWRITING, "log": log, **more}
        with qtm.QueryMiddleware(config, client=world.make_model()) as middleware:
            search = middleware.wrap(world.find)
            search(world.QUESTION, top_k=3)
            # Closing does not wait for what runs in the shadow.
            while more and not middleware.health().shadow.finished:
                pass
    shutil.copy(path, folder)


def write_recording(folder: Path) -> None:
    """The recorded replies to a question alone and to one within a conversation."""
    model = RecordingModel(world.make_model(), folder / "recording.jsonl")
    with qtm.QueryMiddleware(
        {"transformationType": "combined", **world.PATIENT}, client=model
    ) as middleware:
        middleware.transform(world.QUESTION)
        middleware.transform(world.FOLLOW_UP, history=world.HISTORY)


def write_objects(folder: Path) -> None:
    """A saved pipeline of Haystack, and pickled functions, settings and errors."""
    pipeline = Pipeline()
    retriever = QueryTransformRetriever(
        CountingRetriever(), config=world.REWRITING, client=world.reply, top_k=3
    )
    pipeline.add_component("retriever", retriever)
    (folder / "pipeline.yaml").write_text(pipeline.dumps(), encoding="utf-8")
    middleware = qtm.QueryMiddleware(
        Config.from_file(folder / "config.json", environ={}), client=world.reply
    )
    pickled = {
        "wrapped": world.searching,
        "renamed": qtm.QueryMiddleware(world.REWRITING, client=world.reply)
        .wrap(world.retrieve)
        .configured({"topK": 7}),
        "decorated": world.decorated,
        "middleware": middleware,
    }
    for name, it in pickled.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(it, protocol=4))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_private(folder: Path) -> None:
    """Raise `SystemExit` if a kept file names this machine, or a folder of it."""
    places = {
        str(Path.home()),
        str(Path.cwd()),
        gettempdir(),
        socket.gethostname(),
        str(Path(__file__).parents[2]),
    }
    with TemporaryDirectory() as unpacked:
        for path in world.unpack(folder, Path(unpacked)).rglob("*"):
            for place in places if path.is_file() else ():
                if place.encode() in path.read_bytes():
                    raise SystemExit(f"{path.relative_to(unpacked)} holds {place}")


def main(folder: Path) -> None:
    folder.mkdir()
    # Nothing that is set for this machine goes into a file.
    for name in [it for it in os.environ if it.startswith(("QTM_", "OPENAI_"))]:
        del os.environ[name]
    with TemporaryDirectory() as place:
        work = Path(place)
        write_config(folder)
        write_index(folder, work)
        write_caches(folder, work)
        write_bulk(folder, work)
        write_batch(folder, work)
        write_logs(folder, work)
        write_recording(folder)
        write_objects(folder)
    write(bridges_data(history=True).sampled(2), folder / "testset")
    write_json(folder / "prompts.json", world.list_prompts())
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    check_private(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
