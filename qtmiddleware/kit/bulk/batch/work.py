"""Submit, check, collect and cancel the batches for a set of questions."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.bulk.batch.costs import TOKEN_BYTES, Cost, Tariff
from qtmiddleware.kit.bulk.batch.model import BatchModel, compute_request_id
from qtmiddleware.kit.bulk.batch.parts import (
    LIMITS,
    Limits,
    Line,
    RequestResult,
    assign_file_numbers,
    build_request_line,
    parse_result_line,
)
from qtmiddleware.kit.bulk.batch.service import TRANSIENT, BatchService
from qtmiddleware.kit.bulk.batch.state import ENDED, BatchState, Part
from qtmiddleware.runtime.files import open_for_writing

Ask = Callable[[BatchModel], Iterator[None]]
"""A function that asks a model all questions without an answer, and yields after each question."""

DOWNLOADS: Final = 3
"""The maximum number of times to download a file whose download is interrupted."""
CHUNK: Final = 500
"""The number of replies to store in one transaction."""
LINES: Final = 3
SPARE_LINES: Final = 1_000
REPLY_BYTES: Final = 64 << 10
SPARE_BYTES: Final = 64 << 20
"""The limits of a download: lines and bytes per request, plus spare lines and bytes per file."""


@dataclass(slots=True)
class Tally:
    """The counts of downloaded results, and descriptions of unreadable and missing results.

    Attributes:
        replies: The number of successful requests, which have a reply.
        failures: The number of failed requests per failure, such as ``batch_expired`` or
            ``HTTP 400``.
        refused: The number of failed requests that would fail again if repeated.
        repeated: The number of results whose request already has a result in the same file.
        unknown: The number of results without a matching request.
        broken: A description of each line that cannot be read.
        short: A description of each file with fewer lines than the service reports.
    """

    replies: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    repeated: int = 0
    unknown: int = 0
    broken: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    def count_result(self, result: RequestResult) -> None:
        """Add the *result* of one request to the counts."""
        self.replies += not result.failure
        if result.failure:
            self.failures[result.failure] += 1
            self.refused += result.is_final

    def add_tally(self, other_tally: Tally) -> None:
        """Add the counts and descriptions of *other_tally* to this tally."""
        for counter in fields(self):
            setattr(
                self,
                counter.name,
                getattr(self, counter.name) + getattr(other_tally, counter.name),
            )


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """The status of all batches, and the results of one command, such as ``submit``.

    Attributes:
        parts: All batches, each with its request file.
        spent: The cost of the replies so far.
        expected: The estimated maximum cost of the requests in unfinished batches.
        answered: The number of questions that this command answered.
        open: The number of questions that still need a reply.
        underway: The number of requests that were sent and have no reply yet.
        missing: The number of requests that the next ``submit`` sends.
        sent: The batches that this command sent.
        tally: The counts of the results that this command downloaded.
    """

    parts: tuple[Part, ...]
    spent: Cost
    expected: Cost
    answered: int = 0
    open: int = 0
    underway: int = 0
    missing: int = 0
    sent: tuple[Part, ...] = ()
    tally: Tally = field(default_factory=Tally)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes of this status as JSON values."""
        values = asdict(self)
        values["tally"]["failures"] = dict(self.tally.failures)
        return {
            **values,
            **{
                name: [part.to_dict() for part in getattr(self, name)] for name in ("parts", "sent")
            },
        }


class BatchWork:
    """Submits, checks, collects and cancels the batches for a set of questions.

    Each step is saved before the next step begins. If a command is killed, run the command again
    to continue. No request is sent twice. Methods raise `ModelError`, `StoreError`, `ConfigError`
    and `OSError`.

    Args:
        settings: The settings that name the model.
        service: The service that processes the batches.
        state: The file that stores requests and replies.
        ask: A function that asks a model all questions without an answer.
        limits: The maximum number of requests and bytes in a batch.
    """

    def __init__(
        self,
        settings: Settings,
        service: BatchService,
        state: BatchState,
        ask: Ask,
        *,
        limits: Limits = LIMITS,
    ) -> None:
        self._settings = settings
        self._service = service
        self._state = state
        self._ask = ask
        self._limits = limits
        self._model = BatchModel(settings, state, service.address)
        self._tariff = Tariff(self._model.prices, service.price_factor, settings.llm.max_tokens)
        self._file = state.path.with_name(f"{state.path.name}.part")
        self._answered = self._open = 0

    def submit(self, max_queued_tokens: int | None = None) -> BatchStatus:
        """Send each request that has no reply and is not sent yet, and return the status.

        With *max_queued_tokens*, unfinished batches contain at most about this number of tokens.
        The remaining requests stay unsent; call this method again later to send them.
        """
        # An earlier command may have been killed before it sent these parts.
        unsent_parts = [
            part for part in self._state.list_parts() if not part.batch and not part.settled
        ]
        sent = [part for part in map(self._resume_part, unsent_parts) if part is not None]
        size = (
            self._limits.size
            if max_queued_tokens is None
            else min(self._limits.size, max_queued_tokens * TOKEN_BYTES)
        )
        unsent_ids: set[str] = set()
        missing = 0
        for _, lines in groupby(
            assign_file_numbers(
                self._build_unsent_lines(unsent_ids), replace(self._limits, size=size)
            ),
            key=itemgetter(0),
        ):
            # After the first part that does not fit into the queue, all others wait, too.
            if missing:
                missing += sum(1 for _ in lines)
                continue
            ids, size = self._write_request_file(line for _, line in lines)
            if (
                max_queued_tokens is not None
                and (self._count_queued_bytes() + size) // TOKEN_BYTES > max_queued_tokens
            ):
                missing += len(ids)
                continue
            self._check_budget(Part(0, len(ids), size, None, {}, settled=False))
            part = self._state.add_part(ids, size)
            unsent_ids.difference_update(ids)
            sent.append(self._send_part(part, None))
        self._file.unlink(missing_ok=True)
        return self._build_status(missing_count=missing, sent_parts=tuple(sent))

    def status(self) -> BatchStatus:
        """Ask the service about all unfinished batches, and return the status of all batches.

        The returned status does not count questions and missing requests.
        """
        for part in self._list_unfinished_parts():
            self._state.store_batch(part, self._service.retrieve_batch(part.batch["id"]))
        return self._build_status()

    def collect(self) -> BatchStatus:
        """Download the replies of ended batches, answer questions, and return the status.

        A question is answered only if all replies that it needs are stored.
        """
        tally = Tally()
        for part in self._list_unfinished_parts():
            batch = self._service.retrieve_batch(part.batch["id"])
            self._state.store_batch(part, batch)
            if batch.get("status") in ENDED:
                self._fetch_results(replace(part, batch=batch), tally)
                self._state.settle_part(part)
        waiting_ids: set[str] = set()
        for requests in self._collect_requests_per_question():
            waiting_ids.update(map(compute_request_id, requests))
        underway = sum(map(self._state.is_request_sent, waiting_ids))
        return replace(
            self._build_status(missing_count=len(waiting_ids) - underway, tally=tally),
            underway=underway,
        )

    def cancel(self) -> BatchStatus:
        """Cancel all unfinished batches, and return the status.

        Call `collect` afterwards to download the replies that already exist.
        """
        for part in self._list_unfinished_parts():
            self._state.store_batch(part, self._service.cancel_batch(part.batch["id"]))
        return self._build_status()

    def _list_unfinished_parts(self) -> list[Part]:
        return [part for part in self._state.list_parts() if part.batch and not part.settled]

    def _build_status(
        self,
        *,
        missing_count: int = 0,
        sent_parts: tuple[Part, ...] = (),
        tally: Tally | None = None,
    ) -> BatchStatus:
        parts = self._state.list_parts()
        underway = [part for part in parts if not part.settled]
        return BatchStatus(
            tuple(parts),
            self._compute_actual_cost(parts),
            self._tariff.estimate_cost(underway),
            self._answered,
            self._open,
            sum(part.requests for part in underway),
            missing_count,
            sent_parts,
            tally or Tally(),
        )

    def _count_queued_bytes(self) -> int:
        return sum(part.size for part in self._state.list_parts() if not part.settled)

    def _check_budget(self, part: Part) -> None:
        parts = self._state.list_parts()
        planned_cost = self._tariff.estimate_cost(
            (*(other_part for other_part in parts if not other_part.settled), part)
        )
        self._tariff.check_budget(
            self._settings.budget, self._compute_actual_cost(parts), planned_cost
        )

    def _compute_actual_cost(self, parts: Sequence[Part]) -> Cost:
        return self._tariff.compute_actual_cost(parts, self._state.sum_usage())

    # --- from the questions to the service --------------------------------------------------------

    def _collect_requests_per_question(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Ask each unanswered question, and yield the question's requests that have no reply yet.

        Counts a question with such requests as open, and any other question as answered.
        """
        self._answered = self._open = 0
        for _ in self._ask(self._model):
            requests = self._model.take_unsent_requests()
            if requests:
                self._open += 1
                yield requests
            else:
                self._answered += 1

    def _build_unsent_lines(self, unsent_ids: set[str]) -> Iterator[Line]:
        """Yield a line for each request to send, and add the request's id to *unsent_ids*.

        The caller removes an id from *unsent_ids* when it stores the request as sent.
        """
        for requests in self._collect_requests_per_question():
            for request in requests:
                id_ = compute_request_id(request)
                # Equal questions have equal requests, which are sent once.
                if id_ not in unsent_ids and not self._state.is_request_sent(id_):
                    unsent_ids.add(id_)
                    yield build_request_line(id_, request)

    def _write_request_file(self, lines: Iterator[Line]) -> tuple[list[str], int]:
        """Write *lines* to the request file, and return the requests' ids and the file's size.

        The size is in bytes.
        """
        ids: list[str] = []
        self._file.unlink(missing_ok=True)
        with os.fdopen(
            open_for_writing(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb"
        ) as file:
            for id_, line in lines:
                ids.append(id_)
                file.write(line)
            file.flush()
            # The state will record this file, which must be complete even after a power failure.
            os.fsync(file.fileno())
            return ids, file.tell()

    def _resume_part(self, part: Part) -> Part | None:
        """Send a *part* that an interrupted command did not send, and return the updated part.

        Returns ``None`` if the request file is missing. The requests are then sent in another part.
        """
        file_id = part.file or self._service.find_file(self._build_file_name(part))
        # A link is not used, because its author could choose the file to upload.
        is_ours = self._file.is_file() and not self._file.is_symlink()
        is_whole = is_ours and self._file.stat().st_size == part.size
        if file_id is None and not is_whole:
            self._state.settle_part(part)
            return None
        return self._send_part(part, file_id)

    def _send_part(self, part: Part, file_id: str | None) -> Part:
        """Create the batch of *part*, unless it exists at the service, and return the updated part.

        *file_id* is the id of the uploaded request file; if ``None``, uploads the file first.
        """
        try:
            earlier_batch = None if file_id is None else self._service.find_batch(file_id)
            if file_id is None:
                file_id = self._service.upload_file(self._file, self._build_file_name(part))
            self._state.store_file_id(part, file_id)
            labels = {"qtmiddleware": self._state.run, "part": str(part.number)}
            batch = earlier_batch or self._service.create_batch(file_id, labels)
        except ModelError as error:
            if error.reason == "rejected":
                # The service will never accept this batch, so its requests are open again.
                self._state.settle_part(part)
            raise
        self._state.store_batch(part, batch)
        self._file.unlink(missing_ok=True)
        return replace(part, file=file_id, batch=batch)

    def _build_file_name(self, part: Part) -> str:
        return f"qtm-{self._state.run}-{part.number}.jsonl"

    # --- from the service to the questions --------------------------------------------------------

    def _fetch_results(self, part: Part, tally: Tally) -> None:
        """Download the output and error files of *part*, and store their results.

        Adds the counts of the results to *tally*.
        """
        for key in ("output_file_id", "error_file_id"):
            file_name = f"the {key.partition('_')[0]} file of part {part.number}"
            expected_lines = part.completed if key.startswith("output") else 0
            if file_id := part.batch.get(key):
                self._fetch_result_file(file_id, file_name, part.requests, expected_lines, tally)
            elif expected_lines:
                tally.short.append(f"{file_name}: 0 of {expected_lines:,} lines")

    def _fetch_result_file(
        self, file_id: str, file_name: str, request_count: int, expected_lines: int, tally: Tally
    ) -> None:
        """Download a result file, store the results, and add their counts to *tally*.

        Args:
            file_id: The id of the file.
            file_name: The name of the file in error messages.
            request_count: The number of requests in the file's batch.
            expected_lines: The minimum number of lines in the complete file.
            tally: The counts to which the results are added.
        """
        limits = {
            "lines": LINES * request_count + SPARE_LINES,
            "size": REPLY_BYTES * request_count + SPARE_BYTES,
        }
        for downloads_left in reversed(range(DOWNLOADS)):
            # Only the counts of the last attempt are kept, because each attempt reads all lines.
            attempt = Tally()
            try:
                lines = self._store_results(
                    file_name, self._service.download_lines(file_id, **limits), attempt
                )
            except ModelError as error:
                if error.reason == "too_long":
                    attempt.broken.append(f"the rest of {file_name}: {error}")
                    break
                if not downloads_left or error.reason not in TRANSIENT:
                    raise
                continue
            if lines >= expected_lines:
                break
        else:
            attempt.short.append(f"{file_name}: {lines:,} of {expected_lines:,} lines")
        tally.add_tally(attempt)

    def _store_results(self, file_name: str, lines: Iterator[bytes], tally: Tally) -> int:
        """Store the final results among *lines*, and return the number of lines.

        A result is final, unless its request may succeed if it is repeated. Adds the counts of all
        results to *tally*. *file_name* names the file in messages.
        """
        number, ids_seen, results = 0, set[str](), list[RequestResult]()
        try:
            for number, line in enumerate(lines, 1):
                result = parse_result_line(line)
                if result is None:
                    tally.broken.append(f"line {number:,} of {file_name}")
                    continue
                if result.id in ids_seen:
                    tally.repeated += 1
                elif not self._state.is_request_known(result.id):
                    tally.unknown += 1
                else:
                    ids_seen.add(result.id)
                    tally.count_result(result)
                    if result.is_final:
                        results.append(result)
                if len(results) == CHUNK:
                    self._state.add_replies(results)
                    results.clear()
        finally:
            # If the download is interrupted, the replies so far are kept.
            self._state.add_replies(results)
        return number
