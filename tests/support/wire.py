"""A server of plain sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from tests.support.waiting import PATIENCE


class Wire:
    """A server of plain sockets, for what no well-behaved HTTP server would do.

    *talk* is called with every connection once its first request was read. `requests` counts them.
    """

    def __init__(self, talk: Callable[[Wire, socket.socket], None]) -> None:
        self.ended = Event()
        self.connections = 0
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[Thread] = []
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}/v1"

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self.ended.is_set():
                connection.close()
                return
            self.connections += 1
            self._open.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.read_request(connection):
                self._talk(self, connection)

    def read_request(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        # What opens a tunnel through a proxy has no body.
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        while len(body) < length:
            body += connection.recv(65536)
        return body or head

    def stop(self) -> None:
        self.ended.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE).close()
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
