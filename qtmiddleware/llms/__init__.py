"""Language models behind one port, `qtmiddleware.ports.LanguageModel`.

`openai` speaks to OpenAI and everything compatible with it, `callable` makes a model of any function, chat model or
chain, and `recorded` replays and writes recordings. Every model serves blocking calls; beside the port each here has
*can_async*: whether `acomplete` can be awaited, too. Importing this package loads none of them.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

from qtmiddleware.errors import ConfigError
from qtmiddleware.ports import LanguageModel
from qtmiddleware.settings import Settings

if TYPE_CHECKING:
    from qtmiddleware.llms.openai.clients import Clients

__all__ = ["as_language_model", "clients_of", "has_language_model"]

_ALLOWED = (
    "an openai.OpenAI or openai.AsyncOpenAI client (Azure's too), a pair of both, a chat model or chain of LangChain or"
    " an LLM of LlamaIndex, a function (plain or async) from messages or a prompt to text or a completion, such as"
    " litellm.completion, or an object with name, complete and acomplete"
)


def as_language_model(client_or_model: Any, settings: Settings) -> LanguageModel:
    """*client_or_model* as a language model, with the model's name and options out of *settings*.

    ``None`` is a client of our own, an object with ``name``, ``complete`` and ``acomplete`` is a model already, an
    ``openai`` client (or a sync and an async one as a pair) is asked for ``transformationModel``, and chat models and
    functions are called as `CallableModel` says. Raises `ConfigError` for all else.
    """
    given = client_or_model
    if isinstance(given, LanguageModel) and not isinstance(given, type):
        return given
    if _is_for_openai(given):
        return _openai_model(given, settings)
    from qtmiddleware.llms.callable import CallableModel, is_chat_model

    # The bare name is that of a module of this package as soon as it was imported.
    if is_chat_model(given) or (builtins.callable(given) and not isinstance(given, type)):
        llm = settings.llm
        return CallableModel(
            given, model=settings.transformation_model, input_price=llm.input_price, output_price=llm.output_price
        )
    hint = "; pass an instance, not the class" if isinstance(given, type) else ""
    if isinstance(given, str):
        hint = "; to name a model, set transformationModel"
    raise ConfigError(
        f"{type(given).__name__} is no language model: client may be {_ALLOWED}{hint}", path="client", allowed=_ALLOWED
    )


def clients_of(client_or_model: Any, settings: Settings) -> Clients | None:
    """Clients that several models can share, to be given to `as_language_model`, where it would make them itself."""
    if isinstance(client_or_model, LanguageModel) or not _is_for_openai(client_or_model):
        return None
    from qtmiddleware.llms.openai.clients import Clients

    return Clients(client_or_model, settings.llm.base_url)


def has_language_model(settings: Settings) -> bool:
    """Whether *settings* and the environment name a key, or the address of a service that may need none."""
    from qtmiddleware.llms.openai.clients import is_reachable

    return is_reachable(settings.llm.base_url)


def _is_for_openai(given: Any) -> bool:
    from qtmiddleware.llms.openai.clients import Clients

    members = given if isinstance(given, tuple | list) and given else (given,)
    return given is None or isinstance(given, Clients) or all(_is_client(member) for member in members)


def _is_client(given: Any) -> bool:
    if given is None or isinstance(given, type | str):
        return False
    return hasattr(getattr(getattr(given, "chat", None), "completions", None), "create")


def _openai_model(client: Any, settings: Settings) -> LanguageModel:
    from qtmiddleware.llms.openai import OpenAIModel

    llm = settings.llm
    return OpenAIModel(
        settings.transformation_model,
        client=client,
        base_url=llm.base_url,
        temperature=llm.temperature,
        max_tokens=llm.max_tokens,
        structured_output=llm.structured_output,
        reasoning_effort=llm.reasoning_effort,
        input_price=llm.input_price,
        output_price=llm.output_price,
    )
