"""What a text clause beside an embed clause gains in a document search: `python -m benchmarks.functions --text-clause`.

The function takes the clauses of Pinecone's ``documents.search`` and answers as it does: an embed
clause by the cosine of vectors, or by their distance, and a text clause by SQLite's BM25.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from benchmarks.quality.report import RESULTS, SEED, circumstances, mean, table, told
from benchmarks.quality.sets import Source, prepared
from qtmiddleware import QueryMiddleware
from qtmiddleware.kit.evaluation import BASELINE, PRIMARY, Comparison, compare
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.systems import SYSTEMS

if TYPE_CHECKING:
    from benchmarks.functions import Corpus, Scored

FIELDS: Final = ["body"]
BY_WORDS: Final = "text clause"
BASES: Final[Mapping[str, str]] = {"rules": "rules", "balanced": "combined"}
"""What is measured without and with a text clause, by the name of its system."""
SHARES: Final = (0.05, 0.1, 0.25, 0.5)
"""Of the words in the sum, the rest being the embed clause's; 0.25 is the default."""
USUAL: Final = 0.25
KINDS: Final = ("embed clause, cosine", "embed clause, Euclidean distance")

Found = Mapping[
    str, Mapping[float, Mapping[str, Comparison]]
]  # by kind, then by share, then by set


def build_function(corpus: Corpus, kind: str) -> Callable[..., Any]:
    """A document search over *corpus* with its clause fixed, to be called with the text."""

    def find(query: str) -> Scored:
        found = corpus.find_nearest(query)
        return (
            [(it, max(0.0, 2.0 - 2.0 * score) ** 0.5) for it, score in found]
            if "distance" in kind
            else found
        )

    def search(*, namespace: str, score_by: Sequence[Mapping[str, Any]], top_k: int) -> Any:
        (clause,) = score_by
        scored = (
            corpus.find_words(clause["query"])
            if clause["type"] == "text"
            else find(clause["query"])
        )
        records = corpus.show(scored, top_k)
        matches = [{"_id": it["id"], "_score": it["score"], "body": it["text"]} for it in records]
        return {"matches": matches, "namespace": namespace, "usage": {"read_units": 1}}

    return partial(
        search, namespace="docs", top_k=TOP_K, score_by=[{"type": "embed", "field": "body"}]
    )


def measure(source: Source) -> Iterator[tuple[list[str], Found]]:
    """Every kind and share on one set after the other; yields the sets so far and what was found on them."""
    from benchmarks.functions import Corpus

    found: dict[str, dict[float, dict[str, Comparison]]] = {}
    for at, name in enumerate(source.names, 1):
        began = perf_counter()
        with prepared(source, name) as one:
            corpus = Corpus(one)
            for kind in KINDS:
                for share in SHARES if kind == KINDS[0] else (USUAL,):
                    config = {"hybrid": {"bm25Weight": share, "vectorWeight": 1.0 - share}}
                    wrapped = QueryMiddleware(config, client=one.bench.model).wrap(
                        build_function(corpus, kind)
                    )
                    found.setdefault(kind, {}).setdefault(share, {})[name] = compare(
                        wrapped,
                        one.data.questions,
                        one.data.qrels,
                        _build_systems(),
                        name=name,
                        seed=SEED,
                    )
        print(f"{name}: {perf_counter() - began:.0f} s", flush=True)
        yield list(source.names[:at]), found


def _build_systems() -> dict[str, Mapping[str, Any]]:
    systems: dict[str, Mapping[str, Any]] = {}
    for name, system in BASES.items():
        systems[name] = SYSTEMS[system]
        systems[f"{name} + {BY_WORDS}"] = {**SYSTEMS[system], "hybrid": {"textFields": FIELDS}}
    return systems


def _build_row(sets: Mapping[str, Comparison], system: str) -> list[str]:
    scores = {name: comparison[system] for name, comparison in sets.items()}
    worst = min(scores, key=lambda name: scores[name].difference.gain)
    below = [name for name, score in scores.items() if score.difference.high < 0]
    searches = mean([score.searches_per_question or 0.0 for score in scores.values()])
    return [
        f"{100 * mean([score.difference.gain for score in scores.values()]):+.1f}",
        f"{mean([score.hurt_rate for score in scores.values()]):.1%}",
        f"{searches:.2f}",
        f"{worst} {100 * scores[worst].difference.gain:+.1f}",
        ", ".join(below) or "none",
    ]


def build_tables(found: Found) -> list[str]:
    """One table for each kind of function, one by set and one by share."""
    head = ["system", "gain", "worse", "searches", "worst set", "interval below 0"]
    parts = []
    for kind, shares in found.items():
        sets = shares[USUAL]
        plain = mean([comparison[BASELINE].means[PRIMARY] for comparison in sets.values()])
        rows = [[system, *_build_row(sets, system)] for system in _build_systems()]
        parts += [f"## {kind}", f"nDCG@10 of the function alone: {plain:.3f}.", table(head, rows)]
    names = list(_build_systems())
    sets = found[KINDS[0]][USUAL]
    rows = [
        [name, f"{comparison[BASELINE].means[PRIMARY]:.3f}"]
        + [
            f"{100 * comparison[it].difference.gain:+.1f}, {comparison[it].hurt_rate:.1%}"
            for it in names
        ]
        for name, comparison in sets.items()
    ]
    parts += [
        "## By set",
        f"{KINDS[0]}: gain in points, share of questions that get worse.",
        table(["set", "plain", *names], rows),
    ]
    rows = [
        [f"{share:g}", system, *_build_row(found[KINDS[0]][share], system)]
        for system in names
        if BY_WORDS in system
        for share in SHARES
    ]
    parts += [
        "## By the share of words",
        f"{KINDS[0]}: hybrid.bm25Weight, the rest is hybrid.vectorWeight.",
        table(["share", *head], rows),
    ]
    return parts


HEAD: Final = """# A text clause beside an embed clause

`hybrid.textFields` searches the question's keywords in a text clause beside the clause of the call, and fuses both
lists. The function takes the clauses of Pinecone's `documents.search`: an embed clause by vectors of all-MiniLM-L6-v2,
a text clause by SQLite's BM25 over the keywords. *gain* in points of nDCG@10 over the function alone, *worse*, the
share of questions that do worse than with it, and *searches* a question are means of sets. The worst set is that of the
lowest gain, and the last column names the sets whose 95 % interval (paired bootstrap) lies below 0. *balanced* is the
preset, by recorded replies.
"""


def write_report(source: Source) -> None:
    """Measure, keep what there is after each set in ``results/text-clause.md`` and ``.json``, and print it."""
    text = ""
    for names, found in measure(source):
        is_whole = source.is_whole and len(names) == len(source.names)
        text = _write_results(replace(source, names=tuple(names), is_whole=is_whole), found)
    print(text)


def _write_results(source: Source, found: Found) -> str:
    sets = "" if source.is_whole else f" --sets {','.join(source.names)}"
    command = f"python -m benchmarks.functions --text-clause --data {source.data} --recordings {source.recordings}{sets}"
    about = {**circumstances(source, ""), "command": command}
    recorded = len(list(source.recordings.glob("*.jsonl")))
    sample = f"Measured on {len(source.names)} of the {recorded} recorded sets."
    text = "\n\n".join([HEAD.strip(), sample, told(about), *build_tables(found)])
    figures = {
        kind: {
            f"{share:g}": {
                name: {
                    system: {
                        "gain": round(comparison[system].difference.gain, 4),
                        "hurtRate": round(comparison[system].hurt_rate, 4),
                        "searches": round(comparison[system].searches_per_question or 0.0, 3),
                    }
                    for system in _build_systems()
                }
                for name, comparison in sets.items()
            }
            for share, sets in shares.items()
        }
        for kind, shares in found.items()
    }
    (RESULTS / "text-clause.md").write_text(f"{text}\n", encoding="utf-8")
    (RESULTS / "text-clause.json").write_text(
        f"{json.dumps({**about, 'kinds': figures}, indent=1)}\n", encoding="utf-8"
    )
    return text
