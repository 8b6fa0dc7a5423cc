"""Reranks with a model that Pinecone hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.retrieval.reranking import check_scores
from qtmiddleware.runtime.forking import Draining, ForkLock

PREFIX: Final = "pinecone/"
KEY_VARIABLE: Final = "PINECONE_API_KEY"
# https://docs.pinecone.io/guides/search/rerank-results
_MOST_DOCUMENTS: Final = {"cohere-rerank-3.5": 200}
_MOST_DOCUMENTS_ELSEWHERE: Final = 100
_WITHOUT_TRUNCATE: Final = ("cohere-",)
"""Models that cut long texts into parts themselves and know no such parameter."""


class PineconeReranker:
    """Judges passages by a model hosted by Pinecone, such as ``bge-reranker-v2-m3``.

    *model* may also be written as ``pinecone/bge-reranker-v2-m3``. *client* is a
    ``pinecone.Pinecone``; without one it is made on first use, with the key of the environment's
    ``PINECONE_API_KEY``.

    Scores are 0 to 1. More texts than the model takes at once, 100 or 200, go in several requests:
    each is judged beside the query alone. What is longer than the model reads is cut off at the
    end. A blank text is not sent and scores 0. Raises `ModelError` where there is no key and where
    the answer has not one finite score a text; what the client raises passes through. The client
    retries by itself: give the wait an end (``rerank.timeoutMs`` does).
    """

    def __init__(self, model: str, *, client: Any = None) -> None:
        self._name = model.removeprefix(PREFIX)
        self._given = client
        self._made: Any = None
        self._lock = ForkLock()
        self.in_use: Final = Draining(self.close)

    def __repr__(self) -> str:
        return f"PineconeReranker({self._name!r})"

    provider = "pinecone"

    @property
    def name(self) -> str:
        """The model's name, as Pinecone knows it."""
        return self._name

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score a text, in the texts' order; greater is better."""
        scores = [0.0] * len(texts)
        worded = [at for at, text in enumerate(texts) if text.strip()]
        most = _MOST_DOCUMENTS.get(self._name, _MOST_DOCUMENTS_ELSEWHERE)
        for start in range(0, len(worded), most):
            part = worded[start : start + most]
            with self.in_use:
                judged = self._judge(query, [texts[at] for at in part])
            for at, score in judged.items():
                scores[part[at]] = score
        return scores

    def close(self) -> None:
        """Close the client that was made here; one that was given stays open, and the next use makes another."""
        with self._lock.free:
            made, self._made = self._made, None
        if callable(close := getattr(made, "close", None)):
            close()

    def _judge(self, query: str, texts: list[str]) -> dict[int, float]:
        """The score of each of *texts*, by its position."""
        options = None if self._name.startswith(_WITHOUT_TRUNCATE) else {"truncate": "END"}
        answer = self._choose_client().inference.rerank(
            model=self._name,
            query=query,
            documents=texts,
            top_n=len(texts),
            return_documents=False,
            parameters=options,
        )
        ranked = list(answer.data)
        places = [it.index for it in ranked if type(it.index) is int]
        if len(ranked) != len(texts) or set(places) != set(range(len(texts))):
            raise ModelError(
                "unparsable", f"Pinecone's {self._name} must return one score per text"
            )
        return dict(zip(places, check_scores([it.score for it in ranked], len(texts)), strict=True))

    def _choose_client(self) -> Any:
        if self._given is not None:
            return self._given
        with self._lock.free:
            if self._made is None:
                self._made = _make_client()
            return self._made


def _make_client() -> Any:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise ModelError(
            "unauthorized",
            f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment",
        )
    from pinecone import Pinecone

    return Pinecone(api_key=key)
