"""Search functions of every kind, and the same middleware around each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.testing import ScriptedModel

QUERY: Final = "Does Jaco have any health concerns?"
WIDE = Settings().keyword_evidence.candidates
"""How many passages a search asks for, so that there is something to weigh."""
REWRITE: Final = "Which illness does the dog Jaco have?"
CONFIG: Final = {
    "transformationType": "rewrite",
    "limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000},
}


def rows(*marks: Any) -> list[dict[str, Any]]:
    """Four passages, the second of which holds the keywords; *marks* go along."""
    return [
        {"id": "far", "score": 0.6, "metadata": {"text": "Cats sleep", "marks": marks}},
        {
            "id": "near",
            "score": 0.59,
            "metadata": {"text": "Jaco: health concerns", "marks": marks},
        },
        {"id": "last", "score": 0.1, "metadata": {"text": "The fee is due", "marks": marks}},
        {"id": "end", "score": 0.1, "metadata": {"text": "Dogs eat", "marks": marks}},
    ]


def middleware() -> qtm.QueryMiddleware:
    return qtm.QueryMiddleware(CONFIG, client=ScriptedModel({"rewrite": REWRITE}))


def ids(response: Any) -> list[str]:
    return [row["id"] for row in response][:2]


def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def atraced(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same for coroutine functions."""

    @functools.wraps(fn)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await fn(*args, **kwargs)

    return inner
