"""A wrapped function looks like the function it wraps."""

from __future__ import annotations

import abc
import asyncio
import copy
import functools
import inspect
import sys
import typing
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.wrapping_world import middleware, rows

qm = middleware()


@qm.wrap
def search(query: str, top_k: int = 4, *, namespace: str = "dogs") -> list[dict[str, Any]]:
    """Finds dogs."""
    return rows(namespace)


def bare(query: str, top_k: int = 4, *, namespace: str = "dogs") -> list[dict[str, Any]]:
    """Finds dogs."""
    return rows(namespace)


@qm.wrap
async def asearch(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """Finds dogs later."""
    return rows()


class Service:
    @qm.wrap
    def search(self, query: str, top_k: int = 4) -> Any:
        """Finds dogs here."""
        return rows(self)

    @qm.wrap
    async def asearch(self, query: str, top_k: int = 4) -> Any:
        """Finds dogs here later."""
        return rows(self)


class Finder:
    """A callable object."""

    def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows()


def test_annotations_that_only_type_checkers_can_read_stop_nothing() -> None:
    # Without `from __future__ import annotations`, from Python 3.14 on they run when they are read.
    source = """class Options:
    page: {0} = 3

def search(query: {0}, top_k: {0} = 4, options: {0} = None) -> {0}:
    return [{{"text": f"dog {{number}}", "score": 1 / number}} for number in range(1, top_k + 1)]

def rewrite(messages: {0}) -> {0}:
    return "dog 3"
"""
    names: dict[str, Any] = {}
    quoted = "Unknown" if sys.version_info >= (3, 14) else "'Unknown'"
    # This file's own postponement of annotations must not reach it.
    exec(compile(source.format(quoted), "unknown.py", "exec", dont_inherit=True), names)
    with qtm.QueryMiddleware(
        {"transformationType": "rewrite"}, client=names["rewrite"]
    ) as middleware:
        found = middleware.wrap(names["search"]).retrieve(
            "Where is dog 3?", options=names["Options"]()
        )
    assert len(found.matches) == 4
    assert found.transformation.rewrite


def test_a_wrapped_function_keeps_its_signature() -> None:
    assert search.__annotations__ == bare.__annotations__
    assert qm.wrap(bare).__wrapped__ is bare
    assert inspect.unwrap(qm.wrap(bare)) is bare
    assert typing.get_type_hints(search) == typing.get_type_hints(bare)
    assert inspect.getdoc(search) == "Finds dogs."


def test_coroutine_functions_are_recognised() -> None:
    marked = (
        inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    )
    assert marked(asearch)
    assert marked(Service().asearch)
    assert marked(Service.asearch)
    # Frameworks look at either.
    assert marked(asearch.__call__)
    assert marked(Service().asearch.__call__)
    assert not marked(search.__call__)
    assert not marked(search)
    assert not marked(Service().search)


@pytest.mark.parametrize(
    "wrapped",
    [
        search,
        asearch,
        qm.wrap(Finder()),
        qm.wrap(functools.partial(bare)),
        qm.wrap(Service().search),
    ],
    ids=repr,
)
def test_a_copy_of_a_wrapped_function_is_itself(wrapped: Any) -> None:
    assert copy.copy(wrapped) is wrapped
    assert copy.deepcopy({"search": wrapped})["search"] is wrapped


def test_an_abstract_method_stays_abstract() -> None:
    class Base(abc.ABC):
        @qm.wrap
        @abc.abstractmethod
        def search(self, query: str) -> Any:
            """Left to others."""

    with pytest.raises(TypeError, match="abstract"):
        Base()  # type: ignore[abstract]
