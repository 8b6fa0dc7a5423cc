"""Read all documents but plain text in a separate process, within limits of memory and time.

If a document makes its reader hang or crash, only this document is skipped.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from logging.handlers import BufferingHandler
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self
from zipfile import ZipFile

from qtmiddleware.errors import MissingExtra, UnreadableDocument
from qtmiddleware.kit.documents.formats import READERS, read_plain_text
from qtmiddleware.kit.documents.pieces import Piece, check_size, collect_pieces
from qtmiddleware.kit.files import open_regular_file
from qtmiddleware.runtime.logs import get_logger

# The time limit for reading a document, in seconds. Each MB adds as much.
SECONDS: Final = 60.0
# The memory limit of the separate process, in bytes.
MEMORY: Final = 2 << 30

# The current folder must not decide which modules are imported, so they are looked up where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from qtmiddleware.kit.documents.reading import serve; serve()"
)
# The variables that a reader may need. All others stay outside, and keys with them.
_ENVIRONMENT: Final = (
    *("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "SYSTEMROOT"),
    *("TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL"),
)

_log: Final = get_logger("qtmiddleware.documents")


class Converter:
    """Reads documents one after another, all but plain text in a separate process.

    A context manager: the process starts when it is needed, and ends with the ``with`` block. Not
    thread-safe. *seconds* is the time limit for a document of less than a MB, and grows with the
    size.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, path: Path) -> list[Piece]:
        r"""Return the text of the document at *path*, in pieces such as pages or paragraphs.

        A text file (UTF-8, or UTF-16 with a byte order mark) is one piece, in which every line
        break is ``\n``.

        Raises:
            UnreadableDocument: if the document is a link or damaged, or reading it takes too long.
            MissingExtra: if a package for this file type is not installed.
        """
        if path.suffix.casefold() not in READERS:
            return read_file(path)
        answer: dict[str, Any] = {}
        megabytes = path.stat().st_size >> 20 if path.is_file() else 0
        seconds = self._seconds * (1 + megabytes)
        start = monotonic()
        try:
            process = self._process = self._process or _start_process()
            _send(process.stdin, [str(path.absolute()), seconds])
            line = process.stdout.readline() if process.stdout else ""
            # A process that died while writing leaves half a line.
            answer = json.loads(line) if line.endswith("\n") else {}
        except BrokenPipeError:
            pass
        except OSError as error:
            raise UnreadableDocument(path, "cannot be opened", error.strerror or "") from error
        finally:
            # The process may still be reading this document, or have little memory left.
            if "pieces" not in answer:
                self.close()
        for note in answer.get("notes", ()):
            _log.warning("%s: %s", path, note, event="page_left_out")
        if "missing" in answer:
            raise MissingExtra(*answer["missing"])
        if "pieces" in answer:
            return [Piece(*piece) for piece in answer["pieces"]]
        detail = "takes too long" if monotonic() - start >= seconds else "crashed"
        reason = answer.get("unreadable", ["its reader failed", f"reading it {detail}"])
        raise UnreadableDocument(path, *reason)

    def close(self) -> None:
        """Stop the separate process that reads documents."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # What the process did not read any more cannot be written.
            with suppress(BrokenPipeError), process:
                pass


def read_file(path: Path) -> list[Piece]:
    """Return the pieces of the document at *path*, read in this process."""
    extension = path.suffix.casefold()
    try:
        with open_regular_file(path, follow_link=False) as file:
            size = os.fstat(file.fileno()).st_size
            check_size(path, size)
            if not size:
                raise UnreadableDocument(path, "empty")
            if extension in (".docx", ".pptx", ".xlsx"):
                # Each part is read only up to its stated size, so a part that lies is damaged.
                with ZipFile(file) as archive:
                    check_size(path, sum(part.file_size for part in archive.infolist()))
                file.seek(0)
            return collect_pieces(path, READERS.get(extension, read_plain_text)(path, file))
    except (MissingExtra, UnreadableDocument):
        raise
    except MemoryError:
        detail = "reading it takes too much memory"
        raise UnreadableDocument(path, "too large", detail) from None
    except OSError as error:
        detail = error.strerror or type(error).__name__
        raise UnreadableDocument(path, "cannot be opened", detail) from error
    except Exception as error:
        # Only the kind of the error: its message may quote the document.
        raise UnreadableDocument(path, "damaged", type(error).__name__) from None


def _start_process() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        encoding="utf-8",
    )
    _send(process.stdin, sys.path)
    return process


def _send(stream: Any, message: Any) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def serve() -> None:
    """Read the documents that standard input names, and write their text to standard output.

    The main function of a `Converter`'s process. Each message is one line of JSON.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process handles interrupts.
    # Whatever a library prints must not get between the answers.
    out, sys.stdout = sys.stdout, sys.stderr
    if sys.platform != "win32":
        import resource

        # Some systems reject the limit.
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    notes = BufferingHandler(10_000)
    logging.getLogger("qtmiddleware.documents").addHandler(notes)
    for line in sys.stdin:
        path, seconds = json.loads(line)
        answer: dict[str, Any]
        # Ends this process after so many seconds, even in code that never returns to Python.
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            found = read_file(Path(path))
            rows = [[piece.text, piece.location, piece.stands_alone] for piece in found]
            answer = {"pieces": rows}
        except MissingExtra as error:
            answer = {"missing": [error.package, error.extra]}
        except UnreadableDocument as error:
            answer = {"unreadable": [error.reason, error.detail]}
        faulthandler.cancel_dump_traceback_later()
        _send(out, {**answer, "notes": [note.getMessage() for note in notes.buffer]})
        notes.flush()
