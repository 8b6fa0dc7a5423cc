"""Read documents that are not plain text, such as PDF files, in a separate process.

If a document makes its reader hang or crash, only this document is skipped.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, BinaryIO, Final, Self
from zipfile import ZipFile

from qtmiddleware.config.errors import contains_api_key, is_secret_name
from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.html_page import read_html
from qtmiddleware.kit.documents.office import read_docx, read_pptx, read_xlsx
from qtmiddleware.kit.documents.pdf import read_pdf
from qtmiddleware.kit.documents.text import Piece, check_size, limit_text
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.runtime.logs import get_logger

READERS: Final[dict[str, Callable[[Path, BinaryIO], Iterator[Piece]]]] = {
    ".pdf": read_pdf,
    **dict.fromkeys((".html", ".htm"), read_html),
    ".docx": read_docx,
    ".pptx": read_pptx,
    ".xlsx": read_xlsx,
}
"""The reader per file extension."""

SECONDS: Final = 60.0
"""The time limit for reading a document, in seconds. Each MB adds as much, up to half an hour."""
MEMORY: Final = 2 << 30
"""The memory limit of the separate process, in bytes."""
MOST_UNPACKED: Final = 512 << 20
"""The maximum unpacked size of a zipped document, in bytes."""

_ZIPPED: Final = frozenset((".docx", ".pptx", ".xlsx"))
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The first bytes of an old Office file, and of an encrypted Office file."""
# The current folder must not decide which modules are imported, so they are looked up where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from qtmiddleware.kit.documents.converting import serve; serve()"
)
_ALARM: Final = 14
"""The signal of an alarm, on POSIX systems."""
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")

_log: Final = get_logger("qtmiddleware.documents")


class Converter:
    """Reads documents one after another in a separate process.

    Supports the file types in `READERS`. Use a converter as a context manager. The separate process
    starts at the first document, and ends with the ``with`` block. Not thread-safe.

    *seconds* is the time limit for a document, which grows with its size.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, path: Path, *, follow_link: bool) -> list[Piece]:
        """Return the pieces of the document at *path*, which may be a link if *follow_link*.

        Raises:
            UnreadableDocument: if the document cannot be read, or if reading takes too long or
                crashes.
            MissingExtra: if a package for this file type is not installed.
            OSError: if the separate process cannot be started.
        """
        process = self._process = self._process or _start_process()
        answer: dict[str, Any] = {}
        try:
            _send_message(process.stdin, [str(path.absolute()), follow_link, self._seconds])
            line = process.stdout.readline() if process.stdout else ""
            # A process that died while writing leaves half a line.
            answer = json.loads(line) if line.endswith("\n") else {}
        except BrokenPipeError:
            pass
        finally:
            # Without an answer the process would give it to the next document, and after a document
            # that is too large it may have little memory left.
            if not answer or "too large" in answer.get("unreadable", ()):
                self.close()
        for note in answer.get("notes", ()):
            _log.warning("%s: %s", path, note, event="page_left_out")
        if "missing" in answer:
            raise MissingExtra(*answer["missing"])
        if "unreadable" in answer:
            raise UnreadableDocument(path, *answer["unreadable"])
        if not answer:
            is_late = process.returncode == -_ALARM
            detail = "takes too long" if is_late else f"crashed, code {process.returncode}"
            raise UnreadableDocument(path, "its reader failed", f"reading it {detail}")
        return [Piece(*piece) for piece in answer["pieces"]]

    def close(self) -> None:
        """Stop the separate process that reads documents."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # What the process did not read any more cannot be written.
            with suppress(BrokenPipeError), process:
                pass


def _start_process() -> subprocess.Popen[str]:
    # openpyxl imports numpy if it is installed, which would reserve address space for each
    # processor core.
    environment = {**_copy_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        encoding="utf-8",
    )
    _send_message(process.stdin, sys.path)
    return process


def _send_message(stream: Any, message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def _copy_environment() -> dict[str, str]:
    """Return the environment without keys and passwords, which no reader of documents needs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (is_secret_name(name) or contains_api_key(value) or _CREDENTIALS.search(value))
    }


class _Notes(logging.Handler):
    """Collects the messages that readers log, for the parent process."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def serve() -> None:
    """Read the documents that standard input names, and write their text to standard output.

    This is the main function of a separate process that a `Converter` starts. It runs until
    standard input closes. Each message is one line of JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process handles interrupts.
    warnings.simplefilter("ignore")
    # Whatever a library prints must not get between the answers.
    out, sys.stdout = sys.stdout, sys.stderr
    if sys.platform != "win32":
        import resource

        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # Some systems reject the limit.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.Thread(target=_end_with_parent, args=[os.getppid()], daemon=True).start()
    notes = _Notes()
    logging.getLogger("qtmiddleware.documents").addHandler(notes)
    for line in sys.stdin:
        path, follow_link, seconds = json.loads(line)
        answer = _answer_request(Path(path), follow_link, seconds)
        _send_message(out, {**answer, "notes": notes.messages})
        notes.messages.clear()


def _end_with_parent(parent: int) -> None:
    """End this process soon after the process *parent* ends, also in the middle of a document."""
    while os.getppid() == parent:
        sleep(1.0)
    os._exit(1)


def _answer_request(path: Path, follow_link: bool, seconds: float) -> dict[str, Any]:
    """Return the pieces of the document at *path*, or why it cannot be read."""
    extension = path.suffix.casefold()
    try:
        with open_regular_file(path, follow_link=follow_link) as file:
            size = check_size(path, file)
            _set_alarm(seconds * min(30, 1 + (size >> 20)))
            if extension in _ZIPPED:
                _check_zip(path, file)
            pieces = limit_text(path, READERS[extension](path, file), size)
        return {
            "pieces": [[piece.text, dict(piece.location), piece.stands_alone] for piece in pieces]
        }
    except MissingExtra as error:
        return {"missing": [error.package, error.extra]}
    except UnreadableDocument as error:
        return {"unreadable": [error.reason, error.detail]}
    except MemoryError:
        return {"unreadable": ["too large", "reading it takes too much memory"]}
    except OSError as error:
        return {"unreadable": ["cannot be opened", error.strerror or type(error).__name__]}
    except Exception as error:
        # Only the kind of the error: its message may quote the document.
        return {"unreadable": ["damaged", type(error).__name__]}
    finally:
        _set_alarm(0)


def _set_alarm(seconds: float) -> None:
    """End this process after *seconds*, even if a library hangs; never if they are 0."""
    # Windows has no alarms.
    if sys.platform != "win32":
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _check_zip(path: Path, file: BinaryIO) -> None:
    """Raise `UnreadableDocument` if the zip archive *file* is empty, encrypted or too large."""
    start = file.read(len(_OLE))
    if not start:
        raise UnreadableDocument(path, "empty")
    if start == _OLE:
        raise UnreadableDocument(
            path, "encrypted", "or an old Office format; save it again without a password"
        )
    with ZipFile(file) as archive:
        # Each part is read only up to its stated size, so a part that lies is damaged.
        if sum(part.file_size for part in archive.infolist()) > MOST_UNPACKED:
            limit = f"more than {MOST_UNPACKED >> 20} MB when it is unpacked"
            raise UnreadableDocument(path, "too large", limit)
    file.seek(0)
