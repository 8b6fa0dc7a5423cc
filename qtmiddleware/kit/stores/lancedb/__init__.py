"""Store passages in a LanceDB folder, for collections that are too large for memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import QtMiddlewareError, StoreError
from qtmiddleware.kit.stores.filters import Matcher, build_matcher
from qtmiddleware.kit.stores.lancedb.table import buffer_and_count_rows, open_table_with_identity
from qtmiddleware.kit.stores.passages import (
    DIGITS,
    LocalStore,
    build_row_batches,
    convert_query_vector,
    extract_query_words,
    normalise_vectors,
    select_storable_ids,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

_log = get_logger("qtmiddleware.stores")

_WIDER: Final = 16
"""The factor by which a search widens if a filter or equal scores leave too few passages."""
_FEW: Final = 5_000
"""The maximum number of ids in a query; for more ids, filtering the search's results is faster."""
_REMEMBERED: Final = 32
"""The maximum number of filters whose matching ids are cached."""
_WRITES_BETWEEN: Final = 20
"""The number of writes, or of table fragments, after which the table's files are merged."""
_LOOSE: Final = 1_000
"""The number of passages without indexed words after which the index is updated.

For a large table, the number is a tenth of all passages. Passages without indexed words are
searched one by one.
"""
_KEPT: Final = timedelta(hours=1)
"""How long outdated files are kept for readers in other processes."""


class LanceDBStore(LocalStore):
    """Keeps passages in a LanceDB folder, and finds them by vector or by word.

    Use this store for collections that are too large for `SQLiteStore`. Each search compares the
    query with all vectors, by cosine. Results are therefore exact, and the search time grows with
    the number of vectors. Writes by other processes are visible in the next search. A write is
    saved completely or not at all, even if the process is killed. Thread-safe, but must not be used
    across a fork.

    Args:
        path: the path of a folder. The store creates a missing folder, which only the owner can
            open.
        embedding_model: the model of all vectors; saved in the folder.
        dimension: the length of all vectors; saved in the folder.

    Raises:
        StoreError: if the folder was created for another model or dimension, or if it cannot be
            opened, read or written.
        InvalidQuery: for an invalid filter.
        MissingExtra: if LanceDB is not installed.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = Path(path).expanduser()
        self._dimension = dimension
        self._write_lock = ForkLock()
        self._writes = 0
        self._ids_by_filter: dict[tuple[int, str], list[str] | None] = {}
        self._open: Any
        self._open, self._identity = open_table_with_identity(
            self._path, embedding_model=embedding_model, dimension=dimension
        )

    def __repr__(self) -> str:
        return f"LanceDBStore({str(self._path)!r}, dimension={self._dimension})"

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages* with their vectors, and remove the passages with the ids in *delete*.

        All changes are one transaction. A passage replaces the stored passage with the same id. If
        several passages have the same id, the last one is stored. If an id is in both *passages*
        and *delete*, the passage is written.

        The method first collects *passages* in a temporary file. If their iterator raises an
        exception, the store is not changed.
        """
        with self._use_table("written to") as table:
            schema = table.schema
        # The passages are read before the lock is taken, because their iterator may be slow.
        with buffer_and_count_rows(
            build_row_batches(passages, self._dimension), schema, self._path
        ) as (
            count,
            reader,
        ):
            removed_ids = select_storable_ids(delete)
            if not count and not removed_ids:
                return
            with self._write_lock.lock, self._use_table("written to") as table:
                merge = (
                    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                )
                if removed_ids:
                    merge = merge.when_not_matched_by_source_delete(build_id_condition(removed_ids))
                merge.execute(reader)
                self._merge_files_if_due(table)

    def count(self) -> int:
        """Return the number of passages."""
        with self._use_table("read") as table:
            return int(table.count_rows())

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages nearest to the vector *query* that meet *filter*, best first.

        Each result is a dictionary with the keys ``id``, ``score``, ``text`` and ``metadata``. The
        score is the cosine, from -1 to 1, rounded to six decimals. Passages with equal scores are
        sorted by id. Raises `StoreError` if *query* is a text.

        If few of the nearest passages meet the filter, the search reads all metadata. It caches the
        ids that meet the filter until the next write.
        """
        vector = normalise_vectors(convert_query_vector(query, self._dimension)[None].copy())[0]

        # A vector index, if someone created one, would make the results approximate.
        def build_query(table: Any) -> Any:
            return (
                table.search(vector, vector_column_name="vector")
                .distance_type("dot")
                .bypass_vector_index()
            )

        return self._find_best_passages(
            build_query, "_distance", lambda distance: 1.0 - distance, top_k, filter
        )

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that best match the words of *text* and meet *filter*.

        The best passage comes first. Results have the same keys as those of `search`. The score is
        BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009); greater is better. Passages with equal
        scores are sorted by id.

        The search covers each passage's text and the field ``context`` of its metadata. *text* has
        no query syntax. In scripts without spaces, each pair of adjacent characters is a word.
        """
        words = " ".join(extract_query_words(text))

        def build_query(table: Any) -> Any:
            return table.search(words, query_type="fts", fts_columns="words")

        return self._find_best_passages(build_query, "_score", float, top_k if words else 0, filter)

    def close(self) -> None:
        """Close the store; you can call this more than once."""
        self._open = None

    def _find_best_passages(
        self,
        build_query: Callable[[Any], Any],
        score_column: str,
        compute_score: Callable[[float], float],
        top_k: int,
        filter: Filter | None,  # noqa: A002
    ) -> list[Record]:
        """Run a LanceDB query, and return the *top_k* best passages that meet *filter*.

        The result is exact, even with a filter or equal scores. LanceDB cannot filter by the
        metadata, so this method filters the results. If too few results meet the filter, this
        method reads all metadata, and runs the query only on the ids that meet the filter. If there
        are too many such ids, this method fetches more results instead.

        Args:
            build_query: a function that takes the table and returns the query.
            score_column: the column in which LanceDB returns its score or distance.
            compute_score: a function that converts a value of *score_column* to a score.
            top_k: the number of passages to return.
            filter: the condition on the metadata, if any.
        """
        matcher = build_matcher(filter) if filter else None
        if top_k < 1:
            return []
        # One passage more than needed shows whether others have the same score as the last one.
        limit = 1 + top_k * (1 if matcher is None else 4)
        with self._use_table("read") as table:
            by_id = (table.version, repr(filter)) in self._ids_by_filter
            while True:
                version = table.version
                if (
                    matcher
                    and by_id
                    and (matching_ids := self._find_matching_ids(table, version, filter, matcher))
                    is not None
                ):
                    request = (
                        build_query(table)
                        .where(build_id_condition(matching_ids), prefilter=True)
                        .limit(max(1, len(matching_ids)))
                    )
                    best = _filter_and_sort_records(
                        _fetch_records(request, score_column, compute_score), matcher
                    )
                    if table.version == version:
                        break
                    # Another write came in between, so these ids may lack its passages. The search
                    # below sees a single version of the table.
                records = _fetch_records(
                    build_query(table).limit(limit), score_column, compute_score
                )
                best = _filter_and_sort_records(records, matcher)[:top_k]
                # The result is complete if there are no more passages, or if all others have lower
                # scores.
                if len(records) < limit or (
                    len(best) == top_k and best[-1]["score"] > records[-1]["score"]
                ):
                    break
                limit *= _WIDER
                by_id = True
        return [{**record, "metadata": json.loads(record["metadata"])} for record in best[:top_k]]

    def _find_matching_ids(
        self,
        table: Any,
        version: int,
        filter: Filter | None,  # noqa: A002
        matcher: Matcher,
    ) -> list[str] | None:
        """Return the ids of all passages that meet *filter*, or ``None`` if there are too many.

        The limit is `_FEW` ids. The ids are cached per filter and *version* of the table. *matcher*
        checks a passage's metadata against the filter.
        """
        key = version, repr(filter)
        if key in self._ids_by_filter:
            return self._ids_by_filter.get(key)
        ids: list[str] = []
        for batch in table.search().select(["id", "metadata"]).to_batches():
            values = json.loads(f"[{','.join(batch['metadata'].to_pylist())}]")
            ids.extend(
                id_
                for id_, value in zip(batch["id"].to_pylist(), values, strict=True)
                if matcher(value)
            )
        ids_if_few = ids if len(ids) <= _FEW else None
        # Each user may have another filter, so the cache must not grow without limit.
        if len(self._ids_by_filter) >= _REMEMBERED:
            self._ids_by_filter.clear()
        self._ids_by_filter[key] = ids_if_few
        return ids_if_few

    def _merge_files_if_due(self, table: Any) -> None:
        """Merge the table's files and index new words, once there were enough writes.

        Call this method after each write. A failure is only logged, because the write is complete.
        """
        self._writes += 1
        try:
            fragment_count = table.stats()["fragment_stats"]["num_fragments"]
            unindexed_count = max(
                (
                    table.index_stats(index.name).num_unindexed_rows
                    for index in table.list_indices()
                ),
                default=0,
            )
            if max(self._writes, fragment_count) >= _WRITES_BETWEEN or unindexed_count > max(
                _LOOSE, table.count_rows() // 10
            ):
                self._writes = 0
                table.optimize(cleanup_older_than=_KEPT)
        except (OSError, RuntimeError, ValueError) as error:
            kind = type(error).__name__
            _log.debug(
                "the files of the store could not be compacted: %s",
                kind,
                event="compact_failed",
                error=kind,
            )

    @contextmanager
    def _use_table(self, failed_action: str) -> Iterator[Any]:
        """Yield the table, and convert errors in the ``with`` block into `StoreError`.

        *failed_action* is the action that the error message names, such as ``read``.
        """
        table = self._open
        if table is None:
            raise StoreError(f"the store {self._path} could not be {failed_action}: it is closed")
        try:
            yield table
        except QtMiddlewareError:
            raise
        except Exception as error:
            # LanceDB's message may quote a query or a passage, so only its class is shown. Damaged
            # files raise errors of many classes.
            raise StoreError(
                f"the store {self._path} could not be {failed_action} ({type(error).__name__});"
                " the cause of this error has details. If the disk is not full, the folder is"
                " damaged: move it away and ingest again"
            ) from error


def build_id_condition(ids: list[str]) -> str:
    """Return the SQL condition that selects the passages with these *ids*."""
    if not ids:
        return "false"
    quoted_ids = ("'" + id_.replace("'", "''") + "'" for id_ in ids)
    return f"id IN ({', '.join(quoted_ids)})"


def _filter_and_sort_records(records: list[Record], matcher: Matcher | None) -> list[Record]:
    """Return the *records* whose metadata meets a filter, best score first, then by id.

    *matcher* checks metadata against the filter. Without a *matcher*, returns all records.
    """
    matching_records = (
        record for record in records if matcher is None or matcher(json.loads(record["metadata"]))
    )
    return sorted(matching_records, key=lambda record: (-record["score"], record["id"]))


def _fetch_records(
    query: Any, score_column: str, compute_score: Callable[[float], float]
) -> list[Record]:
    """Run a LanceDB *query*, and return the results as records whose metadata is JSON text.

    *compute_score* converts a value of the column *score_column* to a score.
    """
    results = query.select(["id", "text", "metadata", score_column]).to_arrow()
    columns = [results[name].to_pylist() for name in ("id", "text", "metadata", score_column)]
    return [
        {
            "id": id_,
            "score": round(compute_score(measured), DIGITS),
            "text": text,
            "metadata": metadata,
        }
        for id_, text, metadata, measured in zip(*columns, strict=True)
    ]


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> LanceDBStore:
    """Open the LanceDB store at ``indexPath``, for vectors of *embedding_model*.

    Raises `StoreError` if the store cannot be opened.
    """
    return LanceDBStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
