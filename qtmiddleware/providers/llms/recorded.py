"""Record a model's replies to a file, and replay them without a model.

A recording is a JSON Lines file: each line is a record, an object with the reply to one query. All
keys are optional:

- ``query``, ``history``: the question and the conversation before it. Without these keys, `_id`
  must be the id of a question in a query set.
- ``_id``: the question's id.
- ``mode``: the prompt mode. For a prompt of this mode, the record overrides the other records of
  the question.
- ``standalone`` (only if there is history), ``rewrite``, ``step_back``, ``sub_queries``, ``hyde``,
  ``paraphrases``, ``keywords``: the fields of the reply.
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
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.transforms.json_reading import Members, find_json
from qtmiddleware.types import Deadline

MOST_CHARS: Final = 10_000_000
"""The maximum length of a line in characters. No recorded reply is longer."""


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the recording at *path*.

    Raises `ConfigError` with the line number if a record cannot be read.
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


def _read_record(line: str, location: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise ConfigError(
            f"{location} must be a JSON object; fix or delete that line", path="recording"
        )
    if not isinstance(record.get("history") or [], list):
        raise ConfigError(
            f"{location} must have a list as its history; fix or delete that line", path="recording"
        )
    return record


def keep_valid_value(value: Any, reply_field: ReplyField) -> Any:
    """Return *value* if it is valid for *reply_field*, else ``None``.

    For a list field, return the texts in *value* that are not blank, up to the field's maximum
    number of items.
    """
    if reply_field.shape != "list":
        return value if isinstance(value, str) and value.strip() else None
    items = (
        [item for item in value if isinstance(item, str) and item.strip()]
        if isinstance(value, list)
        else []
    )
    return items[: reply_field.max_items or None]


def normalise_spaces(text: Any) -> str:
    """Replace each run of white space in *text* with one space.

    Returns ``""`` if *text* is not a string.
    """
    return " ".join(text.split()) if isinstance(text, str) else ""


def read_message_texts(history: Iterable[Any], query: str = "") -> tuple[str, ...]:
    """Return the texts of the messages in *history*, with white space normalised.

    Skips blank messages, system messages, and a last message that equals *query*, because prompts
    omit these messages too.
    """
    turns = (
        (
            _read_message_field(message, "role"),
            normalise_spaces(_read_message_field(message, "content")),
        )
        for message in history
    )
    contents = [text for role, text in turns if text and role != "system"]
    if contents and contents[-1] == query:
        contents.pop()
    return tuple(contents)


def _read_message_field(message: Any, field_name: str) -> Any:
    return (
        message.get(field_name)
        if isinstance(message, Mapping)
        else getattr(message, field_name, None)
    )


@dataclass(slots=True)
class _Entry:
    """The recorded reply to one question.

    Attributes:
        history: The texts of the messages before the question; ``None`` if they are unknown.
        has_history: Whether there are messages before the question.
        fields: The recorded values of all prompt modes, keyed by field name.
        fields_by_mode: For each prompt mode, the recorded values, keyed by field name.
    """

    history: tuple[str, ...] | None
    has_history: bool
    fields: dict[str, Any] = field(default_factory=dict)
    fields_by_mode: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_record(self, record: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in record.items() if value}
        self.fields.update(fields)
        if mode := record.get("mode"):
            self.fields_by_mode.setdefault(str(mode), {}).update(fields)

    def get_value(self, field_name: str, mode: str) -> Any:
        return self.fields_by_mode.get(mode, {}).get(field_name) or self.fields.get(field_name)


class RecordedModel:
    """Replays replies from a recording, without delay, tokens or costs.

    The model finds a record by the question's text and history, because follow-ups such as "Why?"
    occur in several conversations. White space is ignored. Among records with the same text, the
    model uses the record whose last messages match the prompt's history best. If two records match
    equally well, neither record is used. A question can also match the ``standalone`` text of a
    record.

    The reply is JSON with the requested fields. A field without a recorded value is omitted. The
    field ``standalone`` is also omitted if the prompt has no history.

    Args:
        records: The records, as `read_records` yields them.
        queries: The query set: ``{"_id", "text", "metadata": {"history"}}`` per query.
        name: The name that the model reports.

    Raises:
        ConfigError: No record names its question, so the model cannot answer any prompt.
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
        queries_by_id = {str(query["_id"]): _read_text_and_history(query) for query in queries}
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
        recording = Path(path)
        return cls(read_records(recording), queries, name=f"recorded:{recording.stem}")

    def __repr__(self) -> str:
        return f"RecordedModel({self._name!r}, queries={sum(map(len, self._by_text.values()))})"

    @property
    def name(self) -> str:
        """The recording's name."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:  # noqa: ARG002  (it answers at once)
        """Return the recorded reply to *prompt*.

        Raises:
            ModelError: The reason is ``unrecorded`` if no record matches, and ``empty`` if the
                record has none of the requested fields.
        """
        entry = self._find_matching_entry(prompt)
        if entry is None:
            raise ModelError("unrecorded", "no recorded reply for this query")
        requested = [
            wanted for wanted in prompt.fields if wanted.name != "standalone" or prompt.history
        ]
        values = {
            wanted.name: keep_valid_value(entry.get_value(wanted.name, prompt.mode), wanted)
            for wanted in requested
        }
        answer = {name: value for name, value in values.items() if value}
        if not answer:
            raise ModelError(
                "empty", "the recorded reply for this query has none of the requested fields"
            )
        return Reply(json.dumps(answer, ensure_ascii=False), cost_usd=0.0)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the recorded reply to *prompt*. This is the async version of `complete`."""
        return self.complete(prompt, deadline)

    def _add_record(
        self, record: Mapping[str, Any], queries_by_id: Mapping[str, tuple[str, tuple[str, ...]]]
    ) -> None:
        """Index *record* by the text of its question and by its standalone text, if it has one."""
        key = str(record.get("_id", ""))
        query_text, history = queries_by_id.get(key, ("", None))
        text = normalise_spaces(record.get("query") or query_text)
        if "history" in record:
            history = read_message_texts(record["history"] or (), text)
        standalone = normalise_spaces(record.get("standalone"))
        has_history = bool(standalone) if history is None else bool(history)
        entry = _Entry(history, has_history)
        if text:
            # If the history is unknown, the id tells records of equal text apart.
            entry_key = history if history is not None else ("unknown", key)
            entry = self._by_text.setdefault(text, {}).setdefault(entry_key, entry)
        entry.add_record(record)
        if standalone:
            self._by_standalone.setdefault(standalone, entry)

    def _find_matching_entry(self, prompt: Prompt) -> _Entry | None:
        """Return the best record for *prompt*; ``None`` if none matches or two match equally."""
        text = normalise_spaces(prompt.query)
        entries = self._by_text.get(text, {}).values()
        if not (contents := read_message_texts(prompt.history, text)):
            plain = (entry for entry in entries if not entry.has_history)
            return next(plain, None) or self._by_standalone.get(text)
        ranked = [
            (_rank_shared_ending(entry.history or (), contents), entry)
            for entry in entries
            if entry.has_history
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


def _read_text_and_history(query: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the text of *query*, an item of a query set, and the texts of its history."""
    text = normalise_spaces(str(query["text"]))
    return text, read_message_texts((query.get("metadata") or {}).get("history") or (), text)


def _rank_shared_ending(messages: Sequence[str], other_messages: Sequence[str]) -> tuple[int, bool]:
    """Return the number of last messages that two conversations share, and whether both are equal.

    A greater tuple means a better match.
    """
    count = 0
    for message, other_message in zip(reversed(messages), reversed(other_messages), strict=False):
        if not _are_same_message(message, other_message):
            break
        count += 1
    return count, len(messages) == len(other_messages) == count


def _are_same_message(message: str, other_message: str) -> bool:
    """Return whether two messages are equal, or one is a truncated copy of the other.

    Prompts truncate long messages and end them with an ellipsis.
    """
    short, full = sorted((message, other_message), key=len)
    return short == full or (short.endswith("…") and full.startswith(short[:-1].rstrip()))


_log = get_logger("qtmiddleware.llms")


class RecordingModel:
    """Passes every prompt to *inner*, and appends the reply to the recording at *path*.

    The file contains queries and replies. Each query gets one line per prompt mode. A line that the
    file already contains is not written again. Concurrent threads never mix their lines. Only the
    owner can read a new file. An existing file keeps its permissions.

    If a reply has no usable JSON object, or the file cannot be written, the reply is returned but
    not recorded. The logged warning contains no text of the reply.
    """

    def __init__(self, inner: LanguageModel, path: str | Path) -> None:
        self._inner = inner
        self._path = Path(path)
        self._lock = make_lock()
        self._written: set[tuple[str, str]] | None = None
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"RecordingModel({self._inner!r}, {str(self._path)!r})"

    @property
    def name(self) -> str:
        """The name of the inner model."""
        return self._inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply of *inner* to *prompt*, and record it.

        Errors of *inner* pass through unchanged.
        """
        return self._record_reply(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply of *inner* to *prompt*, and record it, without blocking the event loop.

        Errors of *inner* pass through unchanged.
        """
        return self._record_reply(prompt, await self._inner.acomplete(prompt, deadline))

    def _record_reply(self, prompt: Prompt, reply: Reply) -> Reply:
        objects = (
            fragment.value
            for fragment in find_json(reply.text)
            if isinstance(fragment.value, Members) and not fragment.is_cut
        )
        fields = dict(next(objects, ()))
        values = {
            wanted.name: keep_valid_value(fields.get(wanted.name), wanted)
            for wanted in prompt.fields
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
        # The fields are recorded, not the reply's text, so that other modes can use them too.
        history = [{"role": message.role, "content": message.content} for message in prompt.history]
        key = _make_query_id(prompt)
        record = {
            "_id": key,
            "query": prompt.query,
            "history": history,
            "mode": prompt.mode,
            **answer,
        }
        try:
            with self._lock:
                self._append_record(key, prompt.mode, record)
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

    def _append_record(self, query_id: str, mode: str, record: Mapping[str, Any]) -> None:
        # The file is read only once. Later records come from this object.
        if self._written is None:
            lines = read_records(self._path) if self._path.exists() else ()
            self._written = {(str(line.get("_id")), str(line.get("mode"))) for line in lines}
        if (query_id, mode) in self._written:
            return
        make_private_folders(self._path.parent)
        # Lone surrogates cannot be encoded in UTF-8, so they are escaped as in JSON.
        append_line(
            self._path, json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace")
        )
        self._written.add((query_id, mode))


def _make_query_id(prompt: Prompt) -> str:
    texts = [
        normalise_spaces(prompt.query),
        *(f"{message.role}: {message.content}" for message in prompt.history),
    ]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
