"""What the middleware gains around retrieval functions of other kinds than a search by vectors, and whom it hurts.

    python -m benchmarks.functions --data ../shared/data --recordings ../shared/recordings

Each kind is a plain function of one's own, and the middleware goes around it as a user's would:
without a word about what it is. The first run scores passages token by token for the kind that
reranks, which takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from benchmarks.quality.report import RESULTS, SEED, circumstances, mean, table, told
from benchmarks.quality.sets import KEPT, Prepared, Source, prepared
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder
from qtmiddleware.kit.evaluation import (
    BASELINE,
    PRIMARY,
    SYSTEMS,
    Comparison,
    compare,
    holm,
)
from qtmiddleware.kit.evaluation.measures import SIGNIFICANT, TOP_K
from qtmiddleware.protocols import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

WIDE: Final = 50
"""Passages a search brings at most, and those that are fused."""
RERANKED: Final = 20
"""Passages that are reranked, which are all that such a function returns."""
RRF_K: Final = 60
LENGTH: Final = 11.0
"""How long the vectors are that are compared by their dot product."""
MEASURED: Final = ("rules", "balanced")

Retrieve = Callable[..., list[Record]]
Scored = Sequence[tuple[int, float]]
"""Positions of passages with their scores, best first."""


class LateInteraction:
    """Scores passages by their tokens: for each of the query's the nearest of the passage's, and their mean.

    MaxSim (Khattab and Zaharia 2020) over all-MiniLM-L6-v2, which was not trained for it, plus the
    cosine of the whole
    texts: an order that is better than the cosine's by itself, and has seen no more of the words
    than that. What was scored is kept in *file*.
    """

    def __init__(self, texts: Sequence[str], file: Path) -> None:
        self._texts, self._file = texts, file
        self._kept: dict[str, dict[str, float]] = (
            json.loads(file.read_text()) if file.is_file() else {}
        )
        self._is_new = False
        self._tokens = cache(lambda place: self._embed(texts[place]))
        self._embedder = MiniLMEmbedder()

    def score(self, query: str, places: Sequence[int]) -> list[float]:
        """The mean over the query's tokens, for each of the *places*."""
        kept = self._kept.setdefault(query, {})
        if missing := [place for place in places if str(place) not in kept]:
            self._is_new = True
            tokens = self._embed(query)[1:-1]
            kept |= {
                str(it): round(float((tokens @ self._tokens(it).T).max(axis=1).mean()), 6)
                for it in missing
            }
        return [kept[str(place)] for place in places]

    def keep(self) -> None:
        """Write down what was scored."""
        if self._is_new:
            self._file.write_text(json.dumps(self._kept), encoding="utf-8")

    def _embed(self, text: str) -> Floats:
        import numpy as np

        tokenizer, encoder = self._embedder.load()
        rows = encoder.encode_tokens([tokenizer.encode(text).ids])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Corpus:
    """One data set as a user's function has it: passages, vectors, an index of words."""

    def __init__(self, one: Prepared) -> None:
        self._passages, self._store, self._embed = one.data.passages, one.store, one.vectors
        self._places = {passage.id: place for place, passage in enumerate(one.data.passages)}
        texts = [passage.text for passage in one.data.passages]
        self._vectors = one.vectors(texts)
        self.late = LateInteraction(texts, KEPT / f"late-{one.name}.json")
        self.find_nearest, self.find_words = cache(self._find_nearest), cache(self._find_words)

    def _find_nearest(self, query: str) -> Scored:
        """By cosine: the vectors are of length 1."""
        import numpy as np

        scores = self._vectors @ self._embed([query])[0]
        return [
            (int(place), float(scores[place]))
            for place in np.argsort(-scores, kind="stable")[:WIDE]
        ]

    def _find_words(self, query: str) -> Scored:
        """By BM25 over all words of the query."""
        found = self._store.keyword_search(query, WIDE)  # type: ignore[attr-defined]
        return [(self._places[record["id"]], record["score"]) for record in found]

    def show(self, found: Scored, top_k: int, *, with_scores: bool = True) -> list[Record]:
        """The first *top_k* as a function returns them."""
        records = []
        for place, score in found[:top_k]:
            passage = self._passages[place]
            shown = {"score": score} if with_scores else {}
            records.append({"id": passage.id, "text": passage.text, **shown})
        return records


def add_up(*lists: Sequence[tuple[int, float]]) -> Scored:
    """The passages of all *lists* by the sum of what they have there."""
    sums: dict[int, float] = {}
    for found in lists:
        for place, worth in found:
            sums[place] = sums.get(place, 0.0) + worth
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def rank_reciprocally(found: Scored) -> Scored:
    """Each passage with 1 / (k + rank)."""
    return [(place, 1.0 / (RRF_K + rank)) for rank, (place, _) in enumerate(found, start=1)]


def stretch(found: Scored, share: float) -> Scored:
    """Each passage with its *share* of a score from 0 to 1 (min-max)."""
    low = min((score for _, score in found), default=0.0)
    width = max((score for _, score in found), default=0.0) - low
    return [(place, share * (score - low) / width if width else share) for place, score in found]


def build_kinds(corpus: Corpus) -> dict[str, Retrieve]:
    """A plain function of each kind, all over the same passages."""
    nearest, words, late = corpus.find_nearest, corpus.find_words, corpus.late

    def fuse_ranks(query: str) -> Scored:
        return add_up(rank_reciprocally(nearest(query)), rank_reciprocally(words(query)))

    def fuse_scores(query: str, share: float) -> Scored:
        return add_up(stretch(nearest(query), share), stretch(words(query), 1.0 - share))

    def rerank(query: str) -> Scored:
        found = nearest(query)[:RERANKED]
        places = [place for place, _ in found]
        return add_up(found, list(zip(places, late.score(query, places), strict=True)))

    searches: dict[str, Callable[[str], Scored]] = {
        "vectors, cosine": nearest,
        "vectors, dot product": lambda query: [
            (it, LENGTH * LENGTH * score) for it, score in nearest(query)
        ],
        "vectors, Euclidean distance": lambda query: [
            (it, max(0.0, 2.0 - 2.0 * score) ** 0.5) for it, score in nearest(query)
        ],
        "vectors, no scores": nearest,
        "vectors, lists of 10": nearest,
        "words, BM25": words,
        "hybrid, RRF": fuse_ranks,
        "hybrid, RRF, no scores": fuse_ranks,
        "hybrid, sum of scores": lambda query: fuse_scores(query, 0.5),
        "hybrid, sum with 0.75 vectors": lambda query: fuse_scores(query, 0.75),
        "reranked": rerank,
    }
    return {kind: _build_function(kind, search, corpus) for kind, search in searches.items()}


def _build_function(kind: str, search: Callable[[str], Scored], corpus: Corpus) -> Retrieve:
    def retrieve(query: str, top_k: int = TOP_K) -> list[Record]:
        return corpus.show(search(query), top_k, with_scores="no scores" not in kind)

    def retrieve_ten(query: str) -> list[Record]:
        return retrieve(query)

    return retrieve_ten if "lists of 10" in kind else retrieve


Found = Mapping[str, Mapping[str, Comparison]]  # by kind, then by set


def measure(source: Source, systems: Sequence[str], kinds: Sequence[str]) -> Found:
    """Every one of the *kinds* on every set, as it is and under each of the *systems*."""
    found: dict[str, dict[str, Comparison]] = {}
    for name in source.names:
        began = perf_counter()
        with prepared(source, name) as one:
            corpus = Corpus(one)
            for kind, retrieve in build_kinds(corpus).items():
                if kinds and kind not in kinds:
                    continue
                settings = {system: SYSTEMS[system] for system in systems}
                found.setdefault(kind, {})[name] = compare(
                    retrieve,
                    one.data.questions,
                    one.data.qrels,
                    {BASELINE: SYSTEMS[BASELINE], **settings},
                    client=one.model,
                    name=name,
                    seed=SEED,
                )
            corpus.late.keep()
        print(f"{name}: {perf_counter() - began:.0f} s", flush=True)
    return found


def find_losses(found: Found, system: str) -> dict[str, list[str]]:
    """By kind, the sets on which *system* loses significantly, at 5 % after Holm's correction for all of them."""
    differences = {
        f"{kind}\0{name}": comparison[system].difference
        for kind, sets in found.items()
        for name, comparison in sets.items()
    }
    corrected = holm({one: it.p for one, it in differences.items()})
    losses: dict[str, list[str]] = {}
    for one, it in differences.items():
        kind, name = one.split("\0")
        if it.gain < 0 and corrected[one] < SIGNIFICANT:
            losses.setdefault(kind, []).append(name)
    return losses


def build_table(found: Found, system: str) -> str:
    """One row for each kind of function."""
    losses, rows = find_losses(found, system), []
    for kind, sets in found.items():
        scores = {name: comparison[system] for name, comparison in sets.items()}
        plain = mean([comparison[BASELINE].means[PRIMARY] for comparison in sets.values()])
        gain = mean([score.difference.gain for score in scores.values()])
        hurt = {name: score.hurt_rate for name, score in scores.items()}
        worst = min(scores, key=lambda name: scores[name].difference.gain)
        most = max(hurt, key=lambda name: hurt[name])
        below = [name for name, score in scores.items() if score.difference.high < 0]
        cells = [f"{plain:.3f}", f"{100 * gain:+.1f}", f"{mean(list(hurt.values())):.1%}"]
        cells += [f"{worst} {100 * scores[worst].difference.gain:+.1f}", f"{most} {hurt[most]:.0%}"]
        rows.append([kind, *cells, ", ".join(below), ", ".join(losses.get(kind, [])) or "none"])
    head = [
        "function",
        "plain nDCG@10",
        "gain",
        "hurt",
        "worst set",
        "most hurt",
        "interval below 0",
        "lost",
    ]
    return table(head, rows)


HEAD: Final = f"""# Around functions of other kinds

The middleware with its defaults around plain functions that search the same passages in different ways, told nothing of
what they are. nDCG@10 of the function alone; *gain* in points and *hurt*, the share of questions that do worse than
with the function alone, both means of sets; the set with the lowest gain and the one with the most questions hurt; the
sets whose 95 % interval (paired bootstrap) lies below 0; and those *lost* significantly, at 5 % by a randomisation test
after Holm's correction for all sets and kinds.

Vectors are those of all-MiniLM-L6-v2; for the dot product {LENGTH:g} long. Words are SQLite's BM25 over all words of
the query as it is. The hybrids take {WIDE} passages of each: by reciprocal ranks (k {RRF_K}), or by the sum of scores
brought to 0 to 1. *reranked* orders the nearest {RERANKED} by what their tokens have in common with the query's (MaxSim
over the same model) plus the cosine: a stand-in for a cross-encoder, better than the vectors alone, though not by as
much. *lists of 10* takes no number of passages. *rules* sees the questions of canard_dev without their conversations.
"""


def write_report(source: Source, found: Found, systems: Sequence[str], *, is_whole: bool) -> None:
    """Print all of it and, where everything was measured, keep it as ``results/functions.md``."""
    command = (
        f"python -m benchmarks.functions --data {source.data} --recordings {source.recordings}"
    )
    about = {**circumstances(source, ""), "command": command}
    parts = [HEAD.strip(), told(about)]
    for system in systems:
        parts += [f"## {system}", build_table(found, system)]
    text = "\n\n".join(parts)
    print(text)
    if is_whole and source.is_whole:
        (RESULTS / "functions.md").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
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
    parser.add_argument(
        "--systems", default=",".join(MEASURED), help="names with commas; others are only printed"
    )
    parser.add_argument(
        "--kinds", default="", help="names with semicolons, only printed; all by default"
    )
    options = parser.parse_args()
    # Several threads of the linear algebra library only wait for one another here; it reads this
    # when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    systems = options.systems.split(",")
    source = Source.of(options.data, options.recordings, options.sets)
    found = measure(source, systems, options.kinds.split(";") if options.kinds else [])
    write_report(source, found, systems, is_whole=tuple(systems) == MEASURED and not options.kinds)


if __name__ == "__main__":
    main()
