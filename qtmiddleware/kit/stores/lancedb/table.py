"""Create, open and check the table of a LanceDB store, and prepare the rows to write to it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from qtmiddleware.errors import MissingExtra, StoreError
from qtmiddleware.kit.stores.passages import (
    Row,
    check_stored_model,
    extract_index_words,
    normalise_vectors,
)
from qtmiddleware.runtime.files import PRIVATE_FOLDER, make_private_folders, resolve_trusted_link

if TYPE_CHECKING:
    from qtmiddleware.kit.stores.passages import Floats

VERSION: Final = "2"
_TABLE: Final = "passages"
_FOLDER: Final = f"{_TABLE}.lance"
_MAKING: Final = ".making-"
"""The prefix of temporary folders in which a table is created."""
_MARK: Final = b"qtmiddleware"


def open_table_with_identity(
    path: Path, *, embedding_model: str, dimension: int
) -> tuple[Any, str]:
    """Open or create the table in the folder *path*, and return the table and its identity.

    The identity is a random name, created with the table. Raises `StoreError` if the folder has
    other content, or was created for another embedding model. The folder then stays unchanged.
    """
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtra("lancedb", "lancedb") from error
    try:
        resolve_trusted_link(path)
        if path.exists() and not path.is_dir():
            raise StoreError(
                f"the store {path} cannot be opened: it is not a folder, as a store of the kind"
                " lancedb is; name another path, or the kind it was made with (store.kind)"
            )
        make_private_folders(path)
        names = [entry.name for entry in path.iterdir() if not entry.name.startswith(_MAKING)]
        if _FOLDER not in names:
            if names:
                raise StoreError(f"the folder {path} holds other files; name another path")
            _create_table(path, embedding_model, dimension)
        # With the interval 0, each read checks whether another process has written.
        table = lancedb.connect(path, read_consistency_interval=timedelta(0)).open_table(_TABLE)
    except StoreError:
        raise
    except Exception as error:
        # For damaged files, LanceDB's messages quote its own source code, so only the class is
        # shown.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise StoreError(
            f"the store {path} cannot be opened or is damaged ({reason}); "
            "it was left as it is: name another path, or move it away and ingest again"
        ) from error
    _check_table(table.schema.metadata or {}, path, embedding_model, dimension)
    return table, table.schema.metadata[b"identity"].decode()


def _create_table(path: Path, embedding_model: str, dimension: int) -> None:
    """Create the table in a temporary folder, and then move the table into the folder *path*.

    If another process has created a table there in the meantime, that table is kept.
    """
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
        # Otherwise two processes that write the same new id at the same time would both add it.
        table.set_unenforced_primary_key("id")
        # The words are extracted in the same way for all stores. The index ignores case and
        # accents.
        table.create_index(
            "words",
            config=FTS(
                base_tokenizer="whitespace",
                stem=False,
                remove_stop_words=False,
                max_token_length=None,
            ),
        )
        # LanceDB creates its files with the permissions of the umask, and other users may be able
        # to read the folder *path*.
        (Path(folder) / _FOLDER).chmod(PRIVATE_FOLDER)
        try:
            (Path(folder) / _FOLDER).rename(path / _FOLDER)
        except OSError:
            if not (path / _FOLDER).exists():
                raise


def _check_table(
    schema_metadata: dict[bytes, bytes], path: Path, embedding_model: str, dimension: int
) -> None:
    """Check that the table can be used with this *embedding_model* and *dimension*.

    *schema_metadata* describes the table. Raises `StoreError` if the table is from another program,
    or has another format version, embedding model or dimension.
    """
    version = schema_metadata.get(_MARK, b"").decode()
    if not version:
        raise StoreError(
            f"the LanceDB folder {path} belongs to another program; choose another path"
        )
    if version != VERSION:
        raise StoreError(
            f"{path} has the layout {version}, this version reads {VERSION}: move it away, ingest"
            " again"
        )
    check_stored_model(
        path,
        schema_metadata[b"embedding_model"].decode(),
        int(schema_metadata[b"dimension"]),
        embedding_model,
        dimension,
    )


_IN_MEMORY: Final = 32 << 20
"""The size of passages, in bytes, above which a temporary file replaces memory."""


@contextmanager
def buffer_and_count_rows(
    batches: Iterable[tuple[list[Row], Floats]], schema: Any, folder: Path
) -> Iterator[tuple[int, Any]]:
    """Write all rows to a temporary file, then yield the number of distinct ids and a row reader.

    The row reader reads the temporary file. It returns only the last row with each id, because the
    table rejects repeated ids. Only the ids stay in memory.

    Args:
        batches: the rows and vectors to write. All are read at once, so that an error in their
            iterator cannot interrupt the later commit.
        schema: the table's schema.
        folder: the folder for the temporary file.
    """
    import pyarrow as pa

    last_positions: dict[str, int] = {}
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, dir=str(folder)) as file:
        position = 0
        with pa.ipc.new_stream(file, schema) as writer:
            for rows, vectors in batches:
                last_positions.update(
                    (row[0], position + number) for number, row in enumerate(rows)
                )
                position += len(rows)
                try:
                    writer.write_batch(_build_batch(rows, vectors, schema))
                except OSError as error:
                    raise StoreError(
                        f"the store {folder} could not be written to: {error}"
                    ) from error
        file.seek(0)
        yield (
            len(last_positions),
            pa.RecordBatchReader.from_batches(
                schema, _drop_replaced_rows(pa.ipc.open_stream(file), last_positions)
            ),
        )


def _drop_replaced_rows(batches: Iterable[Any], last_positions: dict[str, int]) -> Iterator[Any]:
    """Yield *batches*, with only the last row for each id.

    *last_positions* maps each id to the position of its last row.
    """
    import pyarrow as pa

    position = 0
    for batch in batches:
        is_kept = [
            last_positions[id_] == position + number
            for number, id_ in enumerate(batch["id"].to_pylist())
        ]
        position += len(is_kept)
        yield batch if all(is_kept) else batch.filter(pa.array(is_kept))


def _build_batch(rows: list[Row], vectors: Floats, schema: Any) -> Any:
    """Return *rows* and *vectors* as a record batch for a table with this *schema*.

    The batch also contains the words to index. Its vectors are scaled to length 1.
    """
    import pyarrow as pa

    ids, texts, metadata = zip(*rows, strict=True)
    words = [extract_index_words(text, facts) for _, text, facts in rows]
    # The dot product of scaled vectors is the cosine. A vector of length 0 keeps the score 0.
    numbers = pa.array(normalise_vectors(vectors.copy()).ravel())
    vector = pa.FixedSizeListArray.from_arrays(numbers, vectors.shape[1])
    columns = [pa.array(values, pa.string()) for values in (ids, texts, words, metadata)]
    return pa.record_batch([*columns, vector], schema=schema)
