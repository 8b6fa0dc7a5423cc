"""A small index with a search function over it, wrapped and asked in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel

QUERY: Final = "Does Jaco have any health concerns?"
FOLLOW_UP: Final = "And what does he eat?"
HISTORY: Final = (
    {"role": "user", "content": "Does Jaco have any health concerns?"},
    {"role": "assistant", "content": "Jaco is a healthy dog."},
)

WIDE: Final = Settings().keyword_evidence.candidates
"""How many passages a search asks for, so that there is something to weigh."""

PASSAGES: Final = {
    "health": "Jaco has no health concerns and was seen by a vet in May",
    "food": "Jaco eats dry food twice a day and a carrot at noon",
    "vet": "The vet checks hips heart and teeth of every dog once a year",
    "adoption": "How to adopt a dog from the shelter in four steps",
    "walks": "Walks with Jaco are at eight and at six",
    "illness": "Common medical conditions of older dogs are arthritis and obesity",
    "cats": "Cats sleep most of the day",
    "fees": "The fee for an adoption is due before the dog leaves the shelter",
}

REPLIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "standalone": {"standalone": "What does Jaco eat?"},
    "rewrite": {"rewrite": "Does the dog Jaco have medical conditions or illness?"},
    "stepback": {"step_back": "What conditions are common for older dogs?"},
    "decompose": {
        "sub_queries": ["What did the vet say about Jaco?", "Which illness does Jaco have?"]
    },
    "multi_query": {
        "paraphrases": [
            "Is Jaco ill?",
            "Which conditions does Jaco suffer from?",
            "How fit is Jaco?",
        ]
    },
    "hyde": {"hyde": "Jaco was seen by the vet. His heart, hips and teeth are healthy."},
    "keywords": {"keywords": ["vet", "conditions"]},
    "combined": {
        "rewrite": "Does the dog Jaco have medical conditions or illness?",
        "step_back": "What conditions are common for older dogs?",
        "sub_queries": ["What did the vet say about Jaco?", "Which illness does Jaco have?"],
        "hyde": "Jaco was seen by the vet. His heart, hips and teeth are healthy.",
    },
}


def scripted(prompt: Prompt) -> Mapping[str, Any]:
    """The reply to any prompt, with a standalone form where one is asked for."""
    reply = dict(REPLIES[prompt.mode])
    if any(wanted.name == "standalone" for wanted in prompt.fields):
        reply |= REPLIES["standalone"]
    return reply


def words(text: str) -> set[str]:
    return {word.strip("?.,!").casefold() for word in text.split()}


def rank(passages: Mapping[str, str], query: str, top_k: int) -> list[dict[str, Any]]:
    """The *passages* that share most words with *query*, best first (Jaccard)."""
    asked = words(query)
    rows: list[dict[str, Any]] = [
        {
            "id": name,
            "score": len(asked & words(text)) / len(asked | words(text)),
            "metadata": {"text": text},
        }
        for name, text in passages.items()
    ]
    return sorted(rows, key=lambda row: (-row["score"], row["id"]))[:top_k]


def search(query: str, top_k: int) -> list[dict[str, Any]]:
    return rank(PASSAGES, query, top_k)


Respond = Callable[[str, int], Any]


@dataclass
class Searched:
    """A wrapped search function and everything it was asked for, as (text, top_k)."""

    wrapped: Any
    way: Way
    model: ScriptedModel
    calls: list[tuple[str, int]] = field(default_factory=list)

    def retrieve(self, *args: Any, **kwargs: Any) -> qtm.Retrieval:
        retrieval: qtm.Retrieval = self.way.retrieve(self.wrapped, *args, **kwargs)
        return retrieval

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.way.call(self.wrapped, *args, **kwargs)

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.calls]


class Way:
    """One way of asking: a plain function, a coroutine function, or a plain function from a running loop."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def wrap(
        self,
        respond: Respond = search,
        *,
        config: Mapping[str, Any] | None = None,
        script: Any = scripted,
        **options: Any,
    ) -> Searched:
        calls: list[tuple[str, int]] = []
        lock = Lock()

        def function(query: str, top_k: int = 4) -> Any:
            with lock:
                calls.append((query, top_k))
            return respond(query, top_k)

        async def coroutine(query: str, top_k: int = 4) -> Any:
            calls.append((query, top_k))
            await asyncio.sleep(0)
            return respond(query, top_k)

        model = ScriptedModel(script)
        middleware = qtm.QueryMiddleware(config, client=model)
        wrapped = middleware.wrap(coroutine if self.name == "async" else function, **options)
        return Searched(wrapped, self, model, calls)

    def retrieve(self, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        if self.name == "sync":
            return wrapped.retrieve(*args, **kwargs)
        return asyncio.run(wrapped.aretrieve(*args, **kwargs))

    def call(self, wrapped: Any, *args: Any, **kwargs: Any) -> Any:
        return (
            asyncio.run(wrapped(*args, **kwargs))
            if self.name == "async"
            else wrapped(*args, **kwargs)
        )


WAYS: Final = (Way("sync"), Way("async"), Way("threads"))
every_way: Final = pytest.mark.parametrize("way", WAYS, ids=repr)


def ids(retrieval: qtm.Retrieval) -> list[str | None]:
    return [match.id for match in retrieval.matches]


def kinds(retrieval: qtm.Retrieval) -> list[str]:
    return [variant.kind for variant in retrieval.variants]


def reasons(retrieval: qtm.Retrieval) -> list[tuple[str, str]]:
    return [(it.stage, it.reason) for it in retrieval.degradations]


def account(retrieval: qtm.Retrieval) -> dict[str, Any]:
    """Everything a retrieval tells but names and times."""
    trace = retrieval.trace.to_dict()
    for name in ("query_id", "total_ms", "original_ms", "added_ms"):
        del trace[name]
    trace["stages"] = [
        (stage["name"], stage["status"], stage["detail"]) for stage in trace["stages"]
    ]
    return {
        "original_query": retrieval.original_query,
        "matches": retrieval.matches,
        "response": retrieval.response,
        "variants": retrieval.variants,
        "status": retrieval.status,
        "degradations": retrieval.degradations,
        "transformation": retrieval.transformation,
        "rankings": [
            (it.variant, list(it.keys), list(it.scores), list(it.passages))
            for it in retrieval.rankings
        ],
        "fused": retrieval.fused,
        "trace": trace,
    }


def off(**more: Any) -> dict[str, Any]:
    """A configuration without any rules, with *more* on top."""
    return {"preprocess": {"enabled": False}, "keywordEvidence": {"enabled": False}, **more}


def transforming(kind: str, **more: Any) -> dict[str, Any]:
    """A configuration that asks the model for *kind* and waits for it as long as a busy machine may need."""
    limits = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000, **more.pop("limits", {})}
    return {"transformationType": kind, "limits": limits, **more}


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
