"""Language models that implement one protocol, `qtmiddleware.protocols.LanguageModel`.

`openai` calls OpenAI and every compatible service, `callable` calls any function, chat model or
chain, and `recorded` writes and replays recordings. Every model can be called blocking; the
attribute *can_async* says whether `acomplete` can be awaited, too. Importing this package loads no
model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qtmiddleware.catalogue import MODEL_PROVIDERS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.protocols import LanguageModel

if TYPE_CHECKING:
    from qtmiddleware.providers.llms.openai.clients import Clients

__all__ = ["as_language_model", "clients_of", "has_language_model"]

_ALLOWED = ", ".join(
    (*(row.clients for row in MODEL_PROVIDERS), "or an object with name, complete and acomplete")
)


def as_language_model(client_or_model: Any, settings: Settings) -> LanguageModel:
    """Return *client_or_model* as a language model, with the name and options from *settings*.

    - ``None`` makes an ``openai`` client.
    - An object with ``name``, ``complete`` and ``acomplete`` is returned unchanged.
    - An ``openai`` client, or a pair of a sync and an async client, calls ``transformationModel``.
    - A client of another supported vendor is used in the same way.
    - Chat models and functions are called as described in `CallableModel`.

    Raises `ConfigError` for anything else.
    """
    candidate = client_or_model
    if isinstance(candidate, LanguageModel) and not isinstance(candidate, type):
        return candidate
    for row in MODEL_PROVIDERS:
        provider = import_module(f"qtmiddleware.providers.llms.{row.name}")
        if candidate is None or provider.accepts(candidate):
            model: LanguageModel = provider.make_model(candidate, settings)
            return model
    hint = "; pass an instance, not the class" if isinstance(candidate, type) else ""
    if isinstance(candidate, str):
        hint = "; to name a model, set transformationModel"
    raise ConfigError(
        f"client must be {_ALLOWED}, not {type(candidate).__name__}{hint}",
        path="client",
        allowed=_ALLOWED,
    )


def clients_of(client_or_model: Any, settings: Settings) -> Clients | None:
    """Return the clients that `as_language_model` would make, for sharing between models.

    Returns ``None`` if `as_language_model` would make no clients.
    """
    from qtmiddleware.providers.llms.openai import accepts
    from qtmiddleware.providers.llms.openai.clients import Clients

    if isinstance(client_or_model, LanguageModel) or not (
        client_or_model is None or accepts(client_or_model)
    ):
        return None
    return Clients(client_or_model, settings.llm.base_url)


def has_language_model(settings: Settings) -> bool:
    """Return whether a language model is configured: a key or the address of a service is set.

    The key or address may be in *settings* or in the environment. The service at an address may
    need no key.
    """
    from qtmiddleware.providers.llms.openai.clients import is_reachable

    return is_reachable(settings.llm.base_url)
