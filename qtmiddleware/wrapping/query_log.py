"""The query log: a JSON-lines record of every query with all steps of its retrieval."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import Any, Final

from qtmiddleware.errors import ConfigError, QtMiddlewareError
from qtmiddleware.retrieval.responses import read_metadata
from qtmiddleware.runtime.logs import Outage, format_times, get_logger
from qtmiddleware.types import Degradation, Key, Match, Ranking, Retrieval

logger: Final = get_logger("qtmiddleware")

Redact = Callable[[str], str]
"""Returns what may be written down of a query's text."""

PASSAGE_CHARS: Final = 4_000
"""Most characters that are written of a passage."""

# What tells a reader which passage it was without showing its text.
_LABELS: Final = ("title", "url", "source")


def _row(
    key: Key,
    score: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    # What follows a NUL in a key is the passage's text.
    row: dict[str, Any] = {"id": key[1].partition("\0")[0] or None, "namespace": key[0]}
    row.update(
        {
            label: metadata[label]
            for label in _LABELS
            if metadata and isinstance(metadata.get(label), str)
        }
    )
    if score is not None and isfinite(score):
        row["score"] = round(score, 6)
    if text is not None:
        row["text"] = text
    return row


def _rows(ranking: Ranking) -> list[dict[str, Any]]:
    found = zip(ranking.keys, ranking.scores, ranking.items, strict=True)
    return [_row(key, score, read_metadata(item)) for key, score, item in found]


def _initial_rows(ranking: Ranking) -> dict[str, list[dict[str, Any]]]:
    return {f"initial_{name}": _rows(it) for name, it in ranking.initial.items()}


def _merged_rows(
    retrieval: Retrieval, keys: Iterable[Key], scores: Iterable[float | None]
) -> list[dict[str, Any]]:
    items = {
        key: item
        for it in reversed(retrieval.rankings)
        for key, item in zip(it.keys, it.items, strict=True)
    }
    rows = zip_longest(keys, scores)
    return [
        _row(key, score, read_metadata(items[key]) if key in items else None) for key, score in rows
    ]


def _match_rows(
    matches: Iterable[Match], writer: TextWriter, *, by_backend: bool = False
) -> list[dict[str, Any]]:
    return [
        _row(
            (it.namespace, it.id or "\0"),
            it.score if by_backend else it.fused_score,
            it.metadata,
            writer.write_passage(it.text),
        )
        for it in matches
    ]


def _timestamp(seconds: float) -> str | None:
    """*seconds* since the epoch in UTC; ``None`` where the clock is set beyond all years that can be written."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def hash_text(text: str) -> str:
    """Returns what is written in place of *text*: the first 16 hex digits of its SHA-256."""
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class TextWriter:
    """Writes the texts of one record: as *redact* returns them, or hashed where *query_text* is false.

    Those of passages are left out unless *passage_text* is true.

    A text for which *redact* raises or returns no text is hashed; *failure* says then what it did,
    without any text.
    """

    def __init__(
        self, redact: Redact | None = None, *, query_text: bool = True, passage_text: bool = False
    ) -> None:
        self._redact = redact
        self._query_text = query_text
        self._passage_text = passage_text
        self.failure = ""

    def write(self, text: str) -> str:
        """Returns what may be written of *text*; raises nothing."""
        if not self._query_text:
            return hash_text(text)
        if self._redact is None:
            return text
        try:
            redacted = self._redact(text)
        except Exception as error:
            # Its message may quote what was to be kept out.
            self.failure = f"raised {type(error).__name__}"
            return hash_text(text)
        if not isinstance(redacted, str):
            self.failure = f"returned {type(redacted).__name__}, not text"
            return hash_text(text)
        return redacted

    def write_passage(self, text: str | None) -> str | None:
        """Returns what may be written of a passage's *text*, ``None`` where nothing may; raises nothing."""
        return self.write(text[:PASSAGE_CHARS]) if text is not None and self._passage_text else None

    def write_keywords(self, keywords: str, query: str) -> str:
        """Returns what may be written of the *keywords* of *query*, ``""`` where there are none; raises nothing.

        They are in small letters, which not every *redact* knows: where it hides something of the
        query, those keywords alone are written whose words are still in what it left.
        """
        if keywords and self._query_text and (left := self.write(query)) != query:
            words = set(_find_words(left))
            keywords = " ".join(it for it in keywords.split() if words.issuperset(_find_words(it)))
        return self.write(keywords) if keywords else ""


def _find_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


@dataclass(eq=False, repr=False, slots=True)
class Plain:
    """What the caller got in shadow mode: the plain function's *matches*, none where they cannot be read, after *ms*.

    *dropped* retrievals in the shadow were left out since the last one that was logged.
    """

    matches: tuple[Match, ...]
    ms: float
    dropped: int = 0

    def count_kept(self, retrieval: Retrieval) -> int:
        """How many passages are in *retrieval*, too."""
        return len(set(_find_keys(self.matches)) & set(_find_keys(retrieval.matches)))

    def to_record(self, retrieval: Retrieval, writer: TextWriter) -> dict[str, Any]:
        """Returns how it differs from *retrieval*; texts are as *writer* writes them."""
        before, after = _find_keys(self.matches), _find_keys(retrieval.matches)
        return {
            "plain": _match_rows(self.matches, writer, by_backend=True),
            "kept": self.count_kept(retrieval),
            # Told here, as passages without an id have no name in the rows.
            "same_first": before[:1] == after[:1],
            "same_order": before == after,
            "plain_ms": round(self.ms, 3),
            "dropped": self.dropped,
        }


def _find_keys(matches: Iterable[Match]) -> list[Key]:
    return [(it.namespace, it.id or f"\0{it.text}") for it in matches]


def build_record(
    retrieval: Retrieval, writer: TextWriter | None = None, plain: Plain | None = None
) -> dict[str, Any]:
    """Returns one retrieval as a plain JSON-ready record.

    ``retrieval_steps`` holds the list of every search, the fused list, the reranked and the final
    one, each passage with its score and title there. The two lists that a `Hybrid` search merged
    are ``initial_vector`` and
    ``initial_bm25``: of the question here, of a variant beside what it found. Texts are as
    *writer* writes them: by default those of queries as they are, and none of passages. *plain* is
    what the caller got where this was a retrieval in the shadow.
    """
    writer = writer or TextWriter()
    write, trace = writer.write, retrieval.trace
    initial = next(
        (_initial_rows(it) for it in retrieval.rankings if it.variant.kind == "original"), {}
    )
    query: Any = retrieval.original_query
    return {
        "query_id": trace.query_id,
        "timestamp": _timestamp(trace.started_at),
        # What is no text may be anything: only its kind is written.
        "queries": [write(query) if isinstance(query, str) else type(query).__name__],
        "keywords": writer.write_keywords(retrieval.keywords, query),
        "variants": [
            {"kind": variant.kind, "text": write(variant.text), "weight": round(variant.weight, 4)}
            for variant in retrieval.variants
        ],
        "retrieval_steps": {
            **initial,
            "searches": [
                {"kind": it.variant.kind, "found": _rows(it)}
                | (_initial_rows(it) if it.variant.kind != "original" else {})
                for it in retrieval.rankings
            ],
            "fusion": _merged_rows(retrieval, retrieval.fused, retrieval.fused_scores),
            "rerank": _merged_rows(retrieval, retrieval.reranked, retrieval.rerank_scores),
            "final": _match_rows(retrieval.matches, writer),
        },
        **({} if plain is None else {"shadow": plain.to_record(retrieval, writer)}),
        "status": retrieval.status,
        **retrieval.standing.to_dict(),
        "degradations": [[it.stage, it.reason, it.detail] for it in retrieval.degradations],
        "trace": trace.to_dict(),
    }


class QueryLog:
    """Appends records to a file only its owner may read; whole lines, also with many threads and processes.

    *redact* is called with every query and every text that was searched for it, and what it returns
    is written in their place. It runs in the caller's thread, or loop, for each text anew, and
    should be quick. Where it raises or returns no text, the text's hash is written, never the text.
    With *query_text* false only hashes are written, and *redact* is not called.

    The folder must exist, as for `logging.FileHandler`; an existing file keeps its permissions.
    There may be blank lines between records: a writer that finds the last line unfinished cannot
    know whether its author died.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        query_text: bool = True,
        passage_text: bool = False,
        redact: Redact | None = None,
        outage: Outage | None = None,
    ) -> None:
        from pathlib import Path

        self._path = Path(path)
        self._outage = outage or Outage()
        self._query_text = query_text
        self._passage_text = passage_text
        self._redact = redact

    def __repr__(self) -> str:
        return f"QueryLog({str(self._path)!r}, query_text={self._query_text})"

    def append(self, retrieval: Retrieval, plain: Plain | None = None) -> Degradation | None:
        """`write`, which raises nothing: returns the degradation where the record could not be written.

        A warning is logged when writing begins to fail, and when it works again, with how many
        records failed.
        """
        try:
            self.write(retrieval, plain)
        except Exception as error:
            why = str(error) if isinstance(error, QtMiddlewareError) else type(error).__name__
            count = self._outage.record_failure()
            if count is not None:
                more = f" (writing failed {format_times(count - 1)} before)" if count > 1 else ""
                about: dict[str, Any] = {"event": "query_log_failed", "reason": why, "count": count}
                logger.warning("the query log could not be written: %s%s", why, more, **about)
            return Degradation("log", "failed", why)
        if (count := self._outage.record_success()) is not None:
            said = format_times(count)
            logger.warning(
                "the query log can be written again; writing failed %s",
                said,
                event="query_log_restored",
                count=count,
            )
        return None

    def write(self, retrieval: Retrieval, plain: Plain | None = None) -> None:
        """Append the record of *retrieval*, with what the caller got instead where that is *plain*.

        Raises `OSError` where the file cannot be written, `ConfigError` where its folder is missing
        and, when the record was written, where *redact* failed: it says how, without any text.
        """
        # Those without a log do not wait for its modules.
        from qtmiddleware.runtime.files import append_line

        writer = TextWriter(
            self._redact, query_text=self._query_text, passage_text=self._passage_text
        )
        line = json.dumps(build_record(retrieval, writer, plain), ensure_ascii=False, default=str)
        try:
            append_line(self._path, line.encode("utf-8", "replace"))
        except FileNotFoundError:
            raise ConfigError(
                "the folder of log.path does not exist; create it", path="log.path"
            ) from None
        if writer.failure:
            raise ConfigError(
                f"your redact function {writer.failure}, so the log holds hashes instead of texts;"
                " fix it",
                path="redact",
            )
