"""Children of every kind, and the end of the interpreter."""

from __future__ import annotations

import pytest

from tests.support.concurrency_world import python
from tests.support.model_server import ModelServer

pytestmark = pytest.mark.thorough

# --- forked ---------------------------------------------------------------------------------------

FORKING = """
import types
warnings.simplefilter("ignore", DeprecationWarning)  # From 3.12 on Python warns of what is tested here.

def in_child(work):
    '''Whether *work* comes back true in a forked process; one that hangs is killed by its alarm.'''
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        ok = False
        try:
            ok = work()
        finally:
            os._exit(0 if ok else 1)
    return os.waitpid(child, 0)[1] == 0
"""


def test_a_child_does_not_wait_for_a_model_call_of_its_parent() -> None:
    printed = python(
        FORKING
        + """
parent, asked, release = os.getpid(), threading.Event(), threading.Event()

def reply(prompt):
    if os.getpid() == parent:
        asked.set()
        release.wait()
    return {"sub_queries": SUBS}

middleware = qtm.QueryMiddleware({**CONFIG, "cache": {"enabled": True}}, client=ScriptedModel(reply))
plain = middleware.wrap(search)
asking = threading.Thread(target=plain.retrieve, args=(QUERY,))
asking.start()
asked.wait()
print(in_child(lambda: len(plain.retrieve(QUERY).variants) == 4))
release.set()
asking.join()
"""
    )
    assert printed == "True\n"


def test_a_child_forked_while_any_lock_is_held_works(house: ModelServer) -> None:
    printed = python(
        FORKING
        + f"""
import gc
os.environ.update(OPENAI_API_KEY="sk-x", QTM_LLM_BASE_URL={house.url!r})
escalation = {{"mode": "auto", "targetCallRate": 1.0}}
middleware = qtm.QueryMiddleware({{**CONFIG, "cache": {{"enabled": True}}, "escalation": escalation}})
plain, awaited = middleware.wrap(search), middleware.wrap(asearch)
number = 0

def work():
    global number
    number += 1
    query = f"{{QUERY[:-1]}} in year {{number}}?"
    found = [plain.retrieve(query), asyncio.run(awaited.aretrieve(query + "?"))]
    return all(len(it.variants) == 4 for it in [*found, plain.retrieve(query, config={{"topK": 3}})])

def locks():
    '''Every lock that something of the package holds, by its name.'''
    kinds, found = (type(threading.Lock()), type(threading.RLock())), {{}}
    for it in gc.get_objects():
        place = it.__name__ if isinstance(it, types.ModuleType) else type(it).__module__
        # A running thread holds a lock of its own as long as it lives.
        if not str(place).startswith("qtmiddleware") or isinstance(it, threading.Thread):
            continue
        slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {{*slots, *getattr(it, "__dict__", {{}})}}:
            if isinstance(lock := getattr(it, name, None), kinds):
                found[id(lock)] = f"{{place}}.{{type(it).__name__}}.{{name}}", lock
    return found.values()

def held(lock, got, release):
    with lock:
        got.set()
        release.wait()

assert work()
known = list(locks())
got, release = [threading.Event() for _ in known], threading.Event()
for (_, lock), event in zip(known, got):
    threading.Thread(target=held, args=(lock, event, release)).start()
    event.wait()
together = in_child(work)
release.set()
print(len(known) > 5, together or [name for name, _ in known], work())
"""
    )
    assert printed == "True True True\n"


# --- at the end -----------------------------------------------------------------------------------

WRAPPED = """
middleware = qtm.QueryMiddleware(CONFIG, client=model())
plain, awaited = middleware.wrap(search), middleware.wrap(asearch)

def works():
    return fine(plain.retrieve(QUERY)) and fine(asyncio.run(awaited.aretrieve(QUERY)))
"""
WARM = "assert works()\n"


ENDS = {
    "at exit": "atexit.register(lambda: print(works()))",
    "in a thread that outlives the main one": (
        "threading.Thread(target=lambda: (threading.main_thread().join(), print(works()))).start()"
    ),
}


@pytest.mark.parametrize("warm", ["", WARM], ids=["first", "warm"])
@pytest.mark.parametrize("end", ENDS)
def test_a_retrieval_works_until_the_end(end: str, warm: str) -> None:
    assert python(WRAPPED + warm + ENDS[end]) == "True\n"


def test_a_retrieval_of_a_finalizer_while_the_interpreter_is_torn_down_gives_what_the_function_gives() -> (
    None
):
    """Daemon threads stand still by then, those that idle in the pool too, and nothing can be imported."""
    printed = python(
        WRAPPED
        + WARM
        + """
import builtins

class Last:
    def __del__(self, plain=plain, query=QUERY, print=print, run=asyncio.run):
        for found in (plain.retrieve(query), run(plain.aretrieve(query))):
            print([row["id"] for row in found.response][:1] == [query])

# What the builtins hold lives longer than any module.
builtins.last = Last()
"""
    )
    assert printed == "True\nTrue\n"


def test_a_model_that_hangs_keeps_no_process_from_ending() -> None:
    printed = python(
        """
        class Hanging(ScriptedModel):
            def complete(self, prompt, deadline):
                begun.set()
                time.sleep(600)

        begun = threading.Event()
        patient = {**CONFIG, "limits": {"llmTimeoutMs": 600_000, "deadlineMs": 600_000}}
        wrapped = qtm.QueryMiddleware(patient, client=Hanging("")).wrap(search)
        threading.Thread(target=wrapped.retrieve, args=(QUERY,), daemon=True).start()
        hasty = wrapped.retrieve(QUERY, config={"limits": {"llmTimeoutMs": 50}})
        print(hasty.status, begun.wait())
        """
    )
    assert printed == "degraded True\n"
