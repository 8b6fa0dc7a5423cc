"""Rerankers: models that score how well passages answer a question.

`cross_encoder` runs sentence-transformers models, `pinecone` calls models hosted by Pinecone, and
`CallableReranker` calls a user's function. Importing this package loads no model.
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
"""Pinecone's models that are recognised by their bare names."""
_PINECONE: Final = "pinecone/"
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), "
    "a sentence_transformers.CrossEncoder, or a plain function from (query, texts) to scores"
)


def as_reranker(candidate: Any, settings: Settings) -> Reranker:
    """Return *candidate* as a reranker; raise `ConfigError` if *candidate* cannot be a reranker.

    - ``None`` becomes the model that ``rerank.model`` names, loaded on first use.
    - An object with ``name`` and ``rerank`` is returned unchanged.
    - An object with ``predict`` is used as a sentence-transformers cross-encoder.
    - Any other callable is called with the question and the texts, and returns scores.

    Async functions are rejected.
    """
    if candidate is None:
        return _find_reranker(
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
        # Before other callables, because a torch model can be called, too, but with tensors.
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


def _find_reranker(model: str, *, trust_remote_code: bool) -> Reranker:
    """Return a `PineconeReranker` if Pinecone hosts *model*, else a `CrossEncoderReranker`."""
    if model in _HOSTED or model.startswith(_PINECONE):
        from qtmiddleware.providers.rerankers.pinecone import PineconeReranker

        return PineconeReranker(model.removeprefix(_PINECONE))
    from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker

    return CrossEncoderReranker(model, trust_remote_code=trust_remote_code)


class CallableReranker:
    """Reranks with a function that scores texts for a question.

    Exceptions of *fn* pass through unchanged.

    Args:
        fn: A plain function of the question and a list of strings, called in a thread. It returns
            one score per text in the order of the texts (a list, tuple or array; higher is better),
            or one ``(index, score)`` pair per text, in any order.
        name: The reranker's name; by default the function's name.

    Raises:
        ConfigError: *fn* is async.
        ModelError: On use, ``unparsable`` if *fn* does not return one finite number per text.
    """

    def __init__(self, fn: Callable[[str, list[str]], Any], *, name: str = "") -> None:
        self._name = name or find_name(fn)
        self.model_name = name
        """The model's name, if one was given."""
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
        """The *name* argument, or else the function's name."""
        return self._name

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*; higher is better."""
        if not texts:
            return []
        returned = self._fn(query, list(texts))
        if inspect.isawaitable(returned):
            if inspect.iscoroutine(returned):
                returned.close()
            raise ModelError(
                "unparsable",
                f"the reranker {self._name} returned an awaitable; pass a plain function",
            )
        return check_scores(_sort_by_index(returned), len(texts))


def _sort_by_index(returned: Any) -> Any:
    """Return the scores of ``(index, score)`` pairs, sorted by index.

    Any other value is returned unchanged.
    """
    scores = returned.tolist() if hasattr(returned, "tolist") else returned
    if (
        not isinstance(scores, list | tuple)
        or not scores
        or not all(_is_pair(item) for item in scores)
    ):
        return scores
    by_index = {int(index): score for index, score in scores}
    return [by_index.get(position) for position in range(len(scores))]


def _is_pair(item: Any) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2 and hasattr(item[0], "__index__")
