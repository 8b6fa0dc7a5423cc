"""The demo's texts, each embedded once for all tests."""

from __future__ import annotations

from functools import cache

import pytest

from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.providers.embedding import CallableEmbedder


@pytest.fixture(scope="session")
def embedder() -> CallableEmbedder:
    model = find_embedder("all-MiniLM-L6-v2")
    embed = cache(lambda text: model.embed([text])[0])
    return CallableEmbedder(
        lambda texts: list(map(embed, texts)),
        takes_list=True,
        name=model.name,
        dimension=model.dimension,
    )
