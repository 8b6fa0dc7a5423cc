from __future__ import annotations

from collections.abc import Iterator

import openai  # noqa: F401  (imported before any deadline starts to run)
import pytest
from pytest_httpserver import HTTPServer

from tests.support.fault_world import Caller, ChatService


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, one_authority: str | None) -> None:
    """Nothing of the machine's own settings."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "QTM_LLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if one_authority:
        monkeypatch.setenv("SSL_CERT_FILE", one_authority)


@pytest.fixture(scope="session")
def chat_server() -> Iterator[HTTPServer]:
    """One server for all tests: stopping one takes half a second."""
    with HTTPServer(host="127.0.0.1", threaded=True) as server:
        yield server


@pytest.fixture
def service(chat_server: HTTPServer) -> Iterator[ChatService]:
    chat = ChatService(chat_server)
    yield chat
    chat.released.set()
    chat_server.clear()


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, service: ChatService) -> Caller:
    return Caller(request.param, service.url)
