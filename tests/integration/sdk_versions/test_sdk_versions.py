"""The responses and methods of today's Pinecone SDK and of the generation before, from the real clients over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[3]
PROBE = Path(__file__).with_name("probe.py")
BEFORE, HERE = "9.1.0", "10"

Probed = tuple[str, dict[str, Any], list[Request]]

METADATA: list[dict[str, Any]] = [
    {"text": "first", "score": "own score", "query": "own query"},
    {"chunk_text": "second", "tags": ["a", "b"]},
    {},
]
SCORES = [0.75, 0.74, 0.25]
IDS = ["m-1", "m-2", "m-3"]


def answer_query(request: Request) -> Response:
    """As the data plane answers ``POST /query``."""
    namespace = json.loads(request.data).get("namespace", "")
    found = [] if namespace == "empty" else zip(IDS, SCORES, METADATA, strict=True)
    matches = [{"id": i, "score": s, "values": [], "metadata": m} for i, s, m in found]
    body = {"matches": matches, "namespace": namespace, "usage": {"readUnits": 6}}
    return Response(json.dumps(body), content_type="application/json")


def answer_search(request: Request) -> Response:
    """As the data plane answers ``POST /records/namespaces/{namespace}/search``."""
    hits = [
        {"_id": i, "_score": s, "fields": m} for i, s, m in zip(IDS, SCORES, METADATA, strict=True)
    ]
    body = {"result": {"hits": hits}, "usage": {"read_units": 6, "embed_total_tokens": 4}}
    return Response(json.dumps(body), content_type="application/json")


@pytest.fixture(scope="module")
def service() -> Any:
    with HTTPServer(host="127.0.0.1") as server:
        server.expect_request("/query", method="POST").respond_with_handler(answer_query)
        server.expect_request("/records/namespaces/ns/search", method="POST").respond_with_handler(
            answer_search
        )
        yield server


def run_with(wanted: str, *program: str, **environ: str) -> str:
    """What a *program* prints, run with the SDK of the version *wanted*."""
    # An installed copy of the package may be another one.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    if wanted != HERE:
        folder = ROOT / ".tmp" / "sdk" / wanted
        assert folder.is_dir(), (
            f"pinecone {wanted} is missing; run: PYTHON={sys.executable} scripts/sdk-versions"
        )
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[BEFORE, HERE])
def probed(request: pytest.FixtureRequest, service: HTTPServer) -> Probed:
    """The version, what its client's responses were read as, and the requests it sent."""
    service.clear_log()
    said = run_with(request.param, str(PROBE), service.url_for("").rstrip("/"))
    return request.param, json.loads(said), [sent for sent, _ in service.log]


REDIRECTED = """
import sys
from pinecone import Pinecone
try:
    Pinecone(api_key="a-secret").Index(host=sys.argv[1]).query(vector=[0.5], top_k=1)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("wanted", [BEFORE, HERE])
def test_the_client_does_not_take_its_key_to_another_host(wanted: str, service: HTTPServer) -> None:
    elsewhere = service.url_for("/query").replace("127.0.0.1", "localhost")
    with HTTPServer(host="127.0.0.1") as moved:
        moved.expect_request("/query", method="POST").respond_with_data(
            "", 307, {"Location": elsewhere}
        )
        service.clear_log()
        run_with(wanted, "-c", REDIRECTED, moved.url_for("").rstrip("/"))
    assert [sent.headers.get("Api-Key") for sent, _ in service.log] == []


def test_the_client_is_the_version_it_is_said_to_be(probed: Probed) -> None:
    wanted, found, _ = probed
    assert found["version"] == wanted or found["version"].startswith(f"{wanted}.")


@pytest.mark.parametrize("call", ["query", "search"])
def test_a_search_is_read_improved_and_returned_in_its_own_type(probed: Probed, call: str) -> None:
    found = probed[1][call]
    assert found["ids"] == ["m-2", "m-1", "m-3"]
    assert found["texts"] == ["second", "first", None]
    assert found["metadata"] == [METADATA[1], METADATA[0], METADATA[2]]
    assert found["scores"] == [SCORES[1], SCORES[0], SCORES[2]]
    assert (found["type"], found["usage"], found["degradations"]) == (True, True, [])


def test_an_empty_response_stays_empty(probed: Probed) -> None:
    found = probed[1]["empty"]
    assert (found["ids"], found["type"], found["usage"]) == ([], True, True)


def test_every_search_keeps_the_namespace_and_takes_its_own_text(probed: Probed) -> None:
    bodies = [json.loads(sent.data) for sent in probed[2]]
    assert {body["namespace"] for body in bodies if "vector" in body} == {"ns", "empty"}
    texts = {body["query"]["inputs"]["text"] for body in bodies if "query" in body}
    assert texts == {"Which one is second?", "new words"}
