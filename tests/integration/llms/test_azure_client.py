"""Models of Azure through its own clients, over HTTP: deployments, versions, keys and tokens."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.types import Deadline
from tests.support.model_server import ModelServer, failure

DEPLOYMENT = "our-luna"
VERSION = "2024-10-21"
TEXT = '{"rewrite": "Jaco health"}'


@pytest.fixture
def azure(httpserver: HTTPServer) -> ModelServer:
    return ModelServer(httpserver, TEXT, path=f"/openai/deployments/{DEPLOYMENT}")


def clients(server: HTTPServer, **options: Any) -> tuple[Any, Any]:
    options = {
        "azure_endpoint": server.url_for(""),
        "api_version": VERSION,
        "max_retries": 2,
        **options,
    }
    return openai.AzureOpenAI(**options), openai.AsyncAzureOpenAI(**options)


def model_of(pair: tuple[Any, Any]) -> Any:
    return make_language_model(pair, Settings(transformation_model=DEPLOYMENT))


def test_a_deployment_is_asked_by_its_path_with_the_version_and_the_key(
    azure, httpserver, ask, prompt
) -> None:
    model = model_of(clients(httpserver, api_key="azure-key"))
    for _ in range(2):
        assert ask(model, prompt).text == TEXT
    assert [it["api-key"] for it in azure.headers] == ["azure-key"] * 2
    for request, _ in httpserver.log:
        assert request.path == f"/openai/deployments/{DEPLOYMENT}/chat/completions"
        assert request.query_string == f"api-version={VERSION}".encode()


def test_a_token_is_fetched_for_each_request(azure, httpserver, ask, prompt) -> None:
    tokens = iter(["first", "second", "third", "fourth"])
    model = model_of(clients(httpserver, azure_ad_token_provider=lambda: next(tokens)))
    for _ in range(2):
        assert ask(model, prompt).text == TEXT
    assert azure.keys == ["Bearer first", "Bearer second"]


def test_a_token_may_be_awaited(azure, httpserver, prompt) -> None:
    async def fetch() -> str:
        return "awaited"

    _, client = clients(httpserver, azure_ad_token_provider=fetch)
    model = make_language_model(client, Settings(transformation_model=DEPLOYMENT))
    assert model.complete(prompt, Deadline.after(30)).text == TEXT
    assert azure.keys == ["Bearer awaited"]


def test_a_provider_of_tokens_that_fails_is_an_error_of_the_model_without_its_words(
    azure, httpserver, ask, prompt
):
    def fetch() -> str:
        raise RuntimeError("secret-tenant")

    with pytest.raises(ModelError) as caught:
        ask(model_of(clients(httpserver, azure_ad_token_provider=fetch)), prompt)
    assert caught.value.reason == "unavailable"
    assert "secret-tenant" not in str(caught.value)
    assert azure.bodies == []


def test_the_content_filter_of_azure_is_a_refusal(azure, httpserver, ask, prompt) -> None:
    azure.reply = failure(
        400, "The response was filtered due to the prompt", code="content_filter", param="prompt"
    )
    with pytest.raises(ModelError) as caught:
        ask(model_of(clients(httpserver, api_key="azure-key")), prompt)
    assert caught.value.reason == "refused"


def test_a_deployment_that_is_not_there_is_rejected(httpserver, ask, prompt) -> None:
    server = ModelServer(
        httpserver,
        failure(404, "not there", code="DeploymentNotFound"),
        path="/openai/deployments/x",
    )
    model = make_language_model(
        clients(httpserver, api_key="k"), Settings(transformation_model="x")
    )
    with pytest.raises(ModelError) as caught:
        ask(model, prompt)
    assert caught.value.reason == "rejected"
    assert len(server.bodies) == 1
