"""A wrapped function goes to other processes as a plain one does, and takes no key, client or lock along."""

from __future__ import annotations

import asyncio
import copy
import functools
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import cloudpickle
import openai
import pytest

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.wrapping_world import CONFIG, QUERY, REWRITE, ids, rows

pytestmark = pytest.mark.thorough

SECRET: Final = "sk-verysecret0123456789"
ADVICE: Final = "create the middleware in the worker, or import there the module that creates it"


def plain(query: str, top_k: int = 4) -> Any:
    return rows()


async def aplain(query: str, top_k: int = 4) -> Any:
    return rows()


def vector_search(vector: Any, top_k: int = 4) -> Any:
    return rows()


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 1.0]


def say(_: Any) -> str:
    return f'{{"rewrite": "{REWRITE}"}}'


def identity(text: str) -> str:
    return text


@qtm.middleware
def decorated(query: str, top_k: int = 4) -> Any:
    return rows()


# --- by plain pickle ------------------------------------------------------------------------------


def again(it: Any) -> Any:
    return pickle.loads(pickle.dumps(it))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_function_that_was_wrapped_under_another_name_is_wrapped_again(
    dumps: Any, protocol: int
) -> None:
    search = qtm.QueryMiddleware(CONFIG, client=say).wrap(plain)
    twin = pickle.loads(dumps(search, protocol=protocol))
    assert twin is not search
    assert twin.__wrapped__ is plain
    found = twin.retrieve(QUERY)
    assert (ids(found.response), found.transformation.rewrite) == (["near", "far"], REWRITE)


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_a_decorated_function_of_a_module_is_itself(dumps: Any) -> None:
    assert pickle.loads(dumps(decorated)) is decorated


def test_an_asynchronous_function_stays_one() -> None:
    twin = again(qtm.QueryMiddleware(CONFIG, client=say).wrap(aplain))
    assert twin.is_async
    assert ids(asyncio.run(twin(QUERY))) == ["near", "far"]


def test_options_and_settings_go_along() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=say, redact=identity)
    search = qm.wrap(vector_search, query_arg="vector", embed=vector_of)
    twin = again(search)
    assert twin._context.settings == search._context.settings
    assert len(twin.retrieve(QUERY).matches) == 3


def test_two_functions_of_one_middleware_still_share_it() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=say)
    one, two, same = again((qm.wrap(plain), qm.wrap(aplain), qm))
    assert one.middleware is two.middleware is same
    assert one._context.bulkhead is two._context.bulkhead


def test_caches_breakers_and_locks_are_made_anew() -> None:
    search = qtm.QueryMiddleware(CONFIG, client=say).wrap(plain)
    search(QUERY)
    twin = again(search)
    assert twin.retrieve(QUERY).trace.llm_calls == 1
    assert twin._context.model is not search._context.model
    assert twin._context.sampler is not search._context.sampler


class Service:
    @qtm.middleware
    def search(self, query: str, top_k: int = 4) -> Any:
        return rows()

    @classmethod
    @qtm.middleware
    def found(cls, query: str, top_k: int = 4) -> Any:
        return rows()


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
def test_methods_are_pickled_as_plain_ones_are(dumps: Any) -> None:
    twin = pickle.loads(dumps(Service().search))
    assert isinstance(twin.__self__, Service)
    assert ids(twin(QUERY)) == ["near", "far"]


def test_a_middleware_is_copied_as_itself() -> None:
    qm = qtm.QueryMiddleware(CONFIG, client=ScriptedModel({}))
    assert copy.copy(qm) is qm
    assert copy.deepcopy([qm])[0] is qm


def test_a_function_that_was_wrapped_twice_is_wrapped_twice_again() -> None:
    twin = again(qtm.QueryMiddleware().wrap(qtm.QueryMiddleware(CONFIG, client=say).wrap(plain)))
    assert twin.__wrapped__.__wrapped__ is plain
    assert ids(twin(QUERY)) == ["near", "far"]


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_process_pool_takes_it(start: str) -> None:
    search = qtm.QueryMiddleware().wrap(plain)
    with multiprocessing.get_context(start).Pool(1) as pool:
        assert ids(pool.apply(search, (QUERY,))) == ["near", "far"]


# --- what cannot be pickled -----------------------------------------------------------------------


class Finder:
    def __call__(self, query: str, top_k: int = 4) -> Any:
        return rows()

    def find(self, query: str, top_k: int = 4) -> Any:
        return rows()


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "fn",
    [Finder(), Finder().find, functools.partial(plain, top_k=4)],
    ids=["object", "method", "partial"],
)
def test_an_object_that_may_hold_a_key_is_refused_with_advice(dumps: Any, fn: Any) -> None:
    with pytest.raises(pickle.PicklingError, match=f"may hold a key; {ADVICE}"):
        dumps(qtm.QueryMiddleware().wrap(fn))


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("part", ["client", "reranker", "embedder", "redact"])
def test_a_client_or_another_object_that_was_given_is_refused_with_advice(
    dumps: Any, part: str
) -> None:
    given: Any = {
        "client": openai.OpenAI(api_key=SECRET),
        "reranker": type(
            "Judge", (), {"name": "judge", "rerank": lambda *_: [], "api_key": SECRET}
        )(),
        "embedder": type("Maker", (), {"name": "maker", "dimension": 2, "embed": lambda *_: []})(),
        "redact": functools.partial(str.replace, SECRET),
    }
    qm = qtm.QueryMiddleware(CONFIG, **{part: given[part]})
    for it in (qm, qm.wrap(plain)):
        with pytest.raises(
            pickle.PicklingError, match=f"{part}= must be a function .*; {ADVICE}"
        ) as caught:
            dumps(it)
        assert SECRET not in str(caught.value)


def test_a_function_without_a_name_to_be_found_under_asks_for_cloudpickle() -> None:
    def local(query: str, top_k: int = 4) -> Any:
        return rows()

    for fn in (local, lambda query, top_k=4: rows()):
        search = qtm.QueryMiddleware().wrap(fn)
        with pytest.raises(
            pickle.PicklingError, match=f"cannot be imported as .* with cloudpickle, or {ADVICE}"
        ):
            pickle.dumps(search)
        assert ids(cloudpickle.loads(cloudpickle.dumps(search))(QUERY)) == ["near", "far"]


def test_the_search_of_the_own_store_is_refused_with_advice() -> None:
    config = {"store": {"kind": "memory"}, "embeddingDimensions": None}
    qm = qtm.QueryMiddleware(config, embedder=vector_of)
    with pytest.raises(pickle.PicklingError, match=ADVICE):
        pickle.dumps(qm.retriever)


def test_no_key_of_the_environment_is_in_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    search = qtm.QueryMiddleware({**CONFIG, "llm": {"baseUrl": "http://127.0.0.1:9/v1"}}).wrap(
        plain
    )
    search._context.model.inner._clients.get_sync_client()
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert SECRET.encode() not in dumps(search)


# --- into a fresh process, from a script ----------------------------------------------------------

SCRIPT: Final = """
import sys, pickle, cloudpickle
import qtmiddleware as qtm

ROWS = [
    {"id": "far", "score": 0.6, "metadata": {"text": "Cats sleep"}},
    {"id": "near", "score": 0.59, "metadata": {"text": "Jaco: health concerns"}},
    {"id": "last", "score": 0.1, "metadata": {"text": "The fee is due"}},
]

def say(messages):
    return '{"rewrite": "Which illness does the dog Jaco have?"}'

qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=say)

@qtm.middleware
def decorated(query, top_k=4):
    return ROWS

@qtm.middleware
async def awaited(query, top_k=4):
    return ROWS

def raw(query, top_k=4):
    return ROWS

search = qm.wrap(raw)

@qtm.middleware
def recursive(query, top_k=4):
    return recursive(query + "+", top_k) if query.count("+") < 3 else ROWS

class Service:
    @qtm.middleware
    def search(self, query, top_k=4):
        return ROWS

method = Service().search

def task(query):
    return decorated(query), search(query)

if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        file.write(cloudpickle.dumps(globals()[sys.argv[2]]))
"""
LOADED: Final = """
import asyncio, inspect, pickle, sys
it = pickle.load(open(sys.argv[1], "rb"))
found = it("Does Jaco have any health concerns?")
found = asyncio.run(found) if inspect.isawaitable(found) else found
print(*[[row["id"] for row in part] for part in (found if isinstance(found, tuple) else (found,))])
"""


@pytest.mark.parametrize("name", ["decorated", "awaited", "search", "recursive", "method", "task"])
def test_cloudpickle_takes_it_from_a_script_into_a_fresh_process(name: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "load.py").write_text(LOADED, encoding="utf-8")
    environment = {**os.environ, "OPENAI_API_KEY": SECRET}
    run = functools.partial(
        subprocess.run, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=200
    )
    run([sys.executable, "script.py", "it.pickle", name], env=environment)
    assert SECRET.encode() not in (tmp_path / "it.pickle").read_bytes()
    done = run([sys.executable, "load.py", "it.pickle"], env=dict(os.environ))
    expected = "['near', 'far', 'last']"
    assert done.stdout.splitlines()[0] == " ".join([expected] * (2 if name == "task" else 1)), (
        done.stderr
    )


def test_what_a_script_decorates_goes_to_a_pool_of_processes_by_its_name(tmp_path: Path) -> None:
    pool = """
    import multiprocessing
    for start in ("spawn", "fork"):
        with multiprocessing.get_context(start).Pool(1) as pool:
            print([row["id"] for row in pool.apply(globals()[sys.argv[1]], ("Does Jaco have health concerns?",))])
"""
    script = SCRIPT.partition("    with open")[0] + pool
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    for name in ("decorated", "search"):
        done = subprocess.run(
            [sys.executable, "script.py", name],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=200,
        )
        assert done.stdout.splitlines() == ["['near', 'far', 'last']"] * 2


def test_a_module_that_is_registered_with_cloudpickle_goes_along(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "load.py").write_text(LOADED, encoding="utf-8")
    dump = (
        "import sys, cloudpickle; sys.path.insert(0, sys.argv[1]); import mine;"
        "cloudpickle.register_pickle_by_value(mine);"
        "open(sys.argv[2], 'wb').write(cloudpickle.dumps(mine.decorated))"
    )
    target = tmp_path / "it.pickle"
    subprocess.run(
        [sys.executable, "-c", dump, str(tmp_path), str(target)], check=True, timeout=200
    )
    (tmp_path / "mine.py").unlink()
    done = subprocess.run(
        [sys.executable, "load.py", str(target)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.stdout.splitlines()[0] == "['near', 'far', 'last']"
