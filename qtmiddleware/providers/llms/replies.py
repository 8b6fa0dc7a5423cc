"""Read a model's answer, any field of which may be malformed, and compute its cost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.providers import replace_surrogates
from qtmiddleware.providers.errors import find_reason_for_status
from qtmiddleware.retrieval.fields import read_field
from qtmiddleware.runtime.spending import MOST_TOKENS

# The maximum length of a reply in characters. Real replies have a few thousand.
MOST_CHARS: Final = 1_000_000

CHECK_ADDRESS: Final = "check that llm.baseUrl is the address of an API"

ACCEPTED: Final = "text, a chat completion, or an object or dict with content or text"

# `output_text` is where OpenAI's Responses API has it.
_TEXT_NAMES: Final = ("content", "text", "output_text")
_END_NAMES: Final = ("finish_reason", "stop_reason")
_CUT_OFF: Final = frozenset({"length", "max_tokens", "max_output_tokens"})
_DECLINED: Final = frozenset({"content_filter", "refusal"})
_INPUT_NAMES: Final = ("prompt_tokens", "input_tokens")
_OUTPUT_NAMES: Final = ("completion_tokens", "output_tokens")
# A model's name or a completion's id. A user's text does not match.
_IDENTIFIER: Final = re.compile(r"[\w.:/@+-]{1,200}", re.ASCII)
_MILLION: Final = 1_000_000


def read_completion(completion: Any) -> Reply:
    """Return the reply in *completion*, a chat completion as an object or a mapping.

    Raises `ModelError` if there is no text, or if it is a refusal or a gateway's error.
    """
    raise_if_gateway_error(completion)
    choices = read_field(completion, "choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = read_field(choice, "message")
    if message is None:
        raise ModelError("unparsable", f"the response is no completion; {CHECK_ADDRESS}")
    text = join_texts(read_field(message, "content"))
    return _make_reply(text, completion, message, read_field(choice, "finish_reason"))


def read_answer(answer: Any, fn_name: str) -> Reply:
    """Return the reply in the *answer* that the user's function *fn_name* gave."""
    if isinstance(answer, str):
        return _make_reply(answer, None, None, "")
    if isinstance(read_field(answer, "choices"), list):
        return read_completion(answer)
    raise_if_gateway_error(answer)
    # LangChain has the reason for the end in its metadata.
    metadata = read_field(answer, "response_metadata")
    end = None
    for name in _END_NAMES:
        end = end or read_field(answer, name) or read_field(metadata, name)
    # LlamaIndex and Ollama have the text in a message.
    for message in (answer, read_field(answer, "message")):
        for name in _TEXT_NAMES:
            text = join_texts(read_field(message, name))
            if text is not None:
                return _make_reply(text, answer, message, end)
    kind = type(answer).__name__
    raise ModelError("unparsable", f"{fn_name} must return {ACCEPTED}, not {kind}")


def _make_reply(
    text: str | None,
    completion: Any,
    message: Any,
    end: Any,
) -> Reply:
    raise_if_refused(message, end)
    text = replace_surrogates(text or "")
    if len(text) > MOST_CHARS:
        raise ModelError("unparsable", f"the answer has more than {MOST_CHARS:,} characters")
    is_cut = str(end).lower() in _CUT_OFF
    if is_cut and not text.strip():
        raise ModelError(
            "truncated",
            "no token was left for the answer; raise llm.maxTokens or answer.maxTokens",
        )
    if not text.strip():
        raise ModelError("empty", "the model's answer is empty")
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
        _read_count(usage, _INPUT_NAMES),
        _read_count(usage, _OUTPUT_NAMES),
        truncated=is_cut,
        model=_read_name(source, "model") or _read_name(metadata, "model_name"),
        id=_read_name(source, "id"),
    )


def raise_if_gateway_error(completion: Any) -> None:
    """Raise `ModelError` if *completion* is an error that a gateway sent with HTTP status 200."""
    error = read_field(completion, "error")
    if error and isinstance(error, Mapping | str):
        code = read_field(error, "code")
        reason = find_reason_for_status(code) if isinstance(code, int) else "unavailable"
        raise ModelError(reason, "the provider sent an error instead of a completion")


def raise_if_refused(message: Any, end: Any) -> None:
    """Raise `ModelError` if *message* or *end* reports a refusal or a failure."""
    refusal, parts = read_field(message, "refusal"), read_field(message, "content")
    kinds = []
    if isinstance(parts, list):
        kinds = [read_field(part, "type") for part in parts]
    if (isinstance(refusal, str) and refusal.strip()) or "refusal" in kinds:
        raise ModelError("refused", "the model refused to answer")
    end = str(end).lower()
    if end in _DECLINED:
        raise ModelError("refused", "the provider's content filter withheld the answer")
    if end == "error":
        raise ModelError("unavailable", "the provider failed while the model was answering")


def join_texts(content: Any) -> str | None:
    """Return the text of *content*, a text or a list of texts; ``None`` if it is neither."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    joined = ""
    for part in content:
        text = part if isinstance(part, str) else read_field(part, "text")
        joined += text if isinstance(text, str) else ""
    return joined


def _read_count(usage: Any, names: tuple[str, ...]) -> int:
    """Return the first valid number of tokens under *names* in *usage*; 0 if there is none."""
    for name in names:
        count = read_field(usage, name)
        if type(count) is int and 0 < count <= MOST_TOKENS:
            return count
    return 0


def _read_name(holder: Any, name: str) -> str:
    value = read_field(holder, name)
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else ""


# --- costs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prices:
    """A model's prices in US dollars per million tokens. ``None`` uses the list price."""

    model: str
    input: float | None = None
    output: float | None = None

    def compute_cost(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the cost in US dollars; ``None`` if a price or the tokens are unknown."""
        if not 0 < input_tokens + output_tokens <= MOST_TOKENS:
            return None
        input_price = self.input
        output_price = self.output
        if input_price is None or output_price is None:
            if (prices := find_prices(self.model)) is None:
                return None
            input_price = prices[0] if input_price is None else input_price
            output_price = prices[1] if output_price is None else output_price
        return (input_tokens * input_price + output_tokens * output_price) / _MILLION


def add_cost(reply: Reply, prices: Prices, calls: int = 1) -> Reply:
    """Return *reply* with its cost and the number of requests that were sent for it."""
    usd = prices.compute_cost(reply.input_tokens, reply.output_tokens)
    return replace(reply, calls=calls, cost_usd=usd)


@cache
def find_prices(model: str) -> tuple[float, float] | None:
    """Return OpenAI's prices of *model* in US dollars per million tokens: for input and output.

    They come from the package genai-prices (extra ``prices``); without it, they are unknown.
    """
    try:
        from genai_prices import Usage, calc_price

        # The price of one token each way, because some models cost more per token for long prompts.
        usage = Usage(input_tokens=1, output_tokens=1)
        price = calc_price(usage, model, provider_id="openai")
        return float(price.input_price * _MILLION), float(price.output_price * _MILLION)
    except Exception:
        # The package is missing, does not know the name, or has another interface. A missing price
        # must not cost a reply.
        return None
