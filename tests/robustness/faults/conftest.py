from __future__ import annotations

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from qtmiddleware.providers.llms import governed
from qtmiddleware.runtime.spending import Meter
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def environment(bare_environment: None) -> None:
    """Nothing of the machine's own settings."""


@pytest.fixture(autouse=True)
def meter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not spent anything yet."""
    monkeypatch.setitem(governed.GovernedModel.__init__.__kwdefaults__, "meter", Meter())


@pytest.fixture
def service(model_server: ModelServer) -> ModelServer:
    return model_server
