"""Record a model's replies to a file, and replay them without a model.

A recording is a JSON Lines file. Each line is an object with the reply to one query, and all keys
are optional:

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.asking import parse_reply
from qtmiddleware.kit.evaluation.dataset import (
    Dataset,
    name_line_in_errors,
    parse_json_object,
    read_lines,
)
from qtmiddleware.kit.files import make_private_folders
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.providers.llms.prices import Prices
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.runtime.files import append_line
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

_log: Final = get_logger("qtmiddleware.llms")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of the recording at *path*.

    Raises `ConfigError` with the line number if a record cannot be read.
    """
    for number, line in read_lines(path):
        with name_line_in_errors(path, number):
            record = parse_json_object(line)
            if not isinstance(record.get("history") or [], list):
                raise ValueError("must have a list as its history")
        yield record


@dataclass(slots=True)
class _Entry:
    """The recorded reply to one question.

    Attributes:
        history: The texts of the messages before the question; ``None`` if they are unknown.
        has_history: Whether there are messages before the question.
        fields: The values by prompt mode and field name. The mode ``""`` holds those of all modes.
    """

    history: tuple[str, ...] | None
    has_history: bool
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_record(self, record: Mapping[str, Any]) -> None:
        values = {name: value for name, value in record.items() if value}
        for mode in {"", str(record.get("mode") or "")}:
            self.fields.setdefault(mode, {}).update(values)

    def get_value(self, field_name: str, mode: str) -> Any:
        return self.fields.get(mode, {}).get(field_name) or self.fields[""].get(field_name)


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
        self.name = name
        self._by_text: dict[str, dict[Any, _Entry]] = {}
        self._by_standalone: dict[str, _Entry] = {}
        queries_by_id = {str(query["_id"]): query for query in queries}
        records = list(records)
        for record in records:
            self._add_record(record, queries_by_id.get(str(record.get("_id", ""))))
        if records and not self._by_text and not self._by_standalone:
            raise ConfigError(
                f"none of the {len(records)} recorded replies names its query; pass queries="
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
        return f"RecordedModel({self.name!r}, queries={sum(map(len, self._by_text.values()))})"

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:  # noqa: ARG002  (it answers at once)
        """Return the recorded reply to *prompt*.

        Raises:
            ModelError: The reason is ``unrecorded`` if no record matches, and ``empty`` if the
                record has none of the requested fields.
        """
        entry = self._find_entry(prompt)
        if entry is None:
            raise ModelError("unrecorded", "no recorded reply for this query")
        values = {
            wanted.name: _keep_valid_value(entry.get_value(wanted.name, prompt.mode), wanted)
            for wanted in prompt.fields
            if wanted.name != "standalone" or prompt.history
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

    def _add_record(self, record: Mapping[str, Any], query: Mapping[str, Any] | None) -> None:
        """Index *record* by the text of its question, and by its standalone text if it has one."""
        text = _normalise(record.get("query") or (query or {}).get("text"))
        history = None if query is None else (query.get("metadata") or {}).get("history") or ()
        known = record.get("history") or () if "history" in record else history
        texts = None if known is None else _read_texts(known, text)
        standalone = _normalise(record.get("standalone"))
        entry = _Entry(texts, has_history=bool(standalone if texts is None else texts))
        if text:
            # If the history is unknown, the id tells records of equal text apart.
            key = ("unknown", str(record.get("_id", ""))) if texts is None else texts
            entry = self._by_text.setdefault(text, {}).setdefault(key, entry)
        entry.add_record(record)
        if standalone:
            self._by_standalone.setdefault(standalone, entry)

    def _find_entry(self, prompt: Prompt) -> _Entry | None:
        """Return the best record for *prompt*; ``None`` if none matches or two match equally."""
        text = _normalise(prompt.query)
        entries = self._by_text.get(text, {}).values()
        if not (texts := _read_texts(prompt.history, text)):
            plain = (entry for entry in entries if not entry.has_history)
            return next(plain, None) or self._by_standalone.get(text)
        ranked = [
            (_rank_shared_ending(entry.history or (), texts), entry)
            for entry in entries
            if entry.has_history
        ]
        # An entry whose history is known and ends otherwise belongs to another conversation.
        ranked = [(rank, entry) for rank, entry in ranked if rank[0] or entry.history is None]
        best = max((rank for rank, _ in ranked), default=None)
        fitting = [entry for rank, entry in ranked if rank == best]
        if not fitting:
            return self._by_standalone.get(text)
        return fitting[0] if len(fitting) == 1 else None


def _keep_valid_value(value: Any, reply_field: ReplyField) -> Any:
    """Return *value* if it is valid for *reply_field*, else ``None``. Long lists are cut."""
    if reply_field.shape != "list":
        return value if isinstance(value, str) and value.strip() else None
    items = value if isinstance(value, list) else []
    texts = [item for item in items if isinstance(item, str) and item.strip()]
    return texts[: reply_field.max_items or None]


def _normalise(text: Any) -> str:
    """Return *text* with one space for each run of white space; ``""`` if it is not a string."""
    return " ".join(text.split()) if isinstance(text, str) else ""


def _read_texts(history: Iterable[Any], query: str) -> tuple[str, ...]:
    """Return the texts of *history* that prompts show.

    Prompts omit blank messages, system messages, and a last message that equals *query*.
    """
    messages = read_history(history).messages
    texts = [_normalise(message.content) for message in messages if message.role != "system"]
    return tuple(texts[:-1] if texts and texts[-1] == query else texts)


def _rank_shared_ending(texts: tuple[str, ...], others: tuple[str, ...]) -> tuple[int, bool]:
    """Return how many last messages two conversations share, and whether both are equal.

    A greater tuple means a better match.
    """
    pairs = zip(reversed(texts), reversed(others), strict=False)
    count = sum(1 for _ in takewhile(_are_same_message, pairs))
    return count, len(texts) == len(others) == count


def _are_same_message(pair: tuple[str, str]) -> bool:
    """Return whether two messages are equal, or one is a truncated copy of the other.

    Prompts truncate long messages and end them with an ellipsis.
    """
    short, full = sorted(pair, key=len)
    return short == full or (short.endswith("…") and full.startswith(short[:-1].rstrip()))


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
        # The fields are recorded, not the reply's text, so that other modes can use them too.
        members = {} if reply.truncated else parse_reply(reply, ())
        values = {
            wanted.name: _keep_valid_value(members.get(wanted.name), wanted)
            for wanted in prompt.fields
        }
        answer = {name: value for name, value in values.items() if value}
        why = "" if answer else "it has none of the requested fields"
        try:
            if answer:
                with self._lock:
                    self._append_record(prompt, answer)
        except ConfigError as error:
            why = str(error)
        except OSError as error:
            why = error.strerror or type(error).__name__
        if why:
            message = "a reply in mode %s was not recorded in %s: %s"
            _log.warning(message, prompt.mode, self._path, why, event="reply_not_recorded")
        return reply

    def _append_record(self, prompt: Prompt, answer: Mapping[str, Any]) -> None:
        history = [{"role": message.role, "content": message.content} for message in prompt.history]
        key = json.dumps([_normalise(prompt.query), history]).encode()
        query_id = hashlib.sha256(key).hexdigest()[:16]
        # The file is read only once. Later records come from this object.
        if self._written is None:
            lines = read_records(self._path) if self._path.exists() else ()
            self._written = {(str(line.get("_id")), str(line.get("mode"))) for line in lines}
        if (query_id, prompt.mode) in self._written:
            return
        make_private_folders(self._path.parent)
        names = {"_id": query_id, "query": prompt.query, "history": history, "mode": prompt.mode}
        line = json.dumps({**names, **answer}, ensure_ascii=False)
        # Lone surrogates cannot be encoded in UTF-8, so they are escaped as in JSON.
        append_line(self._path, line.encode(errors="backslashreplace"))
        self._written.add((query_id, prompt.mode))


class EstimatedModel:
    """Adds estimates of tokens and cost to the replies of *inner*, which report none.

    Tokens are estimated from the length of the texts: four characters each, OpenAI's rule of thumb
    for English. The cost uses the prices of the model called *priced_model*, and is ``None`` if
    they are not known. A reply that reports tokens keeps its tokens and cost.
    """

    def __init__(
        self,
        inner: LanguageModel,
        priced_model: str,
        *,
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        """Wrap *inner*. Prices in US dollars per million tokens override the known prices."""
        self._inner = inner
        self._priced_model = priced_model
        self._prices = Prices(priced_model, input_price, output_price)
        self.can_async: bool = getattr(inner, "can_async", True)

    def __repr__(self) -> str:
        return f"EstimatedModel({self._inner!r}, {self._priced_model!r})"

    @property
    def name(self) -> str:
        """The name of the inner model."""
        return self._inner.name

    @property
    def note(self) -> str:
        """A sentence for the report on how tokens and costs are estimated."""
        money = (
            f"costs use the prices of {self._priced_model}"
            if self._prices.compute_cost(1, 1) is not None
            else f"the prices of {self._priced_model} are not known"
        )
        return f"Tokens are estimated, four characters each; {money}."

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* with estimates. Exceptions of the model pass through."""
        return self._add_estimates(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* with estimates. Exceptions of the model pass through."""
        return self._add_estimates(prompt, await self._inner.acomplete(prompt, deadline))

    def _add_estimates(self, prompt: Prompt, reply: Reply) -> Reply:
        if reply.input_tokens or reply.output_tokens:
            return reply
        read, written = ceil(len(prompt.system + prompt.user) / 4), ceil(len(reply.text) / 4)
        return replace(
            reply,
            input_tokens=read,
            output_tokens=written,
            cost_usd=self._prices.compute_cost(read, written),
        )


def load_recording(dataset: Dataset, path: Path) -> tuple[RecordedModel, Dataset, frozenset[str]]:
    """Return the recording at *path* as a model, and the questions of *dataset* that it contains.

    The names of the recorded reply fields come third. Raises `ConfigError` if the recording cannot
    be read, or has no question of *dataset*.
    """
    lines = list(read_records(path))
    # Two questions may have the same text. If the recording has ids, the id decides.
    ids = {str(line.get("_id")) for line in lines}
    by_id = dataset.only(ids)
    queries = {_normalise(line.get("query")) for line in lines}
    data = (
        by_id
        if by_id.questions
        else dataset.only(
            {question.id for question in dataset.questions if _normalise(question.text) in queries}
        )
    )
    if not data.questions:
        raise ConfigError(
            f"none of the {len(dataset.questions)} questions of {dataset.name} is in the recording"
            f" {path}; name the recording of this data set",
            path="recordings",
        )
    records = [question.to_record() for question in data.questions]
    asked = {question.id for question in data.questions}
    texts = {_normalise(question.text) for question in data.questions}
    fields = {
        name
        for line in lines
        if str(line.get("_id")) in asked or _normalise(line.get("query")) in texts
        for name, value in line.items()
        if value and name not in ("_id", "query", "history", "mode")
    }
    model = RecordedModel(lines, records, name=f"recorded:{path.stem}")
    return model, data, frozenset(fields)
