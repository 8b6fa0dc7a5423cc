"""A store in a folder of columnar files: LanceDB, for more than fits in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import QtMiddlewareError, StoreError
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.providers.stores.filters import Condition
from qtmiddleware.providers.stores.lancedb.table import open_table, spill
from qtmiddleware.providers.stores.passages import (
    DIGITS,
    LocalStore,
    check_query,
    check_slices,
    filter_ids,
    normalise,
    query_words,
)
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

_WIDER: Final = 16
"""How many times more is asked for where filter or ties leave too little."""
_FEW: Final = 5_000
"""Ids that are asked for by name; for more it is quicker to look through what is found."""
_REMEMBERED: Final = 32
"""Filters whose ids are kept until the table changes."""


class ExactSearch:
    """Finds the best of a table, exactly: neither a filter nor chance among equals keeps a better one out.

    The table cannot read metadata itself. So what it finds is held against the filter here; where few of the best meet
    it, all metadata is read once, and those few that meet it are asked for by id.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[int, str], list[str] | None] = {}

    def find_best(
        self,
        table: Any,
        query: Callable[[], Any],
        measure: str,
        score: Callable[[float], float],
        *,
        top_k: int,
        condition: Condition | None,
    ) -> list[Record]:
        """The *top_k* of what *query* makes, by the *score* of their *measure*, those of equal score by id."""
        if top_k < 1:
            return []
        first = limit = 1 + top_k * (1 if condition is None else 4)
        while True:
            version = table.version
            if condition is not None and (limit > first or (version, condition.key) in self._met):
                few = self._find_few(table, version, condition)
                if few is not None:
                    asked = query().where(match_ids(few), prefilter=True).limit(max(1, len(few)))
                    found = _sort(_read_records(asked, measure, score), condition)
                    if table.version == version:
                        break
                    # Ids of before a write say nothing of what came by it; the search below is of one state.
            seen = _read_records(query().limit(limit), measure, score)
            found = _sort(seen, condition)[:top_k]
            enough = len(found) == top_k and found[-1]["score"] > seen[-1]["score"]
            if enough or len(seen) < limit:
                break
            limit *= _WIDER
        return [{**one, "metadata": json.loads(one["metadata"])} for one in found[:top_k]]

    def _find_few(self, table: Any, version: int, condition: Condition) -> list[str] | None:
        """The ids that meet *condition*, read once for each version of the table; ``None`` where they are many."""
        key = version, condition.key
        if key not in self._met:
            ids = _find_matching(table, condition)
            if len(self._met) >= _REMEMBERED:
                self._met.clear()
            self._met[key] = few = ids if len(ids) <= _FEW else None
            return few
        return self._met.get(key)


def match_ids(ids: list[str]) -> str:
    """The condition that a passage is one of these, as SQL writes it."""
    if not ids:
        return "false"
    quoted = ("'" + id_.replace("'", "''") + "'" for id_ in ids)
    return f"id IN ({', '.join(quoted)})"


def _find_matching(table: Any, condition: Condition) -> list[str]:
    found: list[str] = []
    for batch in table.search().select(["id", "metadata"]).to_batches():
        values = json.loads(f"[{','.join(batch['metadata'].to_pylist())}]")
        ids = batch["id"].to_pylist()
        found.extend(id_ for id_, value in zip(ids, values, strict=True) if condition.meets(value))
    return found


def _sort(records: list[Record], condition: Condition | None) -> list[Record]:
    met = (one for one in records if condition is None or condition.meets(json.loads(one["metadata"])))
    return sorted(met, key=lambda one: (-one["score"], one["id"]))


def _read_records(query: Any, measure: str, score: Callable[[float], float]) -> list[Record]:
    """What a query of the table finds, with the metadata as it is stored."""
    found = query.select(["id", "text", "metadata", measure]).to_arrow()
    columns = [found[name].to_pylist() for name in ("id", "text", "metadata", measure)]
    return [
        {"id": id_, "score": round(score(measured), DIGITS), "text": text, "metadata": metadata}
        for id_, text, metadata, measured in zip(*columns, strict=True)
    ]


_log = get_logger(__name__)

_WRITES_BETWEEN: Final = 20
"""Writes, or pieces of the table, after which its files are brought together."""
_LOOSE: Final = 1_000
"""Passages whose words may wait to be put into the index; until then they are searched one by one."""
_KEPT: Final = timedelta(hours=1)
"""How long superseded files stay for readers of other processes."""


class LanceDBStore(LocalStore):
    """Keeps passages in a folder, on disk, and finds them by vector or by word; for what is too much for `SQLiteStore`.

    *path* is a folder, made if it is not there and open to its owner alone. *embedding_model* and *dimension* are kept
    in it; opening it with others raises `StoreError`.

    Every search looks at every vector, by cosine: exact, and as long as there are vectors. What another process has
    written is seen by the next search. Safe to share among threads, not across a fork. A write is kept whole or not at
    all, also when the process is killed.

    Raises `StoreError` whenever the folder cannot be opened, read or written, `InvalidQuery` for an impossible filter
    and `MissingExtra` without LanceDB.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = Path(path).expanduser()
        self._dimension = dimension
        self._writing = ForkLock()
        self._writes = 0
        self._search = ExactSearch()
        self._open: Any
        self._open, self._identity = open_table(self._path, embedding_model=embedding_model, dimension=dimension)

    def __repr__(self) -> str:
        return f"LanceDBStore({str(self._path)!r}, dimension={self._dimension})"

    def write(self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()) -> None:
        """Write *passages*, replacing those of the same id, and remove those of the ids *delete*, as one change.

        *passages* are taken as they come, into a temporary file beside the table, and then written; what they raise
        passes through and nothing is written. Of several with one id the last stays; an id in both is written.
        """
        with self._use_table("written to") as table:
            schema = table.schema
        with spill(check_slices(passages, self._dimension), schema, self._path) as (count, reader):
            gone = filter_ids(delete)
            if not count and not gone:
                return
            with self._writing.free, self._use_table("written to") as table:
                merge = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                if gone:
                    merge = merge.when_not_matched_by_source_delete(match_ids(gone))
                merge.execute(reader)
                self._optimise(table)

    def count(self) -> int:
        """How many passages there are."""
        with self._use_table("read") as table:
            return int(table.count_rows())

    def search(self, query: Sequence[float] | str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The nearest passages that meet *filter*, best first, as ``{"id", "score", "text", "metadata"}``.

        The score is the cosine, -1 to 1, to six decimals; passages of equal score come by id. *query* is a vector; a
        text raises `StoreError`. A filter that few of the nearest meet has all metadata read, once until
        the next write.
        """
        vector = normalise(check_query(query, self._dimension)[None].copy())[0]
        condition = Condition(filter) if filter else None
        with self._use_table("read") as table:
            return self._search.find_best(
                table,
                lambda: table.search(vector, vector_column_name="vector").distance_type("dot").bypass_vector_index(),
                "_distance",
                lambda distance: 1.0 - distance,
                top_k=top_k,
                condition=condition,
            )

    def keyword_search(self, text: str, top_k: int, *, filter: Filter | None = None) -> list[Record]:  # noqa: A002
        """The passages that share the weightiest words with *text* and meet *filter*, in the shape of `search`.

        The words of a text in the metadata's ``context`` count as the passage's own. The score is BM25 (k1 1.2, b 0.75;
        Robertson and Zaragoza 2009), greater is better, and passages of equal score come by id. Nothing in *text* is
        read as query syntax; of scripts without spaces every pair of neighbouring characters is a word.
        """
        words = " ".join(query_words(text))
        condition = Condition(filter) if filter else None
        if not words:
            return []
        with self._use_table("read") as table:
            return self._search.find_best(
                table,
                lambda: table.search(words, query_type="fts", fts_columns="words"),
                "_score",
                float,
                top_k=top_k,
                condition=condition,
            )

    def close(self) -> None:
        """Let go of the folder; closing twice does no harm."""
        self._open = None

    def _optimise(self, table: Any) -> None:
        """Bring files together and new words into the index, now and then; no write fails by it."""
        self._writes += 1
        try:
            pieces = table.stats()["fragment_stats"]["num_fragments"]
            loose = max((table.index_stats(it.name).num_unindexed_rows for it in table.list_indices()), default=0)
            if max(self._writes, pieces) >= _WRITES_BETWEEN or loose > max(_LOOSE, table.count_rows() // 10):
                self._writes = 0
                table.optimize(cleanup_older_than=_KEPT)
        except (OSError, RuntimeError, ValueError) as error:
            _log.debug("the files of the store were not brought together: %s", type(error).__name__)

    @contextmanager
    def _use_table(self, doing: str) -> Iterator[Any]:
        table = self._open
        if table is None:
            raise StoreError(f"the store {self._path} could not be {doing}: it is closed")
        try:
            yield table
        except QtMiddlewareError:
            raise
        except Exception as error:
            # Its words may quote what was asked or found; where it stumbles over damage it raises a class of its own.
            raise StoreError(
                f"the store {self._path} could not be {doing} ({type(error).__name__}); its own words stand in the "
                "cause of this error. With room on the disk, the folder is damaged: move it away and ingest again"
            ) from error


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> LanceDBStore:
    """The store that *settings* describe, for vectors of *embedding_model*; raises `StoreError`."""
    return LanceDBStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
