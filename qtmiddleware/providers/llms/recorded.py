"""Recorded replies: a model that replays replies, and a wrapper that records them.

A recording is JSON lines, one object per query: ``_id``, ``standalone`` (only if there is history),
``rewrite``, ``step_back``, ``sub_queries``, ``hyde``, ``paraphrases``, ``keywords``, all optional.
A line may contain ``query`` and ``history``; otherwise the recording's query set must be given.
``mode`` names the prompt that a line answers; a line without ``mode`` answers every prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.runtime.files import append_line, make_private_folders
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.transforms.json_reading import Members, find_json
from qtmiddleware.types import Deadline

MOST_CHARS: Final = 10_000_000
"""The most characters of a line; no recorded reply is longer."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the recording at *path*.

    If a record cannot be read, raises `ConfigError` with the line number.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            # The length is limited, because a device such as /dev/zero has no end.
            for number, line in enumerate(iter(partial(lines.readline, MOST_CHARS + 1), ""), 1):
                if len(line) > MOST_CHARS:
                    raise ConfigError(
                        f"{path}, line {number} is longer than {MOST_CHARS:,} characters, the"
                        " limit; delete that line",
                        path="recording",
                    )
                if line.strip():
                    yield _read_record(line, f"{path}, line {number}")
    except UnicodeDecodeError:
        raise ConfigError(
            f"the recording {path} cannot be read: it is not UTF-8; save it as UTF-8, or record it"
            " again",
            path="recording",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"the recording {path} cannot be read: {error.strerror or type(error).__name__}",
            path="recording",
        ) from error


def _read_record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ConfigError(
            f"{where} must be a JSON object; fix or delete that line", path="recording"
        )
    if not isinstance(record.get("history") or [], list):
        raise ConfigError(
            f"{where} must have a list as its history; fix or delete that line", path="recording"
        )
    return record


def fit_shape(value: Any, reply_field: ReplyField) -> Any:
    """Return *value* if it is valid for *reply_field*, else ``None`` or an empty list.

    From a list, only its texts are kept, and only as many as the field may have.
    """
    if reply_field.shape != "list":
        return value if isinstance(value, str) and value.strip() else None
    items = (
        [item for item in value if isinstance(item, str) and item.strip()]
        if isinstance(value, list)
        else []
    )
    return items[: reply_field.max_items or None]


def normalise(text: Any) -> str:
    """Return *text* with each run of white space as one space; ``""`` if *text* is not a string."""
    return " ".join(text.split()) if isinstance(text, str) else ""


def read_contents(history: Iterable[Any], query: str = "") -> tuple[str, ...]:
    """Return the texts of the messages in *history*, with white space normalised.

    These messages are skipped, as they are in prompts: blank messages, system messages, and a last
    message that equals *query*.
    """
    turns = (
        (_read_message_field(message, "role"), normalise(_read_message_field(message, "content")))
        for message in history
    )
    contents = [text for role, text in turns if text and role != "system"]
    if contents and contents[-1] == query:
        contents.pop()
    return tuple(contents)


def _read_message_field(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


@dataclass(slots=True)
class _Entry:
    """The recorded reply for one question.

    Attributes:
        history: The messages before the question; ``None`` if they are unknown.
        in_conversation: Whether the question has history.
        fields: The recorded fields of all modes, by name.
        by_mode: The recorded fields of each mode, by name.
    """

    history: tuple[str, ...] | None
    in_conversation: bool
    fields: dict[str, Any] = field(default_factory=dict)
    by_mode: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in record.items() if value}
        self.fields.update(fields)
        if mode := record.get("mode"):
            self.by_mode.setdefault(str(mode), {}).update(fields)

    def get_value(self, name: str, mode: str) -> Any:
        return self.by_mode.get(mode, {}).get(name) or self.fields.get(name)


class RecordedModel:
    """Answers from a recording, at once, without tokens or costs.

    A question is found by its text (ignoring white space) and its history, because follow-ups such
    as "Why?" occur in several conversations. If several records have the same text, the model uses
    the record whose history shares the most messages with the end of the prompt's history. If
    several records fit equally well, there is no answer. A question is also found by its recorded
    standalone form. The reply is JSON with the requested fields that were recorded; ``standalone``
    is included only if the prompt has history.

    Args:
        records: The records, as `read_lines` yields them.
        queries: The query set: ``{"_id", "text", "metadata": {"history"}}``.
        name: The model's name.

    Raises:
        ConfigError: No record can ever be found, because none has a query.
    """

    can_async = True

    def __init__(
        self,
        records: Iterable[Mapping[str, Any]],
        queries: Iterable[Mapping[str, Any]] = (),
        *,
        name: str = "recorded",
    ) -> None:
        self._name = name
        self._by_text: dict[str, dict[Any, _Entry]] = {}
        self._by_standalone: dict[str, _Entry] = {}
        queries_by_id = {str(query["_id"]): _read_query(query) for query in queries}
        total = 0
        for total, record in enumerate(records, 1):  # noqa: B007
            self._add_record(record, queries_by_id)
        if total and not self._by_text and not self._by_standalone:
            raise ConfigError(
                f"none of the {total} recorded replies names its query; pass queries="
            )

    @classmethod
    def from_file(
        cls, path: str | Path, queries: Iterable[Mapping[str, Any]] = ()
    ) -> RecordedModel:
        """Return a model that answers from the recording at *path*.

        Raises `ConfigError` if the recording cannot be read.
        """
        where = Path(path)
        return cls(read_lines(where), queries, name=f"recorded:{where.stem}")

    def __repr__(self) -> str:
        return f"RecordedModel({self._name!r}, queries={sum(map(len, self._by_text.values()))})"

    @property
    def name(self) -> str:
        """The recording's name."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:  # noqa: ARG002  (it answers at once)
        """Return the recorded reply to *prompt*.

        Raises:
            ModelError: ``unrecorded`` if there is no record; ``empty`` if the record has none of
                the requested fields.
        """
        entry = self._find_entry(prompt)
        if entry is None:
            raise ModelError("unrecorded", "no recorded reply for this query")
        requested = [
            wanted for wanted in prompt.fields if wanted.name != "standalone" or prompt.history
        ]
        values = {
            wanted.name: fit_shape(entry.get_value(wanted.name, prompt.mode), wanted)
            for wanted in requested
        }
        answer = {name: value for name, value in values.items() if value}
        if not answer:
            raise ModelError(
                "empty", "the recorded reply for this query has none of the requested fields"
            )
        return Reply(json.dumps(answer, ensure_ascii=False), cost_usd=0.0)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the recorded reply to *prompt*, like `complete`."""
        return self.complete(prompt, deadline)

    def _add_record(
        self, record: Mapping[str, Any], queries_by_id: Mapping[str, tuple[str, tuple[str, ...]]]
    ) -> None:
        """Index *record* by its question's text and by its standalone form."""
        key = str(record.get("_id", ""))
        query_text, history = queries_by_id.get(key, ("", None))
        text = normalise(record.get("query") or query_text)
        if "history" in record:
            history = read_contents(record["history"] or (), text)
        standalone = normalise(record.get("standalone"))
        in_conversation = bool(standalone) if history is None else bool(history)
        entry = _Entry(history, in_conversation)
        if text:
            # If the history is unknown, the id tells records of equal text apart.
            entry_key = history if history is not None else ("unknown", key)
            entry = self._by_text.setdefault(text, {}).setdefault(entry_key, entry)
        entry.add(record)
        if standalone:
            self._by_standalone.setdefault(standalone, entry)

    def _find_entry(self, prompt: Prompt) -> _Entry | None:
        """Return the record for *prompt*; ``None`` if there is none or several fit equally well."""
        text = normalise(prompt.query)
        entries = self._by_text.get(text, {}).values()
        if not (contents := read_contents(prompt.history, text)):
            plain = (entry for entry in entries if not entry.in_conversation)
            return next(plain, None) or self._by_standalone.get(text)
        ranked = [
            (_count_equal_last_messages(entry.history or (), contents), entry)
            for entry in entries
            if entry.in_conversation
        ]
        # An entry whose history is known and ends otherwise belongs to another conversation.
        ranked = [
            (rank, entry) for rank, entry in ranked if rank > (0, False) or entry.history is None
        ]
        best = max((rank for rank, _ in ranked), default=None)
        fitting = [entry for rank, entry in ranked if rank == best]
        return (
            fitting[0] if len(fitting) == 1 else None if fitting else self._by_standalone.get(text)
        )


def _read_query(query: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the text of *query* and the texts of the messages before it.

    *query* is one item of a query set.
    """
    text = normalise(str(query["text"]))
    return text, read_contents((query.get("metadata") or {}).get("history") or (), text)


def _count_equal_last_messages(
    contents: Sequence[str], other_contents: Sequence[str]
) -> tuple[int, bool]:
    """Return how many last messages two conversations share, and whether they are equal."""
    count = 0
    for message, other_message in zip(reversed(contents), reversed(other_contents), strict=False):
        if not _are_same_message(message, other_message):
            break
        count += 1
    return count, len(contents) == len(other_contents) == count


def _are_same_message(message: str, other_message: str) -> bool:
    """Return whether two messages are equal, or one is a truncated copy of the other.

    In prompts, long messages are cut and end with an ellipsis.
    """
    short, full = sorted((message, other_message), key=len)
    return short == full or (short.endswith("…") and full.startswith(short[:-1].rstrip()))


_log = get_logger("qtmiddleware.llms")


class RecordingModel:
    """Passes every prompt to *inner* and appends the reply to the recording at *path*.

    Each query and mode gets one line, and concurrent threads never mix their lines. A query and
    mode that the file already contains are not written again. A reply without a usable JSON object
    is returned but not recorded. If the file cannot be written, no reply is recorded. In both cases
    a warning is logged, without any text of the reply. The file contains queries and replies. A new
    file can be read only by its owner; an existing file keeps its permissions.
    """

    def __init__(self, inner: LanguageModel, path: str | Path) -> None:
        self._inner = inner
        self._path = Path(path)
        self._lock = ForkLock()
        self._written: set[tuple[str, str]] | None = None
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"RecordingModel({self._inner!r}, {str(self._path)!r})"

    @property
    def name(self) -> str:
        """The name of the model that answers."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return *inner*'s reply to *prompt* and record the reply.

        Errors from *inner* pass through unchanged.
        """
        return self._record(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return *inner*'s reply to *prompt* and record the reply.

        The running loop is not blocked. Errors from *inner* pass through unchanged.
        """
        return self._record(prompt, await self._inner.acomplete(prompt, deadline))

    def _record(self, prompt: Prompt, reply: Reply) -> Reply:
        objects = (
            fragment.value
            for fragment in find_json(reply.text)
            if isinstance(fragment.value, Members) and not fragment.is_cut
        )
        fields = dict(next(objects, ()))
        values = {
            wanted.name: fit_shape(fields.get(wanted.name), wanted) for wanted in prompt.fields
        }
        answer = {name: value for name, value in values.items() if value}
        if not answer:
            _log.warning(
                "a reply in mode %s was not recorded: it has none of the requested fields",
                prompt.mode,
                event="reply_not_recorded",
                mode=prompt.mode,
            )
            return reply
        history = [{"role": message.role, "content": message.content} for message in prompt.history]
        key = _make_id(prompt)
        record = {
            "_id": key,
            "query": prompt.query,
            "history": history,
            "mode": prompt.mode,
            **answer,
        }
        try:
            with self._lock.free:
                self._append(key, prompt.mode, record)
        except ConfigError as error:
            _log.warning("a reply could not be recorded: %s", error, event="reply_not_recorded")
        except OSError as error:
            cause = error.strerror or type(error).__name__
            _log.warning(
                "a reply could not be recorded in %s: %s",
                self._path,
                cause,
                event="reply_not_recorded",
            )
        return reply

    def _append(self, key: str, mode: str, record: Mapping[str, Any]) -> None:
        if self._written is None:
            lines = read_lines(self._path) if self._path.exists() else ()
            self._written = {(str(line.get("_id")), str(line.get("mode"))) for line in lines}
        if (key, mode) in self._written:
            return
        make_private_folders(self._path.parent)
        # Lone surrogates cannot be encoded in UTF-8, so they are escaped as in JSON.
        append_line(
            self._path, json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace")
        )
        self._written.add((key, mode))


def _make_id(prompt: Prompt) -> str:
    texts = [
        normalise(prompt.query),
        *(f"{message.role}: {message.content}" for message in prompt.history),
    ]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
