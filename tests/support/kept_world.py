"""What the kept files of earlier versions were made with, and are read with: names here must stay, files hold them.

What a kept file names is `embed`, `find`, `retrieve`, `reply`, `searching`, `decorated` and
`CountingRetriever`. Change what a function returns only together with all kept files.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import qtmiddleware as qtm
from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.kit.index.ingestion.context_prompt import build_prompt_version
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.providers.embedders import CallableEmbedder
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.transforms import build_prompts
from qtmiddleware.types import Message

KEPT: Final = Path(__file__).parents[1] / "kept"
FOLDERS: Final = sorted(it for it in KEPT.iterdir() if it.is_dir() and it.name[0].isdigit())
"""One folder for each version whose files are kept."""

QUESTION: Final = "Does Jaco have any health concerns?"
REWRITE: Final = "Which illness does the dog Jaco have?"
HISTORY: Final = (Message("user", QUESTION), Message("assistant", "Jaco is a healthy dog."))
FOLLOW_UP: Final = "And what does he eat?"
PROMPT: Final = Prompt(
    "rewrite", "kept/1", "Rewrite the query.", QUESTION, (), QUESTION, max_tokens=100
)
"""A prompt that no version of the package changes, so that the reply to it is found again."""

DOCUMENTS: Final = {
    "jaco.md": "# Jaco\n\nJaco has no health concerns and was seen by a vet in May.\n\n"
    "Jaco eats dry food twice a day and a carrot at noon.\n",
    "shelter.md": "# The shelter\n\nThe fee for an adoption is due before the dog leaves the shelter. "
    "Zoë keeps the keys — ask her. \N{DOG FACE}\n",
}
PLACE: Final = "/kept/docs"
"""Where the documents lay, as the kept ledger says it: a folder that no machine has."""

PASSAGES: Final = (
    ("toys", 0.9, "Does Jaco have any toys? A ball and a rope."),
    ("cats", 0.8, "Cats sleep most of the day."),
    ("health", 0.7, "Jaco has no health concerns and was seen by a vet in May."),
)
INGEST: Final = {"chunkSize": 100, "chunkOverlap": 20, "contextualChunks": True}
PATIENT: Final = {"limits": {"llmTimeoutMs": 50_000, "deadlineMs": 55_000}}
REWRITING: Final = {"transformationType": "rewrite", **PATIENT}


def embed(texts: list[str]) -> list[list[float]]:
    """A vector a text: how often words of each of eight kinds stand in it."""
    vectors = [[0.01] * 8 for _ in texts]
    for text, vector in zip(texts, vectors, strict=True):
        for word in text.casefold().replace("?", " ").replace(".", " ").split():
            vector[hashlib.sha256(word.encode()).digest()[0] % 8] += 1.0
    return vectors


class Counted:
    """`embed`, and the texts it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return embed(texts)


def make_embedder(function: Any = embed) -> CallableEmbedder:
    """The embedder that the kept indexes and caches name."""
    return CallableEmbedder(function, name="kept-words", dimension=8)


def find(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """Always the same passages, the one that answers last."""
    return [
        {"id": id_, "score": score, "metadata": {"text": text}}
        for id_, score, text in PASSAGES[:top_k]
    ]


def retrieve(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """`find`, under a name of its own."""
    return find(query, top_k)


def reply(messages: Any) -> str:
    """What a model says to every prompt."""
    return json.dumps({"rewrite": REWRITE})


searching: Final = qtm.QueryMiddleware(REWRITING, client=reply).wrap(find)


@qtm.middleware
def decorated(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """`find`, wrapped where it is defined."""
    return find(query, top_k)


def script(prompt: Prompt) -> dict[str, Any]:
    """What a model replies to prompts of every kind."""
    if prompt.mode == "context":
        return {"context": "About the dogs of a shelter."}
    said = reword(prompt.query)
    return {wanted.name: ([said] if wanted.shape == "list" else said) for wanted in prompt.fields}


def reword(query: str) -> str:
    """What the model makes of a query."""
    return f"{query.rstrip('?')} today?"


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """What a service replies to a request for a rewrite."""
    return {"rewrite": reword(json.loads(body["messages"][-1]["content"])["query"])}


def make_model() -> ScriptedModel:
    """A model that can be asked."""
    return ScriptedModel(script, name="kept-model")


def make_silent_model() -> LanguageModel:
    """A model of the same name that nobody may ask."""

    def fail(prompt: Prompt) -> Any:
        raise AssertionError(f"it was asked, for {prompt.mode}")

    return ScriptedModel(fail, name="kept-model")


def list_prompts() -> dict[str, list[str]]:
    """The versions of the prompts: of every transform, without and with a conversation, and of contexts of chunks."""
    found = {}
    for name in TRANSFORMS:
        settings = Config.load({"transformationType": name}, environ={}).settings
        prompts = [it for history in ((), HISTORY) for it in build_prompts(settings, "?", history)]
        found[name] = [f"{it.mode} {it.version}" for it in prompts]
    return {**found, "context": [build_prompt_version(Config.load({}, environ={}).settings)]}


def flatten(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of nested dicts by its dotted key; one of a key ``prompts`` is a value of its own."""
    for name, value in values.items():
        if isinstance(value, dict) and name != "prompts":
            yield from flatten(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def pack(source: Path, target: Path) -> None:
    """Put a file or folder at *source* into *target*, compressed and without the time it was made."""
    if source.is_dir():
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in sorted(it for it in source.rglob("*") if it.is_file()):
                name = zipfile.ZipInfo(path.relative_to(source).as_posix())
                packed.writestr(name, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    else:
        target.write_bytes(gzip.compress(source.read_bytes(), 9, mtime=0))


def unpack(folder: Path, target: Path) -> Path:
    """Copy all kept files of a *folder* to *target*, compressed ones as they were before."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    for path in list(target.rglob("*.gz")):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    for path in list(target.rglob("*.zip")):
        with zipfile.ZipFile(path) as packed:
            packed.extractall(path.with_suffix(""))
        path.unlink()
    return target
