from __future__ import annotations

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest

from tests.support.concurrency_world import chat
from tests.support.model_server import ModelServer


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> None:
    """Nothing of the machine's own settings; processes that are started inherit it."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)


@pytest.fixture
def house(model_server: ModelServer) -> ModelServer:
    model_server.reply = chat
    return model_server
