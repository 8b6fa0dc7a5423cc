"""``qtm`` at a pseudo terminal: typed at, and read as it appears."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.support.waiting import PATIENCE, wait_until

UP: Final = "\x1b[A"
CTRL_D: Final = "\x04"

_SEQUENCES: Final = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07]*\x07"
)
# Opening the terminal makes it the one whose Ctrl-C reaches this process.
_START: Final = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); os.execv(sys.argv[1], sys.argv[1:])"
_QTM: Final = str(Path(sys.executable).with_name("qtm"))


class Terminal:
    """A process of ``qtm`` with a terminal of its own; *screen* is what was not yet waited for, *raw* all that came."""

    def __init__(self, *arguments: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, 100))
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _START, _QTM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )
        os.close(theirs)
        self.raw = b""
        self._place = 0

    @property
    def screen(self) -> str:
        """Everything that appeared since the last thing waited for, without what only moves the cursor."""
        return self._plain()[self._place :]

    def type(self, text: str | bytes, *, enter: bool = True) -> None:
        """Type *text*, and Enter."""
        os.write(
            self._ours,
            (text.encode() if isinstance(text, str) else text) + (b"\r" if enter else b""),
        )

    def interrupt(self) -> None:
        """Press Ctrl-C once the process waits: between two keys readline would lose it, and wait on."""
        state = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: state.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "S")
        self.type("\x03", enter=False)

    def wait_for(self, *texts: str, seconds: float = PATIENCE) -> str:
        """What appears up to and with the *texts*, each after the other."""
        began = self._place
        for text in texts:
            give_up = time.monotonic() + seconds
            while text not in self.screen:
                if not self._read(give_up - time.monotonic()):
                    raise AssertionError(f"no {text!r} in {self.screen!r}")
            self._place += self.screen.index(text) + len(text)
        return self._plain()[began : self._place]

    def ended(self, seconds: float = PATIENCE) -> int:
        """The exit code, once the process has ended."""
        give_up = time.monotonic() + seconds
        while self._read(give_up - time.monotonic()):
            pass
        return self._process.wait(max(0.1, give_up - time.monotonic()))

    def _plain(self) -> str:
        return _SEQUENCES.sub(b"", self.raw).replace(b"\r", b"").decode("utf-8", "replace")

    def _read(self, seconds: float) -> bool:
        """Read what is there within *seconds*; false where nothing came or nothing will."""
        if seconds <= 0 or not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self._ours, 65536)
        except OSError:  # Linux says so when the other end was closed.
            return False
        self.raw += more
        return bool(more)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)
