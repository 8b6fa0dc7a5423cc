"""What other sizes take and cost: computes the tables of docs/scale.md from measured figures and published ones.

python -m benchmarks.scale            # fills the page and writes results/scale.md
python -m benchmarks.scale --measure  # before that, measures a passage and a question (results/scale.json)
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Final

from benchmarks.blocks import put_blocks
from qtmiddleware.providers.llms.openai.prices import find_prices

RESULTS: Final = Path(__file__).parent / "results"
PAGE: Final = Path(__file__).parents[1] / "docs" / "scale.md"
FAQ: Final = PAGE.with_name("faq.md")
MODEL: Final = "gpt-6-luna"
"""What the presets ask."""
DIMENSION: Final = 384
SIZES: Final = (10**5, 10**7, 10**9)
RATES: Final = (1, 100, 10_000)
DEARER: Final = "gpt-6-sol"
TIERS: Final = {
    "rules": (0, 1),
    "words": (1, 1),
    "auto": (0.43, 1.4),
    "balanced": (1, 2),
    "thorough": (1, 6),
}
"""Model calls and searches per question, as in docs/choose-a-tier.md."""
MONTH: Final = 30 * 86_400
"""Seconds."""
SEARCHES: Final = 2
"""Of a question under `balanced`."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure, what it counts, and who says so."""

    value: float
    unit: str
    source: str


_COST: Final = "docs.pinecone.io, Understanding cost, a stored copy read in November 2026"
_LIMITS: Final = "docs.pinecone.io, Database limits, a stored copy read in November 2026"
_PRICES: Final = (
    "Pinecone's prices of 4 November 2026, Standard, AWS us-east-1, as docs.flexprice.io shows them"
)
_EXAMPLE: Final = "an example: put yours"

PUBLISHED: Final = {
    "gb_a_unit": Fact(1, "GB of the searched namespace a read unit", _COST),
    "least_units": Fact(0.25, "read units a search at least", _COST),
    "units_limit": Fact(2_000, "read units a second of an index", _LIMITS),
    "queries_limit": Fact(100, "searches a second of a namespace", _LIMITS),
    "upsert_limit": Fact(50, "MB a second written to a namespace", _LIMITS),
    "usd_units": Fact(16, "US dollars a million read units", _PRICES),
    "usd_stored": Fact(0.33, "US dollars a GB and month", _PRICES),
    "usd_embedded": Fact(
        0.02,
        "US dollars a million tokens, text-embedding-3-small",
        "developers.openai.com, models, a stored copy read in November 2026",
    ),
    "batch": Fact(
        0.5, "of the live price, Batch API", "help.openai.com, Batch API FAQ, November 2026"
    ),
    "chars_a_token": Fact(
        4, "characters a token of English", "OpenAI's rule of thumb; not counted here"
    ),
    "search_ms": Fact(100, "ms a search", _EXAMPLE),
    "model_ms": Fact(600, "ms a call of the model", _EXAMPLE),
    "use": Fact(0.6, "of a core in use, the rest for peaks", _EXAMPLE),
}


def read_measured() -> dict[str, Fact]:
    """What was measured here, out of benchmarks/results."""
    kept = json.loads((RESULTS / "many_workers.json").read_text("utf-8"))
    rows = {row["system"]: row for row in kept["loads"] if row["clients"] == 16}
    own = json.loads((RESULTS / "scale.json").read_text("utf-8"))
    ingest = _read_cells("ingest.md", "every twentieth of ../shared/data/covidqa, a file each")
    stores = _read_cells("stores.md", "search: p50 / p95, ms", after="| 100,000 passages |")
    new, repeated = "balanced, new questions", "balanced, repeated questions"
    load, here = (
        "[many workers](many_workers.md), 16 clients",
        "`python -m benchmarks.scale --measure`",
    )
    return {
        "rules_ms": Fact(rows["rules"]["cpu_ms"], "ms of a core a question, rules", load),
        "new_ms": Fact(rows[new]["cpu_ms"], "ms of a core a question, `balanced`, new", load),
        "repeated_ms": Fact(
            rows[repeated]["cpu_ms"], "ms of a core a question, `balanced`, repeated", load
        ),
        "repeated_calls": Fact(
            rows[repeated]["calls"], "calls of the model a repeated question", load
        ),
        "worker_mb": Fact(kept["worker_mb"], "MB a worker", load),
        "sqlite_ms": Fact(
            float(stores[1].split("/")[0]),
            "ms a search of 10<sup>5</sup> passages, SQLite",
            "[stores](stores.md)",
        ),
        "embedded": Fact(
            float(ingest[3]) / float(ingest[5].removesuffix("s")),
            "passages a second embedded on one core, all-MiniLM-L6-v2",
            "[ingest](ingest.md)",
        ),
        "text_chars": Fact(own["text_chars"], "characters a passage", here),
        "metadata_chars": Fact(own["metadata_chars"], "characters of its metadata", here),
        "ledger_bytes": Fact(own["ledger_bytes"], "bytes a passage in the ledger", here),
        "index_bytes": Fact(own["index_bytes"], "bytes a passage in SQLite's index", here),
        "driver_ms": Fact(
            own["driver_ms"], "ms of the driver's core a passage, beside embedding", here
        ),
        "prompt_chars": Fact(own["prompt_chars"], "characters of a prompt of `combined`", here),
        "reply_chars": Fact(own["reply_chars"], "characters a reply, mean of the recorded", here),
    }


def _read_cells(file: str, first: str, after: str = "") -> list[str]:
    # The cells of the row that begins with *first*.
    text = (RESULTS / file).read_text("utf-8")
    text = text[text.index(after) :]
    row = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


# -- computing -------------------------------------------------------------------------------------


def compute_tables() -> dict[str, str]:
    """The tables of the page by name."""
    facts = read_facts()
    return {
        "searching": tabulate_searching(facts),
        "asking": tabulate_asking(facts),
        "corpus": tabulate_corpus(facts),
    }


def read_facts() -> dict[str, float]:
    """Every figure that goes in, by its name."""
    return {name: it.value for name, it in (PUBLISHED | read_measured()).items()}


def tabulate_searching(facts: dict[str, float]) -> str:
    """What searching takes under `balanced`, with all passages in one namespace, and which limit is met first."""
    head = ["passages", "questions per second", "SQLite: seconds per search", "SQLite: cores"]
    head += [
        "Pinecone: read units per search",
        "US dollars per month for reads",
        "limit reached first",
    ]
    rows = []
    for size in SIZES:
        units = max(facts["least_units"], _count_gigabytes(facts, size) / facts["gb_a_unit"])
        for rate in RATES:
            searches = rate * SEARCHES
            loads = {
                "read units": searches * units / facts["units_limit"],
                "searches": searches / facts["queries_limit"],
            }
            name = max(loads, key=lambda it: loads[it])
            seconds = facts["sqlite_ms"] / 1e3 * size / SIZES[0]
            usd = searches * units * MONTH * facts["usd_units"] / 1e6
            values = (size, rate, seconds, searches * seconds, units, usd)
            rows.append([*map(show, values), f"{name}: {show_load(loads[name])}"])
    return build_table(head, rows)


def tabulate_asking(facts: dict[str, float]) -> str:
    """What a stream of questions takes of workers and of the model."""
    search, model, share = (
        facts["search_ms"] / 1e3,
        facts["model_ms"] / 1e3,
        facts["repeated_calls"],
    )
    # What was remembered is searched after the original; what is new is asked for beside it.
    repeated = share * (model + search) + (1 - share) * 2 * search
    kinds = {
        "rules": (search, facts["rules_ms"], 0.0),
        "`balanced`, repeated": (repeated, facts["repeated_ms"], share),
        "`balanced`, all new": (model + search, facts["new_ms"], 1.0),
    }
    usd_a_call = _price_call(facts, MODEL)
    head = ["questions per second", "kind", "at once", "cores", "workers"]
    head += ["model calls per minute", "US dollars per month for the model"]
    rows = []
    for rate in RATES:
        for kind, (seconds, ms, calls) in kinds.items():
            workers = max(2, ceil(rate * ms / 1e3 / facts["use"]))
            usd = rate * calls * MONTH * usd_a_call
            values = (rate * seconds, rate * ms / 1e3, workers, 60 * rate * calls, usd)
            rows.append([show(rate), kind, *map(show, values)])
    return build_table(head, rows)


def tabulate_prices(facts: dict[str, float]) -> str:
    """What 1,000 questions cost per tier: the model by its price, Pinecone by the least a search reads."""
    head = [
        "tier",
        "model calls",
        "searches",
        f"model {MODEL}",
        f"model {DEARER}",
        "Pinecone reads, at least",
    ]
    read = facts["least_units"] * facts["usd_units"] / 1e3
    rows = []
    for name, (calls, searches) in TIERS.items():
        models = [f"${calls * 1e3 * _price_call(facts, model):.2f}" for model in (MODEL, DEARER)]
        rows.append(
            [f"`{name}`", f"{calls:g}", f"{searches:g}", *models, f"${searches * read:.3f}"]
        )
    return build_table(head, rows)


def _price_call(facts: dict[str, float], model: str) -> float:
    """US dollars of one call of *model*."""
    price = find_prices(model)
    assert price is not None
    sent, written = (
        facts[name] / facts["chars_a_token"] for name in ("prompt_chars", "reply_chars")
    )
    return (sent * price[0] + written * price[1]) / 1e6


def tabulate_corpus(facts: dict[str, float]) -> str:
    """What a corpus takes, once and a month."""
    head = [
        "passages",
        "embedding here, core-hours",
        "by OpenAI, US dollars",
        "driver, hours",
        "Pinecone upsert, hours",
    ]
    head += ["ledger, GB", "SQLite, GB", "Pinecone, GB", "stored there, US dollars per month"]
    rows = []
    for size in SIZES:
        gigabytes = _count_gigabytes(facts, size)
        values = (
            size / facts["embedded"] / 3_600,
            size * facts["text_chars"] / facts["chars_a_token"] * facts["usd_embedded"] / 1e6,
            size * facts["driver_ms"] / 1e3 / 3_600,
            gigabytes * 1e3 / facts["upsert_limit"] / 3_600,
            size * facts["ledger_bytes"] / 1e9,
            size * facts["index_bytes"] / 1e9,
            gigabytes,
            gigabytes * facts["usd_stored"],
        )
        rows.append([show(size), *map(show, values)])
    return build_table(head, rows)


def _count_gigabytes(facts: dict[str, float], size: int) -> float:
    return size * (4 * DIMENSION + facts["text_chars"] + facts["metadata_chars"]) / 1e9


def tabulate_facts() -> str:
    """Everything the tables are computed from."""
    price = find_prices(MODEL)
    assert price is not None
    source = "`qtmiddleware`'s price table"
    prices = [
        Fact(usd, f"US dollars a million tokens {verb}, {MODEL}", source)
        for usd, verb in zip(price, ("read", "written"), strict=True)
    ]
    rows = [*read_measured().values(), *prices, *PUBLISHED.values()]
    return build_table(
        ["what", "source", "value"], [[it.unit, it.source, f"{it.value:,.4g}"] for it in rows]
    )


def show(number: float) -> str:
    """*number* with two figures that say something; powers of ten from 10⁵ on as such."""
    if number >= 10**5 and set(str(round(number))[1:]) == {"0"} and str(number)[0] == "1":
        return f"10<sup>{len(str(round(number))) - 1}</sup>"
    if number >= 100:
        digits = len(str(int(number))) - 2
        return f"{round(number / 10**digits) * 10**digits:,}"
    return f"{number:.0f}" if number >= 10 or number == 0 else f"{number:.2g}"


def show_load(load: float) -> str:
    """Return *load* as a percentage of what is allowed, or from 1 on as how many times that is."""
    return f"{show(load)} times" if load > 1 else f"{load:.1%}"


def build_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


# -- measuring -------------------------------------------------------------------------------------


def measure(shared: Path) -> dict[str, float]:
    """What a passage and a question come to, measured with the data sets and recordings in *shared*."""
    return measure_ingest(shared / "data" / "covidqa" / "corpus.jsonl") | measure_call(
        shared / "recordings"
    )


def measure_ingest(corpus: Path) -> dict[str, float]:
    """One ingest of all abstracts of *corpus*, a file each, with vectors that cost next to nothing."""
    import numpy as np

    from qtmiddleware.kit.index.ingestion import ingest
    from qtmiddleware.providers.embedders import CallableEmbedder

    chance = np.random.default_rng(7)
    spent = 0.0

    def embed(texts: Sequence[str]) -> list[list[float]]:
        nonlocal spent
        began = process_time()
        vectors: list[list[float]] = chance.standard_normal(
            (len(texts), DIMENSION), dtype=np.float32
        ).tolist()
        spent += process_time() - began
        return vectors

    with TemporaryDirectory(prefix="qtm") as folder:
        docs, index = Path(folder) / "docs", Path(folder) / "index.db"
        docs.mkdir()
        for row in map(json.loads, corpus.read_text("utf-8").splitlines()):
            (docs / f"{row['_id']}.txt").write_text(row["text"], encoding="utf-8")
        embedder = CallableEmbedder(embed, name="random", dimension=DIMENSION)
        began = process_time()
        count = ingest(docs, config={"indexPath": str(index)}, embedder=embedder).chunks
        taken = process_time() - began - spent
        ledger = Path(f"{index}.ingest")
        connection = sqlite3.connect(ledger)
        found = connection.execute(
            "SELECT avg(length(text)), avg(length(metadata)) FROM chunks"
        ).fetchone()
        connection.close()
        return {
            "passages": count,
            "text_chars": found[0],
            "metadata_chars": found[1],
            "ledger_bytes": ledger.stat().st_size / count,
            "index_bytes": index.stat().st_size / count,
            "driver_ms": 1e3 * taken / count,
        }


def measure_call(recordings: Path) -> dict[str, float]:
    """What `combined` sends for a question, and what was recorded as its replies."""
    import qtmiddleware as qtm
    from qtmiddleware.testing import ScriptedModel

    model = ScriptedModel({"rewrite": "the rewritten question"})
    qtm.QueryMiddleware({"transformationType": "combined"}, client=model).transform(
        "Does Jaco have any health concerns?"
    )
    fields = ("rewrite", "step_back", "sub_queries", "hyde")
    rows: list[dict[str, Any]] = [
        json.loads(line)
        for file in sorted(recordings.glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    replies = [json.dumps({name: row[name] for name in fields if name in row}) for row in rows]
    (prompt,) = model.prompts
    return {
        "prompt_chars": len(prompt.system) + len(prompt.user),
        "reply_chars": mean(map(len, replies)),
    }


def main() -> None:
    """Measure where asked to, then write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--measure", action="store_true", help="measure a passage and a question anew"
    )
    parser.add_argument(
        "--shared", type=Path, default=Path("../shared"), help="where data and recordings lie"
    )
    options = parser.parse_args()
    if options.measure:
        kept = {name: round(value, 3) for name, value in measure(options.shared).items()}
        (RESULTS / "scale.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    head = "# What docs/scale.md is computed from\n\n`python -m benchmarks.scale`"
    said = f"{head}; the tables stand in [the page](../../docs/scale.md).\n\n{tabulate_facts()}\n"
    (RESULTS / "scale.md").write_text(said, "utf-8")
    put_blocks(PAGE, compute_tables())
    put_blocks(FAQ, {"prices": tabulate_prices(read_facts())})


if __name__ == "__main__":
    main()
