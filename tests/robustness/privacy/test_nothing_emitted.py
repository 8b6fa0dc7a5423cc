"""No key, and no text of a user, a document or a model, is in anything that is emitted; on every road, on bad days."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.settings import Settings, StoreSettings
from qtmiddleware.kit.embedding import OpenAIEmbedder
from qtmiddleware.kit.evaluation import Question, rank
from qtmiddleware.kit.evaluation.recorded import RecordedModel, RecordingModel
from qtmiddleware.kit.evaluation.testset import generate
from qtmiddleware.kit.stores.pinecone import PineconeStore
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.providers.llms.openai import OpenAIModel
from qtmiddleware.providers.rerankers import PineconeReranker
from tests.support.echoing import FAULTS, EchoingService
from tests.support.emitted import (
    ANSWER,
    HISTORY,
    METADATA,
    OPENAI_KEY,
    PASSAGE,
    PINECONE_KEY,
    QUERY,
    Emitted,
    listening,
)
from tests.support.pinecone_world import pinecone_world, without_pauses
from tests.support.telemetry_world import Telemetry

KINDS: Final = tuple(kind for kind in TRANSFORMS if kind != "none")
TYPICAL: Final = ("none", "400", "echo")
LIMITS: Final = {"llmTimeoutMs": 300, "deadlineMs": 50_000}
PATIENT: Final = {"llmTimeoutMs": 20_000, "deadlineMs": 50_000}

Config = dict[str, Any]


def rows() -> list[dict[str, Any]]:
    texts = [PASSAGE, f"{PASSAGE} too", "Fees are due"]
    return [
        {"id": f"p{at}", "score": 0.9 - at / 10, "metadata": {"text": text, "author": METADATA}}
        for at, text in enumerate(texts)
    ]


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return rows()[:top_k]


async def asearch(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return rows()[:top_k]


class Roads:
    """Every way from a question to a result, each with what it gives or raises noted."""

    def __init__(self, emitted: Emitted, config: Config, client: Any, **given: Any) -> None:
        self.emitted = emitted
        self.telemetry = Telemetry()
        self.middleware = qtm.QueryMiddleware(
            config, client=client, observers=[self.telemetry.observer], **given
        )
        made = self.middleware
        emitted.show(made, made.config, made.settings, made.engine.model)
        emitted.pickle(made.config)
        emitted.pickle(made.settings)

    def tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except qtm.QtMiddlewareError as error:
            self.emitted.raised(error)
            if (found := getattr(error, "retrieval", None)) is not None:
                self.emitted.retrieval(found)
        return None

    def observed(self) -> None:
        for span in self.telemetry.spans():
            self.emitted.say(f"span {span.name}", span.to_json())
            self.emitted.say("name of a span", span.name)
        self.emitted.say("metrics", repr(self.telemetry.points()))

    def retrieved(self, fn: Any = search, **options: Any) -> Any:
        wrapped = self.middleware.wrap(fn)
        self.emitted.show(wrapped)
        found = self.tried(lambda: wrapped.retrieve(QUERY, history=HISTORY, **options))
        if found is not None:
            self.emitted.retrieval(found)
        self.observed()
        return found

    def answered(self, fn: Any = search) -> None:
        wrapped = self.middleware.wrap(fn)
        if (answer := self.tried(lambda: wrapped.answer(QUERY, history=HISTORY))) is not None:
            self.emitted.show(answer, *answer.citations, *answer.matches, *answer.sub_answers)
            self.emitted.retrieval(answer.retrieval)

        def streamed() -> None:
            with wrapped.stream_answer(QUERY) as stream:
                self.emitted.show(stream)
                list(stream)
                self.emitted.show(stream, stream.answer)

        self.tried(streamed)
        self.observed()

    def transformed(self) -> None:
        made = self.tried(lambda: self.middleware.transform([QUERY], history=HISTORY))
        self.emitted.show(made)
        self.observed()

    async def later(self) -> None:
        wrapped = self.middleware.wrap(asearch)
        self.emitted.show(wrapped)
        for call in (wrapped.aretrieve, wrapped.aanswer):
            try:
                made = await call(QUERY, history=HISTORY)
            except qtm.QtMiddlewareError as error:
                self.emitted.raised(error)
                continue
            self.emitted.show(made)
            self.emitted.retrieval(getattr(made, "retrieval", made))
        try:
            async with wrapped.astream_answer(QUERY) as stream:
                self.emitted.show([piece async for piece in stream] and stream)
        except qtm.QtMiddlewareError as error:
            self.emitted.raised(error)
        self.emitted.show(await self.middleware.atransform(QUERY))
        self.observed()


def config_for(fault: str, kind: str, **more: Any) -> Config:
    return {"transformationType": kind, "limits": LIMITS if fault == "hang" else PATIENT, **more}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault in TYPICAL else pytest.mark.thorough)
        for fault in FAULTS
    ],
)
def test_a_model_that_repeats_what_it_was_sent_brings_nothing_out(
    service: EchoingService, fault: str
) -> None:
    account: dict[str, Any] = {"base_url": service.url, "api_key": OPENAI_KEY, "max_retries": 0}
    service.fault = fault
    # What is told of a failure is the same for every kind; what is made of a reply is not.
    kinds = KINDS if fault in TYPICAL else KINDS[:3]
    answer = {"timeoutMs": 300 if fault == "hang" else 20_000}
    with listening() as emitted, openai.OpenAI(**account) as client:
        for kind in kinds:
            before = len(service.bodies)
            roads = Roads(emitted, config_for(fault, kind, answer=answer), client)
            found = roads.retrieved()
            assert found.original_query == QUERY
            assert len(service.bodies) > before, "the model was not asked"
            roads.transformed()
        for kind, mode in (("rewrite", "plain"), ("decompose", "synthesis")):
            config = config_for(fault, kind, answer={**answer, "mode": mode})
            Roads(emitted, config, client).answered()

        async def later() -> None:
            async with openai.AsyncOpenAI(**account) as aclient:
                for kind in ("combined", "decompose"):
                    await Roads(emitted, config_for(fault, kind, answer=answer), aclient).later()

        asyncio.run(later())
    assert len(emitted.open) > 100


# --- what quotes in its failures ------------------------------------------------------------------


def model(messages: list[dict[str, str]]) -> str:
    return '{"rewrite": "Which illness does rmarktibbles have?", "sub_queries": ["Is rmarktibbles ill?", "Is he fit?"]}'


def quoting(error: type[Exception], *first: str) -> Callable[..., Any]:
    """A function that fails and quotes what it was given, and more."""

    def fail(*given: Any) -> Any:
        raise error(*first, f"no luck with {given}, {PASSAGE} and {OPENAI_KEY}")

    return fail


def quoting_later(error: type[Exception], *first: str) -> Callable[..., Any]:
    fail = quoting(error, *first)

    async def afail(given: Any) -> Any:
        fail(given)

    return afail


def for_variants(error: type[Exception], *first: str) -> Callable[..., Any]:
    """A search that fails for every text but the user's own."""
    fail = quoting(error, *first)
    return lambda query, top_k=3: search(query, top_k) if query == QUERY else fail(query)


def echo(query: str, texts: list[str]) -> Any:
    return [query, *texts]


OURS: Final = (qtm.ModelError, OPENAI_KEY)
LATER: Final = quoting_later(qtm.ModelError, "refused")
PARTS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    # The transformation, the stage that fails, and what fails in it.
    "no part": ("decompose", "", {}),
    "a search": ("rewrite", "search.rewrite", {"fn": for_variants(RuntimeError)}),
    "a search, our error": ("decompose", "search.sub_query", {"fn": for_variants(*OURS)}),
    "a reranker": ("none", "rerank", {"reranker": quoting(ValueError)}),
    "a reranker that returns texts": ("none", "rerank", {"reranker": echo}),
    "a model": ("combined", "transform.combined", {"client": quoting(RuntimeError)}),
    "a model, our error": ("combined", "transform.combined", {"client": quoting(*OURS)}),
    "an async model": ("combined", "transform.combined", {"client": LATER}),
    "a hook": ("rewrite", "hook", {"on_retrieval": quoting(RuntimeError)}),
    "an async hook": ("rewrite", "hook", {"on_retrieval": quoting_later(RuntimeError)}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_that_fails_and_quotes_brings_nothing_out(name: str, tmp_path: Path) -> None:
    kind, stage, given = PARTS[name]
    path = tmp_path / "log.jsonl"
    config = {
        "transformationType": kind,
        "limits": PATIENT,
        "breaker": {"failures": 0},
        "rerank": {"enabled": "reranker" in given},
        "log": {"path": str(path), "texts": "none"},
    }
    given = {"client": model, "fn": search} | given
    fn = given.pop("fn")
    with listening() as emitted:
        roads = Roads(emitted, config, **given)
        found = roads.retrieved(fn)
        assert [it.stage for it in found.degradations][:1] == [stage] * bool(stage)
        roads.answered(fn)
        roads.transformed()
        asyncio.run(roads.later())
        emitted.say("log", path.read_text())
    assert path.read_text().count("sha256:") > 2


class Strange:
    """A response of no known shape, which prints what it holds."""

    def __repr__(self) -> str:
        return f"Strange({PASSAGE!r})"


def test_the_functions_own_error_passes_as_it_is_and_is_told_nowhere() -> None:
    own = RuntimeError(f"{QUERY} {PASSAGE}")

    def failing(query: str, top_k: int = 3) -> Any:
        raise own

    config = {"transformationType": "rewrite", "limits": PATIENT}
    with listening() as emitted:
        roads = Roads(emitted, config, model)
        with pytest.raises(RuntimeError) as caught:
            roads.retrieved(failing)
        roads.observed()
    assert caught.value is own
    assert own.args == (f"{QUERY} {PASSAGE}",)
    assert not hasattr(own, "__notes__")


@pytest.mark.parametrize(
    ("redact", "status"), [(lambda text: "[gone]", "full"), (quoting(ValueError), "degraded")]
)
def test_what_is_redacted_is_neither_in_the_log_nor_in_a_debug_record(
    tmp_path: Path, redact: Any, status: str
) -> None:
    path = tmp_path / "log.jsonl"
    config = {"transformationType": "decompose", "limits": PATIENT, "log": {"path": str(path)}}
    with listening() as emitted:
        found = Roads(emitted, config, model, redact=redact).retrieved()
        assert found.status == status
        emitted.say("log", path.read_text())
        told = [it for it in emitted.guarded if it[0].startswith("DEBUG")]
        emitted.open += told
        assert told
    assert len(path.read_text().splitlines()) == 1


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.md").write_text(f"# {METADATA}\n\n{PASSAGE}. It is document {number}.")
    return folder


@pytest.fixture
def environment(service: EchoingService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", service.url)


OWN: Final = {
    "indexPath": "index",
    "embeddingModel": "text-embedding-3-small",
    "embeddingDimensions": 3,
    "hybrid": True,
    "transformationType": "combined",
    "limits": PATIENT,
}


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("fault", ["none", "400", "shape", "echo"])
def test_the_own_store_brings_nothing_out(
    service: EchoingService, documents: Path, fault: str
) -> None:
    contextual = {**OWN, "contextualChunks": True}
    with listening() as emitted:
        emitted.show(qtm.ingest(documents, config=OWN))
        service.fault = fault
        roads = Roads(emitted, OWN, None)
        with roads.middleware:
            retriever = roads.tried(lambda: roads.middleware.retriever)
            emitted.show(retriever)
            found = roads.tried(lambda: retriever.retrieve(QUERY, history=HISTORY))
            if found is not None:
                emitted.retrieval(found)
            emitted.show(roads.tried(lambda: roads.middleware.retriever.answer(QUERY)))
        (documents / "new.md").write_text(f"New: {PASSAGE}")
        emitted.show(roads.tried(lambda: qtm.ingest(documents, config=contextual)))


X: Final = [1.0, 0.0, 0.0]


@pytest.mark.parametrize("fault", [400, 401, 500, 200])
def test_pinecone_brings_nothing_out(monkeypatch: pytest.MonkeyPatch, fault: int) -> None:
    with pinecone_world() as world, listening() as emitted:
        without_pauses(monkeypatch)
        world.api_key = world.app.api_key = PINECONE_KEY
        world.add_index("passages", dimension=3)
        for name, value in world.environment.items():
            monkeypatch.setenv(name, value)
        dense = PineconeStore(lambda: world.index("passages"), embedding_model="m", dimension=3)
        reranker = PineconeReranker("bge-reranker-v2-m3", client=world.client())
        dense.write([(Passage("a", PASSAGE, {"author": METADATA}), X)])
        emitted.show(dense, reranker, StoreSettings(index="passages"))
        error = {"code": QUERY, "message": f"{PINECONE_KEY} {QUERY} {PASSAGE}"}
        echo = json.dumps({"error": error, "matches": PASSAGE})
        world.answers("", fault, echo, content_type="application/json")
        calls: list[Callable[[], Any]] = [
            lambda: dense.search(X, 3, filter={"author": METADATA}),
            lambda: dense.write([(Passage("b", PASSAGE, {"author": METADATA}), X)]),
            dense.count,
        ]
        failed = 0
        for call in calls:
            try:
                emitted.show(call())
            except qtm.StoreError as error:
                emitted.raised(error)
                failed += 1
        # What answers 200 to everything is believed to have taken what was written.
        assert failed >= (2 if fault == 200 else len(calls))
        wrapped = {"rerank": {"enabled": True}, "limits": PATIENT}
        found = Roads(emitted, wrapped, model, reranker=reranker).retrieved()
        assert found.status == "degraded"


@pytest.mark.parametrize(
    "fails", [quoting(RuntimeError), lambda messages: f"no: {messages} {OPENAI_KEY}"]
)
def test_generating_and_judging_bring_nothing_out(fails: Any, tmp_path: Path) -> None:
    asked = make_language_model(fails, Settings())
    passages = [
        Passage(f"{n}#0", f"{PASSAGE} and every other spring, {n}. " * 6, {"a": METADATA})
        for n in range(12)
    ]
    questions = [Question("q", QUERY, metadata={"answer": PASSAGE})]
    with listening() as emitted:
        emitted.show(asked, *passages, *questions)
        kept = RecordingModel(asked, tmp_path / "r.jsonl")
        emitted.show(kept)
        for call in (
            lambda: generate(passages, kept, count=3, name="set"),
            lambda: rank(questions, {"a": {"q": PASSAGE}, "b": {"q": ANSWER}}, kept),
        ):
            try:
                emitted.show(call())
            except qtm.QtMiddlewareError as error:
                emitted.raised(error)


STRAYED: Final[tuple[Config, ...]] = (
    {"apiKey": OPENAI_KEY},
    {"llm": {"apiKey": OPENAI_KEY}},
    {"store": {"kind": "pinecone", "index": "i", "pineconeKey": PINECONE_KEY}},
    {"llm": {"baseUrl": f"https://me:{OPENAI_KEY}@example.org/v1"}},
    {"llm": {"baseUrl": f"https://example.org/v1?key={OPENAI_KEY}"}},
    {"llm": {"baseUrl": f"https://example.org/{OPENAI_KEY}/v1"}},
    {"llm": {"baseUrl": OPENAI_KEY}},
    {"topK": OPENAI_KEY},
    {"store": {"kind": "pinecone", "host": f"https://localhost?api-key={PINECONE_KEY}"}},
    {OPENAI_KEY: 1},
    {"transformationModel": OPENAI_KEY},
    {"transformationType": PINECONE_KEY},
    {"log": {"path": f"/var/log/{OPENAI_KEY}"}},
)
VARIABLES: Final = (
    {f"QTM_{OPENAI_KEY}": "1"},
    {"QTM_OPENAI_API_KEY": OPENAI_KEY},
    {"QTM_TOP_K": OPENAI_KEY},
    {"QTM_LLM_BASE_URL": f"https://me:{OPENAI_KEY}@example.org/v1"},
)
FILES: Final = (
    json.dumps({"llm": {"baseUrl": OPENAI_KEY}}).encode(),
    f'{{"llm": {{"apiKey": "{OPENAI_KEY}"'.encode(),
    f'{{"{OPENAI_KEY}": '.encode() + b"[" * 100_000,
    f'{{"{OPENAI_KEY}": {"9" * 5_000}}}'.encode(),
    OPENAI_KEY.encode() + b"\xff",
)

LINES: Final = (
    ("corpus.jsonl", f'{{"text": "{OPENAI_KEY}'),
    ("corpus.jsonl", f'{{"_id": "a", "text": ["{OPENAI_KEY}"]}}'),
    ("queries.jsonl", f'{{"_id": "a", "text": "b", "metadata": {{"history": ["{OPENAI_KEY}"]}}}}'),
)


def write_data_set(folder: Path, name: str, line: str) -> Path:
    (folder / "qrels").mkdir(parents=True)
    for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (folder / file).write_text(line if file == name else "")
    return folder


def test_a_key_that_strayed_into_a_file_or_variable_is_refused_and_not_repeated(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / f"{place}.json" for place in range(len(FILES))]
    for path, content in zip(paths, FILES, strict=True):
        path.write_bytes(content)
    loads = [lambda it=it: qtm.Config.load(it, environ={}) for it in (*STRAYED, *paths)]
    loads += [lambda it=it: qtm.Config.load({}, environ=it) for it in VARIABLES]
    loads += [lambda it=it: RecordedModel.from_file(it) for it in paths[1:]]
    sets = [write_data_set(tmp_path / str(place), *line) for place, line in enumerate(LINES)]
    loads += [lambda it=it: qtm.evaluation.Dataset.load(it) for it in sets]
    for load in loads:
        with listening() as emitted:
            with pytest.raises(qtm.ConfigError) as caught:
                load()
            emitted.raised(caught.value)


def test_keys_of_the_environment_are_never_copied_into_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    monkeypatch.setenv("PINECONE_API_KEY", PINECONE_KEY)
    with listening() as emitted:
        config = qtm.Config.load({"transformationType": "rewrite"})
        emitted.show(config, config.settings, config.to_dict(), list(config.rows()))
        emitted.pickle(config)
        with qtm.QueryMiddleware(config) as middleware:
            emitted.show(middleware, middleware.engine.model, OpenAIModel("m"), OpenAIEmbedder("m"))
            emitted.say(
                "attributes",
                repr([vars(it) for it in (middleware, middleware.engine.model, OpenAIModel("m"))]),
            )
