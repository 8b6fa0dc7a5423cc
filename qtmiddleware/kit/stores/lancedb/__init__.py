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
from qtmiddleware.kit.stores.filters import Matcher, build_matcher
from qtmiddleware.kit.stores.lancedb.table import open_table, spill
from qtmiddleware.kit.stores.passages import (
    DIGITS,
    LocalStore,
    check_query,
    check_slices,
    filter_ids,
    normalise,
    query_words,
)
from qtmiddleware.protocols import Filter, Passage, Record
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger

_log = get_logger("qtmiddleware.stores")

_WIDER: Final = 16
"""How many times more is asked for where filter or ties leave too little."""
_FEW: Final = 5_000
"""Ids that are asked for by name; for more it is quicker to look through what is found."""
_REMEMBERED: Final = 32
"""Filters whose ids are kept until the table changes."""
_WRITES_BETWEEN: Final = 20
"""Writes, or pieces of the table, after which its files are brought together."""
_LOOSE: Final = 1_000
"""Passages whose words may wait to be put into the index; until then they are searched one by one."""
_KEPT: Final = timedelta(hours=1)
"""How long superseded files stay for readers of other processes."""


class LanceDBStore(LocalStore):
    """Keeps passages in a folder, on disk, and finds them by vector or by word; for what is too much for `SQLiteStore`.

    *path* is a folder, made if it is not there and open to its owner alone. *embedding_model* and
    *dimension* are kept in it; opening it with others raises `StoreError`.

    Every search looks at every vector, by cosine: exact, and as long as there are vectors. What
    another process has written is seen by the next search. Safe to share among threads, not across
    a fork. A write is kept whole or not at all, also when the process is killed.

    Raises `StoreError` whenever the folder cannot be opened, read or written, `InvalidQuery` for an
    impossible filter and `MissingExtra` without LanceDB.
    """

    def __init__(self, path: str | Path, *, embedding_model: str, dimension: int) -> None:
        self._path = Path(path).expanduser()
        self._dimension = dimension
        self._writing = ForkLock()
        self._writes = 0
        self._met: dict[tuple[int, str], list[str] | None] = {}
        self._open: Any
        self._open, self._identity = open_table(
            self._path, embedding_model=embedding_model, dimension=dimension
        )

    def __repr__(self) -> str:
        return f"LanceDBStore({str(self._path)!r}, dimension={self._dimension})"

    def write(
        self, passages: Iterable[tuple[Passage, Sequence[float]]], *, delete: Sequence[str] = ()
    ) -> None:
        """Write *passages*, replacing those of the same id, and remove those of the ids *delete*, as one change.

        *passages* are taken as they come, into a temporary file beside the table, and then written;
        what they raise passes through and nothing is written. Of several with one id the last
        stays; an id in both is written.
        """
        with self._use_table("written to") as table:
            schema = table.schema
        with spill(check_slices(passages, self._dimension), schema, self._path) as (count, reader):
            gone = filter_ids(delete)
            if not count and not gone:
                return
            with self._writing.free, self._use_table("written to") as table:
                merge = (
                    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                )
                if gone:
                    merge = merge.when_not_matched_by_source_delete(match_ids(gone))
                merge.execute(reader)
                self._optimise(table)

    def count(self) -> int:
        """How many passages there are."""
        with self._use_table("read") as table:
            return int(table.count_rows())

    def search(
        self,
        query: Sequence[float] | str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The nearest passages that meet *filter*, best first, as ``{"id", "score", "text", "metadata"}``.

        The score is the cosine, -1 to 1, to six decimals; passages of equal score come by id.
        *query* is a vector; a text raises `StoreError`. A filter that few of the nearest meet has
        all metadata read, once until the next write.
        """
        vector = normalise(check_query(query, self._dimension)[None].copy())[0]

        def ask(table: Any) -> Any:
            return (
                table.search(vector, vector_column_name="vector")
                .distance_type("dot")
                .bypass_vector_index()
            )

        return self._find_best(ask, "_distance", lambda distance: 1.0 - distance, top_k, filter)

    def keyword_search(
        self,
        text: str,
        top_k: int,
        *,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The passages that share the weightiest words with *text* and meet *filter*, in the shape of `search`.

        The words of a text in the metadata's ``context`` count as the passage's own. The score is
        BM25 (k1 1.2, b 0.75; Robertson and Zaragoza 2009), greater is better, and passages of equal
        score come by id. Nothing in *text* is read as query syntax; of scripts without spaces every
        pair of neighbouring characters is a word.
        """
        words = " ".join(query_words(text))

        def ask(table: Any) -> Any:
            return table.search(words, query_type="fts", fts_columns="words")

        return self._find_best(ask, "_score", float, top_k if words else 0, filter)

    def close(self) -> None:
        """Let go of the folder; closing twice does no harm."""
        self._open = None

    def _find_best(
        self,
        ask: Callable[[Any], Any],
        measure: str,
        score: Callable[[float], float],
        top_k: int,
        filter: Filter | None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* of what *ask* makes a query of, by the *score* of their *measure*, equal ones by id.

        Exactly: neither a filter nor chance among equals keeps a better one out. The table cannot
        read metadata itself, so what it finds is held against the filter here; where too few of the
        best meet that, all metadata is read once, and those passages, if they are few, are asked
        for by id.
        """
        meets = build_matcher(filter) if filter else None
        if top_k < 1:
            return []
        limit = 1 + top_k * (1 if meets is None else 4)
        with self._use_table("read") as table:
            by_id = (table.version, repr(filter)) in self._met
            while True:
                version = table.version
                if (
                    meets
                    and by_id
                    and (few := self._find_few(table, version, filter, meets)) is not None
                ):
                    asked = ask(table).where(match_ids(few), prefilter=True).limit(max(1, len(few)))
                    best = _sort(_read_records(asked, measure, score), meets)
                    if table.version == version:
                        break
                    # Ids of before a write say nothing of what came by it; the search below is of
                    # one state.
                seen = _read_records(ask(table).limit(limit), measure, score)
                best = _sort(seen, meets)[:top_k]
                if len(seen) < limit or (
                    len(best) == top_k and best[-1]["score"] > seen[-1]["score"]
                ):
                    break
                limit *= _WIDER
                by_id = True
        return [{**one, "metadata": json.loads(one["metadata"])} for one in best[:top_k]]

    def _find_few(
        self,
        table: Any,
        version: int,
        filter: Filter | None,  # noqa: A002
        meets: Matcher,
    ) -> list[str] | None:
        """Return the ids that meet *filter*, read once for each version; ``None`` where they are many."""
        key = version, repr(filter)
        if key in self._met:
            return self._met.get(key)
        ids: list[str] = []
        for batch in table.search().select(["id", "metadata"]).to_batches():
            values = json.loads(f"[{','.join(batch['metadata'].to_pylist())}]")
            ids.extend(
                id_
                for id_, value in zip(batch["id"].to_pylist(), values, strict=True)
                if meets(value)
            )
        few = ids if len(ids) <= _FEW else None
        if len(self._met) >= _REMEMBERED:
            self._met.clear()
        self._met[key] = few
        return few

    def _optimise(self, table: Any) -> None:
        """Bring files together and new words into the index, now and then; no write fails by it."""
        self._writes += 1
        try:
            pieces = table.stats()["fragment_stats"]["num_fragments"]
            loose = max(
                (table.index_stats(it.name).num_unindexed_rows for it in table.list_indices()),
                default=0,
            )
            if max(self._writes, pieces) >= _WRITES_BETWEEN or loose > max(
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
    def _use_table(self, doing: str) -> Iterator[Any]:
        table = self._open
        if table is None:
            raise StoreError(f"the store {self._path} could not be {doing}: it is closed")
        try:
            yield table
        except QtMiddlewareError:
            raise
        except Exception as error:
            # Its words may quote what was asked or found; where it stumbles over damage it raises a
            # class of its own.
            raise StoreError(
                f"the store {self._path} could not be {doing} ({type(error).__name__}); the cause"
                " of this error has details. If the disk is not full, the folder is damaged: move"
                " it away and ingest again"
            ) from error


def match_ids(ids: list[str]) -> str:
    """The condition that a passage is one of these, as SQL writes it."""
    if not ids:
        return "false"
    quoted = ("'" + id_.replace("'", "''") + "'" for id_ in ids)
    return f"id IN ({', '.join(quoted)})"


def _sort(records: list[Record], meets: Matcher | None) -> list[Record]:
    """Return those of *records* whose metadata *meets* the filter, best first, those of equal score by id."""
    met = (one for one in records if meets is None or meets(json.loads(one["metadata"])))
    return sorted(met, key=lambda one: (-one["score"], one["id"]))


def _read_records(query: Any, measure: str, score: Callable[[float], float]) -> list[Record]:
    """Read what a query of the table finds, with the metadata as it is stored."""
    found = query.select(["id", "text", "metadata", measure]).to_arrow()
    columns = [found[name].to_pylist() for name in ("id", "text", "metadata", measure)]
    return [
        {"id": id_, "score": round(score(measured), DIGITS), "text": text, "metadata": metadata}
        for id_, text, metadata, measured in zip(*columns, strict=True)
    ]


def open_store(settings: Settings, *, embedding_model: str, dimension: int) -> LanceDBStore:
    """The store that *settings* describe, for vectors of *embedding_model*; raises `StoreError`."""
    return LanceDBStore(settings.index_path, embedding_model=embedding_model, dimension=dimension)
