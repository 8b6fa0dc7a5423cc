"""A model that replays recorded replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.recorded.base import contents, normal, read_lines, shaped
from qtmiddleware.types import Deadline

_Queries = Mapping[str, str] | Iterable[Mapping[str, Any]]
_Histories = Mapping[str, Sequence[Any]]


@dataclass(slots=True)
class _Entry:
    """What was recorded for one question; *history* is ``None`` where it is not known."""

    history: tuple[str, ...] | None
    in_conversation: bool
    fields: dict[str, Any] = field(default_factory=dict)
    by_mode: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        given = {name: value for name, value in record.items() if value}
        self.fields.update(given)
        if mode := record.get("mode"):
            self.by_mode.setdefault(str(mode), {}).update(given)

    def value(self, name: str, mode: str) -> Any:
        return self.by_mode.get(mode, {}).get(name) or self.fields.get(name)


class RecordedModel:
    """Answers from a recording, at once, without tokens and for nothing.

    A question is looked up by its text, white space aside, and by its history: follow-ups such as "Why?" occur in
    several conversations, so among records of equal text the one whose history ends like the prompt's is taken. Where
    the histories are not known and several fit, there is no answer. A recorded standalone form is found as well. The
    reply is the JSON of the fields the prompt asks for, as far as they were recorded; ``standalone`` only where the
    prompt has history.

    *queries* gives the texts by ``_id``, or is the query set itself: ``{"_id", "text", "metadata": {"history"}}``.
    *histories* gives the messages by ``_id``. Raises `ConfigError` where no record could ever be found.
    """

    can_async = True

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        queries: _Queries | None = None,
        histories: _Histories | None = None,
        name: str = "recorded",
    ) -> None:
        self._name = name
        self._by_text: dict[str, dict[Any, _Entry]] = {}
        self._by_standalone: dict[str, _Entry] = {}
        texts, known = _read_queries(queries)
        for key, history in (histories or {}).items():
            known[key] = contents(history, normal(texts.get(key)))
        total = 0
        for total, record in enumerate(records, 1):  # noqa: B007
            self._index(record, texts, known)
        if total and not self._by_text and not self._by_standalone:
            raise ConfigError(f"none of the {total} recorded replies says which query it answers; give the query set")

    @classmethod
    def from_file(
        cls, path: str | Path, queries: _Queries | None = None, *, histories: _Histories | None = None
    ) -> RecordedModel:
        """The recording at *path*; raises `ConfigError` where it cannot be read."""
        where = Path(path)
        return cls(read_lines(where), queries=queries, histories=histories, name=f"recorded:{where.stem}")

    @classmethod
    def from_records(cls, records: Iterable[Mapping[str, Any]], queries: _Queries | None = None) -> RecordedModel:
        """Records held in memory, with the query set they belong to."""
        return cls(records, queries=queries)

    def __repr__(self) -> str:
        return f"RecordedModel({self._name!r}, queries={sum(map(len, self._by_text.values()))})"

    @property
    def name(self) -> str:
        """The name of the recording."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:  # noqa: ARG002  (it answers at once)
        """The recorded reply to *prompt*; raises `ModelError` ("unrecorded" or "empty") where there is none."""
        entry = self._find(prompt)
        if entry is None:
            raise ModelError("unrecorded", "no recorded reply for this query")
        asked = [wanted for wanted in prompt.fields if wanted.name != "standalone" or prompt.history]
        values = {wanted.name: shaped(entry.value(wanted.name, prompt.mode), wanted) for wanted in asked}
        answer = {name: value for name, value in values.items() if value}
        if not answer:
            raise ModelError("empty", "the recorded reply for this query holds none of the fields that were asked for")
        return Reply(json.dumps(answer, ensure_ascii=False), cost_usd=0.0)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The recorded reply to *prompt*; raises `ModelError` as `complete` does."""
        return self.complete(prompt, deadline)

    def _index(self, record: Mapping[str, Any], texts: Mapping[str, str], known: Mapping[str, tuple[str, ...]]) -> None:
        key = str(record.get("_id", ""))
        text = normal(record.get("query") or texts.get(key))
        history = contents(record["history"] or (), text) if "history" in record else known.get(key)
        standalone = normal(record.get("standalone"))
        in_conversation = bool(standalone) if history is None else bool(history)
        entry = _Entry(history, in_conversation)
        if text:
            # Where the history is unknown, records of equal text are kept apart by their id.
            place = history if history is not None else ("unknown", key)
            entry = self._by_text.setdefault(text, {}).setdefault(place, entry)
        entry.add(record)
        if standalone:
            self._by_standalone.setdefault(standalone, entry)

    def _find(self, prompt: Prompt) -> _Entry | None:
        text = normal(prompt.query)
        entries = self._by_text.get(text, {}).values()
        if not (asked := contents(prompt.history, text)):
            plain = (entry for entry in entries if not entry.in_conversation)
            return next(plain, None) or self._by_standalone.get(text)
        ranked = [(_common_end(entry.history or (), asked), entry) for entry in entries if entry.in_conversation]
        # An entry whose history is known and ends otherwise belongs to another conversation.
        ranked = [(rank, entry) for rank, entry in ranked if rank > (0, False) or entry.history is None]
        best = max((rank for rank, _ in ranked), default=None)
        fitting = [entry for rank, entry in ranked if rank == best]
        return fitting[0] if len(fitting) == 1 else None if fitting else self._by_standalone.get(text)


def _read_queries(queries: _Queries | None) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The texts by id, and the histories as far as *queries* is a query set, which tells them."""
    if queries is None or isinstance(queries, Mapping):
        return dict(queries or {}), {}
    texts: dict[str, str] = {}
    histories: dict[str, tuple[str, ...]] = {}
    for query in queries:
        key = str(query["_id"])
        texts[key] = str(query["text"])
        histories[key] = contents((query.get("metadata") or {}).get("history") or (), normal(texts[key]))
    return texts, histories


def _common_end(first: Sequence[str], second: Sequence[str]) -> tuple[int, bool]:
    """How many messages at the end are equal, and whether that is all of both."""
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if not _same(one, other):
            break
        count += 1
    return count, len(first) == len(second) == count


def _same(one: str, other: str) -> bool:
    """Whether two messages are the same one; prompts cut long messages and say so by an ellipsis."""
    short, full = sorted((one, other), key=len)
    return short == full or (short.endswith("…") and full.startswith(short[:-1].rstrip()))
