from __future__ import annotations

import os
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from tests.support.concurrency_world import chat
from tests.support.deploy_world import environment, write_recipes
from tests.support.model_server import ModelServer


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files."""
    if not hasattr(os, "fork"):
        pytest.skip("descriptors and signals are handed to processes")
    return write_recipes(tmp_path_factory.mktemp("deployed"))


@pytest.fixture(scope="module")
def house(make_httpserver: HTTPServer) -> ModelServer:
    """The model's service, over real HTTP."""
    make_httpserver.clear()
    return ModelServer(make_httpserver, chat)


@pytest.fixture(scope="module")
def env(house: ModelServer, one_authority: str | None) -> dict[str, str]:
    return environment(house.url, **({"SSL_CERT_FILE": one_authority} if one_authority else {}))
