"""Read documents that are not plain text, such as Word files, in a separate process.

If a document makes its reader hang or crash, only this document is skipped.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from zipfile import ZipFile

from qtmiddleware.errors import ConfigError, MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.bounds import count_chars, limit_time
from qtmiddleware.kit.documents.markup import read_epub, read_html
from qtmiddleware.kit.documents.office import read_docx, read_pptx, read_xlsx
from qtmiddleware.kit.documents.own_reader import ask_reader
from qtmiddleware.kit.documents.records import read_csv, read_json, read_json_lines, read_parquet
from qtmiddleware.kit.documents.text import PLACE_CHARS, Piece
from qtmiddleware.runtime.environment import copy_environment
from qtmiddleware.runtime.files import open_regular_file

Read = Callable[[Path, BinaryIO], Iterator[Piece]]
READERS: Final[dict[str, Read]] = {
    **dict.fromkeys((".csv", ".tsv"), read_csv),
    ".json": read_json,
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_lines),
    ".parquet": read_parquet,
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    ".epub": read_epub,
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
}
"""The reader for each file ending."""

SECONDS: Final = 60.0
"""Seconds that the next pieces of a document may take.

The slowest honest documents, large Word files, take a few seconds.
"""
_SECONDS_PER_MB: Final = 0.5
"""More seconds that the first pieces may take, per unpacked MB of a zipped document.

An Excel file's texts, for example, are all read before the first row.
"""
MEMORY: Final = 2 << 30
"""Address space of the process in bytes, if the system (Linux) enforces such a limit."""
MOST_INFLATED: Final = 1 << 30
MOST_PART: Final = 1 << 27
"""Unpacked bytes of a zipped document: at most `MOST_INFLATED` in total, and at most this per part.

The second limit holds for parts that are held in memory as a whole.
"""
_HELD: Final = (".xml", ".rels", ".xhtml", ".html", ".htm", ".opf")
"""Endings of the parts of a zipped document that its readers hold in memory as a whole."""
_STREAMED: Final = "xl/worksheets/"
"""Parts of Excel files that are read row by row, and may be larger."""
_ZIPPED: Final = frozenset((".epub", ".docx", ".pptx", ".xlsx"))
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of an old Office file, and of an encrypted one."""
_TOO_MUCH: Final = "reading it takes too much memory"
_BATCH_CHARS: Final = 1 << 16
_BATCH_PIECES: Final = 1 << 10

# The current folder must not decide which modules are imported, so they are looked up where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from qtmiddleware.kit.documents.converting import serve; serve()"
)


class Converter:
    """Reads documents one after another in a separate process.

    Reads the file types in `READERS` and those that installed packages support. Use a converter as
    a context manager. The separate process starts with the first document, and ends with the
    ``with`` block or the current process. Not thread-safe.
    """

    def __init__(self, seconds: float = SECONDS, memory: int = MEMORY) -> None:
        self._limits = [seconds, memory]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_reading = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def read(self, path: Path, *, follow_link: bool) -> Iterator[Piece]:
        """Yield the pieces of the document at *path*, with only a few pieces in memory at once.

        Raises:
            UnreadableDocument: if the document cannot be read, or if reading takes too long or
                crashes.
            MissingExtra: if a package for this file type is not installed.
            OSError: if the separate process cannot be started.
        """
        if self._is_reading:
            # The caller gave up the document before. Its remaining pieces would be taken for those
            # of this one.
            self.close()
        process = self._process = self._process or self._start_process()
        self._is_reading, is_intact = True, False
        try:
            for answer in self._ask_process(process, [str(path.absolute()), follow_link]):
                match answer:
                    case {"pieces": pieces}:
                        yield from (Piece(*piece) for piece in pieces)
                    case {"unreadable": [reason, detail]}:
                        # A process that ran out of memory may not have freed all of it, so it is
                        # not used again.
                        is_intact = detail != _TOO_MUCH
                        raise UnreadableDocument(path, reason, detail)
                    case {"missing": [package, extra]}:
                        is_intact = True
                        raise MissingExtra(package, extra)
                    case _:
                        is_intact = True
                        return
            raise UnreadableDocument(path, "its reader failed", self._explain_death(process))
        finally:
            # The process may have been replaced for a later document in the meantime.
            if process is self._process:
                self._is_reading = False
                if not is_intact:
                    self.close()

    def close(self) -> None:
        """Stop the separate process that reads documents."""
        process, self._process = self._process, None
        self._is_reading = False
        if process is not None:
            # Killed, not asked: it may hang, and has nothing to save.
            process.kill()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            process.wait()

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Start the separate process, and send it the module path and the resource limits."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # openpyxl imports numpy if it is installed, which would reserve address space for each
            # processor core.
            env={**copy_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        for line in (sys.path, self._limits):
            _send_message(process.stdin, line)
        return process

    @staticmethod
    def _ask_process(process: subprocess.Popen[bytes], question: Any) -> Iterator[Any]:
        """Send *question* to *process*, and yield its answers until *process* ends."""
        with suppress(OSError):
            _send_message(process.stdin, question)
        for line in process.stdout or ():
            # A process that died while writing leaves half a line.
            if line.endswith(b"\n"):
                yield json.loads(line)

    @staticmethod
    def _explain_death(process: subprocess.Popen[bytes]) -> str:
        """Wait until *process* ends, and return the reason, such as ``its reader crashed``.

        Exit code 1 means that reading took too long.
        """
        code = process.wait()
        return "reading it takes too long" if code == 1 else f"its reader crashed, code {code}"


def _send_message(stream: Any, message: Any) -> None:
    """Write *message* to *stream* as one line of JSON."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def serve() -> None:
    """Read the documents named on standard input, and write their text to standard output.

    Runs in the separate process until standard input closes. Messages are lines of JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process handles interrupts.
    warnings.simplefilter("ignore")
    # Whatever a library prints must not get between the answers.
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    seconds, memory = json.loads(sys.stdin.readline())
    _limit_memory(memory)
    questions: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_queue_questions, args=[questions], daemon=True).start()
    with open(os.devnull, "w") as null_file:  # noqa: PTH123
        while True:
            path, follow_link = questions.get()
            for answer in _answer_question(
                Path(path),
                follow_link,
                lambda extra_seconds=0.0: _start_watchdog(seconds + extra_seconds, null_file),
            ):
                faulthandler.cancel_dump_traceback_later()
                _send_message(out, answer)


def _start_watchdog(seconds: float, null_file: Any) -> None:
    """Start or restart a timer that ends this process after *seconds*, unless it is cancelled."""
    # A thread in C ends the process, even if Python code or a library hangs.
    faulthandler.dump_traceback_later(seconds, exit=True, file=null_file)


def _queue_questions(questions: queue.SimpleQueue[list[Any]]) -> None:
    """Put each message from standard input into *questions*; exit when standard input closes."""
    for line in sys.stdin:
        questions.put(json.loads(line))
    os._exit(0)  # The parent process is gone.


def _limit_memory(size: int) -> None:
    """Limit the address space of this process to *size* bytes, if the system allows it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _answer_question(
    path: Path, follow_link: bool, restart_timer: Callable[..., None]
) -> Iterator[dict[str, Any]]:
    """Yield the text of the document at *path* as messages for the parent process.

    The first messages contain the document's pieces. The last message contains the error, or is
    empty if there was no error. *restart_timer* restarts the time limit before each message.
    """
    restart_timer()
    try:
        with open_regular_file(path, follow_link=follow_link) as file:
            size = os.fstat(file.fileno()).st_size
            yield from _batch_pieces(
                limit_time(path, _read_non_blank(path, file, restart_timer), size), restart_timer
            )
    except MissingExtra as error:
        yield {"missing": [error.package, error.extra]}
    except UnreadableDocument as error:
        yield {"unreadable": [error.reason, error.detail]}
    except MemoryError:
        yield {"unreadable": ["too large", _TOO_MUCH]}
    except RecursionError:
        yield {"unreadable": ["damaged", "it is nested too deeply"]}
    except OSError as error:
        yield {"unreadable": ["cannot be opened", error.strerror or type(error).__name__]}
    except Exception as error:
        # Only the kind of the error: its message may quote the document.
        yield {"unreadable": ["damaged", type(error).__name__]}
    else:
        yield {}


def _batch_pieces(
    pieces: Iterator[Piece], restart_timer: Callable[..., None]
) -> Iterator[dict[str, Any]]:
    """Yield messages of many pieces each, because one message per piece would be slow.

    *restart_timer* is called after each full message.
    """
    batch: list[Any] = []
    chars = 0
    for piece in pieces:
        place = {
            name: value[:PLACE_CHARS] if isinstance(value, str) else value
            for name, value in piece.place.items()
        }
        batch.append([piece.text, place, piece.stands_alone])
        chars += count_chars(Piece(piece.text, place))
        if chars > _BATCH_CHARS or len(batch) == _BATCH_PIECES:
            yield {"pieces": batch}
            batch, chars = [], 0
            restart_timer()
    if batch:
        yield {"pieces": batch}


def _read_non_blank(
    path: Path, file: BinaryIO, restart_timer: Callable[..., None]
) -> Iterator[Piece]:
    """Yield the pieces of *file*, from the first one that is not blank.

    Raises `UnreadableDocument` if all pieces are blank.
    """
    ending = path.suffix.casefold()
    if ending in _ZIPPED:
        restart_timer(_check_zip(path, file) / (1 << 20) * _SECONDS_PER_MB)
    read = READERS.get(ending) or partial(_read_by_package, ending)
    pieces = (piece for piece in read(path, file))
    first_piece = next((piece for piece in pieces if piece.text.strip()), None)
    if first_piece is None:
        raise UnreadableDocument(path, "no text in it")
    yield from chain([first_piece], pieces)


def _read_by_package(ending: str, path: Path, file: BinaryIO) -> Iterator[Piece]:
    """Yield the pieces of *file*, read by the installed package for the file extension *ending*.

    Raises `UnreadableDocument` if the package's reader fails.
    """
    # Imported here, so that only runs with such files pay for it.
    from qtmiddleware.plugins import find_reader

    try:
        read = find_reader(ending)
    except ConfigError as error:
        raise UnreadableDocument(path, "its reader failed", str(error)) from error
    yield from ask_reader(lambda path: read(path, file), path) or ()


def _check_zip(path: Path, file: BinaryIO) -> int:
    """Check the zip archive *file*, and return its unpacked size in bytes.

    Raises `UnreadableDocument` if the file is empty, encrypted or too large.
    """
    start = file.read(len(_OLE))
    if not start:
        raise UnreadableDocument(path, "empty")
    if start == _OLE:
        raise UnreadableDocument(
            path, "encrypted", "or an old Office format; save it again without a password"
        )
    with ZipFile(file) as packed:
        parts = packed.infolist()
        if any(part.flag_bits & 1 for part in parts):
            raise UnreadableDocument(path, "encrypted")
        held_sizes = [
            part.file_size
            for part in parts
            if part.filename.endswith(_HELD) and not part.filename.startswith(_STREAMED)
        ]
        if (
            sum(part.file_size for part in parts) > MOST_INFLATED
            or max(held_sizes, default=0) > MOST_PART
        ):
            limits = (
                f"more than {MOST_INFLATED >> 20} MB, or {MOST_PART >> 20} MB in one part, when it"
                " is unpacked"
            )
            raise UnreadableDocument(path, "too large", limits)
        # The sizes are claims of the file. Each part is read only that far, so a part that is
        # longer than it claims fails its checksum.
        for part in parts:
            with packed.open(part) as stream:
                while stream.read(1 << 20):
                    pass
    file.seek(0)
    return sum(part.file_size for part in parts)
