"""What fetching more passages than asked for costs and gains, and what reading parts of long ones loses.

    python -m benchmarks.candidates --data ../shared/data --recordings ../shared/recordings [--only
    cost,gain,long]

Times are medians of turns within this run. The result goes to stdout and, where all parts were
measured, to ``benchmarks/results/candidates.md``; indexes and vectors are kept where
`benchmarks.quality` keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any, Final

from benchmarks.quality.report import RESULTS, SEED, mean, quality, table
from benchmarks.quality.sets import Prepared, Source, prepared
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import BASELINE, PRIMARY, SYSTEMS, Comparison, evaluate
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.retrieval import bm25, keyword_evidence
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.pinecone_world import pinecone_world

COUNTS: Final = (4, 10, 20, 30, 50, 100)
LENGTHS: Final = (800, 2_000, 8_000, 40_000)
DIMENSION: Final = 1_536
ROUNDS: Final = 11
TOP_K: Final = 4
STORED: Final = 5_000
ON_THE_WIRE: Final = 100e6 / 8
LONG: Final = (5_000, 20_000, 40_000)
QUESTIONS: Final = 20
EVERYTHING: Final = 10**9
PLACES: Final[Mapping[str, float | None]] = {"at the start": 0.0, "anywhere": None}
QUESTION: Final = (
    "Which health concerns of older patients do the doctors of the regional hospital report?"
)

HEAD: Final = """# Candidates

A wrapped function is asked for `keywordEvidence.candidates` passages (50), so that the words of a question have
something to weigh; where passages are long, for as many as hold `keywordEvidence.maxChars` (1,000,000 characters),
never fewer than the caller asks for. Where those that are found have more than 800,000 bytes, an equal share of each
long one is read for words, in 8 windows evenly spread from its beginning to its end.
"""
COST: Final = """## What it costs

An answer of Pinecone as its own client reads it, over a connection within this machine: size, milliseconds of processor
time in the caller's thread, in brackets what weighing the passages by their words adds. The last column is no
measurement: 100 Mbit/s for what 50 passages are more than 4. In a data centre that is a tenth and less.
"""
STORE: Final = """Milliseconds of a search for so many of 5,000 passages of 800 characters in the embedded store:
"""
GAIN: Final = """## What it gains

nDCG@10 and the hurt rate (questions worse than with the raw query), mean of all recorded sets. Ten are returned.
`combined` searches the question and each of its variants for so many.
"""
LOST: Final = """## What reading parts of a long passage loses

Every passage is made longer by its neighbours in the file, itself at a place in between; the vectors, and so the
candidates, stay those of the passage alone. nDCG@10 of the rules, mean of the sets, 20 questions of each: over the
passages as they are; over long ones read as a whole; in windows; and as it is by default, where fewer are asked for
too. The last two columns are the milliseconds of processor time that 50 such passages take, in turns.
"""


def make_texts(length: int, count: int, seed: int = SEED) -> list[str]:
    """*count* texts of *length* characters, of words as unevenly common as those of a language."""
    draw = random.Random(seed)
    words = [
        "health",
        "patients",
        "hospital",
        *("".join(draw.choices("etaoinshrdlu", k=2 + n % 9)) for n in range(5_000)),
    ]
    weights = [1 / (rank + 2) for rank in range(len(words))]
    return [" ".join(draw.choices(words, weights, k=length // 3))[:length] for _ in range(count)]


def time_calls(*calls: Callable[[], Any], clock: Callable[[], float] = perf_counter) -> list[float]:
    """The median milliseconds of each of *calls*, made in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            began = clock()
            call()
            found.append((clock() - began) * 1e3)
    return [median(found) for found in times]


def wrap(search: Callable[..., Any], **evidence: Any) -> Callable[..., Any]:
    """*search* with the rules around it."""
    settings = {"transformationType": "none", "cache": False, "keywordEvidence": evidence}
    wrapped: Callable[..., Any] = QueryMiddleware(settings).wrap(search)
    return wrapped


def measure_cost() -> str:
    """The tables of bytes and milliseconds."""
    rows = [measure_answers(length, 0) for length in LENGTHS]
    rows.insert(1, measure_answers(LENGTHS[0], DIMENSION))
    head = ["a passage", *(f"{count} of them" for count in COUNTS), "50 instead of 4 at 100 Mbit/s"]
    return "\n".join(
        [COST, table(head, rows), "", STORE, table([*map(str, COUNTS)], [measure_store()])]
    )


def measure_answers(length: int, dimension: int) -> list[str]:
    """A row of the table: passages of *length* characters, with vectors where there is a *dimension*."""
    draw, texts = random.Random(SEED), make_texts(length, max(COUNTS))
    name = f"{length:,} characters" + (f" and a vector of {dimension:,}" if dimension else "")
    row, sizes = [name], dict[int, int]()
    with pinecone_world() as world:
        for count in COUNTS:
            matches = [
                {
                    "id": f"docs/file{n}.md#{n}",
                    "score": 0.9 - n / 1_000,
                    "values": [round(draw.gauss(0, 0.03), 8) for _ in range(dimension)],
                    "metadata": {"text": texts[n], "source": f"docs/file{n}.md", "page": n},
                }
                for n in range(count)
            ]
            body = json.dumps({"matches": matches, "namespace": "docs", "usage": {"readUnits": 5}})
            sizes[count] = len(body)
            world.add_index(f"answers-{count}", dimension=3)
            world.answers(f"/i/answers-{count}/query", 200, body, content_type="application/json")
            call, ours = time_words(world.index(f"answers-{count}"), count)
            row.append(f"{sizes[count] / 1e3:,.0f} kB, {call:.1f} ms (+{ours:.1f})")
    return [*row, f"+{(sizes[50] - sizes[4]) / ON_THE_WIRE * 1e3:,.0f} ms"]


def time_words(index: Any, count: int) -> tuple[float, float]:
    """What reading an answer of *count* passages takes, and what weighing them by their words takes after that."""
    found = index.query(vector=[1, 2, 3], top_k=count)

    def search(query: str, top_k: int = TOP_K) -> Any:  # noqa: ARG001
        return found

    words = wrap(search, candidates=count, maxChars=EVERYTHING)
    calls = (lambda: index.query(vector=[1, 2, 3], top_k=count), lambda: words(QUESTION))
    call, ours = time_calls(*calls, clock=thread_time)
    return call, ours


def measure_store() -> list[str]:
    """The times of the embedded store."""
    import numpy as np

    from qtmiddleware.protocols import Passage

    numbers = np.random.default_rng(SEED).standard_normal((STORED, 384), dtype=np.float32)
    store = SQLiteStore(":memory:", embedding_model="random", dimension=384)
    store.upsert(
        [Passage(str(n), text, {}) for n, text in enumerate(make_texts(800, STORED))], numbers
    )
    calls = [lambda n=count: store.search(numbers[0], n) for count in COUNTS]
    return [f"{ms:.1f}" for ms in time_calls(*calls)]


def measure_gain(source: Source) -> str:
    """The table of quality by the number of candidates."""
    wanted: dict[str, Mapping[str, Any]] = {BASELINE: SYSTEMS[BASELINE]}
    for count in COUNTS[1:]:
        for base in ("rules", "combined"):
            wanted[f"{base} {count}"] = {**SYSTEMS[base], "keywordEvidence": {"candidates": count}}
    found = dict[str, Comparison]()
    for name in source.names:
        with prepared(source, name) as one:
            found[name] = one.measured(wanted, SEED)
        print(f"{name}: {len(wanted)} systems measured", flush=True)
    rows = []
    for base in ("rules", "combined"):
        scores = [
            [comparison[f"{base} {count}"] for comparison in found.values()] for count in COUNTS[1:]
        ]
        cells = [
            quality(mean([it.means[PRIMARY] for it in each]), mean([it.hurt_rate for it in each]))
            for each in scores
        ]
        rows.append([base, *cells])
    raw = mean([comparison[BASELINE].means[PRIMARY] for comparison in found.values()])
    return GAIN + "\n" + table([f"raw {raw:.3f}", *map(str, COUNTS[1:])], rows)


def measure_loss(source: Source) -> str:
    """The table of quality and time by the length of passages."""
    cells = dict[tuple[int, str], list[Sequence[float]]]()
    for name in source.names:
        with prepared(source, name) as one:
            for length in LONG:
                for place, share in PLACES.items():
                    if length == LONG[-1] or share is None:
                        cells.setdefault((length, place), []).append(
                            measure_long(one, length, share)
                        )
        print(f"{name}: {len(cells)} kinds of long passage measured", flush=True)
    times = {length: time_reading(length) for length in LONG}
    rows = []
    for (length, place), values in cells.items():
        means = [f"{mean(column):.3f}" for column in zip(*values, strict=True)]
        rows.append([f"{length:,}", place, *means, *(f"{ms:.1f}" for ms in times[length])])
    head = [
        "characters",
        "the passage",
        "raw",
        "short",
        "long, all read",
        "in windows",
        "by default",
    ]
    return LOST + "\n" + table([*head, "all read, ms", "in windows, ms"], rows)


def measure_long(one: Prepared, length: int, share: float | None) -> list[float]:
    """The nDCG@10 of each column but the times."""
    step = max(1, len(one.data.questions) // QUESTIONS)
    questions = one.data.questions[::step][:QUESTIONS]
    texts = [passage.text for passage in one.data.passages]
    places = {passage.id: place for place, passage in enumerate(one.data.passages)}
    longer = dict[str, str]()

    def lengthen(id_: str) -> str:
        if id_ not in longer:
            longer[id_] = surround(texts, places[id_], length, share)
        return longer[id_]

    def search(query: str, top_k: int = 10) -> list[Any]:
        return one.bench.store.search(one.vectors([query])[0], top_k)

    def search_long(query: str, top_k: int = 10) -> list[Any]:
        return [{**record, "text": lengthen(record["id"])} for record in search(query, top_k)]

    def score(found: Callable[..., Any], most_read: int = EVERYTHING) -> float:
        usual, bm25.MOST_READ = bm25.MOST_READ, most_read
        try:
            run = {it.id: [record["id"] for record in found(it.text, top_k=10)] for it in questions}
        finally:
            bm25.MOST_READ = usual
        return mean(
            list(evaluate({id_: one.data.qrels[id_] for id_ in run}, run).values[PRIMARY].values())
        )

    most = bm25.MOST_READ
    unbounded = wrap(search_long, maxChars=EVERYTHING)
    by_default = wrap(search_long)
    by_default(questions[0].text)
    return [
        score(search),
        score(wrap(search)),
        score(unbounded),
        score(unbounded, most),
        score(by_default, most),
    ]


def surround(texts: Sequence[str], place: int, length: int, share: float | None) -> str:
    """The text at *place* with that *share* of its neighbours before it, *length* characters in all."""
    own, around, size, at = texts[place], list[str](), 0, place
    while size < length - len(own):
        at = (at + 1) % len(texts)
        around.append(texts[at])
        size += len(texts[at]) + 1
    filling = " ".join(around)[: max(0, length - len(own))]
    cut = int(len(filling) * (random.Random(place).random() if share is None else share))
    return f"{filling[:cut]} {own} {filling[cut:]}"


def time_reading(length: int) -> list[float]:
    """What the words of 50 passages take, read as a whole and in windows."""
    texts, most = make_texts(length, 50), bm25.MOST_READ

    def read(most_read: int) -> None:
        bm25.MOST_READ = most_read
        keyword_evidence.score_by_keywords([(QUESTION, 1.0)], texts)

    try:
        return time_calls(lambda: read(EVERYTHING), lambda: read(most), clock=process_time)
    finally:
        bm25.MOST_READ = most


def describe_run(source: Source) -> str:
    """What one must know to repeat the run."""
    evidence = Settings().keyword_evidence
    about = {
        "command": f"`python -m benchmarks.candidates --data {source.data} --recordings {source.recordings}`",
        "seed": SEED,
        "system": f"Python {platform.python_version()}, {platform.system()}, {os.cpu_count()} processors",
        "load at the end": f"{os.getloadavg()[0]:.1f}",
        "versions": f"pinecone {version('pinecone')}",
        "defaults": f"{evidence.candidates} candidates, {evidence.max_chars:,} characters",
    }
    return "\n".join(f"- {name}: {said}" for name, said in about.items())


def main() -> None:
    # Several threads of the linear algebra library only wait for one another here; it reads this
    # when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--sets",
        default="",
        help="names with commas, only printed; all that were recorded by default",
    )
    parser.add_argument("--only", default="cost,gain,long", help="parts with commas")
    options = parser.parse_args()
    source = Source.of(options.data, options.recordings, options.sets)
    measures = {
        "cost": measure_cost,
        "gain": lambda: measure_gain(source),
        "long": lambda: measure_loss(source),
    }
    parts = [measures[name]() for name in options.only.split(",")]
    text = "\n\n".join(part.strip() for part in (HEAD, describe_run(source), *parts)) + "\n"
    print(text)
    if source.is_whole and len(parts) == len(measures):
        (RESULTS / "candidates.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
