"""Turn clients, chat models and functions into language models.

`openai` calls OpenAI and compatible services; `callable` calls a function, chat model or chain.
Every model has a synchronous method ``complete``. The model's attribute ``can_async`` says whether
the async method ``acomplete`` also works.
"""

from __future__ import annotations

import os
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import LanguageModel

ADDRESS_VARIABLE: Final = "QTM_LLM_BASE_URL"
KEY_VARIABLE: Final = "OPENAI_API_KEY"
# The environment variable that the SDK reads if no other address is set.
SDK_ADDRESS_VARIABLE: Final = "OPENAI_BASE_URL"
# The SDK's default address.
DEFAULT_ADDRESS: Final = "https://api.openai.com/v1"
_ALLOWED: Final = (
    "an openai.OpenAI client, a chat model of LangChain or LlamaIndex, a function from messages to"
    " text, or an object with name, complete and acomplete"
)


def make_language_model(client: Any, settings: Settings) -> LanguageModel:
    """Return a language model that calls *client* with the options from *settings*.

    *client* is ``None`` for a client made on first use, an ``openai`` client, an
    object with ``name``, ``complete`` and ``acomplete``, or what `CallableModel` takes. Raises
    `ConfigError` for any other object.
    """
    from qtmiddleware.providers.llms import callable as callables
    from qtmiddleware.providers.llms.openai import OpenAIModel

    completions = getattr(getattr(client, "chat", None), "completions", None)
    if not isinstance(client, type):
        if isinstance(client, LanguageModel):
            return client
        if client is None or hasattr(completions, "create"):
            return OpenAIModel(settings.transformation_model, settings.llm, client=client)
        if callables.accepts(client):
            return callables.CallableModel(client, settings.llm)
    raise ConfigError(
        f"client must be {_ALLOWED}, not {type(client).__name__}",
        path="client",
        allowed=_ALLOWED,
    )


def has_language_model(settings: Settings) -> bool:
    """Return whether there is an API key or a service's address, which may need no key."""
    return bool(find_address(settings.llm.base_url) or read_api_key())


def read_api_key() -> str:
    """Return the OpenAI key from the environment; ``""`` if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def find_address(base_url: str | None) -> str | None:
    """Return the address: *base_url* or a variable's; ``None`` for the SDK's default."""
    for name in (ADDRESS_VARIABLE, SDK_ADDRESS_VARIABLE):
        base_url = base_url or os.environ.get(name, "").strip()
    return base_url or None
