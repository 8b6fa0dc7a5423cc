"""What docs/wrapping.md, docs/models.md and the README show for other people's packages, run against the real ones.

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
from tests.support.pinecone_server.documents import Field
from tests.support.pinecone_server.state import HOSTED, HOSTED_DIMENSION
from tests.support.pinecone_server.state import embed as embed_hosted
from tests.support.pinecone_world import PineconeWorld, pinecone_world

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
MODELS = (ROOT / "docs/models.md").read_text(encoding="utf-8")
PAGES = (ROOT / "docs/wrapping.md").read_text(encoding="utf-8") + MODELS
RECIPES = dict(re.findall(r"^```python (\w+)\n(.*?)^```", PAGES, re.DOTALL | re.MULTILINE))

QUESTION = "Does Jaco have any health concerns?"
TEXTS = {
    "toys": "Does Jaco have any toys? A ball and a rope.",
    "vet": "Does Jaco have any vet? Dr. Wong, in Elm Street.",
    "health": "Jaco has no health concerns.",
    "food": "Jaco eats twice a day.",
    "cats": "Do any cats have a bed of their own? They sleep wherever they like.",
}
REPLY = {"rewrite": "Is Jaco healthy?", "sub_queries": ["Which illnesses does Jaco have?"]}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


VOCABULARY = sorted({word for text in TEXTS.values() for word in words(text)})


def embed(text: str) -> list[float]:
    """How often each word of the passages stands in *text*."""
    return [float(words(text).count(word)) + 0.01 for word in VOCABULARY]


def retrieve(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    """By how many words of *query* stand in the passage, question words too."""
    wanted = set(words(query))
    scores = {id_: len(wanted & set(words(text))) for id_, text in TEXTS.items()}
    best = sorted(scores, key=lambda id_: -scores[id_])[:top_k]
    return [{"id": id_, "score": scores[id_], "text": TEXTS[id_]} for id_ in best]


def cook(recipe: str, **given: Any) -> dict[str, Any]:
    """The names that *recipe* leaves behind, run with *given* for what it takes as known."""
    space = {"question": QUESTION, "embed": embed, "retrieve": retrieve, **given}
    exec(compile(recipe, "recipe", "exec"), space)
    return space


def as_list(text: str | list[str]) -> list[str]:
    return [text] if isinstance(text, str) else text


@pytest.fixture
def server(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> ModelServer:
    """A service of models that OpenAI's clients find in the environment."""
    made = ModelServer(
        httpserver,
        REPLY,
        embed=lambda body: [embed_hosted(it) for it in as_list(body["input"])],
    )
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", made.url)
    return made


@pytest.fixture
def pinecone() -> Iterator[PineconeWorld]:
    with pinecone_world() as world:
        world.add_index("docs", dimension=HOSTED_DIMENSION, model=HOSTED)
        records = [{"_id": id_, "text": text} for id_, text in TEXTS.items()]
        world.index("docs").upsert_records(namespace="docs", records=records)
        documents = [{"_id": id_, "body": text} for id_, text in TEXTS.items()]
        world.add_documents("documents", {"body": Field(full_text=True, embed=True)}, documents)
        yield world


def test_pinecone(pinecone: PineconeWorld) -> None:
    index = pinecone.index("documents")
    found = cook(RECIPES["documents"], index=index)["documents"]
    clause = {"type": "embed", "field": "body", "query": QUESTION}
    plain = index.documents.search(
        namespace="docs", top_k=2, score_by=[clause], include_fields=["body"]
    )
    assert [type(it) for it in found] == [type(it) for it in plain.matches]
    assert (found[0].id, found[0].body) == ("health", TEXTS["health"])


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
    pattern = r"^```python no-run\n(import openai\nimport pinecone.*?)^```"
    (example,) = re.findall(pattern, readme, re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("PINECONE_API_KEY", pinecone.api_key)
    server.reply = {
        "standalone": "What was Nike's revenue last year?",
        "rewrite": "Nike revenue last year",
    }
    r = cook(example.replace("https://...", pinecone.host("documents")))["r"]
    assert r.degradations == ()
    assert [it.kind for it in r.variants] == ["original", "joined"]


@pytest.mark.filterwarnings("ignore")
def test_chroma() -> None:
    chromadb = pytest.importorskip("chromadb")

    class Embedding(chromadb.EmbeddingFunction):  # type: ignore[misc, name-defined]
        def __init__(self) -> None: ...

        def __call__(self, input: list[str]) -> list[list[float]]:  # noqa: A002
            return [embed(text) for text in input]

    client = chromadb.EphemeralClient()
    collection = client.create_collection("docs", embedding_function=Embedding())
    collection.add(ids=list(TEXTS), documents=list(TEXTS.values()))
    found = cook(RECIPES["chroma"], collection=collection)
    plain = collection.query(query_texts=[QUESTION], n_results=2)
    assert found["found"].keys() == plain.keys()
    assert found["passages"][0] == TEXTS["health"]


@pytest.mark.filterwarnings("ignore")
def test_qdrant() -> None:
    qdrant = pytest.importorskip("qdrant_client")
    client, form = qdrant.QdrantClient(":memory:"), qdrant.models
    vectors = form.VectorParams(size=len(VOCABULARY), distance=form.Distance.COSINE)
    client.create_collection("docs", vectors_config=vectors)
    points = [
        form.PointStruct(id=at, vector=embed(text), payload={"text": text})
        for at, text in enumerate(TEXTS.values())
    ]
    client.upsert("docs", points)
    found = cook(RECIPES["qdrant"], client=client)["points"]
    assert [type(point) for point in found] == [form.ScoredPoint] * 2
    assert found[0].payload["text"] == TEXTS["health"]


def test_a_data_frame() -> None:
    pandas = import_module("pandas")
    found = cook(
        RECIPES["pandas"], retrieve=lambda query, k=2: pandas.DataFrame(retrieve(query, k))
    )
    assert list(found["found"]["id"]) == ["health", "toys"]
    with pytest.warns(qtm.SetupWarning, match=r"pandas\.DataFrame; .* pass read= .* and write= "):
        qtm.middleware(found["retrieve"])(QUESTION)


# --- language models ------------------------------------------------------------------------------


def check_asks(space: dict[str, Any]) -> None:
    r = space["search"].retrieve(QUESTION)
    assert r.degradations == ()
    assert [it.kind for it in r.variants] == ["original", "joined"]
    assert REPLY["rewrite"] in r.variants[1].text
    assert r.matches[0].id == "health"


def test_azure(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ModelServer(httpserver, REPLY, path="/openai/deployments/the-name-of-your-deployment")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", httpserver.url_for("").rstrip("/"))
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    check_asks(cook(RECIPES["azure"]))
    assert server.headers[0]["api-key"] == "k"


@pytest.mark.parametrize(
    ("address", "key", "model"),
    re.findall(r"^\| \w+ \| `(https?://\S+)` \| `(\w+)` \| `(\S+)` \|$", MODELS, re.MULTILINE),
)
def test_a_compatible_address(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch, address: str, key: str, model: str
) -> None:
    recipe = re.sub(r'(?<=base_url=")[^"]+', server.url, RECIPES["compatible"])
    recipe = re.sub(r'(?<=environ\[")\w+', key, recipe)
    recipe = re.sub(r'(?<=Model": ")[^"]+', model, recipe)
    monkeypatch.setenv(key, "k-of-the-vendor")
    check_asks(cook(recipe))
    # The same without a client.
    monkeypatch.setenv("OPENAI_API_KEY", "k-of-the-vendor")
    settings = {"transformationType": "combined", "transformationModel": model}
    alone = qtm.QueryMiddleware({**settings, "llm": {"baseUrl": server.url}})
    check_asks({"search": alone.wrap(retrieve)})
    assert server.keys == ["Bearer k-of-the-vendor"] * 2
    assert [it["model"] for it in server.bodies] == [model] * 2


@pytest.fixture
def claude(
    httpserver: HTTPServer, bare_environment: None, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """What was sent to a service in the wire format of Anthropic's messages, which its clients find."""
    sent: list[dict[str, Any]] = []

    def answer(request: Request) -> Response:
        sent.append(request.get_json())
        return as_json(
            {
                "id": "m",
                "type": "message",
                "role": "assistant",
                "model": "your-model",
                "content": [{"type": "text", "text": json.dumps(REPLY)}],
                "stop_reason": "end_turn",
                "usage": {"input_tokens": 100, "output_tokens": 20},
            }
        )

    httpserver.expect_request("/v1/messages", method="POST").respond_with_handler(answer)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"):
        monkeypatch.setenv(name, httpserver.url_for("").rstrip("/"))
    return sent


def test_anthropic(claude: list[dict[str, Any]]) -> None:
    check_asks(cook(RECIPES["anthropic"]))
    assert claude[0]["system"]
    assert QUESTION in claude[0]["messages"][0]["content"]


@pytest.mark.filterwarnings("ignore")
def test_litellm(claude: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("litellm")
    check_asks(cook(RECIPES["litellm"]))
    assert len(claude) == 1


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
