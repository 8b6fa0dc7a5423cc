"""Read the text, the token counts and the end of a model's answer. Any field may be malformed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers import read_count, replace_surrogates
from qtmiddleware.providers.errors import find_reason_for_status
from qtmiddleware.runtime.fields import read_field

MOST_CHARS: Final = 1_000_000
"""The maximum length of a reply in characters. Real replies have a few thousand."""

CHECK_ADDRESS: Final = "check that llm.baseUrl is the address of an API"

ACCEPTED: Final = "text, a chat completion, an object or dict with content or text, or the fields"

# `output_text` is where OpenAI's Responses API has it.
_TEXT_NAMES: Final = ("content", "text", "output_text")
_END_NAMES: Final = ("finish_reason", "stop_reason")
_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
_DECLINED: Final = frozenset({"content_filter", "refusal"})
_INPUT_NAMES: Final = ("prompt_tokens", "input_tokens")
_OUTPUT_NAMES: Final = ("completion_tokens", "output_tokens")
# A model's name or a completion's id. A user's text does not match.
_IDENTIFIER: Final = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)


def read_completion(completion: Any) -> Reply:
    """Return the reply in *completion*, a chat completion as an object or a mapping.

    Raises `ModelError` with one of these reasons:

    - ``unparsable`` if *completion* is not a chat completion,
    - ``empty`` if the reply has no text,
    - ``refused`` if the model or a content filter refused to answer,
    - ``truncated`` if the token limit was reached before the first text,
    - ``too_long`` if the text is longer than `MOST_CHARS`,
    - the reason for the status in the error, if a gateway sent an error with HTTP status 200.
    """
    raise_if_gateway_error(completion)
    choices = read_field(completion, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = read_field(choice, "message")
    if message is None:
        raise ModelError("unparsable", f"the model's response is no completion; {CHECK_ADDRESS}")
    text = join_texts(read_field(message, "content"))
    return make_reply(text, completion, message, read_field(choice, "finish_reason"))


def read_answer(answer: Any, prompt: Prompt, fn_name: str) -> Reply:
    """Return the reply in the *answer* that the user's function *fn_name* gave to *prompt*."""
    if isinstance(answer, str):
        return make_reply(answer, None)
    if isinstance(read_field(answer, "choices"), list):
        return read_completion(answer)
    raise_if_gateway_error(answer)
    # The fields themselves, as structured output: a dict or a pydantic model.
    values = {field.name: read_field(answer, field.name) for field in prompt.fields}
    fields = {name: value for name, value in values.items() if value is not None}
    if fields:
        return make_reply(json.dumps(fields, ensure_ascii=False, default=str), None)
    # LlamaIndex and Ollama have the text in a message.
    for message in (answer, read_field(answer, "message")):
        for name in _TEXT_NAMES:
            text = join_texts(read_field(message, name))
            if text is not None:
                return make_reply(text, answer, message, _find_end(answer))
    kind = type(answer).__name__
    raise ModelError("unparsable", f"{fn_name} must return {ACCEPTED}, not {kind}")


def _find_end(answer: Any) -> str:
    # LangChain has the reason in its metadata.
    for holder in (answer, read_field(answer, "response_metadata")):
        for name in _END_NAMES:
            end = read_field(holder, name)
            if isinstance(end, str):
                return end
    return ""


def make_reply(
    text: str | None, completion: Any, message: Any = None, finish_reason: Any = None
) -> Reply:
    """Return the reply with *text*; raise the errors of `read_completion`."""
    end = finish_reason.lower() if isinstance(finish_reason, str) else ""
    raise_if_refused(message, end)
    text = replace_surrogates(text or "")
    if len(text) > MOST_CHARS:
        raise ModelError("too_long", f"the model's answer has more than {MOST_CHARS:,} characters")
    is_cut = end in _CUT_OFF
    if not text.strip():
        if not is_cut:
            raise ModelError("empty", "the model's answer is empty")
        raise ModelError(
            "truncated",
            "the token limit cut the whole answer; raise llm.maxTokens or answer.maxTokens",
        )
    # LangChain and LlamaIndex keep what the service sent in a field; their own id is another one.
    raw = read_field(completion, "raw")
    metadata = read_field(completion, "response_metadata")
    usage = (
        read_field(completion, "usage")
        or read_field(completion, "usage_metadata")
        or read_field(raw, "usage")
    )
    source = metadata or raw or completion
    return Reply(
        text,
        read_count(usage, _INPUT_NAMES),
        read_count(usage, _OUTPUT_NAMES),
        truncated=is_cut,
        model=_read_identifier(source, "model") or _read_identifier(metadata, "model_name"),
        id=_read_identifier(source, "id"),
    )


def raise_if_gateway_error(completion: Any) -> None:
    """Raise `ModelError` if *completion* is an error that a gateway sent with HTTP status 200."""
    error = read_field(completion, "error")
    if error and isinstance(error, Mapping | str):
        code = read_field(error, "code")
        reason = "unavailable"
        if isinstance(code, int):
            reason = find_reason_for_status(code)
        raise ModelError(reason, "the provider sent an error instead of a completion")


def raise_if_refused(message: Any, finish_reason: str) -> None:
    """Raise `ModelError` if *message* or *finish_reason* reports a refusal or a failure."""
    refusal, parts = read_field(message, "refusal"), read_field(message, "content")
    kinds = [read_field(part, "type") for part in parts] if isinstance(parts, list) else []
    if (isinstance(refusal, str) and refusal.strip()) or "refusal" in kinds:
        raise ModelError("refused", "the model refused to answer")
    if finish_reason in _DECLINED:
        raise ModelError("refused", "the provider's content filter withheld the answer")
    if finish_reason == "error":
        raise ModelError("unavailable", "the provider failed while the model was answering")


def join_texts(content: Any) -> str | None:
    """Return the text of *content*, a text or a list of texts; ``None`` if it is neither."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = (part if isinstance(part, str) else read_field(part, "text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def _read_identifier(holder: Any, name: str) -> str:
    value = read_field(holder, name)
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else ""
