"""What tests of several rooms need."""

from __future__ import annotations

import ssl

import pytest
from clock import Clock


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """A bundle of one certificate authority: nobody is trusted here, and reading all of them takes most of a test."""
    found = ssl.create_default_context().get_ca_certs(binary_form=True)
    path = tmp_path_factory.mktemp("ca") / "one.pem"
    path.write_text("".join(map(ssl.DER_cert_to_PEM_cert, found[:1])), encoding="ascii")
    return str(path) if found else None


@pytest.fixture
def clock() -> Clock:
    """Time that passes when the test says so."""
    return Clock()
