from __future__ import annotations

import pytest

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.kit.index.vectors import build_batch_embedder
from qtmiddleware.providers.embedding import CallableEmbedder


def test_a_worker_with_another_model_embeds_nothing() -> None:
    def embed(texts: list[str]) -> list[list[float]]:
        raise AssertionError("it was asked")

    embedder = CallableEmbedder(embed, name="other", dimension=3)
    with pytest.raises(EmbeddingError, match="one worker embeds with other/3, not mine/3"):
        build_batch_embedder(embedder, "mine/3")
