"""What came of a question, for people to read."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.cli.asked import Asked
from qtmiddleware.cli.console import notes
from qtmiddleware.cli.harmless import harmless
from qtmiddleware.types import Match, Retrieval, Trace

SNIPPET_CHARS: Final = 240
"""Characters of a passage, or of a hypothetical one, that are shown."""

LABELS: Final = {"original": "original", **{it.variant: it.label for it in TEXT_FIELDS.values() if it.variant}}

# What these modules warn of is part of what is shown of a question.
_SHOWN_ANYWAY: Final = frozenset({"pipeline", "flow"})


def say(text: str = "", *, end: str = "\n") -> None:
    """Write *text* to stdout at once, as it is harmless to a terminal."""
    _write(sys.stdout, text + end)


def note(text: str = "") -> None:
    """Write a line to stderr at once, as it is harmless to a terminal."""
    _write(sys.stderr, text + "\n")


def _write(stream: Any, text: str) -> None:
    print(harmless(text), end="", file=stream, flush=True)


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if record.module not in _SHOWN_ANYWAY:
            note(record.getMessage())


def heed_warnings() -> None:
    """Let what the package warns of appear as notes, where it would not be seen otherwise."""
    logging.getLogger("qtmiddleware").addHandler(_Notes(logging.WARNING))


class Pieces(AbstractContextManager["Pieces"]):
    """Within this block a terminal shows that an answer is under way, until its first piece is written."""

    def __init__(self) -> None:
        # ASCII, for terminals that have nothing else.
        self._waiting = notes.status("working", spinner="line")
        self._has_written = False

    def __enter__(self) -> Pieces:
        self._waiting.start()
        return self

    def write(self, piece: str) -> None:
        """Write a piece of the answer."""
        if piece:
            self._waiting.stop()
            self._has_written = True
            say(piece, end="")

    def __exit__(self, *_: object) -> None:
        self._waiting.stop()
        if self._has_written:
            say()


def present(asked: Asked) -> None:
    """Show what came of a question; what went wrong goes to stderr."""
    if asked.error is not None:
        what = "The answer broke off" if asked.streamed else "No answer"
        note(f"{what}: {asked.error}" if asked.retrieval is not None else f"qtm: {asked.error}")
    elif asked.answer is not None and asked.streamed not in ("", asked.answer.text):
        note("The answer broke off; one of its parts stands in for it:")
    for row in shown(asked):
        say(row)


def short(text: str, length: int = SNIPPET_CHARS) -> str:
    """*text* on one line and cut where it is longer than *length*."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 3].rstrip() + "..."


def number(score: float | None) -> str:
    """A score with three decimals, ``-`` where there is none."""
    return "-" if score is None else f"{score:.3f}"


def place(match: Match) -> str:
    """Where a passage stands, on one line: its document's title and source, and the page where it has one."""
    held = match.metadata
    source = str(held.get("source") or held.get("url") or match.id or "a passage without a name")
    title = held.get("title")
    named = f"{title} ({source})" if isinstance(title, str) and title and title not in source else source
    page = held.get("page")
    last = held.get("last_page")
    if page is not None:
        named += f", page {page}" if last is None else f", pages {page}-{last}"
    return " ".join(named.split())


def shown(asked: Asked) -> Iterator[str]:
    """The lines that tell what came of a question; of an answer that was streamed only what stands below it.

    Passages are shown where there is no answer.
    """
    answer, retrieval = asked.answer, asked.retrieval
    if answer is not None:
        if asked.streamed != answer.text:
            yield answer.text
        yield from _sources(asked)
    elif retrieval is not None:
        yield from _passages(retrieval)
    if retrieval is None:
        return
    yield from _variants(retrieval)
    if answer is not None and asked.passages:
        scores = [f"[{at}] {number(match.score)}" for at, match in enumerate(asked.passages, start=1)]
        yield f"Scores: {', '.join(scores)}"
    yield _account(asked, retrieval.trace)


def _sources(asked: Asked) -> Iterator[str]:
    """The passages that are cited; all that the model was shown where it cited none."""
    answer = asked.answer
    cited = {} if answer is None else dict(sorted((it.number, it.match) for it in answer.citations))
    listed = cited or dict(enumerate(asked.passages, start=1))
    if not listed:
        return
    yield "\nSources:" if cited else "\nPassages that were read:"
    for at, match in listed.items():
        yield f"  [{at}] {place(match)} (score {number(match.score)})"


def _passages(retrieval: Retrieval) -> Iterator[str]:
    if not retrieval.matches:
        yield "No passage was found."
        return
    yield "Passages:"
    for at, match in enumerate(retrieval.matches, start=1):
        yield f"  [{at}] {place(match)} (score {number(match.score)})"
        if match.text:
            yield f"      {short(match.text)}"


def _variants(retrieval: Retrieval) -> Iterator[str]:
    """What was searched beside the question."""
    rows = [(LABELS[it.kind], it.text) for it in retrieval.variants if it.kind != "original"]
    if retrieval.transformation.keywords:
        rows.append(("keywords", ", ".join(retrieval.transformation.keywords)))
    if not rows:
        return
    yield "\nTransformed:"
    for label, text in rows:
        yield f"  {label}: {short(text)}"


def _account(asked: Asked, trace: Trace) -> str:
    """Time, calls, tokens, cost and what went wrong, on one line."""
    parts = [f"{asked.seconds:.2f} s"]
    if trace.cache_hits:
        parts.append("transformation remembered")
    if trace.llm_calls:
        parts.append(f"{trace.llm_calls} LLM call{'s' if trace.llm_calls != 1 else ''}")
        parts.append(f"{trace.input_tokens:,} + {trace.output_tokens:,} tokens")
        parts.append("cost unknown" if trace.cost_usd is None else f"${trace.cost_usd:.6f}")
    else:
        parts.append("no LLM calls")
    reasons = [f"{it.stage} {it.reason}" for it in asked.degradations]
    return f"({', '.join(parts)})" + (f" degraded: {'; '.join(reasons)}" if reasons else "")
