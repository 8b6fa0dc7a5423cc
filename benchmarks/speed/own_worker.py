"""The library and the bare floors, measured in a process of their own like the peers."""

from __future__ import annotations

from typing import Any

import qtmiddleware
from benchmarks.speed.floors import gathered, pooled
from benchmarks.speed.ours import MULTI_QUERY, check, paraphrasing_model, with_options, wrapped
from benchmarks.speed.worker import Case, serve
from benchmarks.speed.workload import asearch, search

SETUPS = {
    "": MULTI_QUERY,
    " + keyword evidence": with_options(keywordEvidence={"enabled": True}),
    " + remembered transformation": with_options(cache={"enabled": True}),
}
SEARCHES = 5


def asynchronous(wrapped_search: Any) -> Case:
    """A coroutine function around a wrapped one, so that it is driven like the others."""

    async def call(question: str) -> Any:
        return await wrapped_search(question)

    return call


def cases() -> dict[str, Case]:
    """What this process measures, by name."""
    found: dict[str, Case] = {
        "floor sync": pooled(search, threads=8),
        "floor async": gathered(asearch),
    }
    for name, config in SETUPS.items():
        check(wrapped(search, config, paraphrasing_model()), searches=SEARCHES)
        found[f"ours sync{name}"] = wrapped(search, config, paraphrasing_model())
        found[f"ours async{name}"] = asynchronous(wrapped(asearch, config, paraphrasing_model()))
    return found


if __name__ == "__main__":
    serve(cases(), qtmiddleware.__version__)
