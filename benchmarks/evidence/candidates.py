"""The lists that functions of several kinds return for the questions of every set, kept under `.tmp/evidence`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.functions import RERANKED, Corpus, Scored, add_up, rank_reciprocally, stretch
from benchmarks.quality.report import SEED
from benchmarks.quality.sets import prepared_with, records
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.testing import ScriptedModel

KEPT: Final = Path(".tmp/evidence")
WIDE: Final = 50
"""Passages a list has at most."""
QUESTIONS: Final = 300
"""Questions of a set at most, beside those that were recorded."""
LARGE: Final = (
    "anthropic_docs", "canard_dev", "covid_faq", "covidqa", "hotpotqa_small", "nq_small", "strategyqa_dev",
)  # fmt: skip
SMALL: Final = ("gym_faq", "camper_rental", "remote_policy", "runbooks", "acronyms", "catalogue_es")
LANGUAGES: Final = ("en", "es", "de", "zh", "ar")
OUTSIDE: Final = ("stackfaq", "stackfaq_answers", "cranfield", "faquad")
KINDS: Final = ("cosine", "bm25", "rrf", "sum", "reranked", "no scores")
"""The kinds of function; the last one's lists are those of the first without scores."""
NOT_RERANKED: Final = ("canard_dev", "covidqa", "hotpotqa_small")
"""Sets whose passages would take long to be scored token by token."""
PARTS: Final = {f"parts of {size}": size for size in (5, 10, 20, 40)}
"""Kinds of their own: the collection is one of the parts into which the set is cut, each of so many near passages."""


@dataclass(frozen=True)
class Place:
    """Where one set lies: its *group* and *name*, its *folder*, and its recorded replies where there are some."""

    group: str
    name: str
    folder: Path
    recording: Path | None = None


@dataclass(frozen=True)
class List:
    """What one function returned for one question: *places* of passages and their *scores*, best first."""

    places: Sequence[int]
    scores: Sequence[float]


@dataclass(frozen=True)
class Asked:
    """One question, the grades of its passages by their places, and its lists by the kind of function."""

    id: str
    text: str
    is_recorded: bool
    grades: dict[int, int]
    lists: dict[str, List]


@dataclass(frozen=True)
class Listed:
    """All questions of one set, with the texts of its passages."""

    place: Place
    texts: Sequence[str]
    questions: Sequence[Asked]


def find_places(data: Path, recordings: Path) -> list[Place]:
    """Returns every set there is; those of `benchmarks.outside` where it has converted them."""
    small = recordings / "small"
    places = [
        Place("small", name, data / "small" / name, small / f"{name}.jsonl") for name in SMALL
    ]
    for name, folder in (
        ("demo", "qtmiddleware/kit/demo/data"),
        ("orrisdale", "benchmarks/data/orrisdale"),
    ):
        places.append(Place("own", name, Path(folder), Path(folder) / "recordings.jsonl"))
    places += [Place("large", name, data / name, recordings / f"{name}.jsonl") for name in LARGE]
    places += [Place("more", name, data / name) for name in ("seed_climate", "codebase_small")]
    places += [Place("language", f"xquad/{name}", data / "xquad" / name) for name in LANGUAGES]
    places += [Place("outside", name, Path(".tmp/outside") / name) for name in OUTSIDE]
    return [place for place in places if (place.folder / "corpus.jsonl").is_file()]


def read_lists(places: Sequence[Place]) -> Iterator[Listed]:
    """Yields the lists of each set, made where they are not kept."""
    for place in places:
        data = Dataset.load(place.folder)
        file = KEPT / f"lists-{place.name.replace('/', '-')}-{data.data_hash[:12]}.json"
        if not file.is_file():
            KEPT.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(_make_lists(place, data)), encoding="utf-8")
        kept = json.loads(file.read_text(encoding="utf-8"))
        questions = [
            Asked(
                row["id"],
                row["text"],
                row["recorded"],
                {int(at): grade for at, grade in row["grades"].items()},
                {kind: List(*both) for kind, both in row["lists"].items()},
            )
            for row in kept
        ]
        yield Listed(place, [passage.text for passage in data.passages], questions)


def _make_lists(place: Place, data: Dataset) -> list[dict[str, Any]]:
    recorded = set(records(place.recording)) if place.recording else set()
    drawn = {question.id for question in data.sampled(QUESTIONS, seed=SEED).questions} | recorded
    data = data.only(drawn)
    at = {passage.id: number for number, passage in enumerate(data.passages)}
    rows = []
    with prepared_with(data, place.name.replace("/", "-"), ScriptedModel({})) as one:
        corpus = Corpus(one)
        one.vectors([question.text for question in data.questions])
        parts = {
            kind: cut_into_parts(corpus._vectors, size)
            for kind, size in PARTS.items()
            if len(data.passages) > 4 * size
        }
        for question in data.questions:
            # Scoring token by token takes long.
            reranks = question.id in recorded and place.name not in NOT_RERANKED
            found = {
                kind: search(question.text)[:WIDE]
                for kind, search in _build_kinds(corpus, reranks).items()
            }
            grades = {at[id_]: grade for id_, grade in data.qrels[question.id].items() if id_ in at}
            for kind, cut in parts.items() if any(grades.values()) else ():
                part = max(cut, key=lambda part: sum(grades.get(at, 0) for at in part))
                found[kind] = _search_part(corpus, question.text, part)
            rows.append(
                {
                    "id": question.id,
                    "text": question.text,
                    "recorded": question.id in recorded,
                    "grades": grades,
                    "lists": {
                        kind: [[it for it, _ in one], [score for _, score in one]]
                        for kind, one in found.items()
                    },
                }
            )
        corpus.late.keep()
    print(f"{place.name}: {len(rows)} questions", file=sys.stderr)
    return rows


def _build_kinds(corpus: Corpus, reranks: bool) -> dict[str, Callable[[str], Scored]]:
    nearest, words = corpus.find_nearest, corpus.find_words

    def fuse_ranks(query: str) -> Scored:
        return add_up(rank_reciprocally(nearest(query)), rank_reciprocally(words(query)))

    def fuse_scores(query: str) -> Scored:
        return add_up(stretch(nearest(query), 0.5), stretch(words(query), 0.5))

    def rerank(query: str) -> Scored:
        found = nearest(query)[:RERANKED]
        places = [place for place, _ in found]
        return add_up(found, list(zip(places, corpus.late.score(query, places), strict=True)))

    searches = {"cosine": nearest, "bm25": words, "rrf": fuse_ranks, "sum": fuse_scores}
    return {**searches, "reranked": rerank} if reranks else searches


def cut_into_parts(vectors: Any, size: int) -> list[frozenset[int]]:
    """Return the places of all passages in parts of *size*: each a passage drawn at random and its nearest ones."""
    import numpy as np

    random, left, parts = Random(SEED), list(range(len(vectors))), []
    while left:
        seed = random.choice(left)
        near = np.argsort(-(vectors[left] @ vectors[seed]), kind="stable")[:size]
        parts.append(frozenset(left[int(at)] for at in near))
        left = [it for it in left if it not in parts[-1]]
    return parts


def _search_part(corpus: Corpus, question: str, part: frozenset[int]) -> Scored:
    import numpy as np

    scores = corpus._vectors @ corpus._embed([question])[0]
    return [
        (int(at), float(scores[at])) for at in np.argsort(-scores, kind="stable") if int(at) in part
    ]
