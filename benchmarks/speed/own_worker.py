"""The library and the bare floors, measured in a process of their own like the peers."""

from __future__ import annotations

from typing import Any

import qtmiddleware
from benchmarks.speed.ours import (
    ALL_IN_ONE,
    BALANCED,
    MULTI_QUERY,
    RULES,
    check,
    combining_model,
    gathered,
    in_langchain,
    paraphrasing_model,
    pooled,
    with_options,
    wrapped,
)
from benchmarks.speed.worker import Case, serve
from benchmarks.speed.workload import (
    LONG,
    afind_candidates,
    asearch,
    asearch_long,
    calibrate,
    find_candidates,
    search,
    search_long,
)

SETUPS = {
    "": MULTI_QUERY,
    " + keyword evidence": with_options(keywordEvidence={"enabled": True}),
    " + remembered transformation": with_options(cache={"enabled": True}),
}
SEARCHES = 4
CALIBRATION = "calibration"


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
        CALIBRATION: calibrate,
        f"rules sync{LONG}": wrapped(find_candidates, RULES, None),
        f"rules async{LONG}": asynchronous(wrapped(afind_candidates, RULES, None)),
        f"combined sync{LONG}": wrapped(find_candidates, ALL_IN_ONE, combining_model()),
        f"combined async{LONG}": asynchronous(
            wrapped(afind_candidates, ALL_IN_ONE, combining_model())
        ),
        f"balanced sync{LONG}": wrapped(find_candidates, BALANCED, combining_model()),
        f"balanced in LangChain sync{LONG}": in_langchain(BALANCED, combining_model()),
    }
    check(wrapped(find_candidates, ALL_IN_ONE, combining_model()))
    check(wrapped(search_long, MULTI_QUERY, paraphrasing_model()), searches=SEARCHES)
    found[f"ours sync{LONG}"] = wrapped(search_long, MULTI_QUERY, paraphrasing_model())
    found[f"ours async{LONG}"] = asynchronous(
        wrapped(asearch_long, MULTI_QUERY, paraphrasing_model())
    )
    for name, config in SETUPS.items():
        check(wrapped(search, config, paraphrasing_model()), searches=SEARCHES)
        found[f"ours sync{name}"] = wrapped(search, config, paraphrasing_model())
        found[f"ours async{name}"] = asynchronous(wrapped(asearch, config, paraphrasing_model()))
    return found


if __name__ == "__main__":
    serve(cases(), qtmiddleware.__version__)
