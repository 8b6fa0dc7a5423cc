"""Ctrl-C, as the signal itself, reaches the caller of a blocking call wherever it waits, and the next call works."""

from __future__ import annotations

import pytest

from tests.support.concurrency_world import python

pytestmark = pytest.mark.thorough

# Where the signal comes; each names what happens in the process that is to be interrupted. What
# hangs there hangs for longer than the process may take.
PLACES = {
    "the original's own search": """
        def behaving(query, top_k=3):
            if query == QUERY and not done:
                done.append(query)
                signal.raise_signal(signal.SIGINT)
            return search(query, top_k)
        asked = model()
    """,
    "a variant's thread": """
        def behaving(query, top_k=3):
            if query == SUBS[0] and not done:
                done.append(query)
                # A signal is always handled by the main thread, which waits for this one.
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(600)
            return search(query, top_k)
        asked = model()
    """,
    "waiting for the model": """
        searched = threading.Event()
        def behaving(query, top_k=3):
            searched.set()
            return search(query, top_k)
        class Asked(ScriptedModel):
            def complete(self, prompt, deadline):
                if not done:
                    done.append(prompt)
                    # From then on the caller only waits for this.
                    searched.wait()
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(600)
                return super().complete(prompt, deadline)
        asked = Asked({"sub_queries": SUBS})
    """,
}


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_reaches_the_caller_at_once_and_the_next_call_works(place: str) -> None:
    printed = python(
        f"""
        import textwrap
        done = []
        exec(textwrap.dedent({PLACES[place]!r}))
        wrapped = qtm.QueryMiddleware(CONFIG, client=asked).wrap(behaving)
        try:
            wrapped.retrieve(QUERY)
        except KeyboardInterrupt:
            print("interrupted")
        print(fine(wrapped.retrieve(QUERY)), fine(asyncio.run(wrapped.aretrieve(QUERY))))
        """
    )
    assert printed == "interrupted\nTrue True\n"


def test_many_interrupts_at_any_moment_leave_the_middleware_usable() -> None:
    printed = python(
        """
        wrapped = qtm.QueryMiddleware(CONFIG, client=model()).wrap(search)
        assert fine(wrapped.retrieve(QUERY))

        # Of a coroutine that is interrupted between its making and its first step Python says so.
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)

        def interrupt(*_):
            raise KeyboardInterrupt

        interrupted = whole = 0
        signal.signal(signal.SIGALRM, interrupt)
        for number in range(400):
            try:
                # Later every time, so that it meets every stage of the call.
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + number * 5e-6)
                wrapped.retrieve(QUERY)
                whole += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        print(interrupted > 20, all(fine(wrapped.retrieve(QUERY)) for _ in range(20)))
        # Threads that have nothing to do end after 10 seconds.
        for _ in range(600):
            if threading.active_count() > 20:
                time.sleep(0.1)
        print(threading.active_count() <= 20)
        """
    )
    assert printed == "True True\nTrue\n"
