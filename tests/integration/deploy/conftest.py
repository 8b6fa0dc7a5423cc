from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.concurrency_world import ChatHouse
from tests.support.deploy_world import environment, write_recipes


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files."""
    if not hasattr(os, "fork"):
        pytest.skip("descriptors and signals are handed to processes")
    return write_recipes(tmp_path_factory.mktemp("deployed"))


@pytest.fixture(scope="module")
def house() -> Iterator[ChatHouse]:
    """The model's service, over real HTTP."""
    with HTTPServer(host="127.0.0.1", threaded=True) as server:
        yield ChatHouse(server)


@pytest.fixture(scope="module")
def env(house: ChatHouse, one_authority: str | None) -> dict[str, str]:
    return environment(house.url, **({"SSL_CERT_FILE": one_authority} if one_authority else {}))
