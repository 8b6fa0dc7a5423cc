"""Rerank with a cross-encoder, which reads the question and a passage together."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.providers.loading import cut_text, load_model
from qtmiddleware.retrieval.reranking import check_scores
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

DEFAULT_MODEL: Final = "cross-encoder/ms-marco-MiniLM-L6-v2"
WITH_CODE: Final = frozenset({"jinaai/jina-reranker-v2-base-multilingual"})
"""Models that run code that comes with them."""
LICENCES: Final = {
    "jinaai/jina-reranker-v2-base-multilingual": (
        "CC BY-NC 4.0, which does not allow commercial use"
    ),
}
"""Models whose licence forbids uses that many users intend."""
AGAIN_SECONDS: Final = 60.0
"""How many seconds after a failure loading is not tried again: each try may take seconds."""

_log = get_logger("qtmiddleware.rerankers")
_warned: Final[set[str]] = set()


class CrossEncoderReranker:
    """Scores passages with a sentence-transformers cross-encoder (Nogueira and Cho 2019).

    The default model is English, with 23 million parameters (91 MB), under the Apache License 2.0.
    Its scores are logits, which may be negative. For other languages there is
    ``jinaai/jina-reranker-v2-base-multilingual`` (278 million parameters). Its licence, CC BY-NC
    4.0, does not allow commercial use; a warning says so once. The multilingual model runs its own
    code, so it needs *trust_remote_code* (``rerank.trustRemoteCode``).

    Nothing is imported, read or downloaded before the first use or `load`. Threads may share a
    reranker; only one thread scores at a time, because the tokenizers cannot be shared.

    Args:
        model: A name on the model hub, a folder, or a ``sentence_transformers.CrossEncoder``.
        device: The torch device (``cpu``, ``cuda``, ...); by default the best available.
        batch_size: How many pairs are scored at a time.
        trust_remote_code: Whether code that comes with the model may run.
        max_length: The most tokens per pair; by default the model's maximum. Longer texts are cut.

    Raises:
        ConfigError: The model is known to need *trust_remote_code*.
        MissingExtra: On use, without the extra ``models``.
        ModelError: On use, ``unavailable`` if the model fails or cannot be loaded (loading is tried
            again after a minute); ``unparsable`` if it does not return one finite number per
            passage.
    """

    def __init__(
        self,
        model: Any = DEFAULT_MODEL,
        *,
        device: str | None = None,
        batch_size: int = 32,
        trust_remote_code: bool = False,
        max_length: int | None = None,
    ) -> None:
        is_name = isinstance(model, str)
        self._name = model if is_name else _find_name(model)
        if is_name and model in WITH_CODE and not trust_remote_code:
            raise ConfigError(
                f"{model} runs its own code; to allow that, set rerank.trustRemoteCode to"
                " true (trust_remote_code=True), or choose another model",
                path="rerank.trustRemoteCode",
                value=False,
                allowed="true",
            )
        self._device = device
        self._batch_size = max(1, batch_size)
        self._trust = trust_remote_code
        self._max_length = max_length
        self._lock = ForkLock()
        self._model: Any = None if is_name else model
        self._failure = ""
        self._again_at = 0.0

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self._name!r})"

    @property
    def name(self) -> str:
        """The model's name or folder."""
        return self._name

    @property
    def is_unread(self) -> bool:
        """Whether the next use must load the model first.

        Loading takes seconds, or minutes if the model must be downloaded.
        """
        return self._model is None and monotonic() >= self._again_at

    def load(self) -> None:
        """Load the model now, unless it is loaded already; raises the same errors as `rerank`."""
        with self._lock.free:
            self._load_once()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*; higher is better."""
        if not texts:
            return []
        with self._lock.free:
            model = self._load_once()
            question = cut_text(model, query)
            pairs = [(question, cut_text(model, text)) for text in texts]
            try:
                scores = model.predict(pairs, batch_size=self._batch_size, show_progress_bar=False)
            except Exception as error:
                raise ModelError(
                    "unavailable", f"the reranker {self._name} failed: {type(error).__name__}"
                ) from error
        return check_scores(scores, len(texts))

    def _load_once(self) -> Any:
        """Return the model. The first call loads the model, and other threads wait for it."""
        if self._model is None:
            if not self.is_unread:
                raise ModelError("unavailable", self._failure)
            _warn_of_licence(self._name)
            try:
                self._model = load_model(
                    "CrossEncoder",
                    self._name,
                    lambda message: ModelError("unavailable", message),
                    device=self._device,
                    trust_remote_code=self._trust,
                    max_length=self._max_length,
                )
            except ModelError as error:
                self._failure, self._again_at = str(error), monotonic() + AGAIN_SECONDS
                raise
        return self._model


def _warn_of_licence(model: str) -> None:
    """Warn once per process if the licence of *model* restricts its use."""
    if model in LICENCES and model not in _warned:
        _warned.add(model)
        about: dict[str, Any] = {"event": "reranker_licence", "model": model}
        _log.warning("the reranker %s is licensed under %s", model, LICENCES[model], **about)


def _find_name(model: Any) -> str:
    """Return the name of a loaded model."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return name if isinstance(name, str) and name else type(model).__name__
