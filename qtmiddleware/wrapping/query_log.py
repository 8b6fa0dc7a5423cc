"""Write the query log, a JSON-lines file that records all steps of each query's retrieval."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from math import isfinite
from typing import Any, Final

from qtmiddleware.config.settings import LogTexts
from qtmiddleware.errors import ConfigError, QtMiddlewareError
from qtmiddleware.runtime.logs import LogSampler, get_logger, quote_text
from qtmiddleware.types import Degradation, Key, Match, Ranking, Retrieval

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
    for label in _LABELS if metadata else ():
        if isinstance(value := metadata.get(label), str):  # type: ignore[union-attr]
            row[label] = value
    if score is not None and isfinite(score):
        row["score"] = round(score, 6)
    return row if text is None else row | {"text": text}


def _build_search_rows(ranking: Ranking) -> list[dict[str, Any]]:
    rows = zip(ranking.keys, ranking.scores, ranking.passages, strict=True)
    return [_build_row(key, score, passage.metadata) for key, score, passage in rows]


def _build_initial_rows(ranking: Ranking) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the two lists that a `Hybrid` search merged; empty for other searches."""
    return {f"initial_{name}": _build_search_rows(it) for name, it in ranking.initial.items()}


def hash_text(text: str) -> str:
    """Return the hash that replaces *text*: the first 16 hex digits of its SHA-256."""
    import hashlib

    return "sha256:" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


class TextWriter:
    """Prepares the texts of one log record: redacts them, hashes them or leaves them out.

    Args:
        redact: The user's function that redacts a text. If it raises an exception or returns no
            text, the text is hashed. By default, texts are not redacted.
        texts: Which texts to write: ``questions``; ``all``, those of passages too; or ``none``,
            only hashes of the questions.

    Attributes:
        failure: How *redact* failed, without any text; ``""`` if it did not fail.
    """

    def __init__(self, redact: Redact | None = None, *, texts: LogTexts = "questions") -> None:
        self._redact = redact
        self._texts = texts
        self.failure = ""

    def prepare_text(self, text: str) -> str:
        """Return *text* unchanged, redacted or hashed, as it appears in the log. Never raises."""
        if self._texts == "none":
            return hash_text(text)
        if self._redact is None:
            return text
        try:
            redacted = self._redact(text)
        except Exception as error:
            # The error's message may quote the text that must not be written.
            self.failure = f"raised {type(error).__name__}"
            return hash_text(text)
        if not isinstance(redacted, str):
            self.failure = f"returned {type(redacted).__name__}, not text"
            return hash_text(text)
        return redacted

    def prepare_passage(self, text: str | None) -> str | None:
        """Return a passage's *text* as it appears in the log, cut to `PASSAGE_CHARS` characters.

        Returns ``None`` if passage texts are left out. Never raises.
        """
        if text is None or self._texts != "all":
            return None
        return self.prepare_text(text[:PASSAGE_CHARS])

    def prepare_keywords(self, keywords: str, query: str) -> str:
        """Return a query's *keywords* as they appear in the log. Never raises.

        If *redact* changes the query, only keywords that occur in the redacted query are returned.
        Keywords are in lower case, and *redact* may miss a name in lower case.
        """
        if keywords and self._texts != "none" and (redacted := self.prepare_text(query)) != query:
            words = set(_list_folded_words(redacted))
            keywords = " ".join(
                keyword
                for keyword in keywords.split()
                if words.issuperset(_list_folded_words(keyword))
            )
        return self.prepare_text(keywords) if keywords else ""


def _list_folded_words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


@dataclass(eq=False, repr=False, slots=True)
class PlainResult:
    """The plain function's result, which the caller received in shadow mode.

    Attributes:
        matches: the passages that the function returned; empty if they cannot be read.
        ms: how long the function took, in milliseconds.
        dropped: how many shadow retrievals were dropped since the last record.
    """

    matches: tuple[Match, ...]
    ms: float
    dropped: int = 0

    def count_kept_passages(self, retrieval: Retrieval) -> int:
        """Return the number of passages that are in both this result and *retrieval*."""
        return len(set(_list_keys(self.matches)) & set(_list_keys(retrieval.matches)))


def _list_keys(matches: Iterable[Match]) -> list[Key]:
    return [(match.namespace, match.id or f"\0{match.text}") for match in matches]


def build_record(
    retrieval: Retrieval, writer: TextWriter | None = None, plain_result: PlainResult | None = None
) -> dict[str, Any]:
    """Return the query log's record of *retrieval* as a dict, ready for JSON.

    ``retrieval_steps`` holds four sets of passages with their scores and titles: the results of
    each search, the fused list, the reranked list and the final list.

    A `Hybrid` search merges two lists, ``initial_vector`` and ``initial_bm25``. The two lists for
    the original query are in ``retrieval_steps``. The two lists for a variant are in the variant's
    entry in ``searches``.

    Args:
        retrieval: the retrieval to record.
        writer: prepares the texts. By default, query texts are written unchanged and passage texts
            are left out.
        plain_result: the plain function's result, if *retrieval* is a shadow retrieval.
    """
    from datetime import UTC, datetime

    writer = writer or TextWriter()
    prepare_text = writer.prepare_text
    prepare_passage = writer.prepare_passage
    query: Any = retrieval.original_query
    # Reversed, so that the first search that found a passage provides its metadata.
    metadata = {
        key: passage.metadata
        for ranking in reversed(retrieval.rankings)
        for key, passage in zip(ranking.keys, ranking.passages, strict=True)
    }
    initial: dict[str, Any] = {}
    searches: list[dict[str, Any]] = []
    for ranking in retrieval.rankings:
        kind = ranking.variant.kind
        searches.append({"kind": kind, "found": _build_search_rows(ranking)})
        if kind == "original":
            initial |= _build_initial_rows(ranking)
        else:
            searches[-1] |= _build_initial_rows(ranking)

    def merge(keys: Iterable[Key], scores: Iterable[float | None]) -> list[dict[str, Any]]:
        return [
            _build_row(key, score, metadata.get(key)) for key, score in zip_longest(keys, scores)
        ]

    def list_matches(matches: Iterable[Match], score_name: str) -> list[dict[str, Any]]:
        return [
            _build_row(
                (match.namespace, match.id or "\0"),
                getattr(match, score_name),
                match.metadata,
                prepare_passage(match.text),
            )
            for match in matches
        ]

    timestamp: str | None = None
    with suppress(ValueError, OverflowError, OSError):  # a time that `datetime` cannot represent
        timestamp = datetime.fromtimestamp(retrieval.trace.started_at, UTC).isoformat()
    record = {
        "query_id": retrieval.trace.query_id,
        "timestamp": timestamp,
        # A query that is not a text may be any object, so only its type is written.
        "queries": [prepare_text(query) if isinstance(query, str) else type(query).__name__],
        "keywords": writer.prepare_keywords(retrieval.keywords, query),
        "variants": [
            {"kind": it.kind, "text": prepare_text(it.text), "weight": round(it.weight, 4)}
            for it in retrieval.variants
        ],
        "retrieval_steps": {
            **initial,
            "searches": searches,
            "fusion": merge(retrieval.fused, retrieval.fused_scores),
            "rerank": merge(retrieval.reranked, retrieval.rerank_scores),
            "final": list_matches(retrieval.matches, "fused_score"),
        },
    }
    if plain_result is not None:
        before = _list_keys(plain_result.matches)
        after = _list_keys(retrieval.matches)
        record["shadow"] = {
            "plain": list_matches(plain_result.matches, "score"),
            "kept": plain_result.count_kept_passages(retrieval),
            # Compared here, because a reader of the rows cannot tell passages without an id apart.
            "same_first": before[:1] == after[:1],
            "same_order": before == after,
            "plain_ms": round(plain_result.ms, 3),
            "dropped": plain_result.dropped,
        }
    return {
        **record,
        "status": retrieval.status,
        **retrieval.standing.to_dict(),
        "degradations": [[it.stage, it.reason, it.detail] for it in retrieval.degradations],
        "trace": retrieval.trace.to_dict(),
    }


class QueryLog:
    """Appends records to a file that only its owner may read.

    Lines stay whole even if many threads and processes write at once. The folder must exist. An
    existing file keeps its permissions. There may be blank lines between records: if a process dies
    while it writes a line, the next writer starts a new line.

    Args:
        path: the path of the log file, which need not exist yet.
        texts: which texts to write: ``questions``; ``all``, those of passages too; or ``none``,
            only hashes of the questions, and *redact* is not called.
        redact: takes a query or another text to search for, and returns the text to write. Should
            be fast, because it runs in the caller's thread or event loop. If *redact* raises an
            exception or returns no text, the text's hash is written.
        sampler: logs failed writes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        texts: LogTexts = "questions",
        redact: Redact | None = None,
        sampler: LogSampler | None = None,
    ) -> None:
        from pathlib import Path

        self._path = Path(path)
        self._sampler = sampler or LogSampler()
        self._has_failed = False
        self._texts = texts
        self._redact = redact

    def __repr__(self) -> str:
        return f"QueryLog({str(self._path)!r}, texts={self._texts!r})"

    def append_record(
        self, retrieval: Retrieval, plain_result: PlainResult | None = None
    ) -> Degradation | None:
        """Write the record of *retrieval*. Return a `Degradation` if writing fails, else ``None``.

        Never raises. Logs a warning when writing begins to fail, then at most one per minute, and
        another warning when writing works again.
        """
        try:
            self.write_record(retrieval, plain_result)
        except Exception as error:
            reason = str(error) if isinstance(error, QtMiddlewareError) else type(error).__name__
            self._has_failed = True
            self._sampler.log(logger, "query log failed", [reason], reason=reason)
            return Degradation("log", "failed", reason)
        if self._has_failed:
            self._has_failed = False
            self._sampler.log(logger, "query log restored", ["it can be written again"])
        return None

    def write_record(self, retrieval: Retrieval, plain_result: PlainResult | None = None) -> None:
        """Append the record of *retrieval* to the log file.

        In shadow mode, *plain_result* is the plain function's result.

        Raises:
            OSError: if the file cannot be written.
            ConfigError: if the file's folder is missing, or if *redact* failed. A record for which
                *redact* failed is written first, with hashes instead of texts.
        """
        # Imported here so that users without a log do not pay for this module.
        from qtmiddleware.runtime.files import append_line

        writer = TextWriter(self._redact, texts=self._texts)
        line = json.dumps(
            build_record(retrieval, writer, plain_result), ensure_ascii=False, default=str
        )
        try:
            # A query may hold half of a surrogate pair, which UTF-8 cannot encode.
            append_line(self._path, line.encode("utf-8", "replace"))
        except FileNotFoundError:
            raise ConfigError(
                "the folder of log.path does not exist; create it", path="log.path"
            ) from None
        # After writing, because a record with hashes is better than none.
        if writer.failure:
            raise ConfigError(
                f"your redact function {writer.failure}, so the log holds hashes instead of texts;"
                " fix it",
                path="redact",
            )


def log_texts(retrieval: Retrieval, redact: Redact | None) -> None:
    """Log the query's keywords and the searched texts at DEBUG, after redacting them."""
    writer = TextWriter(redact)
    trace = retrieval.trace
    query: Any = retrieval.original_query
    is_text = isinstance(query, str)
    query_text = writer.prepare_text(query) if is_text else type(query).__name__
    if retrieval.keywords:
        logger.debug(
            "Query preprocessing: %s -> %s",
            quote_text(query_text),
            quote_text(writer.prepare_keywords(retrieval.keywords, query)),
            event="preprocessing",
            query_id=trace.query_id,
        )
    logger.debug(
        "query %s %r searched %s",
        trace.query_id,
        query_text,
        [(variant.kind, writer.prepare_text(variant.text)) for variant in retrieval.variants],
        event="query",
        query_id=trace.query_id,
        status=retrieval.status,
        degradations=[f"{it.stage} {it.reason}" for it in retrieval.degradations],
        passages=len(retrieval.matches),
        seconds=round(trace.total_ms / 1e3, 6),
        searches=trace.searches,
        llm_calls=trace.llm_calls,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cost_usd=trace.cost_usd,
        cache_hits=trace.cache_hits,
    )
