"""Embedders that are sent to other processes, and what must be the same there."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.embedding import MiniLMEmbedder, SentenceTransformersEmbedder
from qtmiddleware.kit.index.vectors import build_batch_embedder
from qtmiddleware.providers.embedding import CallableEmbedder


def test_an_embedder_is_sent_without_its_model(tmp_path: Path) -> None:
    minilm = MiniLMEmbedder(tmp_path)
    other = SentenceTransformersEmbedder("a-model", device="cpu", batch_size=3, dimensions=5)
    for embedder in (minilm, other):
        sent = pickle.loads(pickle.dumps(embedder))
        assert repr(sent) == repr(embedder)
        assert vars(sent).keys() == vars(embedder).keys()
        kept = {name: value for name, value in vars(embedder).items() if name != "_lock"}
        assert {name: value for name, value in vars(sent).items() if name != "_lock"} == kept


def test_a_worker_with_another_model_embeds_nothing() -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        raise AssertionError("it was asked")

    embedder = CallableEmbedder(embed, name="other", dimension=3)
    with pytest.raises(EmbeddingError, match="one worker embeds with other/3, not mine/3"):
        build_batch_embedder(embedder, "mine/3")
