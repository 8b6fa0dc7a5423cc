"""What whole retrievals return: ids and scores, in one file that every later change is compared with.

    export OPENBLAS_NUM_THREADS=1                  # several threads add up in another order each time
    python -m tests.support.golden_orders          # writes tests/integration/golden_orders.json
    python -m tests.support.golden_orders --check  # prints the lines that would change; ends with 1 if any would

Write it on purpose only: a change that is meant to keep the order of results must not change this
file.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from qtmiddleware.config import Config
from qtmiddleware.config.reading import read_preset
from qtmiddleware.kit.embedding.minilm import MiniLMEmbedder
from qtmiddleware.kit.evaluation import MEASURED, Dataset
from qtmiddleware.kit.evaluation.bench import build_index
from qtmiddleware.protocols import Embedder, LanguageModel
from qtmiddleware.providers.llms.recorded import RecordedModel
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from tests.support.shared_data import DEMO, SHARED

FILE: Final = Path(__file__).parents[1] / "integration" / "golden_orders.json"
DIGITS: Final = 6
TOP_K: Final = 5
RRF_K: Final = 60
PRESETS: Final = ("rules", "words", "balanced", "thorough")
FREE: Final = ("rules",)

Retrieve = Callable[..., Any]
Order = list[tuple[str, float | None, float]]
"""Of each passage its id, the score its caller sees and that of the fusion."""
CaseOrders = dict[str, dict[str, dict[str, Order]]]
"""By kind of function, preset and question."""
Orders = dict[str, CaseOrders]
"""By data set."""


@dataclass(frozen=True)
class Case:
    """So many questions of one data set, and as many passages: those that answer, then those that stand first."""

    folder: str
    questions: int
    passages: int
    recording: str = ""


CASES: Final = (
    Case("demo", 16, 97, "demo"),
    Case("small/gym_faq", 12, 40, "small/gym_faq"),
    Case("small/catalogue_es", 8, 40, "small/catalogue_es"),
    Case("covid_faq", 8, 60, "covid_faq"),
    Case("canard_dev", 12, 80, "canard_dev"),
    Case("hotpotqa_small", 8, 60, "hotpotqa_small"),
    Case("anthropic_docs", 6, 40, "anthropic_docs"),
    Case("codebase_small", 8, 60),
    Case("xquad/zh", 6, 40),
)
"""One of each kind: shipped, small, typed without accents, a gap of words, conversations, two hops, documentation,
code, and a script without spaces."""


class RememberingEmbedder:
    """The built-in model, each text once."""

    name = "all-MiniLM-L6-v2"
    dimension = 384

    def __init__(self) -> None:
        inner = MiniLMEmbedder()
        self._embed = cache(lambda text: inner.embed([text])[0])

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector for each of *texts*, whatever stood beside it."""
        return [list(self._embed(text)) for text in texts]


def load(case: Case) -> tuple[Dataset, LanguageModel | None]:
    """The questions and passages of *case*, and the model that replays what was recorded for them."""
    folder = DEMO if case.folder == "demo" else SHARED / "data" / case.folder
    data = Dataset.load(folder)
    model: LanguageModel | None = None
    if case.recording:
        file = (
            DEMO / "recordings.jsonl"
            if case.recording == "demo"
            else SHARED / "recordings" / f"{case.recording}.jsonl"
        )
        recorded = {
            json.loads(line)["_id"]
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.strip()
        }
        data = data.only(recorded).first(case.questions)
        model = RecordedModel.from_file(file, [question.to_record() for question in data.questions])
    else:
        data = data.first(case.questions)
    answering = {id_ for judged in data.qrels.values() for id_ in judged}
    # Not by name: the first passages of a set belong together, as those of one collection do.
    first = sorted(data.passages, key=lambda passage: passage.id not in answering)[: case.passages]
    return replace(data, passages=tuple(first)), model


def build_functions(data: Dataset, embedder: Embedder, store: Any) -> dict[str, Retrieve]:
    """Functions of one's own over the same passages, each with a response of another shape."""
    passages = data.passages
    vectors = np.asarray(embedder.embed([passage.text for passage in passages]))
    places = {passage.id: place for place, passage in enumerate(passages)}

    def find_nearest(query: str, count: int) -> list[tuple[int, float]]:
        scores = vectors @ np.asarray(embedder.embed([query])[0])
        return [
            (int(place), float(scores[place]))
            for place in np.argsort(-scores, kind="stable")[:count]
        ]

    def find_words(query: str, count: int) -> list[tuple[int, float]]:
        return [
            (places[record["id"]], record["score"]) for record in store.keyword_search(query, count)
        ]

    def search_vectors(query: str, top_k: int = TOP_K) -> dict[str, Any]:
        matches = [
            {
                "id": passages[place].id,
                "score": score,
                "metadata": {**passages[place].metadata, "text": passages[place].text},
            }
            for place, score in find_nearest(query, top_k)
        ]
        return {"matches": matches, "namespace": "golden", "usage": {"read_units": 1}}

    def search_words(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        return [
            {"id": passages[place].id, "score": score, "text": passages[place].text}
            for place, score in find_words(query, top_k)
        ]

    def search_both(query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        sums: dict[int, float] = {}
        for found in (find_nearest(query, 50), find_words(query, 50)):
            for rank, (place, _) in enumerate(found, start=1):
                sums[place] = sums.get(place, 0.0) + 1.0 / (RRF_K + rank)
        best = sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:top_k]
        return [
            {"id": passages[it].id, "score": score, "content": passages[it].text}
            for it, score in best
        ]

    return {"dense": search_vectors, "bm25": search_words, "hybrid": search_both}


def measure(case: Case, embedder: Embedder) -> CaseOrders:
    """What each kind of function returns for each question of *case* under each preset, one after the other."""
    data, model = load(case)
    found: CaseOrders = {}
    with (
        TemporaryDirectory() as folder,
        build_index(data, Path(folder) / "index.sqlite", embedder) as store,
    ):
        functions = build_functions(data, embedder, store)
        for preset in PRESETS if model else FREE:
            config = Config.load(MEASURED, environ={}).overridden(read_preset(preset)[1])
            wrapped = {
                kind: QueryMiddleware(config, client=model).wrap(fn)
                for kind, fn in functions.items()
            }
            own = config.overridden({"hybrid": {"enabled": True}})
            wrapped["hybrid store"] = QueryMiddleware(
                own, client=model, store=store, embedder=embedder
            ).retriever
            for kind, search in wrapped.items():
                found.setdefault(kind, {})[preset] = {
                    question.id: _read_order(
                        search.retrieve(question.text, top_k=TOP_K, history=question.history)
                    )
                    for question in data.questions
                }
    return found


def _read_order(retrieval: Retrieval) -> Order:
    if retrieval.status != "full":
        raise RuntimeError(f"nothing may be degraded here: {retrieval.degradations}")
    return [
        (
            str(it.id),
            None if it.score is None else round(it.score, DIGITS),
            round(it.fused_score or 0.0, DIGITS),
        )
        for it in retrieval.matches
    ]


def measure_all(cases: Sequence[Case] = CASES) -> Orders:
    """All of it, a minute and a half."""
    embedder = RememberingEmbedder()
    return {case.folder: measure(case, embedder) for case in cases}


def write_lines(orders: Orders) -> str:
    """*orders* as JSON with a line for each question, so that a change shows which ones it moves."""
    return "{\n" + ",\n".join(_write_level(orders, 3)) + "\n}\n"


def _write_level(level: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, inner in level.items():
        if depth:
            yield f"{json.dumps(name)}: {{\n" + ",\n".join(_write_level(inner, depth - 1)) + "\n}"
        else:
            yield f"{json.dumps(name)}: {json.dumps(inner, ensure_ascii=False)}"


def read() -> Orders:
    """The orders that were kept."""
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def find_differences(kept: CaseOrders, now: CaseOrders, *, tolerance: float) -> Iterator[str]:
    """Yields where ids differ, or scores by more than *tolerance*."""
    for kind, presets in {**kept, **now}.items():
        for preset, questions in presets.items():
            for question in questions:
                before, after = (
                    it.get(kind, {}).get(preset, {}).get(question, []) for it in (kept, now)
                )
                if len(before) != len(after) or not all(
                    map(partial(_is_close, tolerance), before, after)
                ):
                    yield f"{kind}, {preset}, {question}"


def _is_close(
    tolerance: float,
    before: tuple[str, float | None, float],
    after: tuple[str, float | None, float],
) -> bool:
    if before[0] != after[0] or (before[1] is None) != (after[1] is None):
        return False
    return (
        abs((before[1] or 0.0) - (after[1] or 0.0)) <= tolerance
        and abs(before[2] - after[2]) <= tolerance
    )


def main() -> int:
    """Write the file, or say what would change in it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.golden_orders", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    text = write_lines(measure_all())
    if not options.check:
        FILE.write_text(text, encoding="utf-8")
        return 0
    kept = FILE.read_text(encoding="utf-8")
    sys.stdout.writelines(
        difflib.unified_diff(kept.splitlines(True), text.splitlines(True), "kept", "now", n=0)
    )
    return int(kept != text)


if __name__ == "__main__":
    sys.exit(main())
