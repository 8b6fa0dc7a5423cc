"""Services for the tests of what is emitted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer

from tests.support.echoing import EchoingService


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[EchoingService]:
    echoing = EchoingService(httpserver)
    yield echoing
    echoing.released.set()
