"""A search function and a model that behave, and what is made of them by many callers at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from qtmiddleware.protocols import Prompt

QUERY: Final = "Does Jaco have any health concerns?"
# They keep the question's words, as a model of which many replies are off topic is left out.
SUBS: Final = (
    "What did the vet say about health concerns of Jaco?",
    "Which illness or health concerns does Jaco have?",
    "How old are the health concerns of the dog Jaco?",
)
REWRITE: Final = "Does the dog Jaco have health concerns or medical conditions?"
ANSWER: Final = "Jaco is healthy [1]. The vet saw him in May [2]."


def reply(wanted: Mapping[str, str]) -> dict[str, Any]:
    """A reply with the fields that are *wanted*, each a ``line`` or a ``list``."""
    said = {
        "rewrite": REWRITE,
        "sub_queries": list(SUBS),
        "paraphrases": list(SUBS),
        "hyde": "Jaco is a healthy dog.",
    }
    said |= {
        "step_back": "What conditions do older dogs have?",
        "standalone": QUERY,
        "keywords": ["vet"],
    }
    return {name: said[name] for name in wanted}


def scripted(prompt: Prompt) -> dict[str, Any] | str:
    """The reply to any prompt."""
    return reply({field.name: field.shape for field in prompt.fields}) if prompt.fields else ANSWER


def found(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    """Passages whose ids say what was asked for."""
    rows = [("shared", "Jaco is healthy and was seen by the vet"), (query, f"About {query}")]
    return [
        {"id": name, "score": 0.9 - place / 10, "metadata": {"text": text}}
        for place, (name, text) in enumerate(rows)
    ][:top_k]


def config(kind: str = "decompose", **more: Any) -> dict[str, Any]:
    """Settings that ask the model for *kind*, patiently, and remember nothing."""
    limits = {"llmTimeoutMs": 60_000, "deadlineMs": 60_000, **more.pop("limits", {})}
    return {"transformationType": kind, "limits": limits, "cache": {"enabled": False}, **more}


def chat(body: Mapping[str, Any]) -> dict[str, Any] | str:
    """The reply to any request: the fields of its schema, or the answer."""
    schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
    return reply(schema["properties"]) if schema else ANSWER


PROLOGUE: Final = """
import asyncio, atexit, os, signal, sys, threading, time, warnings
import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel

SUBS = [
    "What did the vet say about health concerns of Jaco?",
    "Which illness or health concerns does Jaco have?",
    "How old are the health concerns of the dog Jaco?",
]
QUERY = "Does Jaco have any health concerns?"
CONFIG = {
    "transformationType": "decompose",
    "cache": {"enabled": False},
    "limits": {"llmTimeoutMs": 60_000, "deadlineMs": 60_000},
}

def search(query, top_k=3):
    return [{"id": query, "score": 0.9, "metadata": {"text": query}}]

async def asearch(query, top_k=3):
    await asyncio.sleep(0)
    return search(query, top_k)

def model(seconds=0.0):
    return ScriptedModel({"sub_queries": SUBS}, seconds=seconds)

def fine(retrieval):
    return retrieval.status == "full" and [it.text for it in retrieval.variants] == [QUERY, *SUBS]
"""


def python(
    body: str, *, seconds: float = 200.0, code: int = 0, env: Mapping[str, str] | None = None
) -> str:
    """What a process prints that runs *body*; fails where it complains, ends otherwise or takes longer."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=env,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout
