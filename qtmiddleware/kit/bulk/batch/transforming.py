"""Transform a file of questions with OpenAI's Batch API.

The output has the same format as that of `transform_file`. A run can therefore change between
batches and single requests.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, TypeVar

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.bulk.batch.model import BatchModel
from qtmiddleware.kit.bulk.batch.parts import LIMITS, Limits
from qtmiddleware.kit.bulk.batch.service import BatchService
from qtmiddleware.kit.bulk.batch.state import BatchState
from qtmiddleware.kit.bulk.batch.work import BatchWork
from qtmiddleware.kit.bulk.fingerprint import build_fingerprint, describe_changes, parse_fingerprint
from qtmiddleware.kit.bulk.journal import Journal, open_journal
from qtmiddleware.kit.bulk.queries import JSON_LINES, InputQuery, read_queries
from qtmiddleware.kit.bulk.run import (
    STDIN,
    BulkReport,
    Record,
    ShowBulk,
    build_record,
    open_input_file,
    select_open_questions,
)
from qtmiddleware.providers.llms.recorded import RecordingModel
from qtmiddleware.runtime.pace import Pace
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.transform_stream import Transformed

T = TypeVar("T")

_NO_HURRY_MS: Final = 600_000
# Stored replies are paid for, so replaying them must not fail because of time limits or a budget.
REPLAYED: Final = {
    "limits": {"llmTimeoutMs": _NO_HURRY_MS, "deadlineMs": _NO_HURRY_MS},
    "budget": {"maxLlmCallsPerMinute": None, "maxTokens": None, "maxUsd": None},
    "breaker": {"enabled": False},
}
"""The settings for replaying stored replies, without time limits, budget and circuit breaker."""


class _NoPace(Pace):
    """Runs each model call once, without retries, because stored replies do not change."""

    def call_with_retries(self, call: Callable[[], T]) -> T:
        """Run *call* once, and return its result."""
        return call()


@dataclass(frozen=True, slots=True)
class FilePass:
    """Transforms those questions in a file that have no result yet, and writes the results.

    Attributes:
        source: The path of the file of questions.
        config: The config with the settings of the run.
        journal: The output file, which contains the results so far.
        recording: The file in which the model's replies are recorded.
        price_factor: The batch price as a fraction of the normal price; ``None`` if unknown.
        report: The report that counts the output records.
        show: A function that is called with the report after each record, if any.
    """

    source: Path
    config: Config
    journal: Journal
    recording: Path
    price_factor: float | None
    report: BulkReport
    show: ShowBulk | None = None

    def __call__(self, model: BatchModel) -> Iterator[None]:
        """Transform each question that has no result yet, and yield ``None`` after each of them.

        If *model* lacks a reply to a question, no result is written for this question.
        """
        recording, pace = RecordingModel(model, self.recording), _NoPace(1)
        config = self.config.overridden(REPLAYED)
        with (
            self.source.open("rb") as file,
            QueryMiddleware(config, client=recording) as middleware,
        ):
            lines = read_queries(
                file, config.settings, has_json=self.source.suffix.casefold() in JSON_LINES
            )
            for query in select_open_questions(
                lines, self.journal, self.report, self._write_record
            ):
                # One question at a time, as `BatchModel` requires.
                for transformed in middleware.transform_stream([query], concurrency=1, pace=pace):
                    # Otherwise the transformation lacks a reply, so the question stays open.
                    if not model.is_waiting:
                        self._write_record(
                            build_record(
                                self._apply_batch_price(transformed),
                                middleware.preprocess(query.text),
                            )
                        )
                yield

    def _apply_batch_price(
        self, transformed_query: Transformed[InputQuery]
    ) -> Transformed[InputQuery]:
        price_factor = self.price_factor
        costs = [
            None
            if price_factor is None or reply.cost_usd is None
            else reply.cost_usd * price_factor
            for reply in transformed_query.replies
        ]
        replies = [
            replace(reply, cost_usd=cost)
            for reply, cost in zip(transformed_query.replies, costs, strict=True)
        ]
        return replace(transformed_query, replies=tuple(replies))

    def _write_record(self, record: Record) -> None:
        self.journal.append_record(record)
        self.report.add(record)
        if self.show is not None:
            self.show(self.report)


@contextmanager
def open_batch_work(
    source: str | Path,
    out: str | Path,
    *,
    config: Config,
    client: Any = None,
    overwrite: bool = False,
    limits: Limits = LIMITS,
    show: ShowBulk | None = None,
) -> Iterator[tuple[BatchWork, BulkReport]]:
    """Prepare to transform the file *source* into the file *out* with the Batch API.

    Yields a `BatchWork`, which submits and collects the batches, and a report of the progress.
    Creates two more files: ``<out>.batch``, which stores requests and replies, and
    ``<out>.recording.jsonl``, which records the replies for replays. You may append questions to
    *source* later.

    Args:
        source: The path of the file of questions.
        out: The path of the output file.
        config: The config with the settings of the run.
        client: An ``openai.OpenAI``. By default, the settings determine the client.
        overwrite: Whether to replace *out* instead of continuing it.
        limits: The maximum number of requests and bytes in a batch.
        show: A function that is called with the report after each output record.

    Raises:
        ConfigError: The config, a prompt or an earlier question has changed since the first
            ``submit``. Also raised for the reasons that `transform_file` lists.
        StoreError: Another command is using the files, or a file cannot be written.
    """
    if source == STDIN:
        raise ConfigError(
            "--batch needs --file, because it reads the questions again each time", path="--file"
        )
    path = Path(out)
    report, began = BulkReport(), monotonic()
    fingerprint = build_fingerprint(config.settings)
    with (
        open_input_file(source, path) as file,
        closing(BatchService(config.settings, client)) as service,
        open_journal(path, fingerprint, overwrite=overwrite) as journal,
        BatchState(Path(f"{out}.batch")) as state,
    ):
        _check_or_store_inputs(state, fingerprint, file, "" if overwrite else str(source))
        recording = Path(f"{out}.recording.jsonl")
        file_pass = FilePass(
            Path(source), config, journal, recording, service.price_factor, report, show
        )
        yield BatchWork(config.settings, service, state, file_pass, limits=limits), report
    report.seconds = monotonic() - began


def _check_or_store_inputs(
    state: BatchState, fingerprint: Mapping[str, Any], file: BinaryIO, file_name: str
) -> None:
    """Check that the batches in *state* were created with the current config and questions.

    Raises `ConfigError` if the config or the questions differ. If there are no batches yet, stores
    the current config and a digest of the questions in *state* instead.

    Args:
        state: The file that stores the batches.
        fingerprint: The settings and prompt versions of the current config, from
            `build_fingerprint`.
        file: The open file of questions.
        file_name: The file's name for the error message; ``""`` to replace the stored values.
    """
    stored_inputs = _read_stored_inputs(state) if file_name and state.list_parts() else None
    if stored_inputs is not None:
        config, size, old_digest = stored_inputs
        changes = [*describe_changes(config, fingerprint)]
        # Only the first *size* bytes count, because questions may be appended.
        if _compute_file_digest(file, size) != old_digest:
            changes.append(f"the questions in {file_name}")
        if changes:
            problem = (
                f"the batches of {state.path} were made with other inputs; changed:"
                f" {', '.join(changes)}"
            )
            advice = "undo the change, name another --out, or run --batch submit with --overwrite"
            raise ConfigError(f"{problem}; {advice}", path="--out")
    else:
        size = file.seek(0, os.SEEK_END)
        current_inputs = {
            "config": fingerprint,
            "bytes": size,
            "digest": _compute_file_digest(file, size),
        }
        state.store_state_value("fingerprint", json.dumps(current_inputs))


def _read_stored_inputs(state: BatchState) -> tuple[Mapping[str, Any], int, str] | None:
    """Return the stored config, the size of the questions in bytes, and the questions' digest.

    Returns ``None`` if nothing is stored. Raises `StoreError` if the stored values are damaged.
    """
    fact = state.read_state_value("fingerprint")
    if fact is None:
        return None
    try:
        facts = parse_fingerprint(fact)
    except ValueError:
        facts = {}
    config, size, digest = facts.get("config"), facts.get("bytes"), facts.get("digest")
    if not isinstance(config, dict) or not isinstance(size, int) or not isinstance(digest, str):
        raise state.build_file_error("its record of the questions is damaged")
    return config, size, digest


def _compute_file_digest(file: BinaryIO, size: int) -> str:
    """Return the sha256 of the first *size* bytes of *file*, in hexadecimal."""
    file.seek(0)
    hashed = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        hashed.update(chunk)
        size -= len(chunk)
    return hashed.hexdigest()
