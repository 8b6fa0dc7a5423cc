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

import json
import os
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation.asking import parse_reply
from qtmiddleware.kit.evaluation.dataset import Dataset, name_place_in_errors, read_records
from qtmiddleware.kit.files import make_private_folders
from qtmiddleware.protocols import LanguageModel, Prompt, Reply, ReplyField
from qtmiddleware.providers.llms.replies import Prices
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.runtime.files import append_line, open_for_writing
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import Deadline

# So many last messages, and so much of each, tell conversations apart. Prompts show no more than
# the last messages, and cut long ones.
_TURNS: Final = 2
_TURN_CHARS: Final = 200
_log: Final = get_logger("qtmiddleware.llms")


def load_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of the recording at *path*.

    Raises `ConfigError` with the line number if a record cannot be read.
    """
    records = []
    for place, record in read_records(path):
        with name_place_in_errors(path, place):
            if not isinstance(record.get("history") or [], list):
                raise ValueError("must have a list as its history")
        records.append(record)
    return records


class RecordedModel:
    """Replays replies from a recording, without delay.

    The model finds a record by the question's text and the last two messages before it, because
    follow-ups such as "Why?" occur in several conversations. The reply is JSON with those requested
    fields that the record has.

    Args:
        records: The records, as `load_records` returns them.
        queries: The query set: ``{"_id", "text", "metadata": {"history"}}`` per query.
        name: The name that the model reports.
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
        self._prices: Prices | None = None
        # The values by question and end of the history, then by mode. The mode "" has them all.
        self._known: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
        queries_by_id = {str(query["_id"]): query for query in queries}
        for record in records:
            query = queries_by_id.get(str(record.get("_id", "")), {})
            history = record.get("history") or (query.get("metadata") or {}).get("history") or ()
            text = _normalise(record.get("query") or query.get("text"))
            if not text:
                continue
            modes = self._known.setdefault(_make_key(text, history), {})
            values = {field: value for field, value in record.items() if value}
            for mode in {"", str(record.get("mode") or "")}:
                modes.setdefault(mode, {}).update(values)

    @classmethod
    def from_file(
        cls, path: str | Path, queries: Iterable[Mapping[str, Any]] = ()
    ) -> RecordedModel:
        """Return a model that answers from the recording at *path*.

        Raises `ConfigError` if the recording cannot be read.
        """
        recording = Path(path)
        return cls(load_records(recording), queries, name=f"recorded:{recording.stem}")

    def priced_as(self, prices: Prices) -> RecordedModel:
        """Return a copy whose replies report tokens, four characters each, and their *prices*."""
        priced = copy(self)
        priced._prices = prices
        return priced

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:  # noqa: ARG002  (it answers at once)
        """Return the recorded reply to *prompt*.

        Raises:
            ModelError: The reason is ``unrecorded`` if no record matches, and ``empty`` if the
                record has none of the requested fields.
        """
        modes = self._known.get(_make_key(_normalise(prompt.query), prompt.history))
        if modes is None:
            raise ModelError("unrecorded", "no recorded reply for this query")
        values = {**modes[""], **modes.get(prompt.mode, {})}
        fields = [field for field in prompt.fields if field.name != "standalone" or prompt.history]
        answer = _keep_valid_values(values, fields)
        if not answer:
            raise ModelError(
                "empty", "the recorded reply for this query has none of the requested fields"
            )
        reply = json.dumps(answer, ensure_ascii=False)
        if self._prices is None:
            return Reply(reply, cost_usd=0.0)
        read, written = (ceil(len(text) / 4) for text in (prompt.system + prompt.user, reply))
        return Reply(reply, read, written, cost_usd=self._prices.compute_cost(read, written))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the recorded reply to *prompt*. This is the async version of `complete`."""
        return self.complete(prompt, deadline)


def _make_key(text: str, history: Iterable[Any]) -> tuple[str, ...]:
    """Return *text* with the end of *history*, as far as prompts show it."""
    messages = read_history(history).messages
    turns = [_normalise(message.content) for message in messages if message.role != "system"]
    if turns and turns[-1] == text:
        turns.pop()
    return text, *(turn[:_TURN_CHARS] for turn in turns[-_TURNS:])


def _keep_valid_values(
    values: Mapping[str, Any],
    fields: Iterable[ReplyField],
) -> dict[str, Any]:
    """Return the *values* of *fields* that are valid. Long lists are cut."""
    kept: dict[str, Any] = {}
    for field in fields:
        value = values.get(field.name)
        if field.shape == "list" and isinstance(value, list):
            texts = [item for item in value if isinstance(item, str) and item.strip()]
            value = texts[: field.max_items or None]
        elif field.shape == "list" or not _normalise(value):
            value = None
        if value:
            kept[field.name] = value
    return kept


def _normalise(text: Any) -> str:
    return " ".join(text.split()) if isinstance(text, str) else ""


class RecordingModel:
    """Asks the model *inner*, and keeps the reply to each prompt with the time it took.

    The same prompt is answered from memory. With *path*, the replies are also appended to a
    recording, one line per prompt. Only the owner can read a new file. An existing file keeps its
    permissions.

    If a reply has no usable JSON object, or the file cannot be written later, the reply is returned
    but not recorded. The logged warning contains no text of the reply. Raises `ConfigError` if
    *path* is no recording, or cannot be written.
    """

    def __init__(self, inner: LanguageModel, path: str | Path | None = None) -> None:
        self.name = inner.name
        self.can_async: bool = getattr(inner, "can_async", True)
        self._inner = inner
        self._kept: dict[Prompt, Reply] = {}
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        try:
            make_private_folders(self._path.parent)
            os.close(open_for_writing(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        except OSError as error:
            raise ConfigError(
                f"the replies cannot be recorded in {path}: {error.strerror}", path="record"
            ) from error
        # Nothing is appended to a file that is no recording.
        load_records(self._path)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the kept reply to *prompt*, or ask the model. Its errors pass through."""
        if prompt in self._kept:
            return self._kept[prompt]
        start = perf_counter()
        return self._keep(prompt, self._inner.complete(prompt, deadline), start)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the kept reply to *prompt*, or ask the model. Its errors pass through."""
        if prompt in self._kept:
            return self._kept[prompt]
        start = perf_counter()
        return self._keep(prompt, await self._inner.acomplete(prompt, deadline), start)

    def _keep(self, prompt: Prompt, reply: Reply, start: float) -> Reply:
        seconds = reply.seconds or perf_counter() - start
        self._kept[prompt] = replace(reply, seconds=seconds)
        if self._path is not None:
            self._record(self._path, prompt, reply)
        return reply

    def _record(self, path: Path, prompt: Prompt, reply: Reply) -> None:
        # The fields are recorded, not the reply's text, so that other modes can use them too.
        members = {} if reply.truncated else parse_reply(reply, ())
        answer = _keep_valid_values(members, prompt.fields)
        why = "" if answer else "it has none of the requested fields"
        history = [{"role": message.role, "content": message.content} for message in prompt.history]
        names = {"query": prompt.query, "history": history, "mode": prompt.mode}
        line = json.dumps({**names, **answer}, ensure_ascii=False)
        try:
            if answer:
                # Lone surrogates cannot be encoded in UTF-8, so they are escaped as in JSON.
                append_line(path, line.encode(errors="backslashreplace"))
        except OSError as error:
            why = error.strerror or type(error).__name__
        if why:
            message = "a reply in mode %s was not recorded in %s: %s"
            _log.warning(message, prompt.mode, path, why, event="reply_not_recorded")


def load_recording(
    dataset: Dataset,
    path: Path,
) -> tuple[RecordedModel, Dataset]:
    """Return the recording at *path* as a model, and the questions of *dataset* that it contains.

    Raises `ConfigError` if the recording cannot be read, or has no question of *dataset*.
    """
    lines = load_records(path)
    # Two questions may have the same text. If the recording has ids, the id decides.
    data = dataset.only({str(line.get("_id")) for line in lines})
    if not data.questions:
        texts = {_normalise(line.get("query")) for line in lines}
        data = dataset.only({one.id for one in dataset.questions if _normalise(one.text) in texts})
    if not data.questions:
        raise ConfigError(
            f"none of the {len(dataset.questions)} questions of {dataset.name} is in the recording"
            f" {path}; name the recording of this data set",
            path="recordings",
        )
    records = [question.to_record() for question in data.questions]
    return RecordedModel(lines, records, name=f"recorded:{path.stem}"), data
