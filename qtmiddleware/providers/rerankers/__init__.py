"""Connect rerankers, which score how well passages answer a question.

`cross_encoder` runs sentence-transformers models. `pinecone` calls models that Pinecone hosts.
`CallableReranker` calls a user's function. Importing this package loads no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers import find_function_name
from qtmiddleware.providers.rerankers.cross_encoder import CrossEncoderReranker
from qtmiddleware.providers.rerankers.pinecone import PREFIX, PineconeReranker
from qtmiddleware.runtime.io import is_async

_HOSTED: Final = frozenset({"bge-reranker-v2-m3", "cohere-rerank-3.5", "pinecone-rerank-v0"})
"""The models of Pinecone that need no prefix ``pinecone/``."""
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), "
    "or a plain function from (query, texts) to scores"
)


def make_reranker(candidate: Any, settings: Settings) -> Reranker:
    """Return a reranker that scores texts with *candidate*.

    *candidate* is ``None`` for the model that ``rerank.model`` names, an object with ``name`` and
    ``rerank``, or a function of the question and the texts. Raises `ConfigError` for any other
    object, and for async functions.
    """
    if candidate is None:
        options = settings.rerank
        if options.model in _HOSTED or options.model.startswith(PREFIX):
            return PineconeReranker(options.model)
        return CrossEncoderReranker(options.model, trust_remote_code=options.trust_remote_code)
    if not isinstance(candidate, type):
        if is_async(getattr(candidate, "rerank", candidate)):
            raise ConfigError(
                "reranker must be a plain function or have a plain method rerank, not async,"
                " because it is called in a thread",
                path="reranker",
            )
        if isinstance(candidate, Reranker):
            return candidate
        if callable(candidate):
            return CallableReranker(candidate)
    raise ConfigError(
        f"reranker must be {_ALLOWED}, not {type(candidate).__name__}",
        path="reranker",
        allowed=_ALLOWED,
    )


class CallableReranker:
    """Scores passages with a function that takes the question and the texts.

    It returns one score per text, as a list, tuple or array, which the flow checks.
    """

    model_name = ""

    def __init__(self, fn: Callable[[str, list[str]], Any]) -> None:
        self.name = find_function_name(fn)
        """The function's name."""
        self._fn = fn

    def __repr__(self) -> str:
        return f"CallableReranker(name={self.name!r})"

    def rerank(self, query: str, texts: Sequence[str]) -> Any:
        """Return one score per text, in the order of *texts*. Higher is better."""
        return self._fn(query, list(texts))
