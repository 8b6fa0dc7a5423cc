"""RAG-Fusion as its repository evaluates it: `eval/retrieval.py` over `main.py`, both unchanged.

The collection and the client it is given answer as those of chromadb and openai would.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.quality.peers.handed import (
    LONG,
    MODEL,
    MULTI_QUERY,
    RETURNED,
    Handed,
    System,
    serve,
)

SOURCE = Path(".tmp/peers/ragfusion/source").resolve()
sys.path.insert(0, str(SOURCE))

import main as ragfusion  # noqa: E402
from eval import retrieval  # noqa: E402


class Collection:
    """Exact search, answering squared distances as chromadb does by default."""

    def __init__(self, handed: Handed) -> None:
        self.handed = handed

    def query(self, query_texts: list[str], n_results: int) -> dict[str, Any]:
        found = [self.handed.nearest(text, n_results) for text in query_texts]
        return {
            "ids": [[self.handed.ids[at] for at, _ in one] for one in found],
            "distances": [[2 - 2 * cosine for _, cosine in one] for one in found],
        }

    def get(self) -> dict[str, Any]:
        return {"ids": self.handed.ids, "documents": self.handed.texts}


def replies(**_: Any) -> Any:
    """A completion with what was recorded."""
    return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=MODEL.text))])


ragfusion._client = SimpleNamespace(
    chat=SimpleNamespace(completions=SimpleNamespace(create=replies))
)


def systems(handed: Handed) -> list[System]:
    """All of RAG-Fusion's that rerank with no model, the plain search first."""
    retrieval._bm25_index = retrieval._bm25_doc_ids = None  # it holds the words of the set before
    collection = Collection(handed)

    def cut(function: Callable[..., list[str]], k: int) -> Callable[[str], list[str]]:
        return partial(function, collection=collection, k=k)

    found = [System("off", cut(retrieval.single_query_retrieve, RETURNED))]
    fusions = (
        retrieval.rag_fusion_retrieve,
        retrieval.rag_fusion_weighted_retrieve,
        retrieval.hybrid_diverse_retrieve,
    )
    return found + [
        System(function.__name__, cut(function, k), str(k), MULTI_QUERY)
        for function in fusions
        for k in (RETURNED, LONG)
    ]


if __name__ == "__main__":
    commit = subprocess.run(
        ["git", "-C", str(SOURCE), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    used = (
        ragfusion.reciprocal_rank_fusion,
        retrieval.rag_fusion_retrieve,
        retrieval.rag_fusion_weighted_retrieve,
    )
    serve(
        "RAG-Fusion",
        {"rag-fusion": commit.stdout.strip()[:12]},
        (*used, retrieval.hybrid_diverse_retrieve),
        systems,
    )
