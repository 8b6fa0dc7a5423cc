"""Rerankers: what judges how well passages answer a question.

`cross_encoder` runs models by sentence-transformers, `pinecone` asks those that Pinecone hosts, and `callable` makes a
reranker of any function. Importing this package loads none of them.
"""

from __future__ import annotations

import builtins
import inspect
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Reranker
from qtmiddleware.retrieval.scores import checked_scores

__all__ = ["as_reranker", "checked_scores"]

_HOSTED: Final = frozenset({"bge-reranker-v2-m3", "cohere-rerank-3.5", "pinecone-rerank-v0"})
"""Models of Pinecone, known by their bare names."""
_PINECONE: Final = "pinecone/"
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), "
    "a sentence_transformers.CrossEncoder, or a plain function from (query, texts) to scores"
)


def as_reranker(given: Any, settings: Settings) -> Reranker:
    """*given* as a reranker; ``None`` is the model that ``rerank.model`` names, which is not loaded before its use.

    An object with ``name`` and ``rerank`` is a reranker already, one with ``predict`` is taken for a cross-encoder of
    sentence-transformers, and any other callable for a function from the question and the texts to scores. Raises
    `ConfigError` for all else, async functions among it.
    """
    if given is None:
        return _named(settings.rerank.model, trust_remote_code=settings.rerank.trust_remote_code)
    if not isinstance(given, type):
        if isinstance(given, Reranker):
            if inspect.iscoroutinefunction(given.rerank):
                raise ConfigError(
                    "rerank is async, but it is called in a thread: make it a plain method", path="reranker"
                )
            return given
        # First of all callables: a model of torch can be called too, but with tensors.
        if builtins.callable(getattr(given, "predict", None)):
            from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

            return CrossEncoderReranker(given)
        # The bare name is that of a module of this package as soon as it was imported.
        if builtins.callable(given):
            from qtmiddleware.providers.rerankers.callable import CallableReranker

            return CallableReranker(given)
    hint = "; pass an instance, not the class" if isinstance(given, type) else ""
    raise ConfigError(
        f"{type(given).__name__} is no reranker: it may be {_ALLOWED}{hint}", path="reranker", allowed=_ALLOWED
    )


def _named(model: str, *, trust_remote_code: bool) -> Reranker:
    """The reranker for a model's name: one hosted by Pinecone, else a cross-encoder."""
    if model in _HOSTED or model.startswith(_PINECONE):
        from qtmiddleware.providers.rerankers.pinecone import PineconeReranker

        return PineconeReranker(model.removeprefix(_PINECONE))
    from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker(model, trust_remote_code=trust_remote_code)
