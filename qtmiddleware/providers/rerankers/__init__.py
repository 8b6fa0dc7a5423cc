"""Rerankers: what judges how well passages answer a question; a function of the user's is one by `CallableReranker`.

`cross_encoder` runs models by sentence-transformers, and `pinecone` asks those that Pinecone hosts.
Importing this package loads none of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers import find_name
from qtmiddleware.retrieval.reranking import check_scores

__all__ = ["as_reranker", "check_scores"]

_HOSTED: Final = frozenset({"bge-reranker-v2-m3", "cohere-rerank-3.5", "pinecone-rerank-v0"})
"""Models of Pinecone, known by their bare names."""
_PINECONE: Final = "pinecone/"
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), "
    "a sentence_transformers.CrossEncoder, or a plain function from (query, texts) to scores"
)


def as_reranker(given: Any, settings: Settings) -> Reranker:
    """*given* as a reranker; ``None`` is the model that ``rerank.model`` names, which is not loaded before its use.

    An object with ``name`` and ``rerank`` is a reranker already, one with ``predict`` is taken for
    a cross-encoder of sentence-transformers, and any other callable for a function from the
    question and the texts to scores. Raises `ConfigError` for all else, async functions among it.
    """
    if given is None:
        return _find_reranker(
            settings.rerank.model, trust_remote_code=settings.rerank.trust_remote_code
        )
    if not isinstance(given, type):
        if isinstance(given, Reranker):
            if inspect.iscoroutinefunction(given.rerank):
                raise ConfigError(
                    "rerank must be a plain method, not async, because it is called in a thread",
                    path="reranker",
                )
            return given
        # First of all callables: a model of torch can be called too, but with tensors.
        if callable(getattr(given, "predict", None)):
            from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

            return CrossEncoderReranker(given)
        if callable(given):
            return CallableReranker(given)
    hint = "; pass an instance, not the class" if isinstance(given, type) else ""
    raise ConfigError(
        f"reranker must be {_ALLOWED}, not {type(given).__name__}{hint}",
        path="reranker",
        allowed=_ALLOWED,
    )


def _find_reranker(model: str, *, trust_remote_code: bool) -> Reranker:
    """The reranker for a model's name: one hosted by Pinecone, else a cross-encoder."""
    if model in _HOSTED or model.startswith(_PINECONE):
        from qtmiddleware.providers.rerankers.pinecone import PineconeReranker

        return PineconeReranker(model.removeprefix(_PINECONE))
    from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker(model, trust_remote_code=trust_remote_code)


class CallableReranker:
    """Turns a function from a question and texts to scores into a reranker.

    *fn* takes the question and a list of strings. It returns one score a text in the texts' order
    (a list, tuple or array; greater is better), or ``(index, score)`` pairs in any order, one for
    every text. *name* is by default the function's own. It is called in a thread, so an async
    function is refused with `ConfigError`.

    What *fn* raises passes through unchanged. Anything else than one finite number a text raises
    `ModelError` ``unparsable``.
    """

    def __init__(self, fn: Callable[[str, list[str]], Any], *, name: str = "") -> None:
        self._name = name or find_name(fn)
        self.model_name = name
        """The model's name, where one was given."""
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
            raise ConfigError(
                f"{self._name} must be a plain function, not async, because a reranker is called in"
                " a thread",
                path="reranker",
            )
        self._fn = fn

    def __repr__(self) -> str:
        return f"CallableReranker(name={self._name!r})"

    @property
    def name(self) -> str:
        """The name it was given, else that of the function."""
        return self._name

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score a text, in the texts' order; greater is better."""
        if not texts:
            return []
        made = self._fn(query, list(texts))
        if inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise ModelError(
                "unparsable",
                f"the reranker {self._name} returned an awaitable; pass a plain function",
            )
        return check_scores(_sort_by_index(made), len(texts))


def _sort_by_index(made: Any) -> Any:
    """The scores of ``(index, score)`` pairs by their index; anything else as it is."""
    given = made.tolist() if hasattr(made, "tolist") else made
    if not isinstance(given, list | tuple) or not given or not all(_is_pair(it) for it in given):
        return given
    by_index = {int(index): score for index, score in given}
    return [by_index.get(at) for at in range(len(given))]


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and hasattr(item[0], "__index__")
