"""The reference of public names, docs/api.md, out of their signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import qtmiddleware as qtm
from qtmiddleware import protocols, testing
from qtmiddleware.wrapping.query_middleware import AskOptions, WrapOptions
from qtmiddleware.wrapping.wrapped import Wrapped

HEAD = """# API

Every public name, as `help()` shows it; written by `scripts/generate`. `import qtmiddleware as qtm` gives those without
another module. Where to begin: the [README](../README.md), [wrap-anything.md](wrap-anything.md).
"""
GROUPS = {
    "Wrapping": ("middleware", "QueryMiddleware", "Config", "override", "preprocess", "Health", "Readiness"),
    "Will it help?": ("Check", "Finding", "CheckState"),
    "What comes back": ("Retrieval", "Match", "Variant", "Transformation", "Degradation", "Message"),
    "Answers": ("Answer", "Citation", "SubAnswer", "AnswerStream", "AsyncAnswerStream"),
    "Documents": ("ingest", "IngestReport", "Hybrid"),
}
CONSTRUCTED = (qtm.QueryMiddleware, qtm.Hybrid)
"""Of which people make one themselves; the fields of a record are shown anyway."""
BESIDE = {"QueryMiddleware": (Wrapped, WrapOptions, AskOptions)}
"""What signatures speak of, and nobody makes by name."""
ROOMS = {
    "`qtm.evaluation`": qtm.evaluation,
    "`qtm.judging`": qtm.judging,
    "`qtm.reporting`": qtm.reporting,
    "`qtm.testsets`": qtm.testsets,
    "`qtm.tuning`": qtm.tuning,
    "`qtmiddleware.testing`: doubles for your tests": testing,
    "`qtmiddleware.protocols`: what a plug-in implements": protocols,
}


def write_reference() -> str:
    """Returns the page as Markdown."""
    return "\n".join([HEAD, *_write_names(), *_write_errors(), *_write_rooms()]) + "\n"


def _write_names() -> Iterator[str]:
    grouped = {name for names in GROUPS.values() for name in names}
    others = [name for name in qtm.__all__ if name not in grouped and not _is_error(getattr(qtm, name))]
    for title, names in {**GROUPS, "More": others}.items():
        if names:
            yield f"## {title}\n"
        for name in names:
            yield from _write_thing(f"qtm.{name}", getattr(qtm, name))
            for thing in BESIDE.get(name, ()):
                yield from _write_thing(thing.__name__, thing)


def _write_errors() -> Iterator[str]:
    yield "## Errors\n\n| error | when |\n|---|---|"
    for name in qtm.__all__:
        if _is_error(getattr(qtm, name)):
            yield f"| `qtm.{name}` | {_in_one_line(getattr(qtm, name), whole=True)} |"
    yield ""


def _write_rooms() -> Iterator[str]:
    yield "## By module\n"
    for title, room in ROOMS.items():
        yield f"### {title}\n\n| name | what it is |\n|---|---|"
        for name in _list_names(room):
            yield f"| `{name}` | {_in_one_line(getattr(room, name))} |"
        yield ""


def _write_thing(title: str, thing: Any) -> Iterator[str]:
    is_record = dataclasses.is_dataclass(thing)
    yield f"### `{title}`\n"
    if inspect.isroutine(thing) or thing in CONSTRUCTED:
        yield f"```text\n{thing.__name__}{_write_signature(thing)}\n```\n"
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        yield (f"```text\n{paragraph}\n```" if paragraph.startswith(">>>") else paragraph) + "\n"
    if is_record:
        yield "Fields: " + ", ".join(f"`{it.name}: {it.type}`" for it in dataclasses.fields(thing)) + ".\n"
    if inspect.isclass(thing) and not issubclass(thing, dict):
        members = [it for it in _list_members(thing) if it[0] not in getattr(thing, "__dataclass_fields__", ())]
        if members:
            yield "| member | what it does |\n|---|---|"
            yield from (f"| `{name}` | {_in_one_line(member)} |" for name, member in members)
            yield ""


def _list_members(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            yield name, member
        elif callable(called := getattr(member, "__func__", member)):
            yield f"{name}()", called


def _list_names(room: ModuleType) -> list[str]:
    own = [name for name, it in vars(room).items() if getattr(it, "__module__", "") == room.__name__ and name[0] != "_"]
    names: list[str] = getattr(room, "__all__", own)
    return [name for name in names if inspect.isclass(it := getattr(room, name)) or inspect.isroutine(it)]


def _write_signature(thing: Any) -> str:
    """One line where it fits, else a parameter a line."""
    signature = inspect.signature(thing)
    line = str(signature.replace(return_annotation=signature.empty) if inspect.isclass(thing) else signature)
    line = _unquote(line)
    if len(line) < 100:
        return line
    inside = ",\n    ".join(_unquote(str(it)) for it in _list_parameters(signature))
    _, arrow, returned = line.rpartition(" -> ")
    return f"(\n    {inside},\n){arrow}{returned if arrow else ''}"


def _unquote(signature: str) -> str:
    """Without the quotes around annotations, which are texts here."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)


def _list_parameters(signature: inspect.Signature) -> Iterator[Any]:
    last = None
    for it in signature.parameters.values():
        if it.kind is it.KEYWORD_ONLY and last not in (it.KEYWORD_ONLY, it.VAR_POSITIONAL):
            yield "*"
        yield it
        last = it.kind


def _in_one_line(thing: Any, *, whole: bool = False) -> str:
    """The first sentence or so of its docstring, or all of it."""
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    return " ".join(" ".join(paragraphs if whole else paragraphs[:1]).split()).replace("|", "\\|")


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


if __name__ == "__main__":
    Path("docs/api.md").write_text(write_reference(), encoding="utf-8")
