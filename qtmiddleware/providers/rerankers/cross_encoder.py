"""Reranks with a cross-encoder, which reads question and passage together."""

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
"""Models known to be run by code that comes with them."""
LICENCES: Final = {
    "jinaai/jina-reranker-v2-base-multilingual": (
        "CC BY-NC 4.0, which does not allow commercial use"
    ),
}
"""Models known to have a licence that forbids what many would do with them."""
AGAIN_SECONDS: Final = 60.0
"""How long a model that could not be read is not tried again: a hub out of reach takes seconds each time."""

_log = get_logger("qtmiddleware.rerankers")
_warned: Final[set[str]] = set()


class CrossEncoderReranker:
    """Judges passages with a cross-encoder of sentence-transformers (Nogueira and Cho 2019).

    *model* is a name on the model hub, a folder, or a ``sentence_transformers.CrossEncoder``. The
    default is English, under the Apache License 2.0, with 23 million parameters (91 MB); its scores
    are logits, of any sign. For other languages ``jinaai/jina-reranker-v2-base-multilingual`` (278
    million parameters) works by its name. It is licensed under CC BY-NC 4.0, not for commercial
    use, which a warning points out once; and it is run by code that comes with it, so it needs
    *trust_remote_code* (``rerank.trustRemoteCode``).

    *device* is torch's (``cpu``, ``cuda``, ...), by default the best there is. *batch_size* pairs
    are judged at a time.
    *max_length* is the most tokens of a pair, by default what the model reads; longer texts are cut
    by it.

    Nothing is imported, read or downloaded before the first use or `load`. Safe to share among
    threads; they take turns, as the tokenizers cannot be shared. Raises `ConfigError` here where a
    model is known to need
    *trust_remote_code*. Raises on use: `MissingExtra` without the extra ``models``; `ModelError`
    ``unavailable`` if the model cannot be had, which is tried again after a minute, or fails,
    ``unparsable`` if it does not give one finite number a passage.
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
        named = isinstance(model, str)
        self._name = model if named else _find_name(model)
        if named and model in WITH_CODE and not trust_remote_code:
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
        self._model: Any = None if named else model
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
        """Whether the next use will read the model first, which takes seconds, or minutes where it is downloaded."""
        return self._model is None and monotonic() >= self._again_at

    def load(self) -> None:
        """Read the model now, unless it is there already; raises what a use would."""
        with self._lock.free:
            self._load_once()

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """One score a text, in the texts' order; greater is better."""
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
        """The model, read on the first call while other threads wait."""
        if self._model is None:
            if not self.is_unread:
                raise ModelError("unavailable", self._failure)
            _warn_of_licence(self._name)
            try:
                self._model = load_model(
                    "CrossEncoder",
                    self._name,
                    lambda said: ModelError("unavailable", said),
                    device=self._device,
                    trust_remote_code=self._trust,
                    max_length=self._max_length,
                )
            except ModelError as error:
                self._failure, self._again_at = str(error), monotonic() + AGAIN_SECONDS
                raise
        return self._model


def _warn_of_licence(model: str) -> None:
    """Warn of the licence of *model*, once a process, where it is one to be warned of."""
    if model in LICENCES and model not in _warned:
        _warned.add(model)
        about: dict[str, Any] = {"event": "reranker_licence", "model": model}
        _log.warning("the reranker %s is licensed under %s", model, LICENCES[model], **about)


def _find_name(model: Any) -> str:
    """The name a loaded model goes by."""
    name = getattr(getattr(model, "config", None), "_name_or_path", None)
    return name if isinstance(name, str) and name else type(model).__name__
