"""A redis-server to start, stop and kill, and what only looks like one."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from time import sleep

from tests.support.waiting import wait_until


class RedisServer:
    """One redis-server on a socket of its own and a free port of this host, without a file of its data."""

    def __init__(self, binary: str, folder: Path) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._binary = binary
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.admin = redis.Redis(
            unix_socket_path=str(self.socket), socket_timeout=20, retry=Retry(NoBackoff(), 0)
        )

    def start(self, *options: str) -> None:
        import redis

        command = [
            self._binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--unixsocket",
            str(self.socket),
        ]
        command += ["--save", "", "--dir", str(self._folder), *options]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        while True:
            assert self._process.poll() is None, "redis-server did not start"
            try:
                self.admin.ping()
            except redis.AuthenticationError:
                return
            except redis.ConnectionError:
                sleep(0.005)
            else:
                return

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.socket.unlink(missing_ok=True)
        self._process = None


class Impostor:
    """Listens like a Redis, counts the connections, and answers each with *answer* at once; ``None`` is silence."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.connections = 0
        self.hung_up = 0
        self.heard = b""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._silent: list[socket.socket] = []
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            connection.settimeout(5)
            with suppress(OSError):
                self.heard += connection.recv(65_536)
            if self.answer is None:
                self._silent.append(connection)
                continue
            with connection, suppress(OSError):
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_WR)
                self._hear_out(connection)

    def _hear_out(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        while connection.recv(65_536):
            pass
        self.hung_up += 1

    def counted(self, least: int) -> int:
        """How many connected, once that were *least*: the system takes them in before this does."""
        wait_until(lambda: self.connections >= least)
        return self.connections

    def has_been_left(self) -> bool:
        """Whether whoever connected hung up."""
        while self._silent:
            with self._silent.pop() as connection:
                self._hear_out(connection)
        return self.hung_up == self.connections

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for connection in [self._listening, *self._silent]:
            connection.close()
