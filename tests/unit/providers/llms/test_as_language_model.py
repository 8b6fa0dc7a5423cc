from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.providers.llms import make_language_model
from qtmiddleware.providers.llms.openai import OpenAIModel

SETTINGS = Settings(transformation_model="small", llm=LlmSettings(base_url="http://localhost:1/v1"))


def test_a_client_is_asked_for_the_model_of_the_settings() -> None:
    sync_client = openai.OpenAI(api_key="k", base_url="http://one.example/v1")
    async_client = openai.AsyncOpenAI(api_key="k", base_url="http://two.example/v1")
    for client in (sync_client, async_client):
        model: Any = make_language_model(client, SETTINGS)
        assert isinstance(model, OpenAIModel)
        assert (model.name, model.can_async) == ("small", client is async_client)
    assert (
        repr(make_language_model(sync_client, SETTINGS))
        == "OpenAIModel('small', host='one.example')"
    )
    sync_client.close()


STRANGE = ["gpt-4o", 7, {}, [], (), object(), openai.OpenAI, OpenAIModel, SimpleNamespace(chat=1)]


@pytest.mark.parametrize("given", STRANGE)
def test_anything_else_is_a_config_error_that_says_what_is_accepted(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"openai\.OpenAI") as caught:
        make_language_model(given, SETTINGS)
    assert caught.value.path == "client"
