"""Services for the tests of what is emitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer

from tests.support.echoing import EchoingService


@pytest.fixture
def service() -> Iterator[EchoingService]:
    """A service that goes on answering while it lets somebody wait."""
    with HTTPServer(threaded=True) as server:
        echoing = EchoingService(server)
        yield echoing
        echoing.released.set()
