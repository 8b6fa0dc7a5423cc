"""What importing the package costs a fresh interpreter, and what it drags in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.speed.report import Row, at_most, within

GROUP = "Import, fresh processes"
BAR_MS = 60.0
HEAVY = ("openai", "pinecone", "pydantic", "numpy", "httpx")
STATEMENTS = {
    "bare": "pass",
    "import qtmiddleware": "import qtmiddleware",
    "import qtmiddleware.wrapping.query_middleware": "import qtmiddleware.wrapping.query_middleware",
}


FIRST_CALL = """
import qtmiddleware as qtm

@qtm.middleware
def retrieve(query: str, top_k: int = 4):
    return [{"id": str(n), "score": 1 - n / 100, "text": f"passage {n} on emissions"} for n in range(top_k)]

retrieve("What are the limits of emissions?")
"""
MOST_TIMES = 2.0


def _list_standard_modules() -> str:
    """The statement that imports what `FIRST_CALL` loads of the standard library, and nothing else."""
    code = f"{FIRST_CALL}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [
        module
        for module in done.stdout.split()
        if module.partition(".")[0] in sys.stdlib_module_names and module != "__main__"
    ]
    return f"import importlib\nfor name in {names!r}: importlib.import_module(name)"


def _timed(statement: str) -> tuple[float, float]:
    """Milliseconds of time and of processor time of one interpreter that does nothing else."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", statement])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{statement!r} failed")
    return (time.perf_counter() - began) * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def dragged_in(statement: str) -> list[str]:
    """Which of `HEAVY` are loaded after *statement*."""
    code = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


def rows(rounds: int) -> list[Row]:
    """The lines of this group, in time and in processor time."""
    first, standard = "import, decorate, first call", "the standard library's modules"
    statements = {**STATEMENTS, first: FIRST_CALL, standard: _list_standard_modules()}
    wall: dict[str, list[float]] = {name: [] for name in statements}
    cpu: dict[str, list[float]] = {name: [] for name in statements}
    for turn in range(rounds + 1):
        for name, statement in statements.items():
            taken = _timed(statement)
            if turn:
                wall[name].append(taken[0])
                cpu[name].append(taken[1])
    found = []
    for name, statement in STATEMENTS.items():
        if name == "bare":
            continue
        for kind, times in (("time", wall), ("processor time", cpu)):
            found.append(
                within(
                    GROUP,
                    f"{name}, {kind}",
                    median(times[name]),
                    median(times["bare"]),
                    BAR_MS,
                    "ms",
                )
            )
        loaded = dragged_in(statement)
        what = f"{name}: of {', '.join(HEAVY)}, loaded {', '.join(loaded) or 'none'}"
        found.append(
            Row(GROUP, what, len(loaded), 0, len(loaded), "modules", "0", not loaded, "modules")
        )
    for kind, times in (("time", wall), ("processor time", cpu)):
        what = f"{first}, {kind}, beside {standard}"
        found.append(
            at_most(GROUP, what, median(times[first]), median(times[standard]), MOST_TIMES, "ms")
        )
    return found
