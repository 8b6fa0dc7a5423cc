"""A JSON-lines record of every query, each line linking it with every step of its retrieval."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final

from qtmiddleware.types import Key, Match, Ranking, Retrieval

# What tells a reader which passage it was without showing its text.
_LABELS: Final = ("title", "url", "source")


def _row(key: Key, score: float | None = None, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    # What follows a NUL in a key is the passage's text.
    row: dict[str, Any] = {"id": key[1].partition("\0")[0] or None, "namespace": key[0]}
    row.update({label: metadata[label] for label in _LABELS if metadata and isinstance(metadata.get(label), str)})
    if score is not None and isfinite(score):
        row["score"] = round(score, 6)
    return row


def _listed(ranking: Ranking) -> list[dict[str, Any]]:
    return [_row(key, score) for key, score in zip(ranking.keys, ranking.scores, strict=True)]


def _final(matches: Iterable[Match]) -> list[dict[str, Any]]:
    return [_row((match.namespace, match.id or "\0"), match.fused_score, match.metadata) for match in matches]


def record(retrieval: Retrieval, *, query_text: bool = True) -> dict[str, Any]:
    """One retrieval as a plain JSON-ready record.

    ``retrieval_steps`` holds the list of every search, the fused list and the final one. Passage texts are never part
    of it; query texts are replaced by the first 16 hex digits of their SHA-256 where *query_text* is false.
    """

    def shown(text: str) -> str:
        return text if query_text else "sha256:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]

    trace = retrieval.trace
    return {
        "query_id": trace.query_id,
        "timestamp": datetime.fromtimestamp(trace.started_at, UTC).isoformat(),
        "queries": [shown(retrieval.original_query)],
        "variants": [
            {"kind": variant.kind, "text": shown(variant.text), "weight": round(variant.weight, 4)}
            for variant in retrieval.variants
        ],
        "retrieval_steps": {
            "searches": [{"kind": it.variant.kind, "found": _listed(it)} for it in retrieval.rankings],
            "fusion": [_row(key) for key in retrieval.fused],
            "rerank": [_row(key) for key in retrieval.reranked],
            "final": _final(retrieval.matches),
        },
        "status": retrieval.status,
        "degradations": [[it.stage, it.reason, it.detail] for it in retrieval.degradations],
        "trace": trace.to_dict(),
    }


class QueryLog:
    """Appends records to a file only its owner may read; whole lines, also with many threads and processes.

    A blank line may stand between two records: who finds the last line unfinished cannot know whether its writer died.
    """

    def __init__(self, path: str | os.PathLike[str], *, query_text: bool = True) -> None:
        self._path = Path(path)
        self._query_text = query_text

    def write(self, retrieval: Retrieval) -> None:
        """Append the record of *retrieval*; raises `OSError` where the file cannot be written."""
        line = json.dumps(record(retrieval, query_text=self._query_text), ensure_ascii=False, default=str)
        data = (line + "\n").encode("utf-8", "replace")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.lseek(descriptor, 0, os.SEEK_END):
                os.lseek(descriptor, -1, os.SEEK_END)
                is_whole = os.read(descriptor, 1) == b"\n"
            else:
                is_whole = True
            if not is_whole:
                # A full disk or a killed process left half a line; it must not spoil this one.
                data = b"\n" + data
            # One write of the whole line: appends of several writers do not mix.
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, "the record was cut off", str(self._path))
        finally:
            os.close(descriptor)
