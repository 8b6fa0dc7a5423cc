"""Turn clients, chat models and functions into language models.

`openai` calls OpenAI and compatible services; `callable` calls a function, chat model or chain.
Every model has a synchronous method ``complete``. The model's attribute ``can_async`` says whether
the async method ``acomplete`` also works.
"""

from __future__ import annotations

from typing import Any

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.openai_client import Clients, find_address, is_client, read_api_key

__all__ = ["has_language_model", "make_language_model", "make_shared_clients"]

_ALLOWED = (
    "an openai.OpenAI or openai.AsyncOpenAI client, a chat model of LangChain or LlamaIndex, a"
    " function from messages to text, or an object with name, complete and acomplete"
)


def make_language_model(client_or_model: Any, settings: Settings) -> LanguageModel:
    """Return a language model that calls *client_or_model* with the options from *settings*.

    *client_or_model* is ``None`` for a client made on first use, an ``openai`` client, an
    object with ``name``, ``complete`` and ``acomplete``, or what `CallableModel` takes. Raises
    `ConfigError` for any other object.
    """
    from qtmiddleware.providers.llms import callable as callables
    from qtmiddleware.providers.llms.openai import OpenAIModel

    if isinstance(client_or_model, LanguageModel) and not isinstance(client_or_model, type):
        return client_or_model
    if (
        client_or_model is None
        or isinstance(client_or_model, Clients)
        or is_client(client_or_model)
    ):
        return OpenAIModel(settings.transformation_model, settings.llm, client=client_or_model)
    if callables.accepts(client_or_model):
        return callables.CallableModel(client_or_model, settings.transformation_model, settings.llm)
    raise ConfigError(
        f"client must be {_ALLOWED}, not {type(client_or_model).__name__}",
        path="client",
        allowed=_ALLOWED,
    )


def make_shared_clients(client_or_model: Any, settings: Settings) -> Clients | None:
    """Return `Clients` that several models can share; ``None`` for other objects than clients."""
    if client_or_model is None or is_client(client_or_model):
        return Clients(client_or_model, settings.llm.base_url)
    return None


def has_language_model(settings: Settings) -> bool:
    """Return whether there is an API key or a service's address, which may need no key."""
    return bool(find_address(settings.llm.base_url) or read_api_key())
