"""Any function, chat model or chain of the user's as a language model."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError, retell
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import find_name
from qtmiddleware.providers.llms.calls import check_time_left, complete_in_background
from qtmiddleware.providers.llms.defects import find_defect
from qtmiddleware.providers.llms.openai.prices import Prices
from qtmiddleware.providers.llms.openai.replies import (
    has_reasoning,
    make_reply,
    raise_refusal,
    raise_wrapped_error,
    read_reply,
    read_text,
)
from qtmiddleware.providers.openai_client import read_client_error, status_of
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.drivers import in_thread
from qtmiddleware.runtime.fields import read_field, read_parameters
from qtmiddleware.runtime.threads import Overloaded
from qtmiddleware.types import NEVER, Deadline

Call = Callable[[Prompt], Any]

_TAKES: Final = ("messages", "prompt")
"""Parameters that say what they are to be given, wherever they stand."""

_LISTS: Final = ("list", "List", "Sequence", "Iterable", "Message", "dict")
"""What stands in the annotation of a parameter that takes messages."""


class CallableModel:
    """Asks *fn*: a function, a LangChain chat model or chain, or a LlamaIndex LLM.

    A function is called with ``[{"role", "content"}, ...]``: as its argument ``messages`` where it
    has one, else as its first. One that takes a text (``prompt``, or a first parameter annotated
    ``str``) gets the instructions and the question as one. A required argument ``model`` is given
    *model*. What it returns, or what that gives when it is awaited, is read by `read_returned`;
    prices are US dollars for a million tokens.

    Async functions are awaited in the loop of the caller, and in the private one where the caller
    blocks; they are cancelled at the deadline. Plain ones run in the caller's thread, or in one of
    ours where the caller awaits; they cannot be stopped, the caller only ceases to wait for them.

    *name* is part of every cache key; without one it is that of the model that is asked where it is
    known, else the function's own. A defect of *fn* is a `ModelError` ("failed") and logged once;
    whatever else it raises becomes one too, with the reason its HTTP status stands for or
    "unavailable"; of a `ModelError` the reason is kept.
    """

    can_async = True

    def __init__(
        self,
        fn: Any,
        *,
        name: str | None = None,
        model: str = "",
        input_price: float | None = None,
        output_price: float | None = None,
    ) -> None:
        self._fn = fn
        self._label = find_name(fn)
        self._plain: Any
        self._plain, awaited, takes_model = _find_calls(fn, model)
        # What a plain function returns may still have to be awaited, and that is for the loop of
        # the caller.
        self._awaited = awaited or (lambda prompt: in_thread(partial(self._plain, prompt)))
        self._name = name or (model if takes_model else _find_model_name(fn)) or self._label
        self._prices = partial(Prices, input=input_price, output=output_price)

    def __repr__(self) -> str:
        return f"CallableModel({self._name!r})"

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        if self._plain is None:
            return complete_in_background(self.acomplete, prompt, deadline)
        check_time_left(deadline)
        try:
            answer = self._plain(prompt)
        except Exception as error:
            raise self._read_error(error) from error
        if not inspect.isawaitable(answer):
            return read_returned(answer, prompt, self._label, self._prices)
        return complete_in_background(partial(self._await_reply, lambda: answer), prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """The reply to *prompt*; raises `ModelError`."""
        return await self._await_reply(partial(self._awaited, prompt), prompt, deadline)

    async def _await_reply(
        self, begin: Callable[[], Any], prompt: Prompt, deadline: Deadline
    ) -> Reply:
        left = check_time_left(deadline)
        try:
            async with asyncio.timeout(None if left == NEVER else left) as scope:
                answer = begin()
                while inspect.isawaitable(answer):
                    answer = await answer
        except Overloaded:
            raise
        except Exception as error:
            if scope.expired() and not isinstance(error, ModelError):
                raise ModelError("timeout", f"{self._label} did not answer in time") from error
            raise self._read_error(error) from error
        return read_returned(answer, prompt, self._label, self._prices)

    def _read_error(self, error: Exception) -> ModelError:
        if (defect := find_defect(error, self._label, self._fn)) is not None:
            return defect
        if isinstance(error, ModelError):
            return retell(error, self._label)
        said = f"{self._label} raised {type(error).__name__}"
        if (status := status_of(error)) is None:
            return ModelError("unavailable", said)
        known = read_client_error(error, self._label)
        return ModelError(known.reason, f"{said} (HTTP {status})", retry_after=known.retry_after)


def is_chat_model(given: Any) -> bool:
    """Whether *given* is a chat model or chain of LangChain, or an LLM of LlamaIndex."""
    return _has_methods(given, "invoke", "ainvoke") or _has_methods(
        given, "chat", "achat", "metadata"
    )


def _has_methods(given: Any, *names: str) -> bool:
    return not isinstance(given, type) and all(hasattr(given, name) for name in names)


def _make_messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _find_calls(fn: Any, model: str) -> tuple[Call | None, Call | None, bool]:
    """How *fn* is called blocking and how awaiting, ``None`` where it is not, and whether it is given *model*."""
    if _has_methods(fn, "invoke", "ainvoke"):
        return (
            lambda prompt: fn.invoke(_make_messages(prompt)),
            lambda prompt: fn.ainvoke(_make_messages(prompt)),
            False,
        )
    if is_chat_model(fn):

        def messages(prompt: Prompt) -> list[Any]:
            message = import_module("llama_index.core.llms").ChatMessage
            return [message(**it) for it in _make_messages(prompt)]

        return (
            lambda prompt: fn.chat(messages(prompt)),
            lambda prompt: fn.achat(messages(prompt)),
            False,
        )
    call, takes_model = _make_call(fn, model)
    return (None, call, takes_model) if is_async(fn) else (call, None, takes_model)


def _make_call(fn: Callable[..., Any], model: str) -> tuple[Call, bool]:
    """*fn* as a function of the prompt, and whether it is given *model*."""
    try:
        parameters = list(read_parameters(fn).values())
    except (ValueError, TypeError):  # Some builtins tell nothing.
        parameters = []
    fixed = {
        it.name: model
        for it in parameters
        if it.name == "model" and it.default is it.empty and model
    }
    free = [it for it in parameters if it.name not in fixed]
    chosen = next((it for it in free if it.name in _TAKES), free[0] if free else None)
    if chosen is None:
        return lambda prompt: fn(_make_messages(prompt), **fixed), bool(fixed)
    content = _join_texts if _takes_text(chosen) else _make_messages
    if chosen.kind in (chosen.POSITIONAL_ONLY, chosen.VAR_POSITIONAL) or (
        chosen.kind is chosen.POSITIONAL_OR_KEYWORD and chosen is parameters[0]
    ):
        return lambda prompt: fn(content(prompt), **fixed), bool(fixed)
    name = "messages" if chosen.kind is chosen.VAR_KEYWORD else chosen.name
    return lambda prompt: fn(**{name: content(prompt)}, **fixed), bool(fixed)


def _join_texts(prompt: Prompt) -> str:
    return f"{prompt.system}\n\n{prompt.user}"


def _takes_text(parameter: inspect.Parameter) -> bool:
    given = parameter.annotation
    written = given if isinstance(given, str) else getattr(given, "__name__", str(given))
    if parameter.name != "prompt":
        return bool(written == "str")
    return not any(word in str(given) for word in _LISTS)


def _find_model_name(fn: Any) -> str:
    """The name of the model that *fn* asks, ``""`` where it does not say."""
    said = getattr(fn, "keywords", {}).get("model") if isinstance(fn, functools.partial) else None
    if is_chat_model(fn):
        said = getattr(fn, "model_name", None) or getattr(fn, "model", None)
    return said if isinstance(said, str) else ""


def accepts(given: Any) -> bool:
    """Whether *given* is a chat model or a function to be called."""
    return is_chat_model(given) or (callable(given) and not isinstance(given, type))


def make_model(given: Any, settings: Settings) -> CallableModel:
    """*given* as a model that is called as `CallableModel` says, with the prices out of *settings*."""
    llm = settings.llm
    return CallableModel(
        given,
        model=settings.transformation_model,
        input_price=llm.input_price,
        output_price=llm.output_price,
    )


_TEXTS: Final = ("output_text", "text", "content", "output", "response", "answer", "message")
"""Where a text may stand; the content of a message is looked for first."""

_ENDS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "reason")

ACCEPTED: Final = (
    "text, a chat completion (an object or a dict, of OpenAI, LiteLLM or alike), a message of"
    " LangChain, Anthropic or LlamaIndex, a response of the Responses API, or a dict with its text"
    " under one of: " + ", ".join(_TEXTS)
)


def read_returned(
    answer: Any, prompt: Prompt, label: str, prices: Callable[[str], Prices]
) -> Reply:
    """The reply that *answer* of the function *label* holds, with tokens, cost and truncation where it tells them.

    It may be what `ACCEPTED` says, or a dict that has the fields *prompt* asks for themselves.
    *prices* are those of a model by its name. Raises `ModelError` as `read_reply` does,
    ``unparsable`` for anything else.
    """
    if isinstance(answer, str):
        reply = make_reply(answer, None)
    elif isinstance(answer, Mapping) and any(it.name in answer for it in prompt.fields):
        reply = make_reply(json.dumps(dict(answer), ensure_ascii=False, default=str), answer)
    elif isinstance(read_field(answer, "choices"), list | tuple) and not _is_old_completion(answer):
        reply = read_reply(answer)
    else:
        reply = _read_message(answer, label)
    return replace(reply, cost_usd=_find_cost(answer, reply, prices))


def _is_old_completion(answer: Any) -> bool:
    return any(isinstance(read_field(it, "text"), str) for it in read_field(answer, "choices"))


def _read_message(answer: Any, label: str) -> Reply:
    raise_wrapped_error(answer)
    choices = read_field(answer, "choices")
    inner = choices[0] if isinstance(choices, list | tuple) and choices else None
    holders = (
        answer,
        read_field(answer, "message"),
        read_field(read_field(answer, "output"), "message"),
        inner,
    )
    found = next(((it, text) for it in holders if (text := _find_text(it)) is not None), None)
    if found is None:
        raise ModelError(
            "unparsable", f"{label} returned {_describe_kind(answer)}; it must return {ACCEPTED}"
        )
    message, text = found
    holders = (
        answer,
        inner,
        read_field(answer, "response_metadata"),
        read_field(answer, "incomplete_details"),
    )
    ends = (read_field(holder, name) for holder in holders for name in _ENDS)
    finish = next((end.lower() for end in ends if isinstance(end, str) and end), "")
    raise_refusal(message, finish)
    return make_reply(text, answer, finish=finish, reasoned=has_reasoning(message))


def _find_text(holder: Any) -> str | None:
    """The text of a message or of a holder of one text; ``None`` where there is no place for one."""
    if holder is None or isinstance(holder, str | bytes):
        return None
    if isinstance(read_field(holder, "content"), list | tuple):
        return read_text(holder)
    return next(
        (text for name in _TEXTS if isinstance(text := read_field(holder, name), str)), None
    )


def _describe_kind(answer: Any) -> str:
    if isinstance(answer, Mapping):
        return "a dict with none of the keys it may have"
    return "None" if answer is None else type(answer).__name__


def _find_cost(answer: Any, reply: Reply, prices: Callable[[str], Prices]) -> float | None:
    # LiteLLM knows what it came to.
    known = read_field(read_field(answer, "_hidden_params"), "response_cost")
    if isinstance(known, int | float) and not isinstance(known, bool):
        return float(known)
    names = (
        read_field(answer, "model"),
        read_field(read_field(answer, "response_metadata"), "model_name"),
    )
    model = next((name for name in names if isinstance(name, str)), "")
    return prices(model).cost(reply.input_tokens, reply.output_tokens)
