"""Documents that are not text, read in a process of their own: one that hangs or dies takes one file with it."""

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
from qtmiddleware.runtime.files import open_document

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
"""How each ending is read."""

SECONDS: Final = 60.0
"""How long the next pieces of a document may take. The slowest honest one, a large Word file, takes a few seconds."""
_SECONDS_A_MB: Final = 0.5
"""How much longer the first ones may, for each MB a zipped document unpacks to: an Excel file's texts come first."""
MEMORY: Final = 2 << 30
"""Bytes of addresses the process may have, where the system (Linux) holds it to that."""
MOST_INFLATED: Final = 1 << 30
MOST_PART: Final = 1 << 27
"""Bytes a zipped document may have in all, and in each part that is held as a whole."""
_HELD: Final = (".xml", ".rels", ".xhtml", ".html", ".htm", ".opf")
_STREAMED: Final = "xl/worksheets/"
_ZIPPED: Final = frozenset((".epub", ".docx", ".pptx", ".xlsx"))
_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_TOO_MUCH: Final = "reading it takes too much memory"
_BATCH_CHARS: Final = 1 << 16
_BATCH_PIECES: Final = 1 << 10

# The folder one is in must not decide what is imported, so modules are looked for where this
# process found its own.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
    "from qtmiddleware.kit.documents.converting import serve; serve()"
)


class Converter:
    """Reads one document after another in a process that starts with the first of them.

    It takes each ending of `READERS` and those that installed packages read.

    A context manager; the process ends with it, and with this process, however that ends. Not for
    several threads.
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
        """The pieces of the document at *path*, a few of which are held at a time.

        Raises `UnreadableDocument`, also where its reader takes too long or dies, `MissingExtra`,
        and `OSError` where no process can be started.
        """
        if self._is_reading:
            # What is left of a document that nobody reads on would be taken for this one.
            self.close()
        process = self._process = self._process or self._start()
        self._is_reading, whole = True, False
        try:
            for answer in self._ask(process, [str(path.absolute()), follow_link]):
                match answer:
                    case {"pieces": pieces}:
                        yield from (Piece(*piece) for piece in pieces)
                    case {"unreadable": [reason, detail]}:
                        # One that ran out of memory may not have all of it back.
                        whole = detail != _TOO_MUCH
                        raise UnreadableDocument(path, reason, detail)
                    case {"missing": [package, extra]}:
                        whole = True
                        raise MissingExtra(package, extra)
                    case _:
                        whole = True
                        return
            raise UnreadableDocument(path, "its reader failed", self._explain_death(process))
        finally:
            # A later document may have a process of its own by now.
            if process is self._process:
                self._is_reading = False
                if not whole:
                    self.close()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        self._is_reading = False
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # openpyxl loads numpy where it finds it, which would take addresses for each core of
            # the machine.
            env={**copy_environment(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        for line in (sys.path, self._limits):
            _send(process.stdin, line)
        return process

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], question: Any) -> Iterator[Any]:
        """The answers of *process*, until it ends."""
        with suppress(OSError):
            _send(process.stdin, question)
        for line in process.stdout or ():
            # Of one that died while it wrote there is half a line.
            if line.endswith(b"\n"):
                yield json.loads(line)

    @staticmethod
    def _explain_death(process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        return "reading it takes too long" if code == 1 else f"its reader crashed, code {code}"


def _send(stream: Any, message: Any) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def serve() -> None:
    """What the process does: answer questions on standard input until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks decides what an interrupt means
    warnings.simplefilter("ignore")
    # What a library prints must not stand between the answers.
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    seconds, memory = json.loads(sys.stdin.readline())
    _limit_memory(memory)
    questions: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[questions], daemon=True).start()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        while True:
            path, follow_link = questions.get()
            for answer in _answer(
                Path(path), follow_link, lambda more=0.0: _watch(seconds + more, nowhere)
            ):
                faulthandler.cancel_dump_traceback_later()
                _send(out, answer)


def _watch(seconds: float, nowhere: Any) -> None:
    # A thread of C, which ends the process whatever Python or a library hangs in.
    faulthandler.dump_traceback_later(seconds, exit=True, file=nowhere)


def _listen(questions: queue.SimpleQueue[list[Any]]) -> None:
    for line in sys.stdin:
        questions.put(json.loads(line))
    os._exit(0)  # nobody is there any more to read for


def _limit_memory(most: int) -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _answer(path: Path, follow_link: bool, watch: Callable[..., None]) -> Iterator[dict[str, Any]]:
    watch()
    try:
        with open_document(path, follow_link=follow_link) as file:
            size = os.fstat(file.fileno()).st_size
            yield from _collect(limit_time(path, _read(path, file, watch), size), watch)
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
        yield {"unreadable": ["damaged", type(error).__name__]}
    else:
        yield {}


def _collect(pieces: Iterator[Piece], watch: Callable[..., None]) -> Iterator[dict[str, Any]]:
    batch: list[Any] = []
    chars = 0
    for piece in pieces:
        place = {
            name: it[:PLACE_CHARS] if isinstance(it, str) else it
            for name, it in piece.place.items()
        }
        batch.append([piece.text, place, piece.stands_alone])
        chars += count_chars(Piece(piece.text, place))
        if chars > _BATCH_CHARS or len(batch) == _BATCH_PIECES:
            yield {"pieces": batch}
            batch, chars = [], 0
            watch()
    if batch:
        yield {"pieces": batch}


def _read(path: Path, file: BinaryIO, watch: Callable[..., None]) -> Iterator[Piece]:
    """The pieces of *file*. Raises `UnreadableDocument` where there are none but of white space."""
    ending = path.suffix.casefold()
    if ending in _ZIPPED:
        watch(_check_zip(path, file) / (1 << 20) * _SECONDS_A_MB)
    read = READERS.get(ending) or partial(_read_by_own, ending)
    pieces = (piece for piece in read(path, file))
    first = next((piece for piece in pieces if piece.text.strip()), None)
    if first is None:
        raise UnreadableDocument(path, "no text in it")
    yield from chain([first], pieces)


def _read_by_own(ending: str, path: Path, file: BinaryIO) -> Iterator[Piece]:
    """The pieces that an installed package's reader makes of *file*; raises `UnreadableDocument` if it fails."""
    # Only whoever has such files waits for the module.
    from qtmiddleware.plugins import find_reader

    try:
        read = find_reader(ending)
    except ConfigError as error:
        raise UnreadableDocument(path, "its reader failed", str(error)) from error
    yield from ask_reader(lambda path: read(path, file), path) or ()


def _check_zip(path: Path, file: BinaryIO) -> int:
    """The bytes of a zip when it is unpacked; raises `UnreadableDocument` where it is encrypted or has too many."""
    start = file.read(len(_OLE))
    if not start:
        raise UnreadableDocument(path, "empty")
    if start == _OLE:
        raise UnreadableDocument(
            path, "encrypted", "or an old Office format; save it again without a password"
        )
    with ZipFile(file) as packed:
        parts = packed.infolist()
        if any(it.flag_bits & 1 for it in parts):
            raise UnreadableDocument(path, "encrypted")
        held = [
            it.file_size
            for it in parts
            if it.filename.endswith(_HELD) and not it.filename.startswith(_STREAMED)
        ]
        if sum(it.file_size for it in parts) > MOST_INFLATED or max(held, default=0) > MOST_PART:
            most = (
                f"more than {MOST_INFLATED >> 20} MB, or {MOST_PART >> 20} MB in one part, when it"
                " is unpacked"
            )
            raise UnreadableDocument(path, "too large", most)
        # The sizes are what the file says of itself: read so far and no further, a part that lies
        # fails its checksum.
        for part in parts:
            with packed.open(part) as stream:
                while stream.read(1 << 20):
                    pass
    file.seek(0)
    return sum(it.file_size for it in parts)
