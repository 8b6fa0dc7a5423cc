"""The tables of docs/scale.md, out of the facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from benchmarks.presets import table
from benchmarks.scale import facts
from benchmarks.scale.facts import Fact, Local, Worker
from benchmarks.scale.measuring import DIMENSION, Measured

SIZES: Final = (10**5, 10**7, 10**9)
RATES: Final = (1, 100, 10_000)
SEARCHES: Final = {"rules": 1, "balanced": 2}
MONTH: Final = 30.4 * 86_400
"""Seconds."""

_SUPERSCRIPTS: Final = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def show_power(number: int) -> str:
    """10⁵ for 100,000."""
    return f"10{str(len(str(number)) - 1).translate(_SUPERSCRIPTS)}"


def show(number: float) -> str:
    """*number* with two figures that say something."""
    if number >= 100:
        digits = len(str(int(number))) - 2
        return f"{round(number / 10**digits) * 10**digits:,}"
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def show_usd(number: float) -> str:
    """*number* of US dollars."""
    return f"${show(number)}"


@dataclass(frozen=True, slots=True)
class Passage:
    """What a passage of the measured corpus comes to with vectors of *dimension*."""

    measured: Measured
    dimension: int

    @property
    def record_bytes(self) -> float:
        """In Pinecone: vector, text and other metadata."""
        return 4 * self.dimension + self.measured.text_chars + self.measured.metadata_chars

    @property
    def ledger_bytes(self) -> float:
        return 4 * self.dimension + self.measured.ledger_bytes

    @property
    def index_bytes(self) -> float:
        """In the SQLite store."""
        return 4 * self.dimension + self.measured.index_bytes

    @property
    def tokens(self) -> float:
        return self.measured.text_chars / facts.CHARS_A_TOKEN.value


def _read_units(gigabytes: float) -> float:
    return max(facts.LEAST_READ_UNITS.value, gigabytes / facts.GB_A_READ_UNIT.value)


def _tokens(measured: Measured) -> tuple[float, float]:
    return measured.prompt_chars / facts.CHARS_A_TOKEN.value, measured.reply_chars / facts.CHARS_A_TOKEN.value


def _usd_a_call(measured: Measured) -> float:
    return sum(tokens * price for tokens, price in zip(_tokens(measured), facts.read_price(), strict=True)) / 1e6


def tabulate_facts(measured: Measured, worker: Worker, local: Local) -> str:
    """Everything that was measured and published."""
    loads, ledger = "[many_workers](../benchmarks/results/many_workers.md)", "`python -m benchmarks.scale --measure`"
    stores, ingest = "[stores](../benchmarks/results/stores.md)", "[ingest](../benchmarks/results/ingest.md)"
    read, written = facts.read_price()
    rows = [
        Fact(worker.bare_ms, "ms of a core a question, the bare function in FastAPI", loads),
        Fact(worker.rules_ms, "ms of a core a question, rules", loads),
        Fact(worker.balanced_new_ms, "ms of a core a question, `balanced`, model asked", loads),
        Fact(worker.balanced_ms, "ms of a core a question, `balanced`, questions that repeat", loads),
        Fact(worker.repeated_calls, "model calls a question that repeats; depends on yours", loads),
        Fact(worker.worker_mb, "MB a worker", loads),
        Fact(local.sqlite_ms, "ms a search of 100,000 passages, SQLite", stores),
        Fact(local.lancedb_ms, "ms a search of 100,000 passages, LanceDB", stores),
        Fact(local.embedded_a_second, "passages a second embedded on one core, all-MiniLM-L6-v2", ingest),
        Fact(measured.text_chars, "characters a passage", ledger),
        Fact(measured.ledger_bytes, "bytes a passage in the ledger, beside its vector", ledger),
        Fact(measured.index_bytes, "bytes a passage in SQLite, beside its vector", ledger),
        Fact(measured.driver_ms, "ms of the driver's core a passage, without embedding", ledger),
        Fact(measured.prompt_chars, "characters sent for a question", ledger),
        Fact(measured.reply_chars, "characters a reply, mean of the recorded", ledger),
        Fact(read, f"US dollars a million tokens read, {facts.MODEL}", "`qtmiddleware`'s price table"),
        Fact(written, f"US dollars a million tokens written, {facts.MODEL}", "`qtmiddleware`'s price table"),
        *(it for it in vars(facts).values() if isinstance(it, Fact)),
    ]
    head = ["", "what", "source"]
    lines = [f"| {f'{it.value:,.2f}'.rstrip('0').rstrip('.')} | {it.unit} | {it.source} |" for it in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---:|---|---|", *lines])


def tabulate_corpus(measured: Measured, local: Local) -> str:
    """What a corpus takes and costs, once and a month."""
    head = ["passages, dimension", "in Pinecone", "stored, a month", "written, once", "embedded by OpenAI, once"]
    head += ["embedded here", "driver", "upsert, one namespace", "ledger", "SQLite index"]
    rows = []
    for size in SIZES:
        for dimension in (DIMENSION, facts.OPENAI_DIMENSION):
            one = Passage(measured, dimension)
            gigabytes = size * one.record_bytes / 1e9
            writes = 1e6 * gigabytes / facts.KB_A_WRITE_UNIT.value
            usd = size * one.tokens * facts.USD_A_MILLION_EMBEDDED.value / 1e6
            local_time = show_hours(size / local.embedded_a_second) + " of a core"
            is_local = dimension == DIMENSION
            rows.append(
                [
                    f"{show_power(size)}, {dimension:,}",
                    show_bytes(1e9 * gigabytes),
                    show_usd(gigabytes * facts.USD_A_GB_MONTH.value),
                    show_usd(writes * facts.USD_A_MILLION_WRITES.value / 1e6),
                    "" if is_local else f"{show_usd(usd)}, by batch {show_usd(usd * facts.BATCH_SHARE.value)}",
                    local_time if is_local else "",
                    show_hours(size * measured.driver_ms / 1e3),
                    show_hours(1e3 * gigabytes / facts.UPSERT_MB_A_SECOND.value),
                    show_bytes(size * one.ledger_bytes),
                    show_bytes(size * one.index_bytes),
                ]
            )
    return table(head, rows)


def show_bytes(number: float) -> str:
    """*number* of bytes in MB, GB or TB."""
    unit, size = next(it for it in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)) if number >= it[1] or it[1] == 1e6)
    return f"{show(number / size)} {unit}"


def show_hours(seconds: float) -> str:
    """*seconds* in the unit that suits."""
    units = (("days", 86_400 * 3), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
    unit, _ = next(it for it in units if seconds >= it[1] or it[1] == 1)
    return f"{show(seconds / {'days': 86_400, 'hours': 3_600, 'minutes': 60, 'seconds': 1}[unit])} {unit}"


def tabulate_questions(measured: Measured, worker: Worker) -> str:
    """What a stream of questions takes: connections, cores, memory and model."""
    search, model = facts.SEARCH_MS.value / 1e3, facts.MODEL_MS.value / 1e3
    # Seconds a question waits, processor ms, share of the questions that ask the model.
    kinds = {
        "rules": (search, worker.rules_ms, 0.0),
        "balanced, repeated": (2 * search + worker.repeated_calls * model, worker.balanced_ms, worker.repeated_calls),
        "balanced, all new": (search + max(search, model), worker.balanced_new_ms, 1.0),
    }
    head = ["questions a second", "", "in flight", "cores at work", "workers", "memory"]
    head += ["model calls a minute", "tokens a minute", "model, a month"]
    rows = []
    for rate in RATES:
        for kind, (seconds, cpu_ms, share) in kinds.items():
            cores = rate * cpu_ms / 1e3
            workers = max(2, ceil(cores / facts.USE.value))
            calls = rate * share
            rows.append(
                [
                    f"{rate:,}",
                    kind,
                    show(rate * seconds),
                    show(cores),
                    f"{workers:,}",
                    show_bytes(workers * worker.worker_mb * 1e6),
                    show(60 * calls) if calls else "",
                    show(60 * calls * sum(_tokens(measured))) if calls else "",
                    show_usd(calls * MONTH * _usd_a_call(measured)) if calls else "",
                ]
            )
    return table(head, rows)


def _usd_a_month(read_units_a_second: float) -> str:
    return show_usd(read_units_a_second * MONTH * facts.USD_A_MILLION_READS.value / 1e6)


def tabulate_reads(measured: Measured) -> str:
    """What searching takes and costs on Pinecone, and how far one namespace goes."""
    head = ["passages", "questions a second", "read units a search", "read units a second, balanced"]
    head += ["reads a month, rules", "reads a month, balanced", "partitions for the limits", "then, a month, balanced"]
    rows = []
    for size in SIZES:
        gigabytes = size * Passage(measured, DIMENSION).record_bytes / 1e9
        for rate in RATES:
            units = _read_units(gigabytes)
            searches = rate * SEARCHES["balanced"]
            partitions = _partitions(gigabytes, searches)
            rows.append(
                [
                    show_power(size),
                    f"{rate:,}",
                    show(units),
                    show(searches * units),
                    _usd_a_month(rate * units),
                    _usd_a_month(searches * units),
                    _show_partitions(gigabytes, searches, partitions),
                    _usd_a_month(searches * _read_units(gigabytes / partitions)),
                ]
            )
    return table(head, rows)


def _partitions(gigabytes: float, searches: float) -> int:
    """The least namespaces, of which a search reads one, with which one index's limits hold as far as they can.

    Beyond the size of which a query reads the least, more of them do not help an index.
    """
    by_requests = ceil(searches / facts.QUERIES_A_SECOND.value)
    most = max(1, ceil(gigabytes / facts.LEAST_READ_UNITS.value))
    by_units = ceil(searches * gigabytes / facts.READ_UNITS_A_SECOND.value)
    return max(1, by_requests, min(most, by_units))


def _show_partitions(gigabytes: float, searches: float, partitions: int) -> str:
    units = searches * _read_units(gigabytes / partitions)
    indexes = ceil(units / facts.READ_UNITS_A_SECOND.value)
    namespaces = f"{partitions:,} namespace{'s' * (partitions > 1)}"
    return namespaces if indexes == 1 else f"{namespaces} in {indexes} indexes"


def tabulate_limits(measured: Measured, worker: Worker, local: Local) -> str:
    """What fails first, with everything in one namespace."""
    head = ["passages", "questions a second", "where to search", "fails first", "the next"]
    rows = []
    for size in SIZES:
        gigabytes = size * Passage(measured, DIMENSION).record_bytes / 1e9
        for rate in RATES:
            searches = rate * SEARCHES["balanced"]
            cores = searches * local.sqlite_ms * size / 1e5 / 1e3
            is_local = size <= 10**5 and cores < 10
            loads = {"the model's calls a minute": 60 * rate * worker.repeated_calls / facts.MODEL_CALLS_A_MINUTE.value}
            if is_local:
                place = f"SQLite in each worker: {show(cores)} cores"
                loads["one core that searches"] = cores
            else:
                place = "Pinecone"
                loads["read units a second"] = searches * _read_units(gigabytes) / facts.READ_UNITS_A_SECOND.value
                loads["queries a second of the namespace"] = searches / facts.QUERIES_A_SECOND.value
            order = sorted(loads.items(), key=lambda it: -it[1])
            told = [f"{name}: {show_times(load)}" for name, load in order]
            rows.append([show_power(size), f"{rate:,}", place, told[0], told[1]])
    return _left(head, rows)


def show_times(load: float) -> str:
    """*load* as a share of what is allowed."""
    return f"{show(load)} times too many" if load > 1 else f"{load:.0%} of it"


def _left(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---:", "---:", *["---"] * (len(head) - 2)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tabulate_offline(measured: Measured) -> str:
    """Transforming questions without anybody waiting."""
    head = ["questions", "tokens", "live", "by batch", "batches", "live at the example's limit"]
    rows = []
    for size in SIZES:
        usd = size * _usd_a_call(measured)
        rows.append(
            [
                show_power(size),
                show(size * sum(_tokens(measured))),
                show_usd(usd),
                show_usd(usd * facts.BATCH_SHARE.value),
                f"{ceil(size / facts.BATCH_REQUESTS.value):,}",
                show_hours(60 * size / facts.MODEL_CALLS_A_MINUTE.value),
            ]
        )
    return table(head, rows)


def tabulate() -> dict[str, str]:
    """Every table of the page by its name."""
    measured, worker, local = facts.read_measured(), facts.read_worker(), facts.read_local()
    return {
        "limits": tabulate_limits(measured, worker, local),
        "questions": tabulate_questions(measured, worker),
        "reads": tabulate_reads(measured),
        "corpus": tabulate_corpus(measured, local),
        "offline": tabulate_offline(measured),
        "facts": tabulate_facts(measured, worker, local),
    }
