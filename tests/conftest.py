"""What tests of several rooms need."""

from __future__ import annotations

import gc
import os
import re
import signal
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from itertools import count
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, settings
from pytest_httpserver import HTTPServer

from tests.support.clock import Clock
from tests.support.model_server import ModelServer

# Their assertions should explain themselves, though they are no modules of tests.
pytest.register_assert_rewrite("tests.support.store_contract", "tests.support.examples")

# `--hypothesis-profile quick` is for the moment between two edits; what runs for every change tries
# more. How long an example takes to make says how busy the machine is.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=15, **_UNTIMED)
settings.register_profile("everyday", max_examples=20, **_UNTIMED)
settings.register_profile("nightly", max_examples=2_000, **_UNTIMED)
if not os.environ.get("CI"):
    settings.load_profile("everyday")

_PLACES = count(1)


# Haystack tells its makers what is run, unless it is told not to before it is imported.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

# The workers of pytest-xdist inherit the size of a terminal that readline made up. Commands under
# test would fit their output to it.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)

# A shell starts what it puts in the background with Ctrl-C ignored, which the commands under test
# would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave out of every later collection of garbage what was imported: half a second each time a test asks for one."""
    gc.collect()
    gc.freeze()


# What imports these at its head is left to `scripts/test --thorough`, whose environment has them.
collect_ignore = (
    []
    if find_spec("llama_index")
    else [
        "integration/integrations/test_otlp.py",
        "unit/integrations/test_llamaindex.py",
        "unit/integrations/test_langchain_standard.py",
    ]
)


_IS_THOROUGH = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.thorough", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import, in every worker, what is left to CI as a whole."""
    if config.option.markexpr != "not thorough" or collection_path.suffix != ".py":
        return None
    return bool(_IS_THOROUGH.search(collection_path.read_text(encoding="utf-8"))) or None


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """A bundle of one certificate authority: nobody is trusted here, and reading all of them takes most of a test."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    path = tmp_path_factory.mktemp("ca") / "one.pem"
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, found[:1])), encoding="ascii")
    return str(path) if found else None


@pytest.fixture(scope="session")
def make_httpserver() -> Iterator[HTTPServer]:
    """The server of every test, which answers others while it makes somebody wait; stopping one takes half a second."""
    with HTTPServer(host="127.0.0.1", threaded=True) as server:
        yield server


@pytest.fixture
def model_server(httpserver: HTTPServer) -> Iterator[ModelServer]:
    """A service of models without anything to say yet."""
    # At an address of its own: a request that an earlier test gave up may come only now.
    server = ModelServer(httpserver, path=f"/{next(_PLACES)}/v1")
    yield server
    server.released.set()


@pytest.fixture
def bare_environment(monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> None:
    """No proxy, key or address of the machine's own, neither here nor in processes that are started."""
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "QTM_LLM_BASE_URL",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)


@pytest.fixture
def clock() -> Clock:
    """Time that passes when the test says so."""
    return Clock()


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
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    pem, key_file = folder / "host.pem", folder / "host.key"
    pem.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pem, key_file
