"""Keeps passages in the Pinecone at argv[1] by one version of its client and reports as JSON what became of them.

Run in a process of its own, as `probe.py` is. An error is reported by its message.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from qtmiddleware.config.settings import StoreSettings
from qtmiddleware.errors import StoreError
from qtmiddleware.kit.stores import open_pinecone
from qtmiddleware.protocols import Passage
from qtmiddleware.providers.rerankers.pinecone import PineconeReranker

PASSAGES = [Passage("a", "red lamp", {"n": 1}), Passage("b", "blue brake")]
VECTORS = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]


def told(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except StoreError as error:
        return str(error)


def used(query: Any, **options: Any) -> dict[str, Any]:
    """One passage is found by a filter; then the other is removed."""
    store = open_pinecone(
        StoreSettings(kind="pinecone", **options), embedding_model="a-model", dimension=3
    )
    found = {
        "upsert": told(lambda: store.write(zip(PASSAGES, VECTORS, strict=True))),
        "search": told(lambda: [one["id"] for one in store.search(query, 2)]),
        "filter": told(
            lambda: [one["metadata"] for one in store.search(query, 2, filter={"n": 1})]
        ),
        "delete": told(lambda: store.write((), delete=["b"])),
        "count": told(lambda: store.count()),
    }
    store.close()
    return found


def main(url: str) -> dict[str, Any]:
    return {
        "by host": used(VECTORS[0], host=f"{url}/i/dense"),
        "by name": used(VECTORS[0], index="dense", namespace="named"),
        "rerank": PineconeReranker("bge-reranker-v2-m3").rerank("lamp", ["a lamp", "b"]),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
