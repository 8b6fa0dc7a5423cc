"""The table of a LanceDB store: its layout, what a folder must be to be opened as one, and passages on their way in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.kit.stores.passages import Row, check_model, index_text, normalise
from qtmiddleware.runtime.files import PRIVATE_FOLDER, check_link, make_private_folders

if TYPE_CHECKING:
    from qtmiddleware.kit.stores.passages import Floats

VERSION: Final = "2"
_TABLE: Final = "passages"
_FOLDER: Final = f"{_TABLE}.lance"
_MAKING: Final = ".making-"
"""What a folder's name begins with while a table is made in it."""
_MARK: Final = b"qtmiddleware"


def open_table(path: Path, *, embedding_model: str, dimension: int) -> tuple[Any, str]:
    """The table in the folder *path* and its identity, made where there is none.

    A folder that holds something else, or was made with another embedding model, is left as it is.
    Raises `StoreError`.
    """
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtra("lancedb", "lancedb") from error
    try:
        check_link(path)
        if path.exists() and not path.is_dir():
            raise StoreError(
                f"the store {path} cannot be opened: it is not a folder, as a store of the kind"
                " lancedb is; name another path, or the kind it was made with (store.kind)"
            )
        make_private_folders(path)
        held = [it.name for it in path.iterdir() if not it.name.startswith(_MAKING)]
        if _FOLDER not in held:
            if held:
                raise StoreError(f"the folder {path} holds other files; name another path")
            _make(path, embedding_model, dimension)
        # Looks at every read whether another process has written.
        table = lancedb.connect(path, read_consistency_interval=timedelta(0)).open_table(_TABLE)
    except StoreError:
        raise
    except Exception as error:
        # Where it stumbles over damage LanceDB raises a class of its own, and tells where in its
        # sources.
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
    import pyarrow as pa
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
        table: Any = lancedb.connect(folder).create_table(
            _TABLE, schema=pa.schema(columns, metadata=facts)
        )
        # Two processes that write the same new id at once are told apart by it.
        table.set_unenforced_primary_key("id")
        # The words are cut by us, alike for all stores; the index folds case and accents.
        table.create_index(
            "words",
            config=FTS(
                base_tokenizer="whitespace",
                stem=False,
                remove_stop_words=False,
                max_token_length=None,
            ),
        )
        # LanceDB makes its files as the umask has it; they hold the passages, and *path* may be
        # open to others.
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
        raise StoreError(
            f"the LanceDB folder {path} belongs to another program; choose another path"
        )
    if version != VERSION:
        raise StoreError(
            f"{path} has the layout {version}, this version reads {VERSION}: move it away, ingest"
            " again"
        )
    check_model(
        path, held[b"embedding_model"].decode(), int(held[b"dimension"]), embedding_model, dimension
    )


_IN_MEMORY: Final = 32 << 20
"""Bytes that are kept in memory before a file is made."""


@contextmanager
def spill(
    slices: Iterable[tuple[list[Row], Floats]], schema: Any, folder: Path
) -> Iterator[tuple[int, Any]]:
    """How many different ids *slices* hold, and a reader over them that keeps the last of each id.

    The table refuses an id that comes twice and has to be able to read again where another writer
    was faster; and what makes the passages should neither run inside its commit nor fail there. So
    they are taken first, into a file without a name beside the table; only the ids stay in memory.
    """
    import pyarrow as pa

    last: dict[str, int] = {}
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=str(folder)) as file:
        position = 0
        with pa.ipc.new_stream(file, schema) as writer:
            for rows, vectors in slices:
                last.update((row[0], position + number) for number, row in enumerate(rows))
                position += len(rows)
                try:
                    writer.write_batch(_batch(rows, vectors, schema))
                except OSError as error:
                    raise StoreError(
                        f"the store {folder} could not be written to: {error}"
                    ) from error
        file.seek(0)
        yield (
            len(last),
            pa.RecordBatchReader.from_batches(schema, _keep_last(pa.ipc.open_stream(file), last)),
        )


def _keep_last(batches: Iterable[Any], last: dict[str, int]) -> Iterator[Any]:
    import pyarrow as pa

    position = 0
    for batch in batches:
        kept = [
            last[id_] == position + number for number, id_ in enumerate(batch["id"].to_pylist())
        ]
        position += len(kept)
        yield batch if all(kept) else batch.filter(pa.array(kept))


def _batch(rows: list[Row], vectors: Floats, schema: Any) -> Any:
    import pyarrow as pa

    ids, texts, metadata = zip(*rows, strict=True)
    words = [index_text(text, facts) for _, text, facts in rows]
    # Of length 1 or 0, so that a product is the cosine and one without direction has the score 0.
    flat = pa.array(normalise(vectors.copy()).ravel())
    vector = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    columns = [pa.array(values, pa.string()) for values in (ids, texts, words, metadata)]
    return pa.record_batch([*columns, vector], schema=schema)
