"""What goes to another process is a config and functions with names; anything else is made in the worker."""

from __future__ import annotations

import pickle
from typing import Any, Final

import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.wrapping_world import CONFIG, QUERY, ids, rows

SECRET: Final = "sk-verysecret0123456789"


def plain(query: str, top_k: int = 4) -> Any:
    return rows()


@qtm.middleware(client=ScriptedModel({}))
def decorated(query: str, top_k: int = 4) -> Any:
    return rows()


def again(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


def test_a_middleware_of_a_config_alone_is_made_again() -> None:
    qm = qtm.QueryMiddleware(CONFIG, cache=None, observers=())
    qm.reload({"topK": 7})
    same = again(qm)
    assert same is not qm
    assert same.config == qm.config
    assert ids(same.wrap(plain)(QUERY)) == ids(qm.wrap(plain)(QUERY))


def test_a_decorated_function_of_a_module_is_pickled_by_its_name() -> None:
    assert again(decorated) is decorated


OPTIONS: Final[list[dict[str, Any]]] = [
    {"client": openai.OpenAI(api_key=SECRET)},
    {"reranker": lambda query, texts: []},
    {"on_retrieval": print},
    {"cache": type("Cache", (), {"get": print, "set": print})()},
]


@pytest.mark.parametrize(
    "unpicklable",
    [
        *(qtm.QueryMiddleware(CONFIG, **options) for options in OPTIONS),
        qtm.QueryMiddleware().wrap(plain),
        qtm.QueryMiddleware({"store": {"kind": "memory"}}).retriever,
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_may_hold_a_key_is_made_in_the_worker(unpicklable: Any) -> None:
    with pytest.raises(
        TypeError, match="cannot be pickled; create the middleware in the"
    ) as caught:
        pickle.dumps(unpicklable)
    assert SECRET not in str(caught.value)
