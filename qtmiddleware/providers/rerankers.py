"""Score how well passages answer a question: with a local model, Pinecone's, or a user's function.

Models of sentence-transformers are loaded here too. Importing this module loads none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, MissingExtra, ModelError
from qtmiddleware.protocols import Reranker
from qtmiddleware.providers import find_function_name, replace_surrogates
from qtmiddleware.runtime.concurrency import is_async
from qtmiddleware.runtime.forking import MadeOnce, make_lock

# The pause in seconds before a failed load is tried again, because each try may take seconds.
AGAIN_SECONDS: Final = 60.0

# The number of characters to keep of a text, per token of the model's maximum. A longer text is cut
# before tokenizing, because tokenizing takes a second per megabyte.
CHARS_PER_TOKEN: Final = 200
# The maximum number of tokens per text, if the model reports no maximum or a larger one.
MOST_TOKENS: Final = 8_192
# One word, or two words with a slash between them. Anything else is a path.
_HUB_NAME: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)

KEY_VARIABLE: Final = "PINECONE_API_KEY"
_PREFIX: Final = "pinecone/"
# The models of Pinecone that need no prefix ``pinecone/``.
_HOSTED: Final = frozenset({"bge-reranker-v2-m3", "cohere-rerank-3.5", "pinecone-rerank-v0"})
_ALLOWED: Final = (
    "None for the model named by rerank.model, an object with name and rerank(query, texts), a"
    " cross-encoder of sentence-transformers, or a plain function from (query, texts) to scores"
)


def make_reranker(candidate: Any, settings: Settings) -> Reranker:
    """Return a reranker that scores texts with *candidate*.

    *candidate* is ``None`` for the model that ``rerank.model`` names, an object with ``name`` and
    ``rerank``, a cross-encoder of sentence-transformers, or a function of the question and the
    texts. Raises `ConfigError` for any other object, and for async functions.
    """
    if candidate is None:
        model = settings.rerank.model
        is_hosted = model in _HOSTED or model.startswith(_PREFIX)
        return PineconeReranker(model) if is_hosted else CrossEncoderReranker(model)
    is_async_one = is_async(getattr(candidate, "rerank", candidate))
    if not (is_async_one or isinstance(candidate, type)):
        if isinstance(candidate, Reranker):
            return candidate
        is_encoder = hasattr(candidate, "tokenizer") or not callable(candidate)
        if hasattr(candidate, "predict") and is_encoder:
            return CrossEncoderReranker(type(candidate).__name__, loaded=candidate)
        if callable(candidate):
            return FunctionReranker(candidate)
    kind = ("an async " if is_async_one else "") + type(candidate).__name__
    raise ConfigError(
        f"reranker must be {_ALLOWED}, not {kind}",
        path="reranker",
        allowed=_ALLOWED,
    )


class FunctionReranker:
    """Scores passages with a user's function of the question and the texts.

    The flow checks that it returns one number per text.
    """

    model_name = ""

    def __init__(self, fn: Callable[[str, list[str]], Any]) -> None:
        self.name = find_function_name(fn)
        self._fn = fn

    def rerank(self, query: str, texts: Sequence[str]) -> Any:
        """Return one score per text, in the order of *texts*. Higher is better."""
        return self._fn(query, list(texts))


class CrossEncoderReranker:
    """Scores passages with a sentence-transformers cross-encoder (Nogueira and Cho 2019).

    Scores are logits and may be negative. The model is loaded by the first call or by `load`; a
    failed load is tried again after a minute. Thread-safe: one thread scores at a time, because the
    tokenizers cannot be shared.

    Args:
        model: A name on the model hub, or a folder.
        loaded: The model itself, if the user has loaded it.
    """

    def __init__(self, model: str, *, loaded: Any = None) -> None:
        self.name = model
        self._lock = make_lock()
        self._model = loaded
        self._failure = ""
        self._again_at = 0.0

    def load(self) -> None:
        """Load the model, unless it is loaded already. Raises the same errors as `rerank`."""
        with self._lock:
            self._load_once()

    def rerank(self, query: str, texts: Sequence[str]) -> Any:
        """Return one score per text as an array, in the order of *texts*. Higher is better."""
        with self._lock:
            model = self._load_once()
            # The model itself cuts at its maximum, but only after tokenizing the whole text.
            question = cut_text(model, query)
            pairs = [(question, cut_text(model, text)) for text in texts]
            try:
                return model.predict(pairs, show_progress_bar=False)
            except Exception as error:
                raise ModelError(
                    "unavailable", f"the reranker {self.name} failed: {type(error).__name__}"
                ) from error

    def _load_once(self) -> Any:
        if self._model is not None:
            return self._model
        if monotonic() < self._again_at:
            raise ModelError("unavailable", self._failure)
        try:
            self._model = load_model("CrossEncoder", self.name, partial(ModelError, "unavailable"))
        except ModelError as error:
            self._failure, self._again_at = str(error), monotonic() + AGAIN_SECONDS
            raise
        return self._model


class PineconeReranker:
    """Scores passages with a model that Pinecone hosts, such as ``bge-reranker-v2-m3``.

    Scores are from 0 to 1. *client* is a ``pinecone.Pinecone``; by default one is made on first use
    with the key from ``PINECONE_API_KEY``. Its exceptions pass through unchanged, for example if
    there are more texts than the model accepts (100, or 200 with Cohere's).
    """

    provider = "pinecone"

    def __init__(self, model: str, *, client: Any = None) -> None:
        self.name = model.removeprefix(_PREFIX)
        self._user_client = client
        self._own_client = MadeOnce[Any]()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*. Higher is better."""
        client = self._user_client or self._own_client.get(_make_client)
        answer = client.inference.rerank(
            model=self.name,
            query=query,
            documents=list(texts),
            top_n=len(texts),
            return_documents=False,
            # Cohere's models split long texts themselves.
            parameters=None if self.name.startswith("cohere-") else {"truncate": "END"},
        )
        # Pinecone returns the texts in the order of their scores.
        items = sorted(answer.data, key=lambda item: item.index)
        if [item.index for item in items] != list(range(len(texts))):
            raise ModelError("unparsable", f"Pinecone's {self.name} must return one score per text")
        return [item.score for item in items]

    def close(self) -> None:
        """Close the client that this reranker made. The next use makes a new client."""
        self._own_client.close()


def _make_client() -> Any:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise ModelError(
            "unauthorized",
            f"the key for Pinecone is missing: set {KEY_VARIABLE} in the environment",
        )
    from pinecone import Pinecone

    return Pinecone(api_key=key)


# --- models of sentence-transformers --------------------------------------------------------------


def load_model(
    class_name: str, model_name: str, make_error: Callable[[str], Exception], **options: Any
) -> Any:
    """Load the class *class_name* of sentence-transformers with *model_name*, and return the model.

    *model_name* is a name on the model hub or the path of a folder. Raises what *make_error* makes
    of a message, or `MissingExtra`.
    """
    try:
        import sentence_transformers
    except ImportError as error:
        raise MissingExtra("sentence-transformers", "models") from error
    source = model_name
    if _HUB_NAME.fullmatch(model_name):
        # The libraries look in the working folder first. A stranger's folder there must not replace
        # the hub's model of the same name.
        for planted in (model_name, f"sentence-transformers/{model_name}"):
            if Path(planted).exists():
                raise make_error(
                    f"{planted} is both a folder here and a name on the model hub; write"
                    f" ./{planted} for the folder"
                )
    else:
        source = str(Path(model_name).expanduser().absolute())
        if not Path(source).exists():
            raise make_error(f"the folder {model_name} does not exist")
    try:
        return getattr(sentence_transformers, class_name)(source, **options)
    except Exception as error:
        # The libraries quote HF_ENDPOINT, which may contain credentials.
        cause = hide_secrets(str(error).strip()) or type(error).__name__
        advice = (
            f"cannot be loaded: {cause.splitlines()[0]}; check its name and the network, or set"
            " HF_TOKEN for a private model"
        )
        if "trust_remote_code" in cause:
            option = "reranker" if class_name == "CrossEncoder" else "embedder"
            advice = f"runs its own code; load it yourself and pass it as {option}="
        raise make_error(f"the model {model_name!r} {advice}") from error


def cut_text(model: Any, text: str) -> str:
    """Return *text*, cut to a length that still fills the *model*'s maximum of tokens."""
    most = CHARS_PER_TOKEN * min(getattr(model, "max_seq_length", None) or MOST_TOKENS, MOST_TOKENS)
    return replace_surrogates(text[:most])
