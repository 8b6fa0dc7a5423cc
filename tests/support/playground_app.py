"""Functions that people might look at on the playground: a good one, and such as are in trouble."""

from __future__ import annotations

import sys
import threading
from typing import Any

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import scripted
from tests.support.retrieval_world import search as find

HOSTILE = (
    "<script>document.title='hacked'</script>",
    "</style></script></template><img src=x onerror=\"document.title='hacked'\">",
    "<a href=\"javascript:document.title='hacked'\">javascript:document.title='hacked'</a>",
    "a \x00\x07\x1b[31m control \u202ereversed\u202c \u2066isolated\u2069 and \ud800 half a character",
    "{{ 7 * 7 }} {% raw %} ' \" & &amp; ]]> -->",
    "x" * 3_000,
)
"""Texts that would do something where they are taken for more than texts."""


def plain(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A function that nobody has wrapped."""
    return find(query, top_k)


@qtm.middleware(client=ScriptedModel(scripted, seconds=0.1))
def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A good function, with a model that takes a moment."""
    return find(query, top_k)


# Asked all the same each time: what is tried is one outage after the other.
@qtm.middleware(
    config={"breaker": {"failures": 0}},
    client=ScriptedModel(ModelError("unavailable", "the service is down")),
)
def down(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A good function whose model is down."""
    return find(query, top_k)


@qtm.middleware
def raising(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A function that fails, and says more than it should."""
    raise ConnectionError(
        "no route to <b>host</b> with api_key=sk-proj-abcdefghijklmnopqrstuvwxyz012345"
    )


@qtm.middleware
def hanging(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """A function that never returns."""
    print("the function hangs", file=sys.stderr, flush=True)
    threading.Event().wait()
    return []


@qtm.middleware
def odd(query: str, top_k: int = 4) -> Any:
    """A function whose result nobody knows."""
    return 42


def _reply_hostile(prompt: Any) -> dict[str, Any]:
    reply = dict(scripted(prompt))
    return {
        name: f"Jaco's health {HOSTILE[0]} concerns" if isinstance(text, str) else text
        for name, text in reply.items()
    }


@qtm.middleware(client=ScriptedModel(_reply_hostile))
def hostile(query: str, top_k: int = 8) -> list[dict[str, Any]]:
    """A function whose passages are not to be trusted, nor what is said of them."""
    rows = [
        {
            "id": f"{at} {text}",
            "score": 1 - at / 10,
            "metadata": {"text": f"{text} Jaco", "title": text, "source": text},
        }
        for at, text in enumerate(HOSTILE)
    ]
    return rows[:top_k]
