"""One run, in a process of its own so that what it holds is its own.

python -m tests.robustness.soak.run SECONDS SEED off|on
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import subprocess
import sys
import threading
import time
from typing import Any

from tests.robustness.soak.laws import Complaints, Laws
from tests.robustness.soak.load import Load, Plan, idle_seconds
from tests.robustness.soak.samples import BOUNDS, SHORTEST, Sampler, held


def soak(plan: Plan) -> dict[str, Any]:
    """Run *plan* and answer its account."""
    laws = Laws()
    for name in ("qtmiddleware", "asyncio"):
        logging.getLogger(name).addHandler(Complaints(laws))
        logging.getLogger(name).propagate = False
    sys.unraisablehook = lambda it: laws.breach(f"unraisable: {it.exc_value!r} {it.err_msg or ''}")
    threading.excepthook = lambda it: laws.breach(
        f"in thread {it.thread and it.thread.name}: {it.exc_value!r}"
    )
    idle_seconds(plan.seconds)
    before = held(None)
    command = [sys.executable, "-m", "tests.robustness.soak.server", str(plan.seed), str(plan.pace)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        account = asyncio.run(_run(plan, int(server.stdout.readline()), laws))
        server.stdin.close()
    gc.collect()
    # As long as an idle thread may stay, and some more.
    patience = time.monotonic() + 15
    while threading.active_count() > before["threads"] and time.monotonic() < patience:
        time.sleep(0.05)
    left = {name: held(None)[name] - before[name] for name in ("threads", "sockets", "descriptors")}
    if any(left.values()):
        laws.breach(f"something stayed when all was over: {left}, {threading.enumerate()[:5]}")
    return account | {"breaches": laws.breaches, "broken": laws.broken, "left": left}


async def _run(plan: Plan, port: int, laws: Laws) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, it: laws.breach(f"the loop complains: {it['message']} {it.get('exception')!r}")
    )
    load = Load(plan, port, laws)
    await load.warm_up()
    sampler = Sampler(loop, max(0.1, plan.seconds / 100))
    sampler.start()
    took = await load.run(then=sampler.stop)
    load.close()
    tasks = len(asyncio.all_tasks()) - 1
    if tasks:
        laws.breach(f"{tasks} tasks were left")
    for stranger in load.meters.strangers:
        laws.breach(stranger)
    if load.meters.late > 0.001 * (laws.searches + laws.asked):
        laws.breach(f"{load.meters.late} calls were made for questions that were over")
    answered = sum(laws.outcomes.values())
    if answered != laws.asked:
        laws.breach(f"{laws.asked - answered} of {laws.asked} questions never came back")
    trends = {name: sampler.trend(name) for name in BOUNDS}
    return {
        "breaker": plan.breaker,
        "seconds": took,
        "asked": laws.asked,
        "searches": laws.searches,
        "late": load.meters.late,
        "judged": plan.seconds >= SHORTEST,
        "outcomes": dict(laws.outcomes.most_common()),
        "percentiles": {share: laws.percentile(share / 100) for share in (50, 95, 99)},
        "reached": {way: (laws.reached[way], laws.able[way]) for way in laws.able},
        "trends": {
            name: (*trends[name], f"{bound.share:.0%} + {bound.amount} {bound.unit}".strip())
            for name, bound in BOUNDS.items()
        },
        "grown": [
            name
            for name, bound in BOUNDS.items()
            if plan.seconds >= SHORTEST and not bound.allows(*trends[name])
        ],
        "limits": plan.limits,
    }


if __name__ == "__main__":
    _, given, seed, mode = sys.argv
    seconds = float(given)
    # A brief run has a quicker model, so that as many questions come back as show something.
    pace = 2.0 if seconds >= SHORTEST else 0.3
    print(json.dumps(soak(Plan(seconds, int(seed), mode == "on", pace))))
