"""The command line and a service that rewrites questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer

from tests.support.bulk_world import RewritingService
from tests.support.command_line import qtm, qtm_process

__all__ = ["qtm", "qtm_process"]


@pytest.fixture(autouse=True)
def environment(bare_environment: None) -> None:
    """Nothing of the machine's own settings."""


@pytest.fixture
def service(httpserver: HTTPServer) -> Iterator[RewritingService]:
    """A language model's service."""
    rewriting = RewritingService(httpserver)
    yield rewriting
    rewriting.released.set()
