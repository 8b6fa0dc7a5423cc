"""Rerank with a cross-encoder, which reads the question and a passage together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.providers.loading import cut_text, load_model
from qtmiddleware.runtime.forking import make_lock

AGAIN_SECONDS: Final = 60.0
"""The pause in seconds before a failed load is tried again, because each try may take seconds."""


class CrossEncoderReranker:
    """Scores passages with a sentence-transformers cross-encoder (Nogueira and Cho 2019).

    Scores are logits and may be negative. The model is loaded by the first call or by `load`; a
    failed load is tried again after a minute. Thread-safe: one thread scores at a time, because the
    tokenizers cannot be shared.

    Args:
        model: A name on the model hub, or a folder.
        trust_remote_code: Whether to run code that comes with the model.
    """

    def __init__(self, model: str, *, trust_remote_code: bool = False) -> None:
        self.name = model
        """The model's name or folder."""
        self._model: Any = None
        self._trust_remote_code = trust_remote_code
        self._lock = make_lock()
        self._failure = ""
        self._again_at = 0.0

    def __repr__(self) -> str:
        return f"CrossEncoderReranker({self.name!r})"

    def load(self) -> None:
        """Load the model, unless it is loaded already. Raises the same errors as `rerank`."""
        with self._lock:
            self._load_model_once()

    def rerank(self, query: str, texts: Sequence[str]) -> Any:
        """Return one score per text as an array, in the order of *texts*. Higher is better."""
        with self._lock:
            model = self._load_model_once()
            # The model itself cuts at its maximum, but only after tokenizing the whole text.
            question = cut_text(model, query)
            pairs = [(question, cut_text(model, text)) for text in texts]
            try:
                return model.predict(pairs, show_progress_bar=False)
            except Exception as error:
                raise ModelError(
                    "unavailable", f"the reranker {self.name} failed: {type(error).__name__}"
                ) from error

    def _load_model_once(self) -> Any:
        """Return the model. The first call loads the model; meanwhile, other threads wait."""
        if self._model is not None:
            return self._model
        if monotonic() < self._again_at:
            raise ModelError("unavailable", self._failure)
        make_error = partial(ModelError, "unavailable")
        try:
            self._model = load_model(
                "CrossEncoder",
                self.name,
                make_error,
                trust_remote_code=self._trust_remote_code,
            )
        except ModelError as error:
            self._failure, self._again_at = str(error), monotonic() + AGAIN_SECONDS
            raise
        return self._model
