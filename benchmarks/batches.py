"""What it takes to submit and collect many questions by batches at a service on this machine: ``QUERIES COUNT``."""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pytest_httpserver import HTTPServer

from qtmiddleware.config import Config
from qtmiddleware.kit.bulk.batch.costs import Tariff
from qtmiddleware.kit.bulk.batch.service import SHARE
from qtmiddleware.kit.bulk.batch.transforming import open_batch_work
from qtmiddleware.kit.bulk.batch.work import BatchStatus
from qtmiddleware.providers.llms.openai.prices import Prices
from tests.support.batch_service import BatchServer
from tests.support.bench_world import reply


def main(queries: Path, count: int) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with HTTPServer(threaded=True) as server, TemporaryDirectory() as folder:
        service = BatchServer(server, reply)
        config = Config.load(
            {"transformationType": "combined", "llm": {"baseUrl": service.url}}, environ={}
        )
        source, out = Path(folder) / "q.jsonl", Path(folder) / "out.jsonl"
        lines = queries.read_text(encoding="utf-8").splitlines()[:count]
        source.write_text(
            "".join(json.dumps({"query": _read_text(json.loads(it))}) + "\n" for it in lines)
        )

        def run(step: str) -> BatchStatus:
            began = perf_counter()
            with open_batch_work(source, out, config=config) as (work, _):
                status: BatchStatus = getattr(work, step)()
            print(f"{step}: {perf_counter() - began:.1f} s, {_sum_files(Path(folder))}")
            return status

        submitted = run("submit")
        print(
            f"{submitted.underway:,} requests, {sum(it.size for it in submitted.parts):,} bytes uploaded"
        )
        service.finish()
        collected = run("collect")
        cost = Tariff(Prices("gpt-6-luna"), SHARE, None).compute_cost(
            collected.spent.read, collected.spent.written
        )
        print(f"{collected.answered:,} answered; {cost}")
        print(
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most, the service within"
        )


def _read_text(record: dict[str, Any]) -> str:
    return str(
        next(
            record[name]
            for name in ("query", "text", "question", "question_text")
            if name in record
        )
    )


def _sum_files(folder: Path) -> str:
    return ", ".join(f"{it.name} {it.stat().st_size:,} bytes" for it in sorted(folder.iterdir()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
