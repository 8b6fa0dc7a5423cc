"""Whatever can be called can be wrapped, and is called the way it was before."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.wrapping_world import (
    QUERY,
    atraced,
    ids,
    middleware,
    rows,
    traced,
)

qm = middleware()


def function(query: str, top_k: int = 4) -> Any:
    return rows(query)


async def coroutine(query: str, top_k: int = 4) -> Any:
    return rows(query)


class Service:
    """Searches by every kind of method; each tells its object or class in the rows."""

    def __init__(self, name: str = "one") -> None:
        self.name = name

    @qm.wrap
    def method(self, query: str, top_k: int = 4) -> Any:
        return rows(self)

    @qm.wrap
    async def amethod(self, query: str, top_k: int = 4) -> Any:
        return rows(self)

    @classmethod
    @qm.wrap
    def class_inside(cls, query: str, top_k: int = 4) -> Any:
        return rows(cls)

    @qm.wrap
    @classmethod
    def class_outside(cls, query: str, top_k: int = 4) -> Any:
        return rows(cls)

    @qm.wrap
    @classmethod
    async def aclass_outside(cls, query: str, top_k: int = 4) -> Any:
        return rows(cls)

    @staticmethod
    @qm.wrap
    def static_inside(query: str, top_k: int = 4) -> Any:
        return rows()

    @qm.wrap
    @staticmethod
    def static_outside(query: str, top_k: int = 4) -> Any:
        return rows()

    @staticmethod
    @qm.wrap
    async def astatic(query: str, top_k: int = 4) -> Any:
        return rows()

    @qm.wrap
    @traced
    def decorated(self, query: str, top_k: int = 4) -> Any:
        return rows(self)

    def plain(self, query: str, top_k: int = 4) -> Any:
        return rows(self)

    async def aplain(self, query: str, top_k: int = 4) -> Any:
        return rows(self)


class Sub(Service):
    def method(self, query: str, top_k: int = 4) -> Any:
        return [{**row, "sub": True} for row in super().method(query, top_k)]


class Finder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows(query)

    def close(self) -> str:
        return "closed"


class AsyncCallable:
    async def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows(query)


def nested() -> Any:
    shelf = rows("nested")

    @qm.wrap
    def inner(query: str, top_k: int = 4) -> Any:
        return shelf

    return inner


PLAIN: dict[str, Callable[[], Any]] = {
    "function": lambda: qm.wrap(function),
    "method": lambda: Service().method,
    "method of a subclass": lambda: Sub().method,
    "bound method": lambda: qm.wrap(Service().plain),
    "class method inside": lambda: Service.class_inside,
    "class method outside": lambda: Service.class_outside,
    "static method inside": lambda: Service.static_inside,
    "static method outside": lambda: Service().static_outside,
    "decorated inside": lambda: Service().decorated,
    "decorated outside": lambda: traced(qm.wrap(function)),
    "partial": lambda: qm.wrap(functools.partial(function, top_k=2)),
    "partial of a wrapped one": lambda: functools.partial(qm.wrap(function), top_k=2),
    "callable object": lambda: qm.wrap(Finder()),
    "wrapped twice": lambda: qm.wrap(qtm.middleware(function)),
    "builtin-like": lambda: qm.wrap({QUERY: rows()}.get),
    "no parentheses": lambda: qtm.middleware(function),
    "options": lambda: qtm.middleware(config={"topK": 5}, query_arg="query")(function),
}

AWAITED: dict[str, Callable[[], Any]] = {
    "function": lambda: qm.wrap(coroutine),
    "method": lambda: Service().amethod,
    "bound method": lambda: qm.wrap(Service().aplain),
    "class method outside": lambda: Service.aclass_outside,
    "static method": lambda: Service.astatic,
    "decorated inside": lambda: qm.wrap(atraced(coroutine)),
    "decorated by a plain wrapper": lambda: qm.wrap(traced(coroutine)),
    "partial": lambda: qm.wrap(functools.partial(coroutine, top_k=2)),
    "callable object": lambda: qm.wrap(AsyncCallable()),
    "lambda that is said to be one": lambda: qm.wrap(
        lambda query, top_k=4: coroutine(query, top_k), kind="async"
    ),
    "wrapped twice": lambda: qm.wrap(qtm.middleware(coroutine)),
    "parentheses": lambda: qtm.middleware()(coroutine),
}


@pytest.mark.parametrize("name", PLAIN)
def test_anything_callable_is_wrapped_and_called_as_before(name: str) -> None:
    search = PLAIN[name]()
    assert ids(search(QUERY)) == ids(search(query=QUERY)) if name != "builtin-like" else True
    assert ids(search(QUERY)) == ["near", "far"]
    if not hasattr(search, "retrieve") or name.startswith("class method inside"):
        search = qm.wrap(search)  # what others made of ours is a plain function again
    retrieval = search.retrieve(QUERY)
    assert [match.id for match in retrieval.matches][:2] == ["near", "far"]
    assert asyncio.run(search.aretrieve(QUERY)).response == retrieval.response


@pytest.mark.parametrize("name", AWAITED)
async def test_anything_awaitable_is_wrapped_and_awaited_as_before(name: str) -> None:
    search = AWAITED[name]()
    assert ids(await search(QUERY)) == ids(await search(query=QUERY)) == ["near", "far"]
    pending = search(QUERY)
    assert inspect.iscoroutine(pending)
    await pending
    assert [match.id for match in (await search.aretrieve(QUERY)).matches][:2] == ["near", "far"]
    with pytest.raises(qtm.WrapError, match="aretrieve"):
        search.retrieve(QUERY)


def marks(response: Any) -> set[Any]:
    return {mark for row in response for mark in row["metadata"]["marks"]}


def test_a_method_is_called_on_its_own_object() -> None:
    one, two = Service("one"), Service("two")
    assert marks(one.method(QUERY)) == {one}
    assert marks(two.method(QUERY)) == {two}
    assert marks(Service.method(one, QUERY)) == {one}
    assert marks(one.method.retrieve(QUERY).response) == {one}
    assert marks(asyncio.run(two.amethod(QUERY))) == {two}
    assert one.method.__self__ is one


def test_a_class_method_is_called_on_the_class_it_was_asked_of() -> None:
    for name in ("class_inside", "class_outside"):
        assert marks(getattr(Service, name)(QUERY)) == {Service}
        assert marks(getattr(Sub(), name)(QUERY)) == {Sub}
    sub: Any = Sub
    assert marks(sub.class_outside.retrieve(QUERY).response) == {Sub}
    assert marks(asyncio.run(sub.aclass_outside(QUERY))) == {Sub}


def test_what_is_no_method_is_not_bound_by_a_class() -> None:
    service = Service()

    class Shelf:
        partial = qm.wrap(functools.partial(function, top_k=2))
        callable = qm.wrap(Finder())
        bound = qm.wrap(service.plain)

    shelves: list[Any] = [Shelf(), Shelf]
    for shelf in shelves:
        assert ids(shelf.partial(QUERY)) == ["near", "far"]
        assert ids(shelf.callable(QUERY)) == ["near", "far"]
        assert marks(shelf.bound(QUERY)) == {service}


@pytest.mark.parametrize(
    "thing", [None, 42, "config.json", [], {}, object()], ids=lambda it: type(it).__name__
)
def test_what_cannot_be_called_is_refused(thing: Any) -> None:
    with pytest.raises(qtm.WrapError):
        qm.wrap(thing)
    with pytest.raises(qtm.WrapError, match="kind must be"):
        qm.wrap(function, kind=thing or "threads")


def test_generator_functions_are_refused_with_advice() -> None:
    def one_by_one(query: str) -> Any:
        yield from rows()

    async def one_by_one_awaited(query: str) -> Any:
        yield rows()

    for refused in (one_by_one, one_by_one_awaited, functools.partial(one_by_one)):
        with pytest.raises(qtm.WrapError, match="one by one"):
            qm.wrap(refused)
