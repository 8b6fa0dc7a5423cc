"""What a function of the user's returned in place of a reply: a text, or an answer in the form of some client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.openai.body import (
    CUT,
    get,
    nothing_said,
    raise_refusal,
    raise_wrapped_error,
    read_reply,
    reasons,
    text_of,
    tokens_of,
    without_surrogates,
)
from qtmiddleware.providers.llms.openai.prices import Prices

_TEXTS: Final = ("output_text", "text", "content", "output", "response", "answer", "message")
"""Where a text may stand; the content of a message is looked for first."""

_ENDS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "reason")
_READ: Final = ("prompt_tokens", "input_tokens", "inputTokens")
_WRITTEN: Final = ("completion_tokens", "output_tokens", "outputTokens")
_DECLINED: Final = frozenset({"refusal", "content_filter"})

ACCEPTED: Final = (
    "text, a chat completion (an object or a dict, of OpenAI, LiteLLM or alike), a message of LangChain, Anthropic or"
    " LlamaIndex, a response of the Responses API, or a dict with its text under one of: " + ", ".join(_TEXTS)
)


def read_returned(answer: Any, prompt: Prompt, label: str, prices: Callable[[str], Prices]) -> Reply:
    """The reply that *answer* of the function *label* holds, with tokens, cost and truncation where it tells them.

    It may be what `ACCEPTED` says, or a dict that has the fields *prompt* asks for themselves. *prices* are those of a
    model by its name. Raises `ModelError` as `read_reply` does, ``unparsable`` for anything else.
    """
    if isinstance(answer, str):
        reply = Reply(answer)
    elif isinstance(answer, Mapping) and any(it.name in answer for it in prompt.fields):
        reply = Reply(json.dumps(dict(answer), ensure_ascii=False, default=str))
    elif isinstance(get(answer, "choices"), list | tuple) and not _is_old_completion(answer):
        reply = read_reply(answer)
    else:
        reply = _read_message(answer, label)
    if not reply.text.strip():
        raise ModelError("empty", f"{label} returned no text")
    usage = next(_usages(answer), None)
    read, written = tokens_of({"usage": usage}, *_READ), tokens_of({"usage": usage}, *_WRITTEN)
    return Reply(
        without_surrogates(reply.text),
        read,
        written,
        cost_usd=_cost(answer, read, written, prices),
        truncated=reply.truncated,
    )


def _is_old_completion(answer: Any) -> bool:
    return any(isinstance(get(it, "text"), str) for it in get(answer, "choices"))


def _read_message(answer: Any, label: str) -> Reply:
    raise_wrapped_error(answer)
    choices = get(answer, "choices")
    inner = choices[0] if isinstance(choices, list | tuple) and choices else None
    holders = (answer, get(answer, "message"), get(get(answer, "output"), "message"), inner)
    found = next(((it, text) for it in holders if (text := _text_in(it)) is not None), None)
    if found is None:
        raise ModelError("unparsable", f"{label} returned {_kind_of(answer)}; it has to return {ACCEPTED}")
    message, text = found
    ended = {
        str(get(holder, name) or "").lower()
        for holder in (answer, inner, get(answer, "response_metadata"), get(answer, "incomplete_details"))
        for name in _ENDS
    }
    raise_refusal(message, "content_filter" if ended & _DECLINED else "")
    cut = bool(ended & {*CUT, "max_output_tokens"})
    if not text.strip():
        raise nothing_said(reasoned=reasons(message), cut=cut)
    return Reply(text, truncated=cut)


def _text_in(holder: Any) -> str | None:
    """The text of a message or of a holder of one text; ``None`` where there is no place for one."""
    if holder is None or isinstance(holder, str | bytes):
        return None
    if isinstance(get(holder, "content"), list | tuple):
        return text_of(holder)
    return next((text for name in _TEXTS if isinstance(text := get(holder, name), str)), None)


def _kind_of(answer: Any) -> str:
    if isinstance(answer, Mapping):
        return "a dict with none of the keys it may have"
    return "None" if answer is None else type(answer).__name__


def _usages(answer: Any) -> Iterator[Any]:
    found = (get(answer, "usage"), get(answer, "usage_metadata"), get(get(answer, "raw"), "usage"))
    return (usage for usage in found if usage)


def _cost(answer: Any, read: int, written: int, prices: Callable[[str], Prices]) -> float | None:
    # LiteLLM knows what it came to.
    known = get(get(answer, "_hidden_params"), "response_cost")
    if isinstance(known, int | float) and not isinstance(known, bool):
        return float(known)
    names = (get(answer, "model"), get(get(answer, "response_metadata"), "model_name"))
    model = next((name for name in names if isinstance(name, str)), "")
    return prices(model).cost(read, written)
