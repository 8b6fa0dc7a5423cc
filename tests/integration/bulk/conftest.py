"""The command line and a service that rewrites questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer

from tests.support.bulk_world import RewritingService
from tests.support.command_line import qtm, qtm_process

__all__ = ["qtm", "qtm_process"]


@pytest.fixture
def service(httpserver: HTTPServer, bare_environment: None) -> Iterator[RewritingService]:
    """A language model's service, in an environment without the machine's own settings."""
    rewriting = RewritingService(httpserver)
    yield rewriting
    rewriting.released.set()
