"""Connect rerankers, which score how well passages answer a question.

`cross_encoder` runs sentence-transformers models. `pinecone` calls models that Pinecone hosts.
`CallableReranker` calls a user's function. Importing this package loads no model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers import find_function_name
from qtmiddleware.retrieval.reranking import check_rerank_scores

__all__ = ["check_rerank_scores", "make_reranker"]

_HOSTED: Final = frozenset({"bge-reranker-v2-m3", "cohere-rerank-3.5", "pinecone-rerank-v0"})
"""The models of Pinecone that need no prefix ``pinecone/``."""
_PINECONE: Final = "pinecone/"
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), "
    "a sentence_transformers.CrossEncoder, or a plain function from (query, texts) to scores"
)


def make_reranker(candidate: Any, settings: Settings) -> Reranker:
    """Return a reranker that scores texts with *candidate*.

    *candidate* is one of:

    - ``None``: the reranker uses the model that ``rerank.model`` names.
    - An object with ``name`` and ``rerank``: it is returned unchanged.
    - A sentence-transformers cross-encoder, or another object with ``predict``.
    - A function that takes the question and the texts, and returns scores.

    Raises `ConfigError` for any other object, and for async functions.
    """
    if candidate is None:
        return _make_reranker_for_model(
            settings.rerank.model, trust_remote_code=settings.rerank.trust_remote_code
        )
    if not isinstance(candidate, type):
        if isinstance(candidate, Reranker):
            if inspect.iscoroutinefunction(candidate.rerank):
                raise ConfigError(
                    "rerank must be a plain method, not async, because it is called in a thread",
                    path="reranker",
                )
            return candidate
        # This check comes before `callable`, because a torch model can be called too, but only with
        # tensors.
        if callable(getattr(candidate, "predict", None)):
            from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

            return CrossEncoderReranker(candidate)
        if callable(candidate):
            return CallableReranker(candidate)
    hint = "; pass an instance, not the class" if isinstance(candidate, type) else ""
    raise ConfigError(
        f"reranker must be {_ALLOWED}, not {type(candidate).__name__}{hint}",
        path="reranker",
        allowed=_ALLOWED,
    )


def _make_reranker_for_model(model_name: str, *, trust_remote_code: bool) -> Reranker:
    """Return a `PineconeReranker` if Pinecone hosts the model, else a `CrossEncoderReranker`."""
    if model_name in _HOSTED or model_name.startswith(_PINECONE):
        from qtmiddleware.providers.rerankers.pinecone import PineconeReranker

        return PineconeReranker(model_name.removeprefix(_PINECONE))
    from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker(model_name, trust_remote_code=trust_remote_code)


class CallableReranker:
    """Scores passages by calling a user's function.

    Exceptions of the function pass through unchanged.

    Args:
        fn: A synchronous function that takes the question and a list of texts. The function returns
            one score per text, in the order of the texts, as a list, tuple or array. Higher is
            better. Instead of scores, the function may return ``(index, score)`` pairs in any
            order.
        name: The reranker's name; by default the function's name.

    Raises:
        ConfigError: *fn* is async.
        ModelError: A call does not return one finite number per text. The reason is ``unparsable``.
    """

    def __init__(self, fn: Callable[[str, list[str]], Any], *, name: str = "") -> None:
        self.name = name or find_function_name(fn)
        """The argument *name*, or else the function's name."""
        self.model_name = name
        """The argument *name*; ``""`` by default."""
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
            raise ConfigError(
                f"{self.name} must be a plain function, not async, because a reranker is called in"
                " a thread",
                path="reranker",
            )
        self._fn = fn

    def __repr__(self) -> str:
        return f"CallableReranker(name={self.name!r})"

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*. Higher is better."""
        if not texts:
            return []
        result = self._fn(query, list(texts))
        if inspect.isawaitable(result):
            # Without this, Python would warn that the coroutine was never awaited.
            if inspect.iscoroutine(result):
                result.close()
            raise ModelError(
                "unparsable",
                f"the reranker {self.name} returned an awaitable; pass a plain function",
            )
        return check_rerank_scores(_sort_scores(result), len(texts))


def _sort_scores(result: Any) -> Any:
    """Return the scores in *result*. ``(index, score)`` pairs are sorted by index.

    Any other *result* is returned unchanged, except that an array becomes a list.
    """
    scores = result.tolist() if hasattr(result, "tolist") else result
    if (
        not isinstance(scores, list | tuple)
        or not scores
        or not all(_is_index_score_pair(item) for item in scores)
    ):
        return scores
    by_index = {int(index): score for index, score in scores}
    # A missing index becomes `None`, which the check of the scores rejects.
    return [by_index.get(position) for position in range(len(scores))]


def _is_index_score_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and hasattr(item[0], "__index__")
