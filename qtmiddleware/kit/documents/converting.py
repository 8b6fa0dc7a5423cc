"""Read documents that are not plain text, such as Word files, in a separate process.

If a document makes its reader hang or crash, only this document is skipped.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self
from zipfile import ZipFile

from qtmiddleware.config.errors import contains_api_key, is_secret_name
from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.bounds import count_chars, limit_reading_time
from qtmiddleware.kit.documents.html_page import read_html
from qtmiddleware.kit.documents.office import read_docx, read_pptx, read_xlsx
from qtmiddleware.kit.documents.records import read_csv, read_json, read_json_lines
from qtmiddleware.kit.documents.text import PLACE_CHARS, Piece
from qtmiddleware.kit.files import open_regular_file

Read = Callable[[Path, BinaryIO], Iterator[Piece]]
READERS: Final[dict[str, Read]] = {
    **dict.fromkeys((".csv", ".tsv"), read_csv),
    ".json": read_json,
    ".jsonl": read_json_lines,
    **dict.fromkeys((".html", ".htm"), read_html),
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
}
"""The built-in reader per file extension."""

SECONDS: Final = 60.0
"""The time limit for reading the next pieces of a document, in seconds.

The slowest ordinary documents, large Word files, take a few seconds.
"""
_SECONDS_PER_MB: Final = 0.5
"""Additional seconds for the first pieces of a zipped document, per unpacked MB.

For example, all texts of an Excel file are read before its first row.
"""
MEMORY: Final = 2 << 30
"""The memory limit of the separate process: its address space in bytes. Linux enforces it."""
MOST_INFLATED: Final = 1 << 30
"""The maximum unpacked size of a zipped document, in bytes."""
MOST_PART: Final = 1 << 27
"""The maximum unpacked size, in bytes, of a file in a zipped document.

The limit applies only to files that readers load into memory as a whole.
"""
_HELD: Final = (".xml", ".rels")
"""The extensions of files in a zipped document that readers load into memory as a whole."""
_STREAMED: Final = "xl/worksheets/"
"""The folder of the sheets in an Excel file, which are read row by row and may be larger."""
_ZIPPED: Final = frozenset((".docx", ".pptx", ".xlsx"))
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of an old Office file, and of an encrypted Office file."""
_TOO_MUCH: Final = "reading it takes too much memory"
_BATCH_CHARS: Final = 1 << 16
_BATCH_PIECES: Final = 1 << 10

# The current folder must not decide which modules are imported, so they are looked up where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from qtmiddleware.kit.documents.converting import serve; serve()"
)
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


class Converter:
    """Reads documents one after another in a separate process.

    Supports the file types in `READERS`. Use a converter as a context manager. The separate process
    starts at the first document. It ends with the ``with`` block, or when the current process ends.
    Not thread-safe.

    Args:
        timeout_seconds: how long to wait for each answer of the separate process, in seconds.
        max_memory_bytes: the maximum address space of the separate process, in bytes.
    """

    def __init__(self, timeout_seconds: float = SECONDS, max_memory_bytes: int = MEMORY) -> None:
        self._limits = [timeout_seconds, max_memory_bytes]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_reading = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def read_pieces(self, path: Path, *, follow_link: bool) -> Iterator[Piece]:
        """Yield the pieces of the document at *path*, with only a few pieces in memory at once.

        *follow_link* tells whether *path* may be a symbolic link.

        Raises:
            UnreadableDocument: if the document cannot be read, or if reading takes too long or
                crashes.
            MissingExtra: if a package for this file type is not installed.
            OSError: if the separate process cannot be started.
        """
        if self._is_reading:
            # The caller did not read the previous document to its end. The remaining pieces would
            # be mistaken for pieces of this document.
            self.close()
        process = self._process = self._process or self._start_process()
        self._is_reading, is_intact = True, False
        try:
            for answer in self._request_answers(process, [str(path.absolute()), follow_link]):
                match answer:
                    case {"pieces": pieces}:
                        yield from (Piece(*piece) for piece in pieces)
                    case {"unreadable": [reason, detail]}:
                        # A process that ran out of memory may not have freed all of it, so it must
                        # not read another document.
                        is_intact = detail != _TOO_MUCH
                        raise UnreadableDocument(path, reason, detail)
                    case {"missing": [package, extra]}:
                        is_intact = True
                        raise MissingExtra(package, extra)
                    case _:
                        is_intact = True
                        return
            raise UnreadableDocument(path, "its reader failed", self._describe_exit(process))
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
            # The process is killed, because it may hang and has nothing to save.
            process.kill()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            process.wait()

    def _start_process(self) -> subprocess.Popen[bytes]:
        """Start the separate process, and send the module path and the limits to the process."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # openpyxl imports numpy if it is installed, which would reserve address space for each
            # processor core.
            env={**_copy_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        for line in (sys.path, self._limits):
            _send_message(process.stdin, line)
        return process

    @staticmethod
    def _request_answers(process: subprocess.Popen[bytes], request: Any) -> Iterator[Any]:
        """Send *request* to *process*, and yield each answer until *process* ends."""
        with suppress(OSError):
            _send_message(process.stdin, request)
        for line in process.stdout or ():
            # A process that died while writing leaves half a line.
            if line.endswith(b"\n"):
                yield json.loads(line)

    @staticmethod
    def _describe_exit(process: subprocess.Popen[bytes]) -> str:
        """Wait until *process* ends, and return the reason, such as ``its reader crashed``."""
        # The watchdog ends the process with exit code 1.
        code = process.wait()
        return "reading it takes too long" if code == 1 else f"its reader crashed, code {code}"


def _copy_environment() -> dict[str, str]:
    """Return the environment without keys and passwords, which no reader of documents needs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (is_secret_name(name) or contains_api_key(value) or _CREDENTIALS.search(value))
    }


def _send_message(stream: Any, message: Any) -> None:
    """Write *message* to *stream* as one line of JSON."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def serve() -> None:
    """Read the documents that standard input names, and write their text to standard output.

    This is the main function of a separate process that a `Converter` starts. It runs until
    standard input closes. Each message is one line of JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process handles interrupts.
    warnings.simplefilter("ignore")
    # Whatever a library prints must not get between the answers.
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    seconds, memory = json.loads(sys.stdin.readline())
    _limit_memory(memory)
    requests: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_queue_requests, args=[requests], daemon=True).start()
    with open(os.devnull, "w") as null_file:  # noqa: PTH123
        while True:
            path, follow_link = requests.get()
            for answer in _answer_request(
                Path(path),
                follow_link,
                lambda extra_seconds=0.0: _start_watchdog(seconds + extra_seconds, null_file),
            ):
                faulthandler.cancel_dump_traceback_later()
                _send_message(out, answer)


def _start_watchdog(timeout_seconds: float, null_file: Any) -> None:
    """Start or restart the timer that ends this process after *timeout_seconds*."""
    # A thread in C ends the process, even if Python code or a library hangs.
    faulthandler.dump_traceback_later(timeout_seconds, exit=True, file=null_file)


def _queue_requests(requests: queue.SimpleQueue[list[Any]]) -> None:
    """Put each message from standard input into *requests*.

    Ends this process when standard input closes.
    """
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)  # The parent process is gone.


def _limit_memory(max_bytes: int) -> None:
    """Limit the address space of this process to *max_bytes*, if the system allows it."""
    # Windows has no module `resource`, and some systems reject the limit.
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))


def _answer_request(
    path: Path, follow_link: bool, restart_timer: Callable[..., None]
) -> Iterator[dict[str, Any]]:
    """Yield the text of the document at *path* as messages for the parent process.

    The first messages contain the document's pieces. The last message contains the error, or is
    empty if there was no error. Calls *restart_timer* to restart the time limit for each message.
    """
    restart_timer()
    try:
        with open_regular_file(path, follow_link=follow_link) as file:
            size = os.fstat(file.fileno()).st_size
            yield from _batch_pieces(
                limit_reading_time(path, _read_non_blank_pieces(path, file, restart_timer), size),
                restart_timer,
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
    """Yield the *pieces* as messages for the parent process, many pieces per message.

    Calls *restart_timer* after each full message, to restart the time limit.
    """
    batch: list[Any] = []
    chars = 0
    for piece in pieces:
        location = {
            name: value[:PLACE_CHARS] if isinstance(value, str) else value
            for name, value in piece.location.items()
        }
        batch.append([piece.text, location, piece.stands_alone])
        chars += count_chars(Piece(piece.text, location))
        if chars > _BATCH_CHARS or len(batch) == _BATCH_PIECES:
            yield {"pieces": batch}
            batch, chars = [], 0
            restart_timer()
    if batch:
        yield {"pieces": batch}


def _read_non_blank_pieces(
    path: Path, file: BinaryIO, restart_timer: Callable[..., None]
) -> Iterator[Piece]:
    """Yield the pieces of *file*, without blank pieces at its beginning.

    For a zipped file, gives *restart_timer* extra seconds that depend on the unpacked size. Raises
    `UnreadableDocument` if all pieces are blank.
    """
    extension = path.suffix.casefold()
    if extension in _ZIPPED:
        restart_timer(_check_and_get_zip_size(path, file) / (1 << 20) * _SECONDS_PER_MB)
    pieces = READERS[extension](path, file)
    first_piece = next((piece for piece in pieces if piece.text.strip()), None)
    if first_piece is None:
        raise UnreadableDocument(path, "no text in it")
    yield from chain([first_piece], pieces)


def _check_and_get_zip_size(path: Path, file: BinaryIO) -> int:
    """Check that the zip archive *file* can be read, and return its unpacked size in bytes.

    Raises `UnreadableDocument` if *file* is empty, encrypted or too large.
    """
    start = file.read(len(_OLE))
    if not start:
        raise UnreadableDocument(path, "empty")
    if start == _OLE:
        raise UnreadableDocument(
            path, "encrypted", "or an old Office format; save it again without a password"
        )
    with ZipFile(file) as archive:
        parts = archive.infolist()
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
        # The file itself states these sizes, and may lie. Each part is read only up to its stated
        # size, so a part that is longer fails its checksum.
        for part in parts:
            with archive.open(part) as stream:
                while stream.read(1 << 20):
                    pass
    file.seek(0)
    return sum(part.file_size for part in parts)
