"""A search function beside a model that has bad days."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import openai
from werkzeug import Response

import qtmiddleware as qtm
from tests.support import model_server
from tests.support.retrieval_world import QUERY, rank, reasons

__all__ = ["QUERY", "reasons"]

SECRET: Final = "sk-verysecret0123456789"
ACCOUNT: Final[dict[str, Any]] = {"api_key": SECRET, "max_retries": 0}
PASSAGES: Final = {
    "health": "Jaco has no health concerns",
    "vet": "The vet saw Jaco in May and found him fit",
    "food": "Jaco eats dry food twice a day",
    "illness": "Common medical conditions of older dogs are arthritis and obesity",
    "fees": "The fee is due in March",
}
PATIENT: Final = {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}
HASTY: Final = {"llmTimeoutMs": 150, "deadlineMs": 55_000}
GOOD: Final = {"rewrite": "Which illness does Jaco have?"}


def failure(status: int) -> Response:
    """A refusal that repeats what it was sent."""
    return model_server.failure(status, f"no luck with {QUERY} and {SECRET}")


def search(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return rank(PASSAGES, query, top_k)


def transforming(kind: str, limits: Mapping[str, int] = PATIENT, **more: Any) -> dict[str, Any]:
    return {"transformationType": kind, "limits": dict(limits), **more}


def middleware(
    service: model_server.ModelServer, kind: str = "rewrite", **more: Any
) -> qtm.QueryMiddleware:
    """One that asks *service* for *kind* by a real client."""
    client = openai.OpenAI(base_url=service.url, **ACCOUNT)
    return qtm.QueryMiddleware(transforming(kind, **more), client=client)
