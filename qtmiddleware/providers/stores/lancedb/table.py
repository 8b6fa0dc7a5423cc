"""The layout of a LanceDB store, and what a folder must be to be opened as one."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.runtime.files import PRIVATE_FOLDER, check_link, make_private_folders

VERSION: Final = "2"
_TABLE: Final = "passages"
_FOLDER: Final = f"{_TABLE}.lance"
_MAKING: Final = ".making-"
"""What a folder's name begins with while a table is made in it."""
_MARK: Final = b"qtmiddleware"


def open_table(path: Path, *, embedding_model: str, dimension: int) -> tuple[Any, str]:
    """The table in the folder *path* and its identity, made where there is none.

    A folder that holds something else, or was made with another embedding model, is left as it is. Raises `StoreError`.
    """
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtra("lancedb", "lancedb") from error
    try:
        check_link(path)
        if path.exists() and not path.is_dir():
            raise StoreError(
                f"the store {path} cannot be opened: it is not a folder, as a store of the kind lancedb is; "
                "name another path, or the kind it was made with (store.kind)"
            )
        make_private_folders(path)
        held = [it.name for it in path.iterdir() if not it.name.startswith(_MAKING)]
        if _FOLDER not in held:
            if held:
                raise StoreError(f"the folder {path} holds something else; it was left as it is: name another path")
            _make(path, embedding_model, dimension)
        # Looks at every read whether another process has written.
        table = lancedb.connect(path, read_consistency_interval=timedelta(0)).open_table(_TABLE)
    except StoreError:
        raise
    except Exception as error:
        # Where it stumbles over damage LanceDB raises a class of its own, and tells where in its sources.
        why = getattr(error, "strerror", None) or type(error).__name__
        raise StoreError(
            f"the store {path} cannot be opened or is damaged ({why}); "
            "it was left as it is: name another path, or move it away and ingest again"
        ) from error
    _check(table.schema.metadata or {}, path, embedding_model, dimension)
    return table, table.schema.metadata[b"identity"].decode()


def _make(path: Path, embedding_model: str, dimension: int) -> None:
    """Make the table beside its place and move it there whole; of two processes that come at once, one succeeds."""
    import lancedb
    import pyarrow as pa  # type: ignore[import-untyped]
    from lancedb.index import FTS

    facts = {
        _MARK: VERSION,
        "embedding_model": embedding_model,
        "dimension": str(dimension),
        "identity": uuid4().hex,
    }
    columns = [
        pa.field("id", pa.string(), nullable=False),
        ("text", pa.string()),
        ("words", pa.string()),
        ("metadata", pa.string()),
        ("vector", pa.list_(pa.float32(), dimension)),
    ]
    with tempfile.TemporaryDirectory(prefix=_MAKING, dir=path) as folder:
        table: Any = lancedb.connect(folder).create_table(_TABLE, schema=pa.schema(columns, metadata=facts))
        # Two processes that write the same new id at once are told apart by it.
        table.set_unenforced_primary_key("id")
        # The words are cut by us, alike for all stores; the index folds case and accents.
        table.create_index(
            "words",
            config=FTS(base_tokenizer="whitespace", stem=False, remove_stop_words=False, max_token_length=None),
        )
        # LanceDB makes its files as the umask has it; they hold the passages, and *path* may be open to others.
        (Path(folder) / _FOLDER).chmod(PRIVATE_FOLDER)
        try:
            (Path(folder) / _FOLDER).rename(path / _FOLDER)
        except OSError:
            if not (path / _FOLDER).exists():
                raise


def _check(held: dict[bytes, bytes], path: Path, embedding_model: str, dimension: int) -> None:
    """Raise `StoreError` unless the table is a store of this version, made with this model."""
    version = held.get(_MARK, b"").decode()
    if not version:
        raise StoreError(f"{path} is the LanceDB folder of another program; it was left as it is: name another path")
    if version != VERSION:
        raise StoreError(f"{path} has the layout {version}, this version reads {VERSION}: move it away, ingest again")
    model, length = held[b"embedding_model"].decode(), int(held[b"dimension"])
    if (model, length) != (embedding_model, dimension):
        raise StoreError(
            f"{path} was made with the embedding model {model!r} ({length} numbers a vector) and cannot be used with "
            f"{embedding_model!r} ({dimension}): their vectors mean different things. Use {model!r}, or ingest again "
            "into another path"
        )
