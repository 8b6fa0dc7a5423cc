"""Use a function, chat model or chain as a language model."""

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
from qtmiddleware.errors import ModelError, build_safe_error
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import find_function_name
from qtmiddleware.providers.llms.calls import complete_in_background, require_seconds_left
from qtmiddleware.providers.llms.defects import convert_defect
from qtmiddleware.providers.llms.openai.prices import Prices
from qtmiddleware.providers.llms.openai.replies import (
    has_reasoning,
    make_reply,
    raise_if_gateway_error,
    raise_if_refused,
    read_reply,
    read_text,
)
from qtmiddleware.providers.openai_client import convert_client_error, read_status
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.drivers import run_in_thread
from qtmiddleware.runtime.fields import read_field, read_parameters
from qtmiddleware.runtime.threads import Overloaded
from qtmiddleware.types import NEVER, Deadline

Call = Callable[[Prompt], Any]

_PROMPT_PARAMETERS: Final = ("messages", "prompt")
"""The names of parameters that get the prompt, at any position."""

_MESSAGE_WORDS: Final = ("list", "List", "Sequence", "Iterable", "Message", "dict")
"""Words in the annotation of a parameter that takes messages instead of one text."""


class CallableModel:
    """Calls a function, a LangChain chat model or chain, or a LlamaIndex LLM.

    A function gets the messages ``[{"role", "content"}, ...]`` in its parameter ``messages``, or in
    its first parameter. If the parameter is called ``prompt`` or is annotated ``str``, the function
    gets one text with the instructions and the question. The result may be awaitable. `read_answer`
    reads the result.

    - An async function is awaited in the caller's event loop. For a synchronous caller, it runs in
      the background loop. At the deadline, the call is cancelled.
    - A synchronous function runs in the caller's thread. For an async caller, it runs in a daemon
      thread. It cannot be stopped: at the deadline, the async caller only stops waiting.

    Args:
        fn: The function, chat model, chain or LLM.
        name: The model's name, which is part of every cache key. By default, this is the name of
            the model that *fn* calls, or the name of *fn* if the model's name is unknown.
        model: The value for the function's parameter ``model``, if the parameter is required.
        input_price: US dollars per million input tokens.
        output_price: US dollars per million output tokens.

    Raises:
        ModelError: A call failed. For a bug in *fn*, the reason is ``failed``, and the bug is
            logged once. For any other exception, the reason follows from the exception's HTTP
            status; without a status, the reason is ``unavailable``. A `ModelError` raised by *fn*
            keeps its reason.
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
        self._label = find_function_name(fn)
        self._call_sync: Any
        self._call_sync, call_async, takes_model = _build_sync_and_async_callers(fn, model)
        # A plain function may return an awaitable, which must be awaited in the caller's loop.
        self._call_async = call_async or (
            lambda prompt: run_in_thread(partial(self._call_sync, prompt))
        )
        self._name = name or (model if takes_model else _find_model_name(fn)) or self._label
        self._prices = partial(Prices, input=input_price, output=output_price)

    def __repr__(self) -> str:
        return f"CallableModel({self._name!r})"

    @property
    def name(self) -> str:
        """The model's name: the argument *name*, or the name of the called model or function."""
        return self._name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` on failure."""
        if self._call_sync is None:
            return complete_in_background(self.acomplete, prompt, deadline)
        require_seconds_left(deadline)
        try:
            answer = self._call_sync(prompt)
        except Exception as error:
            raise self._convert_error(error) from error
        if not inspect.isawaitable(answer):
            return read_answer(answer, prompt, self._label, self._prices)
        return complete_in_background(partial(self._await_reply, lambda: answer), prompt, deadline)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* without blocking the event loop.

        Raises `ModelError` on failure.
        """
        return await self._await_reply(partial(self._call_async, prompt), prompt, deadline)

    async def _await_reply(
        self, start_call: Callable[[], Any], prompt: Prompt, deadline: Deadline
    ) -> Reply:
        seconds = require_seconds_left(deadline)
        try:
            async with asyncio.timeout(None if seconds == NEVER else seconds) as scope:
                answer = start_call()
                while inspect.isawaitable(answer):
                    answer = await answer
        except Overloaded:
            # No thread was free, which says nothing about the function.
            raise
        except Exception as error:
            if scope.expired() and not isinstance(error, ModelError):
                raise ModelError("timeout", f"{self._label} did not answer in time") from error
            raise self._convert_error(error) from error
        return read_answer(answer, prompt, self._label, self._prices)

    def _convert_error(self, error: Exception) -> ModelError:
        if (defect := convert_defect(error, self._label, self._fn)) is not None:
            return defect
        if isinstance(error, ModelError):
            return build_safe_error(error, self._label)
        message = f"{self._label} raised {type(error).__name__}"
        if (status := read_status(error)) is None:
            return ModelError("unavailable", message)
        # The reason comes from the status, but the message says that the user's function failed.
        service_error = convert_client_error(error, self._label)
        return ModelError(
            service_error.reason,
            f"{message} (HTTP {status})",
            retry_after=service_error.retry_after,
        )


def is_chat_model(candidate: Any) -> bool:
    """Return whether *candidate* is a LangChain chat model or chain, or a LlamaIndex LLM."""
    return _has_methods(candidate, "invoke", "ainvoke") or _has_methods(
        candidate, "chat", "achat", "metadata"
    )


def _has_methods(candidate: Any, *method_names: str) -> bool:
    return not isinstance(candidate, type) and all(
        hasattr(candidate, name) for name in method_names
    )


def _make_messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]


def _build_sync_and_async_callers(fn: Any, model: str) -> tuple[Call | None, Call | None, bool]:
    """Return a sync and an async function that call *fn*, and whether *fn* gets *model*.

    For a chat model, both functions are returned. For an async *fn*, the synchronous function is
    ``None``. For a synchronous *fn*, the async function is ``None``.
    """
    if _has_methods(fn, "invoke", "ainvoke"):
        return (
            lambda prompt: fn.invoke(_make_messages(prompt)),
            lambda prompt: fn.ainvoke(_make_messages(prompt)),
            False,
        )
    if is_chat_model(fn):

        def make_chat_messages(prompt: Prompt) -> list[Any]:
            chat_message = import_module("llama_index.core.llms").ChatMessage
            return [chat_message(**message) for message in _make_messages(prompt)]

        return (
            lambda prompt: fn.chat(make_chat_messages(prompt)),
            lambda prompt: fn.achat(make_chat_messages(prompt)),
            False,
        )
    call, takes_model = _build_caller_and_model_flag(fn, model)
    return (None, call, takes_model) if is_async(fn) else (call, None, takes_model)


def _build_caller_and_model_flag(fn: Callable[..., Any], model: str) -> tuple[Call, bool]:
    """Return a function that calls *fn* with a prompt, and whether *fn* gets *model*."""
    try:
        parameters = list(read_parameters(fn).values())
    except (ValueError, TypeError):  # Some builtins have no readable signature.
        parameters = []
    # A required parameter `model` gets the configured model. An optional one keeps its default.
    fixed = {
        parameter.name: model
        for parameter in parameters
        if parameter.name == "model" and parameter.default is parameter.empty and model
    }
    free = [parameter for parameter in parameters if parameter.name not in fixed]
    chosen = next(
        (parameter for parameter in free if parameter.name in _PROMPT_PARAMETERS),
        free[0] if free else None,
    )
    if chosen is None:
        return lambda prompt: fn(_make_messages(prompt), **fixed), bool(fixed)
    content = _build_text_prompt if _is_text_parameter(chosen) else _make_messages
    if chosen.kind in (chosen.POSITIONAL_ONLY, chosen.VAR_POSITIONAL) or (
        chosen.kind is chosen.POSITIONAL_OR_KEYWORD and chosen is parameters[0]
    ):
        return lambda prompt: fn(content(prompt), **fixed), bool(fixed)
    # A function with only `**kwargs` gets the usual name.
    name = "messages" if chosen.kind is chosen.VAR_KEYWORD else chosen.name
    return lambda prompt: fn(**{name: content(prompt)}, **fixed), bool(fixed)


def _build_text_prompt(prompt: Prompt) -> str:
    return f"{prompt.system}\n\n{prompt.user}"


def _is_text_parameter(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    type_name = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )
    if parameter.name != "prompt":
        return bool(type_name == "str")
    return not any(word in str(annotation) for word in _MESSAGE_WORDS)


def _find_model_name(fn: Any) -> str:
    """Return the name of the model that *fn* calls; ``""`` if it is unknown."""
    name = getattr(fn, "keywords", {}).get("model") if isinstance(fn, functools.partial) else None
    if is_chat_model(fn):
        name = getattr(fn, "model_name", None) or getattr(fn, "model", None)
    return name if isinstance(name, str) else ""


def accepts(candidate: Any) -> bool:
    """Return whether *candidate* is a chat model or a function."""
    return is_chat_model(candidate) or (callable(candidate) and not isinstance(candidate, type))


def make_model(fn: Any, settings: Settings) -> CallableModel:
    """Return a `CallableModel` that calls *fn* with the model and prices from *settings*."""
    llm = settings.llm
    return CallableModel(
        fn,
        model=settings.transformation_model,
        input_price=llm.input_price,
        output_price=llm.output_price,
    )


_TEXT_FIELDS: Final = ("output_text", "text", "content", "output", "response", "answer", "message")
"""The fields of an answer that may contain its text."""

_FINISH_REASON_FIELDS: Final = (
    "finish_reason",
    "stop_reason",
    "stopReason",
    "done_reason",
    "reason",
)

ACCEPTED: Final = (
    "text, a chat completion (an object or a dict, of OpenAI, LiteLLM or alike), a message of"
    " LangChain, Anthropic or LlamaIndex, a response of the Responses API, or a dict with its text"
    " under one of: " + ", ".join(_TEXT_FIELDS)
)


def read_answer(
    answer: Any, prompt: Prompt, fn_name: str, find_prices: Callable[[str], Prices]
) -> Reply:
    """Convert the *answer* of a user's function to a `Reply`.

    The reply includes the token counts, the cost and the truncation, if *answer* reports them.

    Args:
        answer: The function's result: one of the types that `ACCEPTED` lists, or a dict with the
            fields that *prompt* asks for.
        prompt: The prompt that the function answered.
        fn_name: The function's name in error messages.
        find_prices: Returns the prices of the model with a given name.

    Raises:
        ModelError: The answer is a refusal, is empty, was truncated before its first text, or has
            an unknown type. `read_reply` lists the reasons.
    """
    if isinstance(answer, str):
        reply = make_reply(answer, None)
    elif isinstance(answer, Mapping) and any(field.name in answer for field in prompt.fields):
        reply = make_reply(json.dumps(dict(answer), ensure_ascii=False, default=str), answer)
    elif isinstance(read_field(answer, "choices"), list | tuple) and not _is_legacy_completion(
        answer
    ):
        reply = read_reply(answer)
    else:
        reply = _convert_to_reply(answer, fn_name)
    return replace(reply, cost_usd=_find_cost(answer, reply, find_prices))


def _is_legacy_completion(answer: Any) -> bool:
    # OpenAI's older completions API puts the text into the choice, without a message.
    return any(
        isinstance(read_field(choice, "text"), str) for choice in read_field(answer, "choices")
    )


def _convert_to_reply(answer: Any, fn_name: str) -> Reply:
    raise_if_gateway_error(answer)
    choices = read_field(answer, "choices")
    inner = choices[0] if isinstance(choices, list | tuple) and choices else None
    holders = (
        answer,
        read_field(answer, "message"),
        read_field(read_field(answer, "output"), "message"),
        inner,
    )
    holder_and_text = next(
        ((holder, text) for holder in holders if (text := _find_text(holder)) is not None), None
    )
    if holder_and_text is None:
        raise ModelError(
            "unparsable", f"{fn_name} returned {_describe_type(answer)}; it must return {ACCEPTED}"
        )
    message, text = holder_and_text
    holders = (
        answer,
        inner,
        read_field(answer, "response_metadata"),
        read_field(answer, "incomplete_details"),
    )
    ends = (read_field(holder, name) for holder in holders for name in _FINISH_REASON_FIELDS)
    finish_reason = next((end.lower() for end in ends if isinstance(end, str) and end), "")
    raise_if_refused(message, finish_reason)
    return make_reply(
        text, answer, finish_reason=finish_reason, has_reasoned=has_reasoning(message)
    )


def _find_text(message_or_field: Any) -> str | None:
    """Return the text in *message_or_field*, part of an answer; ``None`` if there is no text."""
    # A string or `None` has no fields.
    if message_or_field is None or isinstance(message_or_field, str | bytes):
        return None
    if isinstance(read_field(message_or_field, "content"), list | tuple):
        return read_text(message_or_field)
    return next(
        (
            text
            for name in _TEXT_FIELDS
            if isinstance(text := read_field(message_or_field, name), str)
        ),
        None,
    )


def _describe_type(answer: Any) -> str:
    if isinstance(answer, Mapping):
        return "a dict with none of the keys it may have"
    return "None" if answer is None else type(answer).__name__


def _find_cost(answer: Any, reply: Reply, find_prices: Callable[[str], Prices]) -> float | None:
    # LiteLLM computes the cost itself.
    cost = read_field(read_field(answer, "_hidden_params"), "response_cost")
    if isinstance(cost, int | float) and not isinstance(cost, bool):
        return float(cost)
    names = (
        read_field(answer, "model"),
        read_field(read_field(answer, "response_metadata"), "model_name"),
    )
    model = next((name for name in names if isinstance(name, str)), "")
    return find_prices(model).compute_cost(reply.input_tokens, reply.output_tokens)
