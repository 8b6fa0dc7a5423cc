"""What a second core gains when texts are embedded: threads of BLAS beside processes of `LocalEngine`.

    python -m benchmarks.cores [--data ../shared/data] [--texts 128] [--rounds 5]

The embedder (all-MiniLM-L6-v2) gets biomedical texts of 250 words, of which it reads 256 tokens, 16
texts a batch. Every contender of every round runs in a process of its own, in another order each
round (seed 7); figures are medians of the rounds. The vectors of all contenders must be the same,
bit for bit. The result goes to stdout and to ``benchmarks/results/cores.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import median
from time import monotonic, process_time

from qtmiddleware.kit.embedding import MiniLMEmbedder
from qtmiddleware.kit.engines import LocalEngine
from qtmiddleware.kit.engines.local import count_processors

RESULT = Path(__file__).resolve().parent / "results" / "cores.md"
SEED = 7
WORDS = 250
BATCH = 16
TIMEOUT = 1_800
Batch = tuple[int, list[str]]

HEAD = """# Cores

What a second core gains when texts are embedded on the processor, in one run. *Ready* is how long it takes until all
workers have read the model; the other figures are of the time since the first of them has. Processor seconds are those
of all processes and threads together: less of them is less work.

Where others share the machine, processor seconds alone tell something: texts a second is what they left.

Threads of BLAS help only inside its products, while the rest (softmax, GELU, layer norms, tokens) goes on alone, and
they cost processor time of their own; processes do the same work as one. Other runtimes were tried once, by hand, while
the machine was busy, on 128 such texts with one thread: torch 2.13 took 6.6 processor seconds and 880 MB of packages,
onnxruntime 8.0 with 78 MB and an exported model, and numpy, which is here already, 8.1 to 8.5. So numpy stays.
"""


@dataclass(frozen=True)
class Contender:
    """*workers* of `LocalEngine`, one of which is this process, where BLAS may have more *threads*."""

    name: str
    workers: int = 1
    threads: int = 1


CONTENDERS = (
    Contender("1 worker: this process, 1 thread of BLAS"),
    Contender("1 worker: this process, 2 threads of BLAS", threads=2),
    Contender("2 workers: processes, 1 thread of BLAS each", workers=2),
)


@dataclass(frozen=True)
class Done:
    """One batch: its vectors' digest, the process, and both clocks before and after, in seconds."""

    number: int
    digest: str
    process: int
    began: float
    ended: float
    processor_seconds: float


@dataclass(frozen=True)
class Reading:
    """One contender in one round; seconds, all of them."""

    ready: float
    embedding: float
    processor: float
    digest: str


def build_embedding() -> Callable[[Batch], Done]:
    """The work of a worker; the model is read beforehand."""
    embedder = MiniLMEmbedder()
    embedder.embed(["ready"])

    def work(batch: Batch) -> Done:
        number, texts = batch
        began, busy = monotonic(), process_time()
        vectors = embedder.embed(texts)
        ended, spent = monotonic(), process_time() - busy
        digest = hashlib.sha256(json.dumps(vectors).encode()).hexdigest()
        return Done(number, digest, os.getpid(), began, ended, spent)

    return work


def read_texts(data: Path, count: int) -> list[str]:
    """*count* texts of *WORDS* words each, cut out of the passages one after the other."""

    def read() -> Iterator[str]:
        with (data / "covidqa" / "corpus.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield from json.loads(line)["text"].split()

    words = list(islice(read(), count * WORDS))
    return [" ".join(words[at : at + WORDS]) for at in range(0, len(words), WORDS)]


def measure(workers: int, texts: Sequence[str]) -> Reading:
    """Embed *texts* in this process, or with *workers*."""
    batches = [(at, list(texts[at : at + BATCH])) for at in range(0, len(texts), BATCH)]
    start = monotonic()
    with closing(LocalEngine(workers=workers)) as engine:
        done = list(engine.map(build_embedding, batches))
    done.sort(key=lambda it: it.number)
    firsts = {
        one.process: min(it.began for it in done if it.process == one.process) for one in done
    }
    return Reading(
        ready=max(firsts.values()) - start,
        embedding=max(one.ended for one in done) - min(firsts.values()),
        processor=sum(one.processor_seconds for one in done),
        digest=hashlib.sha256("".join(one.digest for one in done).encode()).hexdigest(),
    )


def run(contender: Contender, options: argparse.Namespace) -> Reading:
    """One reading of *contender*, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cores", "--alone", str(contender.workers)]
    command += ["--data", str(options.data), "--texts", str(options.texts)]
    threads = str(contender.threads)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT)
    return Reading(**json.loads(done.stdout))


def report(
    readings: dict[Contender, list[Reading]], options: argparse.Namespace, load: float
) -> str:
    """The result as Markdown."""
    same = len({one.digest for found in readings.values() for one in found}) == 1
    lines = [
        HEAD,
        "- command: `" + " ".join(["python -m benchmarks.cores", *sys.argv[1:]]) + "`",
        f"- {options.texts} texts of {WORDS} words, {BATCH} a batch; rounds: {options.rounds}, seed {SEED}",
        f"- Python {platform.python_version()}, numpy {version('numpy')}, {count_processors()} processors",
        f"- load of the minute before the start: {load:.1f}. Above 0.5 others share the processors: run it again",
        f"- vectors: {'the same from all, bit for bit' if same else 'DIFFERENT, which must not be'}",
        "",
        "| | ready, s | texts a second | processor seconds | texts a processor second |",
        "|---|---:|---:|---:|---:|",
    ]
    for contender, found in readings.items():
        processor = median(one.processor for one in found)
        lines.append(
            f"| {contender.name} | {median(one.ready for one in found):.1f} |"
            f" {median(options.texts / one.embedding for one in found):.1f} | {processor:.1f} |"
            f" {options.texts / processor:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone is not None:
        print(json.dumps(asdict(measure(options.alone, read_texts(options.data, options.texts)))))
        return
    load = os.getloadavg()[0]
    order = random.Random(SEED)
    readings: dict[Contender, list[Reading]] = {contender: [] for contender in CONTENDERS}
    for _ in range(options.rounds):
        for contender in order.sample(CONTENDERS, len(CONTENDERS)):
            readings[contender].append(run(contender, options))
    written = report(readings, options, load)
    RESULT.write_text(written, encoding="utf-8")
    print(written)
    if "DIFFERENT" in written:
        raise SystemExit(1)


if __name__ == "__main__":
    # Workers import what they do: the functions of a program itself cannot be sent to them.
    from benchmarks import cores

    cores.main()
