"""A real redis-server of its own for each test, and servers that only look like one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from redis_world import Impostor, RedisServer

from qtmiddleware.breaker import Breaker
from qtmiddleware.cache.redis_cache import RedisCache


@pytest.fixture(scope="session")
def redis_binary() -> str:
    """It is not of the project, so that its absence is told and no failure."""
    path = shutil.which(os.environ.get("TEST_REDIS") or "redis-server")
    if path is None:
        (pytest.fail if os.environ.get("NEEDS_REDIS") else pytest.skip)(
            "no redis-server was found; install one (scripts/redis) or set TEST_REDIS to its path"
        )
    return path


@pytest.fixture
def stopped_server(redis_binary: str) -> Iterator[RedisServer]:
    # Not below pytest's folders: the path of a socket has room for a hundred characters.
    with TemporaryDirectory(prefix="qtm") as folder:
        server = RedisServer(redis_binary, Path(folder))
        yield server
        server.kill()
        server.admin.close()


@pytest.fixture
def server(stopped_server: RedisServer) -> RedisServer:
    stopped_server.start()
    return stopped_server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_USERNAME", raising=False)
    monkeypatch.delenv("REDIS_PASSWORD", raising=False)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Files of a certificate of this host that nobody signed but itself, and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    pem, key_file = folder / "host.pem", folder / "host.key"
    pem.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pem, key_file


Open = Callable[..., RedisCache]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Makes caches as each process has one, and closes them."""
    made: list[RedisCache] = []

    def open_(url: str, *, timeout: float = 5.0, ttl_seconds: int = 600, breaker: Breaker | None = None) -> RedisCache:
        breaker = breaker or Breaker(1, 60.0)
        made.append(RedisCache(url, timeout=timeout, ttl_seconds=ttl_seconds, breaker=breaker))
        return made[-1]

    yield open_
    for cache in made:
        cache.close()


@pytest.fixture
def impostor() -> Iterator[Callable[[bytes | None], Impostor]]:
    made: list[Impostor] = []

    def make(answer: bytes | None) -> Impostor:
        made.append(Impostor(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()
