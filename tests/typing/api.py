"""What type checkers see of the public names. Checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, assert_type

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_middleware import Decorator, EmbeddingDecorator


@qtm.middleware
def plain(query: str, top_k: int = 4) -> list[dict[str, Any]]:
    """Decorated without parentheses."""
    return []


@qtm.middleware()
def called(query: str, top_k: int = 4) -> list[str]:
    """Decorated with empty parentheses."""
    return []


@qtm.middleware(
    config={"topK": 4}, client=ScriptedModel("x"), query_arg="words", top_k_arg="count", kind="sync"
)
def configured(words: str, *, count: int) -> tuple[str, ...]:
    """Decorated with options."""
    return ()


async def notify(retrieval: qtm.Retrieval) -> None:
    """A hook."""


@qtm.middleware(on_retrieval=notify)
def hooked(query: str) -> list[bytes]:
    """With a hook, which may be awaited."""
    return []


@qtm.middleware
async def awaited(query: str) -> list[int]:
    """An asynchronous one."""
    return []


@qtm.middleware(config="config.json")
async def configured_awaited(query: str) -> list[int]:
    """An asynchronous one with options."""
    return []


class Service:
    """Methods are found on the class and on its objects."""

    @qtm.middleware
    def search(self, query: str) -> list[str]:
        """Searches."""
        return []

    @qtm.middleware
    async def asearch(self, query: str) -> list[str]:
        """Searches, awaited."""
        return []

    @staticmethod
    @qtm.middleware
    def search_plainly(query: str, top_k: int = 4) -> list[str]:
        """Searches, for nobody."""
        return []

    @qtm.middleware
    @classmethod
    def search_for_all(cls, query: str, top_k: int = 4) -> list[str]:
        """Searches, for the class."""
        return []

    @classmethod
    @qtm.middleware
    async def asearch_for_all(cls, query: str) -> list[str]:
        """Searches, for the class, awaited."""
        return []


@qtm.middleware(embed=len)
def by_vector(vector: list[float], top_k: int = 4) -> list[str]:
    """Searches by a vector, in whose place callers put a text."""
    return []


def search(query: str, top_k: int = 4) -> list[float]:
    """A plain function."""
    return []


async def asearch(query: str) -> dict[str, int]:
    """A coroutine function."""
    return {}


def find_anything(query: str, top_k: int = 4) -> list[Any]:
    """A function whose passages have no type."""
    return []


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Turns texts into vectors."""
    return []


def decorated() -> None:
    """What the decorators give."""
    assert_type(plain("q", top_k=3), list[dict[str, Any]])
    assert_type(called("q"), list[str])
    assert_type(configured("q", count=1), tuple[str, ...])
    assert_type(plain.retrieve("q", history=[], config={"topK": 1}), qtm.Retrieval)
    assert_type(plain.check("q", top_k=3), qtm.Check)
    assert_type(qtm.middleware(), Decorator)
    assert_type(Service.search(Service(), "q"), list[str])
    assert_type(Service().search("q"), list[str])
    assert_type(Service().search.retrieve("q"), qtm.Retrieval)
    for static in (Service.search_plainly, Service().search_plainly):
        assert_type(static("q", 3), list[str])
        assert_type(static.retrieve("q", 3), qtm.Retrieval)
    for for_all in (Service.search_for_all, Service().search_for_all):
        assert_type(for_all("q", top_k=3), list[str])
        assert_type(for_all.retrieve("q", history=[]), qtm.Retrieval)
    Service().search_plainly(7)  # type: ignore[arg-type]
    Service.search_for_all(7)  # type: ignore[arg-type]
    assert_type(by_vector("q"), list[str])
    assert_type(by_vector.retrieve("q", top_k=3), qtm.Retrieval)
    plain(7)  # type: ignore[arg-type]
    plain("q", topk=3)  # type: ignore[call-arg]
    configured("q")  # type: ignore[call-arg]
    qtm.middleware(quary_arg="q")  # type: ignore[call-overload]
    qtm.middleware(kind="threads")  # type: ignore[call-overload]
    _: Callable[[str], list[str]] = called


def asked() -> None:
    """`retrieve` and its kin take the function's arguments and the reserved words."""
    assert_type(plain.retrieve("q", 3, history=None, config={}, qtm_config={}), qtm.Retrieval)
    assert_type(plain.answer("q", top_k=3), qtm.Answer)
    assert_type(plain.stream_answer("q", history=[]), qtm.AnswerStream)
    assert_type(plain.astream_answer("q"), qtm.AnswerStream)


async def decorated_awaited() -> None:
    """What the decorators give of coroutine functions."""
    assert_type(await Service.asearch_for_all("q"), list[str])
    assert_type(await Service().asearch_for_all.aretrieve("q"), qtm.Retrieval)
    assert_type(await plain.aanswer("q"), qtm.Answer)
    assert_type(await awaited("q"), list[int])
    assert_type(await configured_awaited("q"), list[int])
    assert_type(await awaited.aretrieve("q", history=[("user", "x")]), qtm.Retrieval)
    assert_type(await plain.aretrieve("q"), qtm.Retrieval)
    assert_type(await Service().asearch("q"), list[str])
    _: Callable[[str], Coroutine[Any, Any, list[int]]] = awaited


def wrapped() -> None:
    """What `QueryMiddleware` gives."""
    middleware = qtm.QueryMiddleware({"topK": 4}, client=ScriptedModel({}))
    assert_type(middleware, qtm.QueryMiddleware)
    assert_type(qtm.QueryMiddleware(Path("config.json")), qtm.QueryMiddleware)
    assert_type(middleware.wrap(search)("q", 3), list[float])
    assert_type(
        middleware.wrap(search, embed=embed, query_arg="query").retrieve("q"), qtm.Retrieval
    )
    assert_type(middleware.wrap(search, read=list, write=lambda _, items: items)("q"), list[float])
    assert_type(middleware.wrap(search, embed_many=embed)("q"), list[float])
    assert_type(middleware.wrap(find_anything).retrieve("q"), qtm.Retrieval)
    assert_type(middleware.wrap(find_anything)("q"), list[Any])
    assert_type(middleware.wrap(query_arg="query"), Decorator)
    assert_type(middleware.wrap(embed=embed), EmbeddingDecorator)
    middleware.wrap(search, embde=embed)  # type: ignore[call-overload]
    assert_type(middleware.preprocess("q"), str)
    assert_type(qtm.preprocess("q"), str)
    with middleware as entered:
        assert_type(entered, qtm.QueryMiddleware)


def transformed() -> None:
    """One question gives one transformation, several give a list."""
    middleware = qtm.QueryMiddleware()
    assert_type(middleware.transform("q"), qtm.Transformation)
    assert_type(middleware.transform(["q", "r"]), list[qtm.Transformation])
    assert_type(middleware.transform({"q"}), list[qtm.Transformation])
    assert_type(middleware.transform("q").rewrite, str | None)
    assert_type(middleware.transform("q").sub_queries, tuple[str, ...])


async def atransformed() -> None:
    """The same, awaited."""
    async with qtm.QueryMiddleware() as middleware:
        assert_type(await middleware.atransform("q"), qtm.Transformation)
        assert_type(await middleware.atransform(["q", "r"]), list[qtm.Transformation])
        assert_type(await middleware.wrap(asearch)("q"), dict[str, int])


def operated() -> None:
    """What an operator asks for."""
    middleware = qtm.QueryMiddleware()
    assert_type(middleware.health(), dict[str, dict[str, Any]])
    middleware.reload({"topK": 4})


def check_tools() -> None:
    """A wrapped function, a method and an asynchronous function are tools with the same callables."""
    for tool in (plain.as_tool(name="find", fields=("year",)), awaited.as_tool()):
        assert_type(tool.run("a question", top_k=3), str)
        assert_type(tool.input_schema, dict[str, Any])
