"""What the tables are computed from: figures measured here, and what the services publish, each with its source."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from benchmarks.scale.measuring import DIMENSION, Measured
from qtmiddleware.providers.llms.openai.prices import find_prices

RESULTS: Final = Path(__file__).parents[1] / "results"
MODEL: Final = "gpt-6-luna"
"""What the presets ask."""

_COST: Final = "docs.pinecone.io, Understanding Pinecone cost, November 2026"
_PRICES: Final = "pinecone.io/pricing, Standard, AWS us-east-1, as of 4 November 2026"
_LIMITS: Final = "docs.pinecone.io, Pinecone Database limits, November 2026"
_BATCH: Final = "help.openai.com, Batch API FAQ, November 2026"


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure, what it counts, and who says so."""

    value: float
    unit: str
    source: str


# -- published ---------------------------------------------------------------------------------------------------------

GB_A_READ_UNIT: Final = Fact(1.0, "GB of the searched namespace a read unit", _COST)
LEAST_READ_UNITS: Final = Fact(0.25, "read units a query at least", _COST)
USD_A_MILLION_READS: Final = Fact(16.0, "US dollars a million read units", _PRICES)
USD_A_MILLION_WRITES: Final = Fact(4.0, "US dollars a million write units", _PRICES)
KB_A_WRITE_UNIT: Final = Fact(1.0, "KB a write unit", _COST)
USD_A_GB_MONTH: Final = Fact(0.33, "US dollars a GB and month stored", _PRICES)
READ_UNITS_A_SECOND: Final = Fact(2_000, "read units a second of an index's queries", _LIMITS)
QUERIES_A_SECOND: Final = Fact(100, "queries a second of a namespace", _LIMITS)
UPSERT_MB_A_SECOND: Final = Fact(50, "MB a second upserted into a namespace", _LIMITS)
NAMESPACES: Final = Fact(100_000, "namespaces of an index", _LIMITS)
USD_A_MILLION_EMBEDDED: Final = Fact(
    0.02, "US dollars a million tokens, text-embedding-3-small", "developers.openai.com, models, November 2026"
)
MODEL_CALLS_A_MINUTE: Final = Fact(
    10_000,
    "calls a minute, as an example",
    "OpenAI's tier 4 of 2024 for all chat models then; yours stands in your account, by model and tier",
)
BATCH_SHARE: Final = Fact(0.5, "of the price, in the Batch API", _BATCH)
BATCH_REQUESTS: Final = Fact(50_000, "requests a batch", "developers.openai.com, Batch API, November 2026")
CHARS_A_TOKEN: Final = Fact(4.0, "characters a token, in English", "OpenAI's rule of thumb; not counted here")
SEARCH_MS: Final = Fact(
    115,
    "ms a Pinecone query over 2.65 million vectors of 1,024",
    "github.com/unrealshape/bachelor-db-benchmark, June 2026",
)

# -- chosen ------------------------------------------------------------------------------------------------------------

MODEL_MS: Final = Fact(600, "ms a model call", "an assumption, as in benchmarks/presets.py")
USE: Final = Fact(0.6, "of a core is used, the rest is for peaks", "an assumption")
OPENAI_DIMENSION: Final = 1_536


def _cell(file: str, first: str, column: int) -> float:
    """A number of a table in results/*file*: the row that begins with *first*, its *column* (from 1)."""
    (row,) = (line for line in (RESULTS / file).read_text("utf-8").splitlines() if line.startswith(f"| {first} |"))
    return float(row.split("|")[column + 1].split("/")[0].replace(",", "").replace("s", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one worker does, as `benchmarks.many_workers` measured it with 16 clients: processor ms a question, and
    calls of the model a question of those that people repeat; *worker_mb* is its memory."""

    bare_ms: float
    rules_ms: float
    balanced_new_ms: float
    balanced_ms: float
    repeated_calls: float
    worker_mb: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Embedding by all-MiniLM-L6-v2 on one core, and searching 100,000 passages in this process."""

    embedded_a_second: float
    sqlite_ms: float
    lancedb_ms: float
    sqlite_worker_mb: float


def read_worker() -> Worker:
    """Out of results/many_workers.json."""
    kept = json.loads((RESULTS / "many_workers.json").read_text("utf-8"))
    rows = {row["system"]: row for row in kept["loads"] if row["clients"] == 16}
    return Worker(
        bare_ms=rows["bare function"]["cpu_ms"],
        rules_ms=rows["rules"]["cpu_ms"],
        balanced_new_ms=rows["balanced, new questions"]["cpu_ms"],
        balanced_ms=rows["balanced, repeated questions"]["cpu_ms"],
        repeated_calls=rows["balanced, repeated questions"]["calls"],
        worker_mb=kept["worker_mb"],
    )


def read_local() -> Local:
    """Out of results/ingest.md and results/stores.md."""
    corpus = "every twentieth of ../shared/data/covidqa, a file each"
    stores = RESULTS.joinpath("stores.md").read_text("utf-8").partition("| 100,000 passages |")[2]

    def cell(first: str, column: int) -> float:
        (row,) = (line for line in stores.splitlines() if line.startswith(f"| {first} |"))
        return float(row.split("|")[column + 1].split("/")[0])

    return Local(
        embedded_a_second=_cell("ingest.md", corpus, 3) / _cell("ingest.md", corpus, 5),
        sqlite_ms=cell("search: p50 / p95, ms", 1),
        lancedb_ms=cell("search: p50 / p95, ms", 2),
        sqlite_worker_mb=cell("memory of the process that searched, MB", 1),
    )


def read_measured() -> Measured:
    """Out of results/scale.json, which ``--measure`` writes."""
    kept = json.loads((RESULTS / "scale.json").read_text("utf-8"))
    return Measured(**{field.name: kept[field.name] for field in fields(Measured)})


def read_price() -> tuple[float, float]:
    """US dollars for a million tokens of `MODEL`, read and written."""
    price = find_prices(MODEL)
    assert price is not None
    return price


__all__ = ["DIMENSION"]
