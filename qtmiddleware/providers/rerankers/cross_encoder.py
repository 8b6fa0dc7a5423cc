"""Rerank with a cross-encoder, which reads the question and a passage together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.providers.loading import cut_text, load_model
from qtmiddleware.retrieval.reranking import check_rerank_scores
from qtmiddleware.runtime.forking import make_lock

DEFAULT_MODEL: Final = "cross-encoder/ms-marco-MiniLM-L6-v2"
WITH_CODE: Final = frozenset({"jinaai/jina-reranker-v2-base-multilingual"})
"""The models that come with their own code."""
AGAIN_SECONDS: Final = 60.0
"""The pause in seconds before a failed load is tried again, because each try may take seconds."""


class CrossEncoderReranker:
    """Scores passages with a sentence-transformers cross-encoder (Nogueira and Cho 2019).

    The default model is for English: 23 million parameters (91 MB), Apache License 2.0. Scores are
    logits and may be negative. The model is loaded by the first call or by `load`; a failed load is
    tried again after a minute. Thread-safe: one thread scores at a time, because the tokenizers
    cannot be shared.

    Args:
        model: A name on the model hub, a folder, or a ``sentence_transformers.CrossEncoder``.
        device: The torch device (``cpu``, ``cuda``, ...); by default the best available.
        batch_size: The number of question-passage pairs per batch.
        trust_remote_code: Whether to run code that comes with the model.
        max_length: The maximum number of tokens per pair; by default the model's maximum.
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
        self._model: Any = None if isinstance(model, str) else model
        self.name: str = model if self._model is None else _read_model_name(model)
        """The model's name or folder."""
        if self._model is None and model in WITH_CODE and not trust_remote_code:
            raise ConfigError(
                f"{model} runs its own code; to allow that, set rerank.trustRemoteCode to"
                " true (trust_remote_code=True), or choose another model",
                path="rerank.trustRemoteCode",
                value=False,
                allowed="true",
            )
        self._batch_size = max(1, batch_size)
        self._options = {
            "device": device,
            "trust_remote_code": trust_remote_code,
            "max_length": max_length,
        }
        self._lock = make_lock()
        self._failure = ""
        self._again_at = 0.0

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self.name!r})"

    def load(self) -> None:
        """Load the model, unless it is loaded already. Raises the same errors as `rerank`."""
        with self._lock:
            self._load_model_once()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one score per text, in the order of *texts*. Higher is better."""
        if not texts:
            return []
        with self._lock:
            model = self._load_model_once()
            # The model itself cuts at its maximum, but only after tokenizing the whole text.
            question = cut_text(model, query)
            pairs = [(question, cut_text(model, text)) for text in texts]
            try:
                scores = model.predict(
                    pairs,
                    batch_size=self._batch_size,
                    show_progress_bar=False,
                )
            except Exception as error:
                raise ModelError(
                    "unavailable", f"the reranker {self.name} failed: {type(error).__name__}"
                ) from error
        return check_rerank_scores(scores, len(texts))

    def _load_model_once(self) -> Any:
        """Return the model. The first call loads the model; meanwhile, other threads wait."""
        if self._model is None:
            # A recent failure is raised again at once, because another try may take seconds.
            if monotonic() < self._again_at:
                raise ModelError("unavailable", self._failure)
            make_error = partial(ModelError, "unavailable")
            try:
                self._model = load_model(
                    "CrossEncoder",
                    self.name,
                    make_error,
                    **self._options,
                )
            except ModelError as error:
                self._failure = str(error)
                self._again_at = monotonic() + AGAIN_SECONDS
                raise
        return self._model


def _read_model_name(model: Any) -> str:
    """Return the name of a loaded *model*, or else the name of its class."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return name if isinstance(name, str) and name else type(model).__name__
