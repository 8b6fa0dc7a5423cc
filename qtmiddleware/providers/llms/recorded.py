"""Recorded replies: a model that replays them and a wrapper that writes them.

A recording is JSON lines, one object a query: ``_id``, ``standalone`` (only where there is
history), ``rewrite``, ``step_back``, ``sub_queries``, ``hyde``, ``paraphrases``, ``keywords``, each
of them optional. ``query`` and ``history`` may stand in the line; where they do not, the query set
the recording belongs to has to be given. ``mode`` names the prompt a line answers; without it the
line answers every prompt.
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
"""A line that is longer is no recorded reply."""


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records at *path*; raises `ConfigError`, which names the line, where they cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            # No more than that: a device may have no end.
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


def fit_shape(value: Any, wanted: ReplyField) -> Any:
    """*value* where it has the shape of the field *wanted*, else ``None``."""
    if wanted.shape != "list":
        return value if isinstance(value, str) and value.strip() else None
    items = (
        [item for item in value if isinstance(item, str) and item.strip()]
        if isinstance(value, list)
        else []
    )
    return items[: wanted.max_items or None]


def normalise(text: Any) -> str:
    """*text* with single blanks for its white space, empty where it is no text."""
    return " ".join(text.split()) if isinstance(text, str) else ""


def read_contents(history: Iterable[Any], query: str = "") -> tuple[str, ...]:
    """What the messages of a conversation say, white space aside.

    Left out are blank messages, those of the system, and a last one that is *query* itself, as
    prompts leave them out.
    """
    turns = (
        (_read_part(message, "role"), normalise(_read_part(message, "content")))
        for message in history
    )
    said = [text for role, text in turns if text and role != "system"]
    if said and said[-1] == query:
        said.pop()
    return tuple(said)


def _read_part(message: Any, name: str) -> Any:
    return message.get(name) if isinstance(message, Mapping) else getattr(message, name, None)


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

    A question is looked up by its text, white space aside, and by its history: follow-ups such as
    "Why?" occur in several conversations, so among records of equal text the one whose history ends
    like the prompt's is taken. Where the histories are not known and several fit, there is no
    answer. A recorded standalone form is found as well. The reply is the JSON of the fields the
    prompt asks for, as far as they were recorded; ``standalone`` only where the prompt has history.

    *queries* is the query set: ``{"_id", "text", "metadata": {"history"}}``. Raises `ConfigError`
    where no record could ever be found.
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
        known = {str(query["_id"]): _read_query(query) for query in queries}
        total = 0
        for total, record in enumerate(records, 1):  # noqa: B007
            self._index(record, known)
        if total and not self._by_text and not self._by_standalone:
            raise ConfigError(
                f"none of the {total} recorded replies names its query; pass queries="
            )

    @classmethod
    def from_file(
        cls, path: str | Path, queries: Iterable[Mapping[str, Any]] = ()
    ) -> RecordedModel:
        """The recording at *path*; raises `ConfigError` where it cannot be read."""
        where = Path(path)
        return cls(read_lines(where), queries, name=f"recorded:{where.stem}")

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
        asked = [
            wanted for wanted in prompt.fields if wanted.name != "standalone" or prompt.history
        ]
        values = {
            wanted.name: fit_shape(entry.value(wanted.name, prompt.mode), wanted)
            for wanted in asked
        }
        answer = {name: value for name, value in values.items() if value}
        if not answer:
            raise ModelError(
                "empty", "the recorded reply for this query has none of the requested fields"
            )
        return Reply(json.dumps(answer, ensure_ascii=False), cost_usd=0.0)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The recorded reply to *prompt*; raises `ModelError` as `complete` does."""
        return self.complete(prompt, deadline)

    def _index(
        self, record: Mapping[str, Any], known: Mapping[str, tuple[str, tuple[str, ...]]]
    ) -> None:
        key = str(record.get("_id", ""))
        given, history = known.get(key, ("", None))
        text = normalise(record.get("query") or given)
        if "history" in record:
            history = read_contents(record["history"] or (), text)
        standalone = normalise(record.get("standalone"))
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
        text = normalise(prompt.query)
        entries = self._by_text.get(text, {}).values()
        if not (asked := read_contents(prompt.history, text)):
            plain = (entry for entry in entries if not entry.in_conversation)
            return next(plain, None) or self._by_standalone.get(text)
        ranked = [
            (_count_common_end(entry.history or (), asked), entry)
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
    """The text of one line of a query set, and what was said before it."""
    text = normalise(str(query["text"]))
    return text, read_contents((query.get("metadata") or {}).get("history") or (), text)


def _count_common_end(first: Sequence[str], second: Sequence[str]) -> tuple[int, bool]:
    """How many messages at the end are equal, and whether that is all of both."""
    count = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if not _is_same(one, other):
            break
        count += 1
    return count, len(first) == len(second) == count


def _is_same(one: str, other: str) -> bool:
    """Whether two messages are the same one; prompts cut long messages and say so by an ellipsis."""
    short, full = sorted((one, other), key=len)
    return short == full or (short.endswith("…") and full.startswith(short[:-1].rstrip()))


_log = get_logger("qtmiddleware.llms")


class RecordingModel:
    """Passes every prompt on to *inner* and appends what it answered to the recording at *path*.

    One line a query and mode, whole or not at all, from any number of threads; what is in the file
    already is not written again. A reply that is no JSON object is passed on and not recorded, and
    so is every reply where the file cannot be written (both are logged, without any text). The file
    holds the queries and replies: that is its purpose; it is made for its owner alone, and one that
    is there keeps its permissions.
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
        """The reply of the inner model to *prompt*; raises what it raises."""
        return self._record(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply of the inner model to *prompt*; raises what it raises."""
        return self._record(prompt, await self._inner.acomplete(prompt, deadline))

    def _record(self, prompt: Prompt, reply: Reply) -> Reply:
        objects = (
            it.value
            for it in find_json(reply.text)
            if isinstance(it.value, Members) and not it.is_cut
        )
        said = dict(next(objects, ()))
        values = {wanted.name: fit_shape(said.get(wanted.name), wanted) for wanted in prompt.fields}
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
            why = error.strerror or type(error).__name__
            _log.warning(
                "a reply could not be recorded in %s: %s",
                self._path,
                why,
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
        # Surrogates that stand alone cannot be encoded, but escaped, as JSON does it.
        append_line(
            self._path, json.dumps(record, ensure_ascii=False).encode(errors="backslashreplace")
        )
        self._written.add((key, mode))


def _make_id(prompt: Prompt) -> str:
    parts = [
        normalise(prompt.query),
        *(f"{message.role}: {message.content}" for message in prompt.history),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
