"""What goes into spans and metrics holds no text of a user, a document or a model, and no key; on bad days neither."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.integrations.opentelemetry import CAPTURE_CONTENT
from tests.support.emitted import (
    ANSWER,
    HISTORY,
    METADATA,
    OPENAI_KEY,
    PASSAGE,
    QUERY,
    REPLY,
    Emitted,
    listening,
)
from tests.support.telemetry_world import Telemetry

PATIENT = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
FIELDS = ("standalone", "rewrite", "step_back", "hyde", "answer")


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    texts = [PASSAGE, f"{PASSAGE} too", "Fees are due"]
    return [
        {"id": f"p{n}", "score": 0.9, "metadata": {"text": it, "author": METADATA}}
        for n, it in enumerate(texts)
    ]


def model(messages: Any) -> str:
    """Says something in every field that is asked for."""
    lists = {
        name: [f"{REPLY} {QUERY}", PASSAGE] for name in ("sub_queries", "paraphrases", "keywords")
    }
    return json.dumps(dict.fromkeys(FIELDS, f"{REPLY} {QUERY}") | lists)


def say(emitted: Emitted, telemetry: Telemetry) -> None:
    for it in telemetry.spans():
        emitted.say(f"span {it.name}", it.to_json())
        emitted.say("name of a span", it.name)
    emitted.say("metrics", repr(telemetry.points()))
    emitted.show(telemetry.observer)


def ask(
    telemetry: Telemetry, emitted: Emitted, config: dict[str, Any], fn: Any, client: Any
) -> None:
    wrapped = telemetry.wrap(
        fn, config, client=client, reranker=lambda query, texts: [1.0] * len(texts)
    )
    calls = (
        lambda: wrapped.retrieve(QUERY, history=HISTORY),
        lambda: wrapped.answer(QUERY),
        lambda: list(wrapped.stream_answer(QUERY)),
        lambda: wrapped.middleware.transform(QUERY),
        lambda: asyncio.run(wrapped.aretrieve(QUERY)),
    )
    for call in calls:
        try:
            call()
        except (qtm.QtMiddlewareError, OSError):
            continue
    say(emitted, telemetry)


@pytest.mark.parametrize("kind", list(TRANSFORMS))
def test_no_text_is_in_a_span_or_metric_whatever_is_asked_of_the_model(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CAPTURE_CONTENT, raising=False)
    config = {"transformationType": kind, "limits": PATIENT, "rerank": {"enabled": True}}
    with listening() as emitted:
        ask(Telemetry(), emitted, config, search, model)


def test_nor_is_it_where_all_fails_with_words_that_quote_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(CAPTURE_CONTENT, raising=False)

    def down(*_: Any, **__: Any) -> Any:
        raise OSError(f"{QUERY} {PASSAGE} {REPLY} {ANSWER} {OPENAI_KEY}")

    config = {"transformationType": "combined", "limits": PATIENT, "breaker": {"failures": 0}}
    with listening() as emitted:
        ask(Telemetry(), emitted, config, search, down)
        ask(Telemetry(), emitted, config, down, model)
