"""Rerank with a model that Pinecone hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.runtime.forking import MadeOnce

PREFIX: Final = "pinecone/"
KEY_VARIABLE: Final = "PINECONE_API_KEY"


class PineconeReranker:
    """Scores passages with a model that Pinecone hosts, such as ``bge-reranker-v2-m3``.

    Scores are from 0 to 1. A blank text gets the score 0, and is not sent. *client* is a
    ``pinecone.Pinecone``; by default one is made on first use with the key from
    ``PINECONE_API_KEY``. Its exceptions pass through unchanged, for example if there are more texts
    than the model accepts (100, or 200 with Cohere's).
    """

    provider = "pinecone"

    def __init__(self, model: str, *, client: Any = None) -> None:
        self.name = model.removeprefix(PREFIX)
        """The model's name at Pinecone."""
        self._user_client = client
        self._own_client = MadeOnce[Any]()

    def __repr__(self) -> str:
        return f"PineconeReranker({self.name!r})"

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*. Higher is better."""
        scores = [0.0] * len(texts)
        positions = [position for position, text in enumerate(texts) if text.strip()]
        if not positions:
            return scores
        ranked = self._rank(query, [texts[position] for position in positions])
        # Pinecone returns the texts in the order of their scores.
        if sorted(item.index for item in ranked) != list(range(len(positions))):
            raise ModelError("unparsable", f"Pinecone's {self.name} must return one score per text")
        for item in ranked:
            scores[positions[item.index]] = item.score
        return scores

    def close(self) -> None:
        """Close the client that this reranker made. The next use makes a new client."""
        self._own_client.close()

    def _rank(self, query: str, texts: list[str]) -> list[Any]:
        client = self._user_client
        if client is None:
            client = self._own_client.get(_make_client)
        answer = client.inference.rerank(
            model=self.name,
            query=query,
            documents=texts,
            top_n=len(texts),
            return_documents=False,
            # Cohere's models split long texts themselves.
            parameters=None if self.name.startswith("cohere-") else {"truncate": "END"},
        )
        return list(answer.data)


def _make_client() -> Any:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise ModelError(
            "unauthorized",
            f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment",
        )
    from pinecone import Pinecone

    return Pinecone(api_key=key)
