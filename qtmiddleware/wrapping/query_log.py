"""Write the query log, a JSON-lines file that records all steps of each query's retrieval."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from math import isfinite
from typing import Any, Final

from qtmiddleware.config.settings import LogTexts
from qtmiddleware.preprocessing.hidden_characters import escape_json
from qtmiddleware.runtime.logs import LogSampler, get_logger
from qtmiddleware.types import Degradation, Key, Match, Ranking, Retrieval
from qtmiddleware.wrapping.shadow import count_kept_passages

logger: Final = get_logger("qtmiddleware")

Redact = Callable[[str], str]
"""A function that takes a query's text and returns the text for the log."""

PASSAGE_CHARS: Final = 4_000
"""The largest number of characters of a passage in the log."""

# The metadata that identifies a passage to a reader without showing its text.
_LABELS: Final = ("title", "url", "source")


def _build_row(
    key: Key,
    score: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    """Return a record's row for one passage, without what is unknown."""
    # In a key, the passage's text follows a NUL.
    row: dict[str, Any] = {"id": key[1].partition("\0")[0] or None, "namespace": key[0]}
    for label in _LABELS:
        if isinstance(value := (metadata or {}).get(label), str):
            row[label] = value
    if score is not None and isfinite(score):
        row["score"] = round(score, 6)
    return row if text is None else row | {"text": text}


def hash_text(text: str) -> str:
    """Return the hash that replaces *text*: the first 16 hex digits of its SHA-256."""
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class TextWriter:
    """Prepares the texts of one log record: redacts them, hashes them or leaves them out.

    *failure* says how *redact* failed, without any text. The texts that it fails for are hashed.
    """

    def __init__(self, redact: Redact | None = None, *, texts: LogTexts = "questions") -> None:
        self._redact = redact
        self.texts = texts
        self.failure = ""

    def prepare_text(self, text: str) -> str:
        """Return *text* unchanged, redacted or hashed, as it appears in the log. Never raises."""
        if self.texts == "none":
            return hash_text(text)
        if self._redact is None:
            return text
        try:
            redacted: Any = self._redact(text)
            if isinstance(redacted, str):
                return redacted
            problem = f"returned {type(redacted).__name__}, not text"
        except Exception as error:
            # The error's message may quote the text that must not be written.
            problem = f"raised {type(error).__name__}"
        self.failure = (
            f"your redact function {problem}, so the log holds hashes instead of texts; fix it"
        )
        return hash_text(text)

    def prepare_query(self, retrieval: Retrieval) -> str:
        """Return the query as it appears in the log. Never raises."""
        query: Any = retrieval.original_query
        # A query that is not a text may be any object, so only its type is written.
        return self.prepare_text(query) if isinstance(query, str) else type(query).__name__

    def prepare_keywords(self, keywords: str, query: str) -> str:
        """Return a query's *keywords* as they appear in the log. Never raises.

        Keywords are in lower case, and *redact* may miss a name in lower case. So if *redact*
        changes the query, there are none.
        """
        if not keywords or (self.texts != "none" and self.prepare_text(query) != query):
            return ""
        return self.prepare_text(keywords)


def build_record(
    retrieval: Retrieval,
    writer: TextWriter,
    plain: Retrieval | None,
    dropped: int,
) -> dict[str, Any]:
    """Return the query log's record of *retrieval* as a dict, ready for JSON."""
    # Imported here so that users without a log do not pay for this module.
    from datetime import UTC, datetime, timedelta

    trace = retrieval.trace
    metadata: dict[Key, Mapping[str, Any]] = {}
    initial: dict[str, Any] = {}
    searches: list[dict[str, Any]] = []

    def list_found(ranking: Ranking) -> list[dict[str, Any]]:
        rows = zip(ranking.keys, ranking.scores, ranking.passages, strict=True)
        return [_build_row(key, score, passage.metadata) for key, score, passage in rows]

    for ranking in retrieval.rankings:
        for key, passage in zip(ranking.keys, ranking.passages, strict=True):
            metadata.setdefault(key, passage.metadata)
        search = {"kind": ranking.variant.kind, "found": list_found(ranking)}
        searches.append(search)
        # The lists that a hybrid search merged: the original's stand beside ``searches``.
        holder = initial if ranking.variant.kind == "original" else search
        for name, merged_ranking in ranking.initial.items():
            holder[f"initial_{name}"] = list_found(merged_ranking)

    def list_step(keys: Sequence[Key], scores: Sequence[float | None]) -> list[dict[str, Any]]:
        rows = zip_longest(keys, scores)
        return [_build_row(key, score, metadata.get(key)) for key, score in rows]

    def list_matches(matches: Iterable[Match], score_name: str) -> list[dict[str, Any]]:
        rows = []
        for match in matches:
            text = None
            if match.text is not None and writer.texts == "all":
                text = writer.prepare_text(match.text[:PASSAGE_CHARS])
            key = match.namespace, match.id or ""
            rows.append(_build_row(key, getattr(match, score_name), match.metadata, text))
        return rows

    record = {
        "query_id": trace.query_id,
        "timestamp": (datetime.now(UTC) - timedelta(0, trace.measure_elapsed())).isoformat(),
        "queries": [writer.prepare_query(retrieval)],
        "keywords": writer.prepare_keywords(retrieval.keywords, retrieval.original_query),
        "variants": [
            {"kind": it.kind, "text": writer.prepare_text(it.text), "weight": round(it.weight, 4)}
            for it in retrieval.variants
        ],
        "retrieval_steps": {
            **initial,
            "searches": searches,
            "fusion": list_step(retrieval.fused, retrieval.fused_scores),
            "rerank": list_step(retrieval.reranked, retrieval.rerank_scores),
            "final": list_matches(retrieval.matches, "fused_score"),
        },
    }
    if plain is not None:
        # Compared here, because a reader of the rows cannot tell passages without an id apart.
        before, after = ([match.key for match in it.matches] for it in (plain, retrieval))
        record["shadow"] = {
            "plain": list_matches(plain.matches, "score"),
            "kept": count_kept_passages(plain, retrieval),
            "same_first": before[:1] == after[:1],
            "same_order": before == after,
            "plain_ms": round(plain.trace.total_ms, 3),
            "dropped": dropped,
        }
    return {
        **record,
        "status": retrieval.status,
        **retrieval.standing.to_dict(),
        "degradations": [[it.stage, it.reason, it.detail] for it in retrieval.degradations],
        "trace": trace.to_dict(),
    }


class QueryLog:
    """Appends records to a file that only its owner may read, in a folder that must exist.

    Lines stay whole even if many threads and processes write at once. Blank lines may stand between
    records: after a process that died while it wrote a line, the next writer starts a new one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        texts: LogTexts = "questions",
        redact: Redact | None = None,
    ) -> None:
        from pathlib import Path

        self._path = Path(path)
        self._make_writer = partial(TextWriter, redact, texts=texts)
        self._sampler = LogSampler()

    def append_record(
        self, retrieval: Retrieval, plain: Retrieval | None = None, dropped: int = 0
    ) -> Degradation | None:
        """Write the record of *retrieval*. Return a `Degradation` if that fails. Never raises.

        Logs a warning when writing begins to fail, then at most one per minute.
        """
        # Imported here so that users without a log do not pay for this module.
        from qtmiddleware.runtime.files import append_line

        writer = self._make_writer()
        try:
            record = build_record(retrieval, writer, plain, dropped)
            line = json.dumps(record, ensure_ascii=False, default=str)
            # A query may hold half of a surrogate pair, which UTF-8 cannot encode.
            append_line(self._path, line.encode("utf-8", "replace"))
            failure = writer.failure
        except FileNotFoundError:
            failure = "the folder of log.path does not exist; create it"
        except Exception as error:
            failure = type(error).__name__
        if not failure:
            return None
        self._sampler.log(
            logger, "query_log_failed", {failure: ""}, message="query log failed", reason=failure
        )
        return Degradation("log", "failed", failure)


def log_texts(retrieval: Retrieval, redact: Redact | None) -> None:
    """Log the query's keywords and the searched texts at DEBUG, after redacting them."""
    writer = TextWriter(redact)
    trace = retrieval.trace
    query = writer.prepare_query(retrieval)
    if retrieval.keywords:
        logger.debug(
            "Query preprocessing: %s -> %s",
            _quote_text(query),
            _quote_text(writer.prepare_keywords(retrieval.keywords, retrieval.original_query)),
            event="preprocessing",
            query_id=trace.query_id,
        )
    logger.debug(
        "query %s %s searched %s",
        trace.query_id,
        _quote_text(query),
        [(variant.kind, writer.prepare_text(variant.text)) for variant in retrieval.variants],
        event="query",
        query_id=trace.query_id,
    )


def _quote_text(text: str) -> str:
    """Return *text* on one line, in double quotes, with control characters escaped as in JSON."""
    return escape_json(json.dumps(text, ensure_ascii=False))
