"""Use a function, chat model or chain as a language model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from qtmiddleware.config.settings import LlmSettings
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import find_function_name
from qtmiddleware.providers.errors import require_seconds_left
from qtmiddleware.providers.llms.replies import Prices, add_cost, read_answer
from qtmiddleware.retrieval.fields import read_parameters
from qtmiddleware.runtime.concurrency import is_async, run_in_background_loop, run_in_thread
from qtmiddleware.types import Deadline

Call = Callable[[Prompt], Any]


class CallableModel:
    """Calls a function, a LangChain chat model or chain, or a LlamaIndex LLM.

    A function gets the messages ``[{"role", "content"}, ...]`` in its parameter ``messages``, or in
    its first parameter. If the parameter is called ``prompt`` or is annotated ``str``, the function
    gets one text. `read_answer` reads the result. Exceptions pass through unchanged;
    `GovernedModel` converts them.

    An async function is awaited in the caller's event loop, or in the background loop. A
    synchronous function runs in the caller's thread, or in a daemon thread for an async caller.
    """

    can_async = True

    def __init__(self, fn: Any, options: LlmSettings | None = None) -> None:
        self._label = find_function_name(fn)
        self._options = options or LlmSettings()
        # The model's name is part of every cache key.
        keywords = fn.keywords if isinstance(fn, partial) else {}
        names = getattr(fn, "model_name", None), getattr(fn, "model", None), keywords.get("model")
        self._acall: Call
        if (methods := _find_chat_methods(fn)) is not None:
            self._call, self._acall = methods
        else:
            self._call = _bind_prompt(fn)
            self._acall = self._call
            if not is_async(fn):
                # It may return an awaitable, which must be awaited in the caller's loop.
                self._acall = lambda prompt: run_in_thread(partial(self._call, prompt))
        self.name = next((name for name in names if isinstance(name, str) and name), self._label)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt*; raise `ModelError` if it cannot be read."""
        seconds = require_seconds_left(deadline)
        answer = self._call(prompt)
        if inspect.isawaitable(answer):
            answer = run_in_background_loop(answer, seconds)
        return self._read_answer(answer)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        """Return the reply to *prompt* as `complete` does, without blocking the event loop."""
        require_seconds_left(deadline)
        answer = self._acall(prompt)
        while inspect.isawaitable(answer):
            answer = await answer
        return self._read_answer(answer)

    def _read_answer(self, answer: Any) -> Reply:
        reply = read_answer(answer, self._label)
        options = self._options
        return add_cost(reply, Prices(reply.model, options.input_price, options.output_price))


def accepts(candidate: Any) -> bool:
    """Return whether *candidate* is a chat model or a function."""
    return callable(candidate) or _find_chat_methods(candidate) is not None


def _make_messages(prompt: Prompt) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": prompt.system},
        {"role": "user", "content": prompt.user},
    ]


def _make_chat_messages(prompt: Prompt) -> list[Any]:
    chat_message = import_module("llama_index.core.llms").ChatMessage
    return [chat_message(**message) for message in _make_messages(prompt)]


def _find_chat_methods(fn: Any) -> tuple[Call, Call] | None:
    """Return how to call a chat model or chain and to await it; ``None`` if *fn* is neither."""
    if hasattr(fn, "invoke") and hasattr(fn, "ainvoke"):
        make, call, acall = _make_messages, fn.invoke, fn.ainvoke
    elif hasattr(fn, "chat") and hasattr(fn, "achat") and hasattr(fn, "metadata"):
        make, call, acall = _make_chat_messages, fn.chat, fn.achat
    else:
        return None
    return lambda prompt: call(make(prompt)), lambda prompt: acall(make(prompt))


def _bind_prompt(fn: Callable[..., Any]) -> Call:
    """Return a function that calls *fn* with a prompt."""
    try:
        parameters = read_parameters(fn)
    except (ValueError, TypeError):  # Some builtins have no readable signature.
        parameters = {}
    # Without a parameter, the call raises the error that says so.
    chosen = inspect.Parameter("_", inspect.Parameter.POSITIONAL_ONLY)
    for name in ("messages", "prompt", *parameters):
        if name in parameters:
            chosen = parameters[name]
            break
    takes_text = chosen.name == "prompt" or chosen.annotation in (str, "str")
    keyword = "messages" if chosen.kind is chosen.VAR_KEYWORD else chosen.name

    def call(prompt: Prompt) -> Any:
        content: Any = _make_messages(prompt)
        if takes_text:
            content = f"{prompt.system}\n\n{prompt.user}"
        if chosen.kind in (chosen.POSITIONAL_ONLY, chosen.VAR_POSITIONAL):
            return fn(content)
        return fn(**{keyword: content})

    return call
