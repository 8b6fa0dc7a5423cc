"""Passages on their way into the table: all of them on disk first, each id once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.providers.stores.checks import Row, normalised
from qtmiddleware.providers.stores.words import index_text

if TYPE_CHECKING:
    from qtmiddleware.providers.stores.checks import Floats

_IN_MEMORY: Final = 32 << 20
"""Bytes that are kept in memory before a file is made."""


@contextmanager
def spilled(slices: Iterable[tuple[list[Row], Floats]], schema: Any, folder: Path) -> Iterator[tuple[int, Any]]:
    """How many different ids *slices* hold, and a reader over them that keeps the last of each id.

    The table refuses an id that comes twice and has to be able to read again where another writer was faster; and what
    makes the passages should neither run inside its commit nor fail there. So they are taken first, into a file without
    a name beside the table; only the ids stay in memory.
    """
    import pyarrow as pa  # type: ignore[import-untyped]

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
                    raise StoreError(f"the store {folder} could not be written to: {error}") from error
        file.seek(0)
        yield len(last), pa.RecordBatchReader.from_batches(schema, _each_once(pa.ipc.open_stream(file), last))


def _each_once(batches: Iterable[Any], last: dict[str, int]) -> Iterator[Any]:
    import pyarrow as pa

    position = 0
    for batch in batches:
        kept = [last[id_] == position + number for number, id_ in enumerate(batch["id"].to_pylist())]
        position += len(kept)
        yield batch if all(kept) else batch.filter(pa.array(kept))


def _batch(rows: list[Row], vectors: Floats, schema: Any) -> Any:
    import pyarrow as pa

    ids, texts, metadata = zip(*rows, strict=True)
    words = [index_text(text, facts) for _, text, facts in rows]
    # Of length 1 or 0, so that a product is the cosine and one without direction has the score 0.
    flat = pa.array(normalised(vectors.copy()).ravel())
    vector = pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])
    columns = [pa.array(values, pa.string()) for values in (ids, texts, words, metadata)]
    return pa.record_batch([*columns, vector], schema=schema)
