"""Language models behind one port, `qtmiddleware.protocols.LanguageModel`.

`openai` speaks to OpenAI and everything compatible with it, `callable` makes a model of any
function, chat model or chain, and `recorded` replays and writes recordings. Every model serves
blocking calls; beside the port each here has
*can_async*: whether `acomplete` can be awaited, too. Importing this package loads none of them.
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
    """*client_or_model* as a language model, with the model's name and options out of *settings*.

    ``None`` is a client of our own, an object with ``name``, ``complete`` and ``acomplete`` is a
    model already, an ``openai`` client (or a sync and an async one as a pair) is asked for
    ``transformationModel``, and chat models and functions are called as `CallableModel` says.
    Raises `ConfigError` for all else.
    """
    given = client_or_model
    if isinstance(given, LanguageModel) and not isinstance(given, type):
        return given
    for row in MODEL_PROVIDERS:
        provider = import_module(f"qtmiddleware.providers.llms.{row.name}")
        if given is None or provider.accepts(given):
            model: LanguageModel = provider.make_model(given, settings)
            return model
    hint = "; pass an instance, not the class" if isinstance(given, type) else ""
    if isinstance(given, str):
        hint = "; to name a model, set transformationModel"
    raise ConfigError(
        f"client must be {_ALLOWED}, not {type(given).__name__}{hint}",
        path="client",
        allowed=_ALLOWED,
    )


def clients_of(client_or_model: Any, settings: Settings) -> Clients | None:
    """Clients that several models can share, to be given to `as_language_model`, where it would make them itself."""
    from qtmiddleware.providers.llms.openai import accepts
    from qtmiddleware.providers.llms.openai.clients import Clients

    if isinstance(client_or_model, LanguageModel) or not (
        client_or_model is None or accepts(client_or_model)
    ):
        return None
    return Clients(client_or_model, settings.llm.base_url)


def has_language_model(settings: Settings) -> bool:
    """Whether *settings* and the environment name a key, or the address of a service that may need none."""
    from qtmiddleware.providers.llms.openai.clients import is_reachable

    return is_reachable(settings.llm.base_url)
