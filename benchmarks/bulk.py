"""Files of many questions: how fast they are transformed, in how much memory, and what kills of the process cost.

    python -m benchmarks.bulk [--quick] [--only PART]

``qtm transform --file`` asks a service on this machine, each time in a process of its own. Some
four minutes; the figures, those behind docs/many-questions.md, go to stdout and to
``benchmarks/results/bulk.md``. ``--quick`` tries all of it on a few questions in half a minute, and
writes nothing. ``--only`` measures one part and leaves the others in the file as they are:
``rates``, ``failures``, ``memory`` or ``kills``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from pytest_httpserver import HTTPServer

from qtmiddleware.kit.bulk.run import CONCURRENCY
from qtmiddleware.wrapping.transform_stream import SPARE
from tests.support.bulk_world import (
    RewritingService,
    make_questions,
    read_records,
    rewrite,
    start,
    wait_for_requests,
    write_questions,
)

RESULT: Final = Path(__file__).resolve().parent / "results" / "bulk.md"
SEED: Final = 7
ANSWER_SECONDS: Final = 0.05
TIMEOUT: Final = 600
FAILING: Final = 0.05

HEAD: Final = f"""# Many questions

`qtm transform --file` with the transformation `rewrite`, in one run on one machine. The service is on that machine too,
answers each question after {1e3 * ANSWER_SECONDS:.0f} ms, and takes a new connection for each."""

TRANSFORM: Final = """
import json, re, sys, time
from pathlib import Path
from qtmiddleware.kit.bulk import transform_file
from qtmiddleware.config import Config
def read_megabytes(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
kind, *files = sys.argv[1:]
config = Config.load({"transformationType": kind}, environ={})
before, began = read_megabytes("VmRSS"), time.perf_counter()
report = transform_file(*files, config=config, client=lambda prompt: '{"rewrite": "a question"}')
assert (report.unasked if kind == "none" else report.asked) == report.total
print(json.dumps({"before": before, "seconds": time.perf_counter() - began, "peak": read_megabytes("VmHWM")}))
"""
"""What a process of its own runs; it imports nothing else, as that would count as its memory."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is tried: questions by calls at once, rounds of these, lines by transformation, and kills."""

    questions: Mapping[int, int]
    rounds: int
    lines: tuple[tuple[str, int], ...]
    killed_questions: int
    kills: int


WHOLE: Final = Sizes(
    questions={1: 150, 8: 400, 32: 800},
    rounds=3,
    lines=(("rewrite", 10_000), ("none", 10_000), ("none", 200_000)),
    killed_questions=300,
    kills=20,
)
QUICK: Final = Sizes(
    questions={1: 40, 8: 80, 32: 160},
    rounds=1,
    lines=(("rewrite", 1_000), ("none", 1_000), ("none", 4_000)),
    killed_questions=60,
    kills=4,
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One run over a file: its *questions*, the *seconds* of the run, and of the process beyond it."""

    questions: int
    seconds: float
    beside: float


@dataclass(kw_only=True)
class Killing:
    """What the kills met, and what came of them."""

    under_way: list[int] = field(default_factory=list)
    seconds: float = 0.0
    lines: int = 0
    doubled: int = 0
    lost: int = 0
    wrong: int = 0
    again: int = 0
    calls: int = 0


def measure_rate(service: RewritingService, concurrency: int, count: int) -> Reading:
    """One run over *count* questions."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_questions(folder / "queries.jsonl", make_questions(count))
        began = time.perf_counter()
        running = start(folder, service.url, "--concurrency", str(concurrency), "--json")
        out, err = running.communicate(timeout=TIMEOUT)
        took = time.perf_counter() - began
    if running.returncode:
        raise SystemExit(err.decode())
    report = json.loads(out)
    assert report["asked"] == count, report
    return Reading(questions=count, seconds=report["seconds"], beside=took - report["seconds"])


def show_rates(service: RewritingService, sizes: Sizes) -> Iterator[str]:
    """Questions a second by calls at once; each round takes all of them in another order."""
    service.seconds = ANSWER_SECONDS
    order = random.Random(SEED)
    readings: dict[int, list[Reading]] = {concurrency: [] for concurrency in sizes.questions}
    for _ in range(sizes.rounds):
        for concurrency in order.sample(list(readings), len(readings)):
            readings[concurrency].append(
                measure_rate(service, concurrency, sizes.questions[concurrency])
            )
    yield "\n## Questions a second"
    yield f"\nMedians of {sizes.rounds} rounds, least and most beside them. At best the service"
    yield f"answers {1 / ANSWER_SECONDS:.0f} a second for each call at once. *Start and end* is the process without the"
    yield "run: the interpreter, imports and the config.\n"
    yield "| `--concurrency` | questions | a second | least to most | of the best | start and end, s |"
    yield "|---:|---:|---:|---:|---:|---:|"
    for concurrency, found in readings.items():
        rates = sorted(it.questions / it.seconds for it in found)
        rate = median(rates)
        yield (
            f"| {concurrency} | {sizes.questions[concurrency]:,} | {rate:.1f} | {rates[0]:.1f} to {rates[-1]:.1f} |"
            f" {rate * ANSWER_SECONDS / concurrency:.0%} | {median(it.beside for it in found):.1f} |"
        )


def show_failures(service: RewritingService, sizes: Sizes) -> Iterator[str]:
    """Questions a second by calls at once, with and without failures by chance, in another order each round."""
    service.seconds = ANSWER_SECONDS
    order, load = random.Random(SEED), os.getloadavg()[0]
    cases = [(concurrency, share) for concurrency in sizes.questions for share in (0.0, FAILING)]
    rates: dict[tuple[int, float], list[float]] = {case: [] for case in cases}
    for _ in range(sizes.rounds):
        for concurrency, service.failing in order.sample(cases, len(cases)):
            reading = measure_rate(service, concurrency, sizes.questions[concurrency])
            rates[concurrency, service.failing].append(reading.questions / reading.seconds)
    service.failing = 0.0
    yield f"\n## Failures by chance\n\n{FAILING:.0%} of the calls, drawn at random (seed {SEED}), get HTTP 500 after"
    yield f"{1e3 * ANSWER_SECONDS:.0f} ms, whichever question they ask, and every question is answered in the end."
    yield f"Medians of {sizes.rounds} rounds, least and most beside them. Load of the minute before: {load:.1f}.\n"
    head = f"a second, none fails | least to most | a second, {FAILING:.0%} fail | least to most | of the former"
    yield f"| `--concurrency` | questions | {head} |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for concurrency, count in sizes.questions.items():
        clean, failing = (sorted(rates[concurrency, share]) for share in (0.0, FAILING))
        cells = " | ".join(
            f"{median(it):.1f} | {it[0]:.1f} to {it[-1]:.1f}" for it in (clean, failing)
        )
        yield f"| {concurrency} | {count:,} | {cells} | {median(failing) / median(clean):.0%} |"


def show_memory(sizes: Sizes) -> Iterator[str]:
    """Memory and seconds by the lines of a file."""
    yield "\n## Memory\n\n`transform_file` in a process of its own. No two questions are alike, and the model is a"
    yield f"function that answers at once, {CONCURRENCY} calls at once: what is measured is the library's own work."
    yield "With `none` no model is asked: questions are read, preprocessed and written.\n"
    yield "| transformation | lines | seconds | ms a line | MB before the first | MB at most |"
    yield "|---|---:|---:|---:|---:|---:|"
    for kind, count in sizes.lines:
        with TemporaryDirectory() as name:
            source = write_questions(Path(name) / "queries.jsonl", make_questions(count))
            command = [
                sys.executable,
                "-c",
                TRANSFORM,
                kind,
                str(source),
                str(Path(name) / "out.jsonl"),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT)
        found = json.loads(done.stdout)
        each = 1e3 * found["seconds"] / count
        memory = f"{found['before']:.0f} | {found['peak']:.0f}"
        yield f"| `{kind}` | {count:,} | {found['seconds']:.1f} | {each:.2f} | {memory} |"


def kill_runs(service: RewritingService, sizes: Sizes, folder: Path) -> Killing:
    """Kill runs over one file at random, let the last one end, and compare the output with what was asked."""
    questions = make_questions(sizes.killed_questions)
    write_questions(folder / "queries.jsonl", questions)
    killing, chance, began = Killing(), random.Random(SEED), time.perf_counter()
    out = folder / "out.jsonl"
    while len(killing.under_way) < sizes.kills:
        running = start(folder, service.url)
        alive = wait_for_requests(
            service, len(service.bodies) + chance.randint(1, 2 * CONCURRENCY), running
        )
        time.sleep(chance.uniform(0, ANSWER_SECONDS))
        alive = alive and running.poll() is None
        running.kill()
        running.communicate(timeout=TIMEOUT)
        if not alive:
            break
        # What was sent before the kill may be read after it.
        time.sleep(2 * ANSWER_SECONDS)
        written = out.read_bytes().count(b"\n") if out.exists() else 0
        killing.under_way.append(len(set(service.questions)) - written)
    _, err = (running := start(folder, service.url)).communicate(timeout=TIMEOUT)
    if running.returncode:
        raise SystemExit(err.decode())
    killing.seconds = time.perf_counter() - began
    records = read_records(out)
    lines = Counter(it["line"] for it in records)
    killing.lines, killing.doubled = len(records), len(records) - len(lines)
    killing.lost = len(set(range(1, len(questions) + 1)) - set(lines))
    killing.wrong = sum(it["rewrite"] != rewrite(questions[it["line"] - 1]) for it in records)
    killing.calls = len(service.questions)
    killing.again = killing.calls - len(set(service.questions))
    return killing


def show_kills(service: RewritingService, sizes: Sizes) -> Iterator[str]:
    """What kills cost."""
    service.seconds = ANSWER_SECONDS
    with TemporaryDirectory() as name:
        found = kill_runs(service, sizes, Path(name))
    kills = len(found.under_way)
    yield f"\n## Kills\n\nThe command was killed {kills} times (SIGKILL) at random moments (seed {SEED}) and started"
    yield f"again each time, `--concurrency` {CONCURRENCY}. *Under way* are the questions that the service was asked"
    yield f"and that had no line yet; at most {CONCURRENCY + SPARE} may be at each kill.\n"
    yield "| | |\n|---|---:|"
    yield f"| lines in | {sizes.killed_questions} |\n| lines out | {found.lines} |\n| lines lost | {found.lost} |"
    yield f"| lines doubled | {found.doubled} |\n| lines with another question's answer | {found.wrong} |"
    yield f"| calls of the service | {found.calls} |\n| of these asked again | {found.again} |"
    met = found.under_way or [0]
    yield f"| under way at the kills, together | {sum(met)} |"
    yield f"| under way at a kill, least, median, most | {min(met)}, {median(met):.0f}, {max(met)} |"
    yield f"| seconds, with {kills + 1} starts | {found.seconds:.1f} |"


def show_head() -> Iterator[str]:
    """What is measured, and on what."""
    load = os.getloadavg()[0]
    yield f"{HEAD}\n\n- command: `{' '.join(['python -m benchmarks.bulk', *sys.argv[1:]])}`"
    yield f"- Python {platform.python_version()}, {os.cpu_count()} processors"
    yield f"- load of the minute before the start: {load:.1f}. Above 0.5 others share the processors: run it again"


def with_service(
    show: Callable[[RewritingService, Sizes], Iterator[str]],
) -> Callable[[Sizes], Iterator[str]]:
    """*show* with a service of its own."""

    def shown(sizes: Sizes) -> Iterator[str]:
        with HTTPServer(host="127.0.0.1", threaded=True) as server:
            yield from show(RewritingService(server), sizes)

    return shown


PARTS: Final[Mapping[str, tuple[str, Callable[[Sizes], Iterator[str]]]]] = {
    "rates": ("Questions a second", with_service(show_rates)),
    "failures": ("Failures by chance", with_service(show_failures)),
    "memory": ("Memory", show_memory),
    "kills": ("Kills", with_service(show_kills)),
}
"""What can be measured by itself: its heading, and what yields its lines, the heading first."""


def measure(lines: Iterator[str]) -> str:
    """All of *lines*, printed as they come."""
    kept = []
    for line in lines:
        print(line, flush=True)
        kept.append(line)
    return "\n".join(kept) + "\n"


def replace_part(text: str, heading: str, part: str) -> str:
    """*text* with *part* for what stands under *heading*, in the order of `PARTS`."""
    head, *pieces = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = {piece.partition("\n")[0]: piece for piece in [*pieces, part.lstrip()]}
    assert f"## {heading}" in found
    ordered = [found[f"## {name}"] for name, _ in PARTS.values() if f"## {name}" in found]
    return "\n\n".join(map(str.strip, [head, *ordered])) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a few questions, to see that it works; nothing is kept",
    )
    parser.add_argument(
        "--only", choices=PARTS, help="measure this part, and keep the others as they are"
    )
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    sizes = QUICK if options.quick else WHOLE
    if options.only:
        heading, show = PARTS[options.only]
        part = measure(show(sizes))
        text = replace_part(RESULT.read_text("utf-8"), heading, part)
    else:
        text = measure(show_head()) + "".join(measure(show(sizes)) for _, show in PARTS.values())
    if not options.quick:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
