from __future__ import annotations

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from tests.support.fault_world import Caller
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> None:
    """Nothing of the machine's own settings."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)


@pytest.fixture
def service(model_server: ModelServer) -> ModelServer:
    return model_server


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, service: ModelServer) -> Caller:
    return Caller(request.param, service.url)
