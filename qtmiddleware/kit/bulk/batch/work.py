"""Submit, look after, collect and cancel: what is asked in batches, from the questions to the replies."""

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
from qtmiddleware.kit.bulk.batch.model import BatchModel, digest
from qtmiddleware.kit.bulk.batch.parts import (
    LIMITS,
    Limits,
    Line,
    Read,
    read_line,
    split,
    write_line,
)
from qtmiddleware.kit.bulk.batch.service import TRANSIENT, BatchService
from qtmiddleware.kit.bulk.batch.state import ENDED, BatchState, Part
from qtmiddleware.runtime.files import open_itself

Ask = Callable[[BatchModel], Iterator[None]]
"""Puts every question that has no answer yet to a model, one after the other, and yields after each."""

DOWNLOADS: Final = 3
"""How often a file is asked for that breaks off."""
CHUNK: Final = 500
"""Replies that are kept at a time."""
LINES: Final = 3
SPARE_LINES: Final = 1_000
REPLY_BYTES: Final = 64 << 10
SPARE_BYTES: Final = 64 << 20
"""Most lines and bytes of a file that are read: so many a request, and so many beside."""


@dataclass(slots=True)
class Tally:
    """What came with the files of batches, and what did not.

    *failures* are requests by what became of them (``batch_expired``, ``HTTP 400``), *refused* how
    many of these would be refused again. *broken* names lines that are none, *repeated* and
    *unknown* count replies that came twice or that nobody asked for, and *short* names files with
    fewer lines than the service counts.
    """

    replies: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    repeated: int = 0
    unknown: int = 0
    broken: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    def count(self, read: Read) -> None:
        """Count what one line says."""
        self.replies += not read.failure
        if read.failure:
            self.failures[read.failure] += 1
            self.refused += read.is_final

    def add(self, other: Tally) -> None:
        """Count what *other* counts as well."""
        for it in fields(self):
            setattr(self, it.name, getattr(self, it.name) + getattr(other, it.name))


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """Where the work stands: its *parts*, the questions *answered* this time and still *open*, and their requests.

    *underway* requests are with the service, *missing* ones with nobody: they are sent by the next
    submit. *sent* are the parts this command sent, and *tally* is what it fetched. *spent* is what
    the replies so far cost, *expected* what those under way may cost at most.
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
        """All of it, as JSON takes it."""
        plain = asdict(self)
        plain["tally"]["failures"] = dict(self.tally.failures)
        return {
            **plain,
            **{
                name: [part.to_dict() for part in getattr(self, name)] for name in ("parts", "sent")
            },
        }


class BatchWork:
    """What *ask* needs of the model of *settings*, asked by batches at *service* and kept in *state*.

    Every step is written down before the next one, so that a killed command is taken up by the same
    one: what was sent is found again, and nothing is sent twice. Raises `ModelError`, `StoreError`,
    `ConfigError` and `OSError`.
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
        self._tariff = Tariff(self._model.prices, service.share, settings.llm.max_tokens)
        self._file = state.path.with_name(f"{state.path.name}.part")
        self._answered = self._open = 0

    def submit(self, most_tokens: int | None = None) -> BatchStatus:
        """Send what no batch has answered and none is about to; returns where the work stands then.

        With *most_tokens* no more than about so many are queued at once; the rest is sent by a
        later submit.
        """
        begun = [part for part in self._state.parts() if not part.batch and not part.settled]
        sent = [part for part in map(self._resume, begun) if part is not None]
        size = (
            self._limits.size
            if most_tokens is None
            else min(self._limits.size, most_tokens * TOKEN_BYTES)
        )
        fresh: set[str] = set()
        missing = 0
        for _, lines in groupby(
            split(self._open_lines(fresh), replace(self._limits, size=size)), key=itemgetter(0)
        ):
            if missing:
                missing += sum(1 for _ in lines)
                continue
            ids, size = self._write(line for _, line in lines)
            if (
                most_tokens is not None
                and (self._count_queued() + size) // TOKEN_BYTES > most_tokens
            ):
                missing += len(ids)
                continue
            self._check_budget(Part(0, len(ids), size, None, {}, settled=False))
            part = self._state.add_part(ids, size)
            fresh.difference_update(ids)
            sent.append(self._send(part, None))
        self._file.unlink(missing_ok=True)
        return self._build_status(missing=missing, sent=tuple(sent))

    def status(self) -> BatchStatus:
        """Ask how the batches are; returns where the work stands, its questions aside."""
        for part in self._underway():
            self._state.set_batch(part, self._service.retrieve(part.batch["id"]))
        return self._build_status()

    def collect(self) -> BatchStatus:
        """Fetch what batches that have ended brought, and answer the questions that can be answered with it."""
        tally = Tally()
        for part in self._underway():
            batch = self._service.retrieve(part.batch["id"])
            self._state.set_batch(part, batch)
            if batch.get("status") in ENDED:
                self._fetch(replace(part, batch=batch), tally)
                self._state.settle(part)
        waiting: set[str] = set()
        for requests in self._requests():
            waiting.update(map(digest, requests))
        underway = sum(map(self._state.is_sent, waiting))
        return replace(
            self._build_status(missing=len(waiting) - underway, tally=tally), underway=underway
        )

    def cancel(self) -> BatchStatus:
        """Stop the batches under way; what they have answered by then is there to be collected."""
        for part in self._underway():
            self._state.set_batch(part, self._service.cancel(part.batch["id"]))
        return self._build_status()

    def _underway(self) -> list[Part]:
        return [part for part in self._state.parts() if part.batch and not part.settled]

    def _build_status(
        self, *, missing: int = 0, sent: tuple[Part, ...] = (), tally: Tally | None = None
    ) -> BatchStatus:
        parts = self._state.parts()
        underway = [part for part in parts if not part.settled]
        return BatchStatus(
            tuple(parts),
            self._sum_up(parts),
            self._tariff.estimate(underway),
            self._answered,
            self._open,
            sum(part.requests for part in underway),
            missing,
            sent,
            tally or Tally(),
        )

    def _count_queued(self) -> int:
        return sum(part.size for part in self._state.parts() if not part.settled)

    def _check_budget(self, part: Part) -> None:
        parts = self._state.parts()
        planned = self._tariff.estimate((*(it for it in parts if not it.settled), part))
        self._tariff.check(self._settings.budget, self._sum_up(parts), planned)

    def _sum_up(self, parts: Sequence[Part]) -> Cost:
        return self._tariff.sum_up(parts, self._state.sum_usage())

    # --- from the questions to the service
    # ----------------------------------------------------------------------------

    def _requests(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """What each question that cannot be answered yet still lacks."""
        self._answered = self._open = 0
        for _ in self._ask(self._model):
            requests = self._model.take_requests()
            if requests:
                self._open += 1
                yield requests
            else:
                self._answered += 1

    def _open_lines(self, fresh: set[str]) -> Iterator[Line]:
        """The line of every request that is not on its way; *fresh* are those that were given out and not sent yet."""
        for requests in self._requests():
            for request in requests:
                id_ = digest(request)
                if id_ not in fresh and not self._state.is_sent(id_):
                    fresh.add(id_)
                    yield write_line(id_, request)

    def _write(self, lines: Iterator[Line]) -> tuple[list[str], int]:
        """Put *lines* into the file that is uploaded next; returns their ids and how many bytes they are."""
        ids: list[str] = []
        self._file.unlink(missing_ok=True)
        with os.fdopen(open_itself(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            for id_, line in lines:
                ids.append(id_)
                file.write(line)
            file.flush()
            # What the state says of it must be true after a power cut, too.
            os.fsync(file.fileno())
            return ids, file.tell()

    def _resume(self, part: Part) -> Part | None:
        """Send *part*, at which an earlier command was stopped; ``None`` where its file is gone, and all of it open."""
        file = part.file or self._service.find_file(self._name(part))
        # Whoever put a link there would choose what is uploaded.
        is_ours = self._file.is_file() and not self._file.is_symlink()
        is_whole = is_ours and self._file.stat().st_size == part.size
        if file is None and not is_whole:
            self._state.settle(part)
            return None
        return self._send(part, file)

    def _send(self, part: Part, file: str | None) -> Part:
        """Make the batch of *part*, of its *file* at the service, which is uploaded where it is not there."""
        try:
            found = None if file is None else self._service.find(file)
            if file is None:
                file = self._service.upload(self._file, self._name(part))
            self._state.set_file(part, file)
            labels = {"qtmiddleware": self._state.run, "part": str(part.number)}
            batch = found or self._service.create(file, labels)
        except ModelError as error:
            if error.reason == "rejected":
                # As it is it will never be taken: its requests are open again.
                self._state.settle(part)
            raise
        self._state.set_batch(part, batch)
        self._file.unlink(missing_ok=True)
        return replace(part, file=file, batch=batch)

    def _name(self, part: Part) -> str:
        return f"qtm-{self._state.run}-{part.number}.jsonl"

    # --- from the service to the questions
    # ----------------------------------------------------------------------------

    def _fetch(self, part: Part, tally: Tally) -> None:
        """Keep what the files of *part* hold."""
        for key in ("output_file_id", "error_file_id"):
            what = f"the {key.partition('_')[0]} file of part {part.number}"
            least = part.completed if key.startswith("output") else 0
            if file := part.batch.get(key):
                self._fetch_file(file, what, part.requests, least, tally)
            elif least:
                tally.short.append(f"{what}: 0 of {least:,} lines")

    def _fetch_file(self, file: str, what: str, requests: int, least: int, tally: Tally) -> None:
        """Keep what *file* holds, called *what*; it should have *least* lines, and was made of so many *requests*."""
        most = {
            "lines": LINES * requests + SPARE_LINES,
            "size": REPLY_BYTES * requests + SPARE_BYTES,
        }
        for left in reversed(range(DOWNLOADS)):
            attempt = Tally()
            try:
                lines = self._keep_lines(what, self._service.read_lines(file, **most), attempt)
            except ModelError as error:
                if error.reason == "too_long":
                    attempt.broken.append(f"the rest of {what}: {error}")
                    break
                if not left or error.reason not in TRANSIENT:
                    raise
                continue
            if lines >= least:
                break
        else:
            attempt.short.append(f"{what}: {lines:,} of {least:,} lines")
        tally.add(attempt)

    def _keep_lines(self, what: str, lines: Iterator[bytes], tally: Tally) -> int:
        """Keep the replies in *lines*; returns how many lines that are."""
        number, seen, kept = 0, set[str](), list[Read]()
        try:
            for number, line in enumerate(lines, 1):
                read = read_line(line)
                if read is None:
                    tally.broken.append(f"line {number:,} of {what}")
                    continue
                if read.id in seen:
                    tally.repeated += 1
                elif not self._state.is_known(read.id):
                    tally.unknown += 1
                else:
                    seen.add(read.id)
                    tally.count(read)
                    if read.is_final:
                        kept.append(read)
                if len(kept) == CHUNK:
                    self._state.add_replies(kept)
                    kept.clear()
        finally:
            self._state.add_replies(kept)
        return number
