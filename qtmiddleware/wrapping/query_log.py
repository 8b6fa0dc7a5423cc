"""A JSON-lines record of every query, each line linking it with every step of its retrieval."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError, QtMiddlewareError
from qtmiddleware.runtime.files import append_line
from qtmiddleware.runtime.logs import Outage, get_logger, times
from qtmiddleware.types import Degradation, Key, Match, Ranking, Retrieval

logger: Final = get_logger("qtmiddleware")

Redact = Callable[[str], str]
"""From a query's text to the text that may be written down."""

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


def _timestamp(seconds: float) -> str | None:
    """*seconds* since the epoch in UTC; ``None`` where the clock is set beyond all years that can be written."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def hashed(text: str) -> str:
    """What stands for a *text* that is not written down: the first 16 hex digits of its SHA-256."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class Writing:
    """The texts of one record as they may be written down.

    *redact* is asked for each; *failure* says what it did wrong, without any text, where it raised or gave no text.
    Such a text is hashed.
    """

    def __init__(self, redact: Redact | None, *, query_text: bool = True) -> None:
        self._redact = redact
        self._query_text = query_text
        self.failure = ""

    def shown(self, text: str) -> str:
        """What may be written of *text*; raises nothing."""
        if not self._query_text:
            return hashed(text)
        if self._redact is None:
            return text
        try:
            made = self._redact(text)
        except Exception as error:
            # Its message may quote what was to be kept out.
            self.failure = f"raised {type(error).__name__}"
            return hashed(text)
        if not isinstance(made, str):
            self.failure = f"returned {type(made).__name__}, not text"
            return hashed(text)
        return made


def record(retrieval: Retrieval, *, query_text: bool = True, writing: Writing | None = None) -> dict[str, Any]:
    """One retrieval as a plain JSON-ready record.

    ``retrieval_steps`` holds the list of every search, the fused list and the final one. Passage texts are never part
    of it; query texts are replaced by the first 16 hex digits of their SHA-256 where *query_text* is false, and by what
    *writing*, where it is given, makes of them.
    """
    shown = (writing or Writing(None, query_text=query_text)).shown
    trace = retrieval.trace
    query: Any = retrieval.original_query
    return {
        "query_id": trace.query_id,
        "timestamp": _timestamp(trace.started_at),
        # What is no text may be anything: only its kind is written.
        "queries": [shown(query) if isinstance(query, str) else type(query).__name__],
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

    *redact* is given every query and every text that was searched for it, and what it returns is written in their
    place. It runs in the caller's thread, or loop, for each text anew, and should be quick. Where it raises or returns
    no text, the text's hash is written, never the text. With *query_text* false hashes are all that is written, and
    *redact* is not asked.

    The folder it lies in has to be there, as for `logging.FileHandler`; a file that is there keeps its permissions. A
    blank line may stand between two records: who finds the last line unfinished cannot know whether its writer died.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        query_text: bool = True,
        redact: Redact | None = None,
        outage: Outage | None = None,
    ) -> None:
        self._path = Path(path)
        self._outage = outage or Outage()
        self._query_text = query_text
        self._redact = redact

    def __repr__(self) -> str:
        return f"QueryLog({str(self._path)!r}, query_text={self._query_text})"

    def append(self, retrieval: Retrieval) -> Degradation | None:
        """`write` for those to whom a log is worth no answer: what went wrong, if anything did, is returned.

        It is logged as a warning when it begins and when records are written again, with how many failed meanwhile.
        """
        try:
            self.write(retrieval)
        except Exception as error:
            why = str(error) if isinstance(error, QtMiddlewareError) else type(error).__name__
            count = self._outage.failed()
            if count is not None:
                more = f" (it failed {times(count - 1)} before)" if count > 1 else ""
                logger.warning("the query log could not be written: %s%s", why, more)
            return Degradation("log", "failed", why)
        if (count := self._outage.worked()) is not None:
            logger.warning("the query log is written again; it failed %s", times(count))
        return None

    def write(self, retrieval: Retrieval) -> None:
        """Append the record of *retrieval*.

        Raises `OSError` where the file cannot be written, `ConfigError` where its folder is missing and, when the
        record was written, where *redact* failed: it says how, without any text.
        """
        writing = Writing(self._redact, query_text=self._query_text)
        line = json.dumps(record(retrieval, writing=writing), ensure_ascii=False, default=str)
        try:
            append_line(self._path, line.encode("utf-8", "replace"))
        except FileNotFoundError:
            raise ConfigError("the folder of log.path is missing; make it", path="log.path") from None
        if writing.failure:
            raise ConfigError(f"redact {writing.failure}; hashes were written in place of texts", path="redact")
