from __future__ import annotations

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from tests.support.concurrency_world import chat
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def environment(bare_environment: None) -> None:
    """Nothing of the machine's own settings."""


@pytest.fixture
def house(model_server: ModelServer) -> ModelServer:
    model_server.reply = chat
    return model_server
