from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from qtmiddleware.config.settings import RerankSettings, Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.providers.rerankers import CrossEncoderReranker, PineconeReranker, make_reranker


def lengths(query: str, texts: list[str]) -> list[float]:
    return [len(text) / 10 for text in texts]


async def lengths_async(query: str, texts: list[str]) -> list[float]:
    return lengths(query, texts)


def settings_of(**options: Any) -> Settings:
    return Settings(rerank=RerankSettings(**options))


# What a reranker may be


@pytest.mark.parametrize(
    ("model", "kind", "name"),
    [
        ("pinecone/some-new-model", PineconeReranker, "some-new-model"),
        ("pinecone/bge-reranker-v2-m3", PineconeReranker, "bge-reranker-v2-m3"),
        ("bge-reranker-v2-m3", PineconeReranker, "bge-reranker-v2-m3"),
        ("cohere-rerank-3.5", PineconeReranker, "cohere-rerank-3.5"),
        ("pinecone-rerank-v0", PineconeReranker, "pinecone-rerank-v0"),
        ("BAAI/bge-reranker-v2-m3", CrossEncoderReranker, "BAAI/bge-reranker-v2-m3"),
        ("./a/folder", CrossEncoderReranker, "./a/folder"),
    ],
)
def test_without_a_reranker_the_settings_name_one(model: str, kind: type, name: str) -> None:
    made = make_reranker(None, settings_of(model=model))
    assert isinstance(made, kind)
    assert made.name == name


class Async:
    name = "async"

    async def __call__(self, query: str, texts: list[str]) -> list[float]:
        return lengths(query, texts)


class AsyncReranker:
    name = "async"

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return [0.0]


@pytest.mark.parametrize(
    "given_reranker", [lengths_async, partial(lengths_async), Async(), AsyncReranker()]
)
def test_what_is_async_is_refused_at_once(given_reranker: Any) -> None:
    with pytest.raises(ConfigError, match=r"plain function from.*, not an async") as caught:
        make_reranker(given_reranker, Settings())
    assert caught.value.path == "reranker"


@pytest.mark.parametrize("given_reranker", ["a-name", 7, [], CrossEncoderReranker, object()])
def test_anything_else_says_what_it_may_be(given_reranker: Any) -> None:
    with pytest.raises(ConfigError, match=r"rerank\.model.*plain function") as caught:
        make_reranker(given_reranker, Settings())
    assert caught.value.path == "reranker"
