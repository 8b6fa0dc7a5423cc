"""What goes to another process is a config and functions with names; anything else is made in the worker."""

from __future__ import annotations

import functools
import pickle
from typing import Any, Final

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.wrapping_world import CONFIG, QUERY, ids, rows

SECRET: Final = "sk-verysecret0123456789"
ADVICE: Final = "cannot be pickled; create the middleware in the worker"


def plain(query: str, top_k: int = 4) -> Any:
    return rows()


async def aplain(query: str, top_k: int = 4) -> Any:
    return rows()


@qtm.middleware(client=ScriptedModel({}))
def decorated(query: str, top_k: int = 4) -> Any:
    return rows()


class Finder:
    @qtm.middleware
    def search(self, query: str, top_k: int = 4) -> Any:
        return rows()

    def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows()


def again(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


def test_a_middleware_of_a_config_alone_is_made_again() -> None:
    qm = qtm.QueryMiddleware(CONFIG)
    qm.reload({"topK": 7})
    twin = again(qm)
    assert twin is not qm
    assert twin.config == qm.config
    assert twin.wrap(plain).retrieve(QUERY).response


def test_a_function_of_such_a_middleware_is_wrapped_again() -> None:
    qm = qtm.QueryMiddleware({"topK": 2})
    twin, atwin, same = again((qm.wrap(plain), qm.wrap(aplain), qm))
    assert twin.__wrapped__ is plain
    assert twin.middleware is atwin.middleware is same
    assert atwin.is_async
    assert ids(twin(QUERY)) == ids(qm.wrap(plain)(QUERY))


def test_a_decorated_function_or_method_of_a_module_is_pickled_by_its_name() -> None:
    assert again(decorated) is decorated
    twin = again(Finder().search)
    assert isinstance(twin.__self__, Finder)
    assert ids(twin(QUERY)) == ids(decorated(QUERY))


class Observer:
    def on_start(self, operation: Any) -> None: ...

    def on_end(self, operation: Any) -> None: ...


OPTIONS: Final[dict[str, Any]] = {
    "client": openai.OpenAI(api_key=SECRET),
    "reranker": lambda query, texts: [],
    "redact": str.upper,
    "on_retrieval": print,
    "observers": (Observer(),),
    "cache": type("Cache", (), {"get": print, "set": print})(),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_middleware_with_anything_else_is_made_in_the_worker(name: str) -> None:
    qm = qtm.QueryMiddleware(CONFIG, **{name: OPTIONS[name]})
    for it in (qm, qm.wrap(plain)):
        with pytest.raises(TypeError, match=f"QueryMiddleware.*{ADVICE}") as caught:
            pickle.dumps(it)
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "wrapped",
    [
        qtm.QueryMiddleware().wrap(Finder()),
        qtm.QueryMiddleware().wrap(functools.partial(plain, top_k=4)),
        qtm.QueryMiddleware().wrap(plain, query_arg="query"),
        qtm.QueryMiddleware({"store": {"kind": "memory"}}).retriever,
    ],
    ids=["object", "partial", "options", "store"],
)
def test_what_may_hold_a_key_is_made_in_the_worker(wrapped: Any) -> None:
    with pytest.raises(TypeError, match=f"<qtmiddleware around .*{ADVICE}"):
        pickle.dumps(wrapped)
