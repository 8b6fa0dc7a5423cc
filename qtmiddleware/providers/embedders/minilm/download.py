"""Fetches the official files once, from the model hub, at a pinned revision."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from qtmiddleware.errors import EmbeddingError
from qtmiddleware.runtime.logs import get_logger

HUB: Final = "https://huggingface.co"
MODEL: Final = "sentence-transformers/all-MiniLM-L6-v2"
REVISION: Final = "c9745ed1d9f207416be6d2e6f8de32d3f16199bf"
TIMEOUT: Final = 10.0
"""Seconds without a connection, or without a further byte, after which the hub counts as out of reach."""
MOST_BYTES: Final = 200_000_000
"""Twice what the larger of the two files has."""
_CHUNK: Final = 1 << 20

_log = get_logger("qtmiddleware.embedders")


def download(folder: Path, sha256: Mapping[str, str], *, hub: str | None = None) -> None:
    """Fetch the files named in *sha256* into *folder*, each appearing there whole and checked or not at all.

    *hub* is the hub's address, by default ``$HF_ENDPOINT`` or the public one. Raises `EmbeddingError` if the hub is out
    of reach, answers with something else, ``HF_HUB_OFFLINE`` is set, or the folder cannot be written.
    """
    base = (hub or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    if any(mark in base for mark in "@?#"):
        # Nothing of it is ever shown, then.
        raise EmbeddingError("HF_ENDPOINT holds a name and password or a query; name the address alone")
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise EmbeddingError("HF_HUB_OFFLINE forbids the download")
    _log.info("downloading %s (91 MB, once) from %s into %s", MODEL, base, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, expected in sha256.items():
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
                    raise EmbeddingError(f"{url} answered more than {MOST_BYTES:,} bytes: not the official file")
                digest.update(chunk)
                file.write(chunk)
        if digest.hexdigest() != expected:
            raise EmbeddingError(f"{url} answered another file than the official one (its sha256 is not {expected})")
        Path(name).replace(target)
    except HTTPException as error:
        raise OSError(f"{type(error).__name__} from {url}") from error
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()
