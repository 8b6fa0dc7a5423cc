"""The server on which the services of a whole file of tests stand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer


@pytest.fixture(scope="session")
def host() -> Iterator[HTTPServer]:
    """A server that is not cleared between two tests, so that one session may feed several."""
    with HTTPServer(host="127.0.0.1", threaded=True) as server:
        yield server
