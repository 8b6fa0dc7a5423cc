from __future__ import annotations

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from tests.support.fault_world import Caller
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def environment(bare_environment: None) -> None:
    """Nothing of the machine's own settings."""


@pytest.fixture
def service(model_server: ModelServer) -> ModelServer:
    return model_server


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, service: ModelServer) -> Caller:
    return Caller(request.param, service.url)
