"""Whether an index that a Ray cluster embeds for is the same, whatever is killed, and how long it takes.

    python -m benchmarks.ray_kills [--rows 400] [--workers 2] [--kills 3] [--corpus
    ../shared/data/covidqa/corpus.jsonl]

The first rows of a corpus are ingested into LanceDB: by one process; by Ray; by Ray while a worker
is killed after every few batches; and by drivers that are killed after a batch of texts each, until
the last one may end. Every index is compared with that of one process: ids, texts, metadata and the
bits of the vectors. The result goes to stdout and to ``benchmarks/results/ray.md``. Needs the
extras ``ray``, ``lancedb`` and ``local``.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from qtmiddleware.kit.engines import Engine
from qtmiddleware.kit.engines.ray import RayEngine
from qtmiddleware.kit.index.ingestion import IngestReport, Progress, ingest

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "ray.md"
CORPUS = ROOT.parent / "shared" / "data" / "covidqa" / "corpus.jsonl"
MARK = "QTMIDDLEWARE_BENCHMARK_MARK"
EVERY = 2
"""Batches from one killed worker to the next."""
Rows = dict[str, tuple[str, str, tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class Run:
    """One line of the table."""

    what: str
    kills: int
    seconds: float
    embedded: int
    rows: Rows


def run_ingest(
    data: Path,
    index: Path,
    engine: Engine | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> IngestReport:
    """Ingest *data* into a table of LanceDB at *index*."""
    config = {"store": {"kind": "lancedb"}, "indexPath": str(index)}
    return ingest(data, config=config, engine=engine, progress=progress)


def read_rows(index: Path) -> Rows:
    """Everything in the index, by id; each once."""
    import lancedb

    database = lancedb.connect(index)
    [name] = database.list_tables().tables
    table = database.open_table(name).to_arrow().to_pylist()
    rows = {row["id"]: (row["text"], str(row["metadata"]), tuple(row["vector"])) for row in table}
    if len(rows) < len(table):
        raise SystemExit(f"{len(table) - len(rows)} rows of {index} are doubled")
    return rows


def run_local(data: Path, folder: Path) -> Run:
    """One process, without Ray."""
    began = perf_counter()
    report = run_ingest(data, folder / "local")
    return Run(
        "one process", 0, perf_counter() - began, report.embedded, read_rows(folder / "local")
    )


def run_ray(data: Path, folder: Path, workers: int, kills: int) -> Run:
    """Ray, with so many of its workers killed on the way."""
    killed = batches = 0

    def kill(step: Progress) -> None:
        nonlocal killed, batches
        if step.stage != "embedding":
            return
        batches += 1
        if killed < kills and batches % EVERY == 0:
            for process in islice(find_workers(folder), 1):
                os.kill(process, signal.SIGKILL)
                killed += 1

    os.environ[MARK] = str(folder)
    index = folder / f"ray{kills}"
    began = perf_counter()
    with closing(RayEngine(workers=workers)) as engine:
        report = run_ingest(data, index, engine, kill)
    seconds = perf_counter() - began
    return Run(
        f"Ray{', its workers killed' if kills else ''}",
        killed,
        seconds,
        report.embedded,
        read_rows(index),
    )


def run_killed_drivers(data: Path, folder: Path, workers: int, kills: int) -> Run:
    """Ray, each driver but the last one killed when the first batch it waited for is in the ledger."""
    index = folder / "drivers"
    began = perf_counter()
    for number in range(kills + 1):
        options = ["--data", str(data), "--index", str(index), "--workers", str(workers)]
        options += ["--die"] if number < kills else []
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.ray_kills", *options], cwd=ROOT, check=False
        )
        if ended.returncode != (-signal.SIGKILL if number < kills else 0):
            raise SystemExit(f"driver {number + 1} ended with {ended.returncode}")
    rows = read_rows(index)
    return Run("Ray, its drivers killed", kills, perf_counter() - began, len(rows), rows)


def drive(data: Path, index: Path, workers: int, *, dies: bool) -> None:
    """One driver; one that *dies* does so after a batch."""

    def die(step: Progress) -> None:
        if dies and step.stage == "embedding":
            os.kill(os.getpid(), signal.SIGKILL)

    with closing(RayEngine(workers=workers)) as engine:
        run_ingest(data, index, engine, die)


def find_workers(folder: Path) -> Iterator[int]:
    """The workers of the cluster that was started with *folder* as its mark."""
    for place in Path("/proc").glob("[0-9]*"):
        # Those of others, and those that end in the meantime.
        with suppress(OSError):
            is_ours = f"{MARK}={folder}".encode() in (place / "environ").read_bytes()
            if is_ours and b"_Worker" in (place / "cmdline").read_bytes():
                yield int(place.name)


def build_page(runs: list[Run], rows: int, workers: int) -> str:
    """The result as Markdown."""
    first = runs[0]
    about = f"Python {platform.python_version()}, ray {version('ray')}, {os.cpu_count()} processors, {workers} workers"
    about_data = (
        f"{rows} rows of a corpus into LanceDB by all-MiniLM-L6-v2: {len(first.rows)} passages. The start of Ray is in "
        "the seconds, once a driver; on a machine whose processors are busy Ray is no faster than one process."
    )
    lines = [
        "# Ray: the same index, whatever is killed",
        "",
        f"`python -m benchmarks.ray_kills` ({about})",
        "",
        about_data,
        "",
        "| by | kills | passages | other than by one process | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for run in runs:
        others = sum(
            run.rows.get(key) != first.rows.get(key) for key in first.rows.keys() | run.rows.keys()
        )
        lines.append(
            f"| {run.what} | {run.kills} | {len(run.rows)} | {others} | {run.seconds:.0f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Perform all runs, or the one of a driver."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--index", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--die", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data is not None:
        drive(options.data, options.index, options.workers, dies=options.die)
        return
    with TemporaryDirectory(prefix="qtm") as name:
        folder = Path(name)
        data = folder / "corpus.jsonl"
        with options.corpus.open("rb") as file:
            data.write_bytes(b"".join(islice(file, options.rows)))
        runs = [run_local(data, folder)]
        runs += [run_ray(data, folder, options.workers, kills) for kills in (0, options.kills)]
        runs.append(run_killed_drivers(data, folder, options.workers, options.kills))
    page = build_page(runs, options.rows, options.workers)
    RESULT.write_text(page, "utf-8")
    sys.stdout.write(page)


if __name__ == "__main__":
    main()
