from __future__ import annotations

import subprocess
import sys

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.embedding import (
    MiniLMEmbedder,
    OpenAIEmbedder,
    SentenceTransformersEmbedder,
    find_embedder,
)


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
@pytest.mark.parametrize("dimensions", [None, 384])
def test_both_names_of_the_built_in_model_are_known(name: str, dimensions: int | None) -> None:
    assert isinstance(find_embedder(name, dimensions=dimensions), MiniLMEmbedder)


def test_the_built_in_model_has_one_length_of_vectors() -> None:
    with pytest.raises(ConfigError, match="384 for all-MiniLM-L6-v2, not 256") as caught:
        find_embedder("all-MiniLM-L6-v2", dimensions=256)
    assert (caught.value.path, caught.value.value) == ("embeddingDimensions", 256)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("text-embedding-3-small", "text-embedding-3-small"),
        ("openai/text-embedding-3-large", "text-embedding-3-large"),
        ("openai/nomic-embed-text", "nomic-embed-text"),
    ],
)
def test_names_of_openai_and_its_like_ask_a_server(name: str, model: str) -> None:
    embedder = find_embedder(name, dimensions=256)
    assert isinstance(embedder, OpenAIEmbedder)
    assert (embedder.name, embedder.dimension) == (model, 256)


@pytest.mark.parametrize(
    "name", ["BAAI/bge-small-en-v1.5", "paraphrase-MiniLM-L3-v2", "./a/folder"]
)
def test_any_other_name_is_one_of_sentence_transformers(name: str) -> None:
    embedder = find_embedder(name, dimensions=64)
    assert isinstance(embedder, SentenceTransformersEmbedder)
    assert (embedder.name, embedder.dimension) == (name, 64)


def test_no_name_loads_a_library() -> None:
    script = (
        "import sys; from qtmiddleware.kit.embedding import find_embedder\n"
        "for name in ('all-MiniLM-L6-v2', 'text-embedding-3-small', 'org/model'): repr(find_embedder(name).name)\n"
        "print(sorted({'numpy', 'tokenizers', 'openai', 'torch', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200
    )
    assert done.stdout == "[]\n"
