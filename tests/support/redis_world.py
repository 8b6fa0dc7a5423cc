"""A redis-server to start and kill."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep


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

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self.socket.unlink(missing_ok=True)
        self._process = None


@contextmanager
def run_redis(binary: str) -> Iterator[RedisServer]:
    """A server to be started, which is killed here at the latest."""
    # Not below pytest's folders: the path of a socket has room for a hundred characters.
    with TemporaryDirectory(prefix="qtm") as folder:
        server = RedisServer(binary, Path(folder))
        yield server
        server.kill()
        server.admin.close()
