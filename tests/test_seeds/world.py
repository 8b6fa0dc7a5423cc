"""What the guards of the seed documents share: a service of models, a small collection, and ``qtm`` run by a user.

Only public names and the command are used here, so that the guards outlive any change inside the package.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import openai
from pytest_httpserver import HTTPServer
from werkzeug import Response

from tests.support.command_line import Ended, run_here
from tests.support.conversing import PATIENCE
from tests.support.model_server import ModelServer, Said

DIMENSION: Final = 1536
"""The length of the vectors of ``text-embedding-3-small``."""
PATIENT: Final = {"limits": {"llmTimeoutMs": 60_000, "deadlineMs": 90_000}}
"""Time limits that no busy machine reaches."""


def vector_of(text: str) -> list[float]:
    """The words of *text*, each counted in a place of its own: texts that share words are near each other."""
    vector = [0.0] * DIMENSION
    for word in re.findall(r"\w+", text.lower()):
        vector[zlib.crc32(word.encode()) % DIMENSION] += 1.0
    return vector


def embed(texts: Sequence[str]) -> list[list[float]]:
    return [vector_of(text) for text in texts]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / length if length else 0.0


class Shelf:
    """Passages by id, searched by their words; *searched* holds every query in its order."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.searched: list[str] = []
        self._vectors = {id_: vector_of(text) for id_, text in texts.items()}

    def search(self, query: str, top_k: int = 4) -> list[dict[str, Any]]:
        self.searched.append(query)
        asked = vector_of(query)
        scores = {id_: cosine(asked, vector) for id_, vector in self._vectors.items()}
        best = sorted(scores, key=lambda id_: (-scores[id_], id_))[:top_k]
        return [{"id": id_, "score": scores[id_], "text": self.texts[id_]} for id_ in best]


@dataclass(frozen=True)
class Asked:
    """One request for a completion."""

    kind: str
    body: Mapping[str, Any]

    @property
    def text(self) -> str:
        """All its messages."""
        return "\n".join(message["content"] for message in self.body["messages"])


@dataclass
class Script:
    """What a service says.

    A request is about an answer if it holds one of *passages*, about judging answers if it holds
    the *reference*, and about a transformation otherwise. A transformation and an answer are texts,
    the fields of a reply, whole responses, or functions of the request that return these.
    """

    passages: Sequence[str] = ()
    transformation: Any = ""
    answer: Any = ""
    reference: str | None = None


class Service(ModelServer):
    """A service that speaks OpenAI's protocol, and says what *script* holds."""

    def __init__(self, server: HTTPServer, path: str, script: Script) -> None:
        super().__init__(server, self._say, embed=self._embed_texts, path=path)
        self.script = script

    @property
    def completions(self) -> list[Asked]:
        """The requests for completions so far."""
        return [Asked(self._kind(body), body) for body in self.bodies if "messages" in body]

    @property
    def embedded(self) -> list[Any]:
        """The requests for vectors so far."""
        return [body for body in self.bodies if "input" in body]

    def of_kind(self, kind: str) -> list[Asked]:
        return [asked for asked in self.completions if asked.kind == kind]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0)

    def environment(self, **more: str) -> dict[str, str]:
        """What a user sets to have this service asked for everything."""
        return {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": self.url, **more}

    def _kind(self, body: Mapping[str, Any]) -> str:
        text = Asked("", body).text
        if self.script.reference is not None and self.script.reference in text:
            return "judgement"
        return "answer" if any(it in text for it in self.script.passages) else "transformation"

    def _say(self, body: dict[str, Any]) -> Said:
        asked = Asked(self._kind(body), body)
        if asked.kind == "judgement":
            return judge_by_words(asked)
        said = self.script.answer if asked.kind == "answer" else self.script.transformation
        # A response can be called too.
        if callable(said) and not isinstance(said, Response):
            said = said(asked)
        reply: Said = said
        return reply

    @staticmethod
    def _embed_texts(body: dict[str, Any]) -> list[list[float]]:
        texts = body["input"]
        return embed([texts] if isinstance(texts, str) else texts)


def judge_by_words(asked: Asked) -> dict[str, Any]:
    """What a judge says who prefers the answer of more different words, in the fields that the request names."""
    shown = json.loads(asked.body["messages"][-1]["content"])
    counts = {name: len(set(text.split())) for name, text in shown.items() if len(name) == 1}
    levels = sorted(set(counts.values()), reverse=True)
    places = {name: levels.index(count) for name, count in counts.items()}
    groups = [[name for name in places if places[name] == at] for at in range(len(levels))]
    said: dict[str, Any] = {
        "ranking": " > ".join(" = ".join(group) for group in groups),
        "reason": "It names most causes.",
    }
    for name in asked.body["response_format"]["json_schema"]["schema"]["required"]:
        letter, _, criterion = name.partition("_")
        if not criterion:
            continue
        place = places[letter.upper()]
        said[name] = {
            "strengths": f"right on {len(levels) - place} points",
            "weaknesses": f"leaves out {place} points" if place else "",
        }.get(criterion, str(10 - 3 * place))
    return said


def run_qtm(*arguments: str, folder: Path, text: str = "", **environment: str) -> Ended:
    """Run ``qtm`` in *folder*, in this process, and return how it ended."""
    return run_here(arguments, text.encode(), folder, {**PATIENCE, **environment})
