"""How much a word search beside the vector search gains, and at which weights.

    python -m benchmarks.hybrid --data ../shared/data [--vectors DIR] [--questions 500] [--report
    FILE]

Every set is a folder in BEIR layout; its vectors are kept in ``--vectors``. The weights are chosen
on every other set of the alphabet by the rule in `chosen`, and confirmed on the rest. The tables go
to stdout and to ``--report``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.settings import HybridSettings, PreprocessSettings
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import Dataset, evaluate
from qtmiddleware.kit.index.hybrid import HybridSearch
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.protocols import Record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

MODEL: Final = "all-MiniLM-L6-v2"
SETS: Final = (
    *("anthropic_docs", "canard_dev", "codebase_small", "covid_faq", "covidqa", "hotpotqa_small"),
    *("nq_small", "strategyqa_dev", "xquad/en"),
)
CHOOSE, CONFIRM = SETS[::2], SETS[1::2]
TOP_K: Final = 10
WEIGHTS: Final = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
EVIDENCE: Final = (0.1, 0.35)
BASELINE: Final = "vector"
MOST_HURT: Final = 0.1
RESAMPLES: Final = 2_000

Search = Callable[..., list[Record]]


class Searched:
    """A store that takes texts and remembers what it found, so that many mixtures cost one search each."""

    embeds = True

    def __init__(self, store: SQLiteStore, vectors: Mapping[str, Sequence[float]]) -> None:
        self.search = cache(lambda query, top_k: store.search(vectors[query], top_k))
        self.keyword_search = cache(store.keyword_search)


def questions_of(data: Dataset, most: int) -> Dataset:
    """*data* with at most so many questions, evenly spread; those of a conversation as people rewrote them."""
    step = max(1.0, len(data.questions) / most)
    kept = [data.questions[int(at * step)] for at in range(min(most, len(data.questions)))]
    kept = [
        replace(one, text=one.metadata.get("human_rewrite", one.text), history=()) for one in kept
    ]
    return replace(data, questions=tuple(kept), qrels={one.id: data.qrels[one.id] for one in kept})


def embedded(texts: Sequence[str], kept: Path) -> Any:
    """The vectors of *texts*, from the file *kept* where it holds these very texts."""
    import numpy as np

    digest = hashlib.sha256("\0".join([MODEL, *texts]).encode()).hexdigest()
    if kept.is_file():
        with np.load(kept) as held:
            if str(held["digest"]) == digest:
                return held["vectors"]
    vectors = np.asarray(find_embedder(MODEL).embed(texts), dtype=np.float32)
    kept.parent.mkdir(parents=True, exist_ok=True)
    np.savez(kept, vectors=vectors, digest=digest)
    return vectors


def searched(data: Dataset, name: str, kept: Path) -> Searched:
    """The index of *data*, in memory."""
    texts = [passage.text for passage in data.passages]
    vectors = embedded(texts, kept / f"{name.replace('/', '_')}.passages.npz")
    asked = list(dict.fromkeys(question.text for question in data.questions))
    queries = embedded(asked, kept / f"{name.replace('/', '_')}.questions.npz")
    store = SQLiteStore(":memory:", embedding_model=MODEL, dimension=vectors.shape[1])
    store.write(zip(data.passages, vectors, strict=True))
    return Searched(store, dict(zip(asked, queries, strict=True)))


def mixtures() -> dict[str, tuple[HybridSettings, bool]]:
    """Each way to search, as settings and whether the words searched are keywords."""
    found = {
        BASELINE: (HybridSettings(vector_weight=1.0, bm25_weight=0.0), True),
        "words: keywords": (HybridSettings(vector_weight=0.0, bm25_weight=1.0), True),
        "words: question": (HybridSettings(vector_weight=0.0, bm25_weight=1.0), False),
    }
    for share in (0.5, 0.7, 0.8):
        found[f"rrf {share}"] = (_settings("rrf", share), True)
    for share in WEIGHTS:
        found[f"weighted {share}"] = (_settings("weighted", share), True)
    found["weighted 0.7, words: question"] = (_settings("weighted", 0.7), False)
    return found


def _settings(method: Any, share: float) -> HybridSettings:
    return HybridSettings(method=method, vector_weight=share, bm25_weight=round(1.0 - share, 2))


def systems(store: Any) -> dict[str, Search]:
    """Every mixture, alone and with the middleware's keyword evidence over its candidates."""
    found: dict[str, Search] = {}
    for name, (options, rules) in mixtures().items():
        search = HybridSearch(
            store, None, options=options, preprocess=PreprocessSettings(enabled=rules)
        )
        found[name] = search
        if name.startswith("words") or not rules:
            continue
        for weight in EVIDENCE:
            middleware = QueryMiddleware(
                {"transformationType": "none", "keywordEvidence": {"weight": weight}}
            )
            found[f"{name} + evidence {weight}"] = middleware.wrap(search)
    return found


@dataclass(frozen=True, slots=True)
class Figure:
    """One system on one set: mean nDCG@10, gain over vectors alone with its 95 % interval (points), hurt rate."""

    mean: float
    gain: float
    low: float
    high: float
    hurt: float

    def __str__(self) -> str:
        return f"{self.gain:+.1f} [{self.low:+.1f}, {self.high:+.1f}] {self.hurt:.0%}"


def figures(data: Dataset, store: Searched) -> dict[str, Figure]:
    """Every system on *data*."""
    values = {name: _values(data, search) for name, search in systems(store).items()}
    return {name: _figure(found, values[BASELINE]) for name, found in values.items()}


def _values(data: Dataset, search: Search) -> list[float]:
    run = {
        one.id: [record["id"] for record in search(one.text, top_k=TOP_K)] for one in data.questions
    }
    found = evaluate(data.qrels, run).values["nDCG@10"]
    return [found[one.id] for one in data.questions]


def _figure(values: Sequence[float], base: Sequence[float]) -> Figure:
    import numpy as np

    gains = 100 * (np.asarray(values) - np.asarray(base))
    drawn = np.random.default_rng(7).integers(len(gains), size=(RESAMPLES, len(gains)))
    low, high = np.percentile(gains[drawn].mean(axis=1), [2.5, 97.5])
    return Figure(float(np.mean(values)), gains.mean(), low, high, float(np.mean(gains < -1e-7)))


Table = Mapping[str, Mapping[str, Figure]]  # by set, then by system


def average(table: Table, sets: Sequence[str], system: str) -> tuple[float, float]:
    """Mean gain and hurt rate of *system* over *sets*, each counting the same."""
    found = [table[name][system] for name in sets]
    return sum(one.gain for one in found) / len(found), sum(one.hurt for one in found) / len(found)


def chosen(table: Table, sets: Sequence[str], ending: str) -> str:
    """The mixture with the largest mean gain that hurts at most a tenth of the questions of any set and loses on none.

    Losing is an interval that lies below 0. Only systems whose name has the *ending* (the evidence
    on top) compete; where none is safe the vector search with it is left.
    """

    def is_safe(system: str) -> bool:
        return all(
            table[name][system].high >= 0 and table[name][system].hurt <= MOST_HURT for name in sets
        )

    competing = [
        f"{name}{ending}"
        for name in mixtures()
        if name.startswith(("rrf", "weighted")) and "," not in name
    ]
    return max(
        filter(is_safe, competing),
        key=lambda system: average(table, sets, system)[0],
        default=f"{BASELINE}{ending}",
    )


def report(table: Table, sizes: Mapping[str, tuple[int, int]]) -> str:
    """All of it as Markdown."""
    lines = [
        "| set | passages | questions | nDCG@10 of vectors alone | for |",
        "|---|---|---|---|---|",
    ]
    for name, figures_of in table.items():
        use = "choosing" if name in CHOOSE else "confirming"
        lines.append(
            f"| {name} | {sizes[name][0]:,} | {sizes[name][1]:,} | {figures_of[BASELINE].mean:.3f} | {use} |"
        )
    uses = {"choosing": CHOOSE, "confirming": CONFIRM}
    halves = {
        use: [it for it in sets if it in table]
        for use, sets in uses.items()
        if not table.keys().isdisjoint(sets)
    }
    for half, sets in halves.items():
        lines += ["", f"## Sets for {half}", "", "| system | " + " | ".join(sets) + " | mean |"]
        lines.append("|---" * (len(sets) + 2) + "|")
        for system in next(iter(table.values())):
            gain, hurt = average(table, sets, system)
            cells = " | ".join(str(table[name][system]) for name in sets)
            lines.append(f"| {system} | {cells} | {gain:+.1f} {hurt:.0%} |")
    if len(halves) < len(uses):
        return "\n".join(lines)
    lines += [
        "",
        "## The choice",
        "",
        "| on top | chosen | choosing | confirming | the rest would choose |",
    ]
    lines.append("|---" * 5 + "|")
    for ending in ("", *(f" + evidence {weight}" for weight in EVIDENCE)):
        best, other = (chosen(table, sets, ending) for sets in halves.values())
        means = ["{:+.1f} {:.0%}".format(*average(table, sets, best)) for sets in halves.values()]
        cells = [
            ending.removeprefix(" + ") or "nothing",
            best.removesuffix(ending),
            *means,
            other.removesuffix(ending),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


HEAD: Final = """# Hybrid search

Gain in nDCG@10 over the vector search alone, in points, with the 95 % interval of the paired bootstrap (2,000
resamples), and the hurt rate: the share of questions that do worse than by vectors alone. all-MiniLM-L6-v2, exact
cosine; SQLite's BM25 over the keywords of the question; 50 candidates of each. *weighted 0.7* is 0.7 x vectors + 0.3 x
words, each brought to 0 to 1 first; *rrf 0.7* the same shares by rank. *evidence 0.35* is the middleware around it,
with that weight for the keywords over the 50 candidates. *words: question* searches all words of the question as it is.
canard_dev asks the questions as people rewrote them to stand alone.

The rule of *The choice*: the largest mean gain among the mixtures that lose on no set (an interval below 0) and hurt at
most 10 % of the questions of any. The default, 0.75, lies between what it chooses on the one half of the sets and on
the other.
Left out are sets judged by shared words, which favours words, and languages the model does not know.

"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--vectors", type=Path, default=Path(tempfile.gettempdir()) / "qtmiddleware-vectors"
    )
    parser.add_argument("--sets", default="", help="names with commas; all by default")
    parser.add_argument("--questions", type=int, default=500, help="most questions of a set")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    # Several threads of the linear algebra library only wait for one another here; it reads this
    # when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    table, sizes = dict[str, dict[str, Figure]](), dict[str, tuple[int, int]]()
    for name in options.sets.split(",") if options.sets else SETS:
        data = questions_of(Dataset.load(options.data / name), options.questions)
        table[name] = figures(data, searched(data, name, options.vectors))
        sizes[name] = len(data.passages), len(data.questions)
        print(f"{name}: measured", flush=True)
    command = f"- command: `python -m benchmarks.hybrid --data ../shared/data --questions {options.questions}`\n\n"
    found = HEAD + command + report(table, sizes) + "\n"
    print(found)
    if options.report is not None:
        options.report.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()
