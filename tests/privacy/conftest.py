"""Services for the tests of what is emitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from echoing import EchoingService
from pytest_httpserver import HTTPServer


@pytest.fixture
def service() -> Iterator[EchoingService]:
    """A service that goes on answering while it lets somebody wait."""
    with HTTPServer(threaded=True) as server:
        echoing = EchoingService(server)
        yield echoing
        echoing.released.set()
