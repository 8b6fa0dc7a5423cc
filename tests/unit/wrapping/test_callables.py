"""Whatever can be called can be wrapped, is called as it was before, and looks as it did."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import sys
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import qtmiddleware as qtm
from tests.support.wrapping_world import QUERY, atraced, ids, middleware, rows, traced

qm = middleware()


def function(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """Finds dogs."""
    return rows(query)


async def coroutine(query: str, top_k: int = 4) -> Any:
    return rows(query)


class Service:
    """Searches by every kind of method; each tells its object or class in the rows."""

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


class Sub(Service):
    def method(self, query: str, top_k: int = 4) -> Any:
        return super().method(query, top_k)


class Finder:
    def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows(query)


class AsyncFinder:
    async def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows(query)


PLAIN: dict[str, Callable[[], Any]] = {
    "method of a subclass": lambda: Sub().method,
    "bound method": lambda: qm.wrap(Service().plain),
    "class method inside": lambda: Service.class_inside,
    "class method outside": lambda: Service.class_outside,
    "static method outside": lambda: Service().static_outside,
    "decorated inside": lambda: Service().decorated,
    "with options": lambda: qm.wrap(top_k_arg="top_k")(function),
    "partial": lambda: qm.wrap(functools.partial(function, top_k=2)),
    "partial of a wrapped one": lambda: functools.partial(qm.wrap(function), top_k=2),
    "callable object": lambda: qm.wrap(Finder()),
    "wrapped twice": lambda: qm.wrap(qtm.middleware(function)),
    "builtin-like": lambda: qm.wrap({QUERY: rows()}.get),
}

AWAITED: dict[str, Callable[[], Any]] = {
    "method": lambda: Service().amethod,
    "class method outside": lambda: Service.aclass_outside,
    "static method": lambda: Service.astatic,
    "decorated inside": lambda: qm.wrap(atraced(coroutine)),
    "partial": lambda: qm.wrap(functools.partial(coroutine, top_k=2)),
    "callable object": lambda: qm.wrap(AsyncFinder()),
    "wrapped twice": lambda: qm.wrap(qtm.middleware(coroutine)),
    "a future, said to be awaited": lambda: qm.wrap(
        lambda query, top_k=4: asyncio.ensure_future(coroutine(query)), kind="async"
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_anything_callable_is_wrapped_and_called_as_before(name: str) -> None:
    search = PLAIN[name]()
    assert ids(search(QUERY)) == ["near", "far"]
    if name != "builtin-like":
        assert ids(search(query=QUERY)) == ["near", "far"]
    if not hasattr(search, "retrieve") or name.startswith("class method inside"):
        search = qm.wrap(search)  # what others made of ours is a plain function again
    retrieval = search.retrieve(QUERY)
    assert [match.id for match in retrieval.matches][:2] == ["near", "far"]
    assert asyncio.run(search.aretrieve(QUERY)).response == retrieval.response


@pytest.mark.parametrize("name", AWAITED)
async def test_anything_awaitable_is_wrapped_and_awaited_as_before(name: str) -> None:
    search = AWAITED[name]()
    pending = search(query=QUERY)
    assert inspect.iscoroutine(pending)
    assert ids(await pending) == ids(await search(QUERY)) == ["near", "far"]
    assert [match.id for match in (await search.aretrieve(QUERY)).matches][:2] == ["near", "far"]
    with pytest.raises(qtm.WrapError, match="aretrieve"):
        search.retrieve(QUERY)


def marks(response: Any) -> set[Any]:
    return {mark for row in response for mark in row["metadata"]["marks"]}


def test_a_method_is_called_on_the_object_or_class_it_was_asked_of() -> None:
    one, two = Service(), Service()
    assert marks(one.method(QUERY)) == marks(Service.method(one, QUERY)) == {one}
    assert marks(one.method.retrieve(QUERY).response) == {one}
    assert marks(asyncio.run(two.amethod(QUERY))) == {two}
    for name in ("class_inside", "class_outside"):
        assert marks(getattr(Service, name)(QUERY)) == {Service}
        assert marks(getattr(Sub(), name)(QUERY)) == {Sub}
    sub: Any = Sub
    assert marks(sub.class_outside.retrieve(QUERY).response) == {Sub}


def one_by_one(query: str) -> Any:
    yield from rows()


async def one_by_one_awaited(query: str) -> Any:
    yield rows()


@pytest.mark.parametrize(
    ("thing", "advice"),
    [
        (None, "NoneType is not callable"),
        ("config.json", "str is not callable"),
        ({}, "dict is not callable"),
        (one_by_one, "one by one"),
        (one_by_one_awaited, "one by one"),
    ],
)
def test_what_cannot_be_called_for_a_list_is_refused(thing: Any, advice: str) -> None:
    with pytest.raises(qtm.WrapError, match=advice):
        qm.wrap(thing)
    with pytest.raises(qtm.WrapError, match="kind must be"):
        qm.wrap(function, kind="threads")  # type: ignore[call-overload]


async def test_a_plain_function_that_returns_a_coroutine_leaves_none_unawaited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "qtmiddleware")  # a kept log record would keep the coroutine too
    search = qtm.middleware(lambda query, top_k=4: coroutine(query, top_k))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(await search(QUERY)) == 4
        gc.collect()  # a coroutine nobody awaited warns when it goes
    assert [it.category for it in told] == [qtm.SetupWarning]
    assert "wrap the function with kind='async'" in str(told[0].message)


# --- what it looks like ---------------------------------------------------------------------------


def test_a_wrapped_function_keeps_its_annotations_and_its_docstring() -> None:
    search = qm.wrap(function)
    assert inspect.unwrap(search) is function
    assert typing.get_type_hints(search) == typing.get_type_hints(function)
    assert inspect.getdoc(search) == "Finds dogs."


def test_what_a_wrapped_object_has_is_reachable_but_not_its_special_names() -> None:
    class Index(Finder):
        namespace = "dogs"

        def __len__(self) -> int:
            return 3

    search: Any = qm.wrap(Index())
    assert search.namespace == "dogs"
    assert not hasattr(search, "__len__")


def test_coroutine_functions_are_recognised() -> None:
    is_marked = (
        inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction
    )
    # Frameworks look at either.
    for search in (qm.wrap(coroutine), Service().amethod):
        assert is_marked(search)
        assert is_marked(search.__call__)
    for other in (qm.wrap(function), Service().method):
        assert not is_marked(other)


@pytest.mark.parametrize(
    "wrapped",
    [qm.wrap(function), qm.wrap(coroutine), qm.wrap(Finder()), qm.wrap(Service().plain)],
    ids=repr,
)
def test_a_copy_of_a_wrapped_function_is_itself(wrapped: Any) -> None:
    assert copy.copy(wrapped) is wrapped
    assert copy.deepcopy({"search": wrapped})["search"] is wrapped


# --- a function that searches through itself ------------------------------------------------------
