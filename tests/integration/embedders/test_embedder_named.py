from __future__ import annotations

import subprocess
import sys

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.embedding import (
    OpenAIEmbedder,
    SentenceTransformersEmbedder,
    find_embedder,
)
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder


@pytest.mark.parametrize(
    ("name", "kind", "model"),
    [
        ("all-MiniLM-L6-v2", MiniLMEmbedder, "all-MiniLM-L6-v2"),
        ("sentence-transformers/all-MiniLM-L6-v2", MiniLMEmbedder, "all-MiniLM-L6-v2"),
        ("text-embedding-3-small", OpenAIEmbedder, "text-embedding-3-small"),
        ("openai/nomic-embed-text", OpenAIEmbedder, "nomic-embed-text"),
        ("BAAI/bge-small-en-v1.5", SentenceTransformersEmbedder, "BAAI/bge-small-en-v1.5"),
        ("./a/folder", SentenceTransformersEmbedder, "./a/folder"),
    ],
)
def test_a_name_says_where_a_model_runs(name: str, kind: type, model: str) -> None:
    embedder = find_embedder(name, dimensions=384)
    assert isinstance(embedder, kind)
    assert (embedder.name, embedder.dimension) == (model, 384)


def test_the_built_in_model_has_one_length_of_vectors() -> None:
    with pytest.raises(ConfigError, match="384 for all-MiniLM-L6-v2, not 256") as caught:
        find_embedder("all-MiniLM-L6-v2", dimensions=256)
    assert (caught.value.path, caught.value.value) == ("embeddingDimensions", 256)


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
