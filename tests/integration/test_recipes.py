"""What docs/wrapping.md and the README show for other people's packages, run as it stands against the real ones.

Those of packages that are not installed are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

import qtmiddleware as qtm
from tests.support.model_server import ModelServer, as_json
from tests.support.pinecone_server import models
from tests.support.pinecone_server.documents import Field
from tests.support.pinecone_world import PineconeWorld, pinecone_world

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/wrapping.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))

QUESTION = "Does Jaco have any health concerns?"
TEXTS = {
    "toys": "Does Jaco have any toys? A ball and a rope.",
    "vet": "Does Jaco have any vet? Dr. Wong, in Elm Street.",
    "health": "Jaco has no health concerns.",
    "food": "Jaco eats twice a day.",
    "cats": "Do any cats have a bed of their own? They sleep wherever they like.",
}
REPLY = {"rewrite": "Is Jaco healthy?", "sub_queries": ["Which illnesses does Jaco have?"]}
HOSTED = "multilingual-e5-large"
COMBINED = {"transformationType": "combined"}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


VOCABULARY = sorted({word for text in TEXTS.values() for word in words(text)})


def embed(text: str) -> list[float]:
    """How often each word of the passages stands in *text*."""
    return [float(words(text).count(word)) + 0.01 for word in VOCABULARY]


def retrieve(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    """By how many words of *query* stand in the passage, question words too."""
    wanted = set(words(query))
    found = sorted(TEXTS.items(), key=lambda it: len(wanted & set(words(it[1]))), reverse=True)
    return [
        {"id": id_, "score": len(wanted & set(words(text))), "text": text}
        for id_, text in found[:top_k]
    ]


def heavy(name: str) -> Any:
    """The module *name*, without which the test is skipped."""
    return pytest.importorskip(name)


def cook(recipe: str, **given: Any) -> dict[str, Any]:
    """The names that *recipe* leaves behind, run with *given* for what it takes as known."""
    space = {"question": QUESTION, "embed": embed, "retrieve": retrieve, **given}
    exec(compile(recipe, "recipe", "exec"), space)
    return space


@pytest.fixture
def server(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> ModelServer:
    """A service of models that OpenAI's clients find in the environment."""
    dimension = models.DENSE[HOSTED]
    made = ModelServer(
        httpserver, REPLY, embed=lambda body: [models.dense(it, dimension) for it in as_list(body)]
    )
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", made.url)
    return made


def as_list(body: dict[str, Any]) -> list[str]:
    return [body["input"]] if isinstance(body["input"], str) else body["input"]


@pytest.fixture
def pinecone() -> Iterator[PineconeWorld]:
    with pinecone_world() as world:
        world.add_index("docs", dimension=models.DENSE[HOSTED], model=HOSTED)
        records = [{"_id": id_, "text": text} for id_, text in TEXTS.items()]
        world.index("docs").upsert_records(namespace="docs", records=records)
        documents = [{"_id": id_, "body": text} for id_, text in TEXTS.items()]
        world.add_documents("documents", {"body": Field(full_text=True, embed=True)}, documents)
        yield world


def test_every_recipe_of_the_page_is_run_here() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'RECIPES\["(\w+)"\]', tests)) == set(RECIPES)


# --- stores ---------------------------------------------------------------------------------------


def test_pinecone(pinecone: PineconeWorld) -> None:
    index = pinecone.index("documents")
    found = cook(RECIPES["documents"], index=index)
    clause = {"type": "embed", "field": "body", "query": QUESTION}
    plain = index.documents.search(
        namespace="docs", top_k=2, score_by=[clause], include_fields=["body"]
    )
    assert [type(it) for it in found["documents"]] == [type(it) for it in plain.matches]
    assert (found["documents"][0].id, found["documents"][0].body) == ("health", TEXTS["health"])


def test_a_pinecone_index_made_before(server: ModelServer, pinecone: PineconeWorld) -> None:
    index = pinecone.index("docs")
    found = cook(RECIPES["legacy"], index=index)
    plain = index.search(namespace="docs", top_k=2, inputs={"text": QUESTION})
    assert [type(hit) for hit in found["hits"]] == [type(hit) for hit in plain.result.hits]
    assert found["hits"][0].id == found["matches"][0].id == "health"
    assert found["matches"][0].metadata["text"] == TEXTS["health"]


def test_the_readmes_example_on_pinecone(
    server: ModelServer, pinecone: PineconeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"^```python no-run\n(import openai\nimport pinecone.*?)^```",
        readme,
        re.DOTALL | re.MULTILINE,
    )
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PINECONE_API_KEY", pinecone.api_key)
    server.reply = {
        **REPLY,
        "standalone": "What was Nike's revenue last year?",
        "rewrite": "Nike revenue last year",
    }
    found = cook(example.replace("https://...", pinecone.host("documents")))
    assert found["r"].degradations == ()
    assert [it.kind for it in found["r"].variants] == ["original", "joined"], found["r"].variants


@pytest.mark.filterwarnings("ignore")
def test_chroma() -> None:
    chromadb = heavy("chromadb")

    class Embedding(chromadb.EmbeddingFunction):  # type: ignore[misc, name-defined]
        def __init__(self) -> None: ...

        def __call__(self, input: list[str]) -> list[list[float]]:  # noqa: A002
            return [embed(text) for text in input]

    collection = chromadb.EphemeralClient().create_collection(
        "docs", embedding_function=Embedding()
    )
    collection.add(ids=list(TEXTS), documents=list(TEXTS.values()))
    found = cook(RECIPES["chroma"], collection=collection)
    plain = collection.query(query_texts=[QUESTION], n_results=2)
    assert found["found"].keys() == plain.keys()
    assert found["passages"][0] == TEXTS["health"]
    r = found["search"].retrieve(query_texts=[QUESTION], n_results=2)
    assert (r.degradations, r.matches[0].text) == ((), TEXTS["health"])


@pytest.mark.filterwarnings("ignore")
def test_qdrant() -> None:
    qdrant = heavy("qdrant_client")
    client, form = qdrant.QdrantClient(":memory:"), qdrant.models
    vectors = form.VectorParams(size=len(VOCABULARY), distance=form.Distance.COSINE)
    client.create_collection("docs", vectors_config=vectors)
    client.upsert(
        "docs",
        [
            form.PointStruct(id=at, vector=embed(text), payload={"text": text})
            for at, text in enumerate(TEXTS.values())
        ],
    )
    space = cook(RECIPES["qdrant"], client=client)
    assert [type(point) for point in space["points"]] == [form.ScoredPoint] * 2
    assert space["points"][0].payload["text"] == TEXTS["health"]
    r = space["search"].retrieve("docs", query=QUESTION, limit=2)
    assert (r.degradations, r.matches[0].text) == ((), TEXTS["health"])


@pytest.mark.thorough
def test_a_data_frame() -> None:
    pandas = import_module("pandas")
    frame = pandas.DataFrame({"id": TEXTS.keys(), "text": TEXTS.values()})
    found = cook(RECIPES["pandas"], frame=frame)
    assert list(found["found"].columns) == ["id", "text", "score"]
    assert list(found["retrieve"].__wrapped__(QUESTION)["id"]) == ["toys", "vet"]
    assert list(found["found"]["id"]) == ["health", "toys"]
    # Without read= and write=, the frame is returned as it is.
    with pytest.warns(qtm.SetupWarning, match=r"pandas\.DataFrame; .* pass read= .* and write= "):
        assert qtm.middleware(lambda query: frame)(QUESTION) is frame


# --- language models ------------------------------------------------------------------------------


def check_asks(space: dict[str, Any]) -> None:
    r = space["search"].retrieve(QUESTION)
    assert r.degradations == ()
    assert [it.text for it in r.variants] == [QUESTION, REPLY["rewrite"]]
    assert r.matches[0].id == "health"


async def test_fastapi(server: ModelServer, pinecone: PineconeWorld) -> None:
    import httpx

    app = cook(RECIPES["fastapi"], index=pinecone.index("docs"))["app"]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://here"
    ) as client:
        answer = (await client.get("/search", params={"q": QUESTION})).json()
    assert answer["status"] == "full"
    assert answer["passages"][0] == TEXTS["health"]
    assert len(server.bodies) == 1


def test_azure(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ModelServer(httpserver, REPLY, path="/openai/deployments/the-name-of-your-deployment")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    check_asks(cook(RECIPES["azure"]))
    assert server.headers[0]["api-key"] == "k"


def test_ollama(server: ModelServer) -> None:
    check_asks(cook(RECIPES["ollama"].replace("http://localhost:11434/v1", server.url)))
    assert server.bodies[0]["model"] == "llama3.2"


@pytest.fixture
def claude(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What was sent to a service in the wire format of Anthropic's messages, which its clients find."""
    sent: list[dict[str, Any]] = []

    def answer(request: Request) -> Response:
        sent.append(request.get_json())
        said = {"content": [{"type": "text", "text": json.dumps(REPLY)}], "stop_reason": "end_turn"}
        usage = {"input_tokens": 100, "output_tokens": 20}
        return as_json(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "your-model",
                **said,
                "usage": usage,
            }
        )

    httpserver.expect_request("/v1/messages", method="POST").respond_with_handler(answer)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"):
        monkeypatch.setenv(name, httpserver.url_for("").rstrip("/"))
    return sent


@pytest.mark.parametrize(
    ("address", "key", "model"),
    re.findall(r"^\| \w+ \| `(https://\S+)` \| `(\w+)` \| `(\S+)` \|$", PAGE, re.MULTILINE),
)
def test_the_compatible_address_of_a_vendor(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, address: str, key: str, model: str
) -> None:
    recipe = RECIPES["compatible"]
    for old, new in (
        (r'(?<=base_url=")[^"]+', server.url),
        (r'(?<=environ\[")\w+', key),
        (r'(?<=Model": ")[^"]+', model),
    ):
        recipe = re.sub(old, new, recipe)
    monkeypatch.setenv(key, "k-of-the-vendor")
    check_asks(cook(recipe))
    # The same without a client.
    monkeypatch.setenv("OPENAI_API_KEY", "k-of-the-vendor")
    settings = {"transformationType": "rewrite", "transformationModel": model}
    alone = qtm.QueryMiddleware({**settings, "llm": {"baseUrl": server.url}})
    check_asks({"search": alone.wrap(retrieve)})
    assert server.keys == ["Bearer k-of-the-vendor"] * 2
    assert [it["model"] for it in server.bodies] == [model] * 2


def test_every_vendor_has_an_address_and_a_recipe_for_its_own_client() -> None:
    vendors = re.findall(r"^\| (\w+) \| `https://\S+` \| `\w+` \|", PAGE, re.MULTILINE)
    assert vendors == ["Anthropic", "Google", "Mistral"]
    assert {it.lower() for it in vendors} <= set(RECIPES)


def test_anthropic(claude: list[dict[str, Any]]) -> None:
    check_asks(cook(RECIPES["anthropic"]))
    assert claude[0]["system"]
    assert QUESTION in claude[0]["messages"][0]["content"]


def test_google(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[dict[str, Any]] = []

    def answer(request: Request) -> Response:
        sent.append(request.get_json())
        content = {"role": "model", "parts": [{"text": json.dumps(REPLY)}]}
        return as_json({"candidates": [{"content": content, "finishReason": "STOP"}]})

    path = re.compile(r"/v1(beta)?/models/gemini-2.5-flash:generateContent")
    httpserver.expect_request(path, method="POST").respond_with_handler(answer)
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", httpserver.url_for("").rstrip("/"))
    check_asks(cook(RECIPES["google"]))
    assert sent[0]["systemInstruction"]
    assert QUESTION in sent[0]["contents"][0]["parts"][0]["text"]


def test_mistral(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISTRAL_API_KEY", "k-of-mistral")
    root = server.url.removesuffix("/v1")
    check_asks(cook(RECIPES["mistral"].replace("Mistral(", f"Mistral(server_url={root!r}, ")))
    assert server.keys == ["Bearer k-of-mistral"]
    assert server.bodies[0]["model"] == "mistral-small-latest"


@pytest.mark.filterwarnings("ignore")
def test_any_llm(claude: list[dict[str, Any]]) -> None:
    heavy("any_llm")
    check_asks(cook(RECIPES["any_llm"]))
    assert len(claude) == 1


@pytest.mark.filterwarnings("ignore")
def test_litellm(claude: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    heavy("litellm")
    check_asks(cook(RECIPES["litellm"]))
    assert len(claude) == 1


# --- functions of the frameworks, without their adapters -------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_langchain() -> None:
    core = heavy("langchain_core.vectorstores")
    embeddings, documents = heavy("langchain_core.embeddings"), heavy("langchain_core.documents")
    chat = heavy("langchain_core.language_models.fake_chat_models")

    class Embedding(embeddings.Embeddings):  # type: ignore[misc, name-defined]
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return [embed(text) for text in texts]

        def embed_query(self, text: str) -> list[float]:
            return embed(text)

    store = core.InMemoryVectorStore(Embedding())
    store.add_documents(
        [documents.Document(id=id_, page_content=text) for id_, text in TEXTS.items()]
    )
    llm = chat.FakeListChatModel(responses=[json.dumps(REPLY)])
    qm = qtm.QueryMiddleware(COMBINED, client=llm)
    search = qm.wrap(store.similarity_search_with_score)
    found = search(QUESTION, k=2)
    assert [type(document) for document, _ in found] == [documents.Document] * 2
    assert found[0][0].id == "health"
    assert search.retrieve(QUESTION, k=2).degradations == ()
    assert qm.wrap(store.as_retriever().invoke)(QUESTION, k=2)[0].id == "health"


@pytest.mark.filterwarnings("ignore")
def test_llamaindex() -> None:
    core = heavy("llama_index.core")
    schema, base = heavy("llama_index.core.schema"), heavy("llama_index.core.embeddings")
    custom = heavy("llama_index.core.llms")

    class Embedding(base.BaseEmbedding):  # type: ignore[misc, name-defined]
        def _get_text_embedding(self, text: str) -> list[float]:
            return embed(text)

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return embed(query)

    class Model(custom.CustomLLM):  # type: ignore[misc, name-defined]
        @property
        def metadata(self) -> Any:
            return custom.LLMMetadata(model_name="tiny")

        def complete(self, prompt: str, **more: Any) -> Any:
            return custom.CompletionResponse(text=json.dumps(REPLY))

        def stream_complete(self, prompt: str, **more: Any) -> Any:
            raise NotImplementedError

    nodes = [schema.TextNode(id_=id_, text=text) for id_, text in TEXTS.items()]
    index = core.VectorStoreIndex(nodes, embed_model=Embedding())
    retriever = index.as_retriever(similarity_top_k=50)
    qm = qtm.QueryMiddleware(COMBINED, client=Model())
    search = qm.wrap(lambda query, top_k=2: retriever.retrieve(query)[:top_k])
    nodes = search(QUESTION)
    assert [type(node) for node in nodes] == [schema.NodeWithScore] * 2
    assert nodes[0].node.id_ == "health"
    r = search.retrieve(QUESTION)
    assert r.degradations == ()
    assert r.trace.llm_calls + (r.trace.decision.reason == "cached") == 1


@pytest.mark.filterwarnings("ignore")
def test_haystack(server: ModelServer) -> None:
    haystack = heavy("haystack")
    stores = heavy("haystack.document_stores.in_memory")
    retrievers = heavy("haystack.components.retrievers.in_memory")
    store = stores.InMemoryDocumentStore()
    store.write_documents(
        [
            haystack.Document(id=id_, content=text, embedding=embed(text))
            for id_, text in TEXTS.items()
        ]
    )
    qm = qtm.QueryMiddleware(COMBINED, client=import_module("openai").OpenAI())
    search = qm.wrap(retrievers.InMemoryBM25Retriever(store).run)
    found = search(query=QUESTION, top_k=2)["documents"]
    assert [type(document) for document in found] == [haystack.Document] * 2
    assert found[0].id == "health"
    assert search.retrieve(query=QUESTION, top_k=2).degradations == ()
    vectors = qm.wrap(retrievers.InMemoryEmbeddingRetriever(store).run, embed=embed)
    assert vectors(query=QUESTION, top_k=2)["documents"][0].id == "health"
