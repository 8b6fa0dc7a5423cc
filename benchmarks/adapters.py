"""The adapters beside what people move from; what they cost measures `benchmarks.adapter_costs`.

    python -m benchmarks.adapters --data ../shared/data --recordings ../shared/recordings
    python -m benchmarks.adapters --framework llamaindex ...                               # either, or haystack

LangChain's MultiQueryRetriever and EnsembleRetriever are the real ones, of langchain-classic, which
is no part of the development environment: `pip install langchain-classic`, or they are left out,
and said so. Everybody searches the same vectors and words, and every model replays the same
recording.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models.llms import LLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import Field

import qtmiddleware as qtm
from benchmarks.functions import Corpus
from benchmarks.quality.report import RESULTS, SEED, circumstances, mean, points, table, told
from benchmarks.quality.sets import Prepared, Source, prepared, records
from qtmiddleware.integrations.langchain import QueryTransformRetriever
from qtmiddleware.kit.evaluation import PRIMARY, TOLERANCE, difference, evaluate

RETURNED: Final = 10
"""Documents that are judged; what the classic retrievers return beyond them is cut off."""


class Replay(LLM):
    """Answers MultiQueryRetriever's prompt with the recorded rewrite and sub-queries of the question at hand."""

    reply: dict[str, Any] = Field(default_factory=dict)
    calls: int = 0

    @property
    def _llm_type(self) -> str:
        return "recorded"

    def _call(self, prompt: str, stop: Any = None, run_manager: Any = None, **more: Any) -> str:  # noqa: ARG002
        self.calls += 1
        return "\n".join([self.reply["rewrite"], *self.reply["sub_queries"]])


class Store(VectorStore):
    """One data set behind LangChain's own interface; it counts its searches."""

    def __init__(self, one: Prepared) -> None:
        self.corpus, self.searches = Corpus(one), 0
        self.documents = {
            it.id: Document(id=it.id, page_content=it.text) for it in one.data.passages
        }

    def similarity_search_with_score(
        self, query: str, k: int = 4, **_: Any
    ) -> list[tuple[Document, float]]:
        self.searches += 1
        found = self.corpus.show(self.corpus.find_nearest(query), k)
        return [(self.documents[it["id"]], it["score"]) for it in found]

    def similarity_search(self, query: str, k: int = 4, **_: Any) -> list[Document]:
        return [document for document, _ in self.similarity_search_with_score(query, k)]

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: Any = None, **_: Any
    ) -> Store:
        raise NotImplementedError


class Words(BaseRetriever):
    """BM25 over the same passages."""

    store: Any
    k: int = RETURNED

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: Any,  # noqa: ARG002
        k: int | None = None,
    ) -> list[Document]:
        self.store.searches += 1
        corpus = self.store.corpus
        return [
            self.store.documents[it["id"]]
            for it in corpus.show(corpus.find_words(query), k or self.k)
        ]


class Line:
    """One system: nDCG@10 by set and question; searches and model calls of all questions."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[str, float]] = {}
        self.searches = self.calls = self.asked = 0


def set_up(
    one: Prepared, model: Any
) -> tuple[Store, Replay, dict[str, Callable[[str, Any], list[str | None]]]]:
    """The store and the model that count, and by name what finds the ids for a question and its conversation."""
    store, replay = Store(one), Replay()
    systems = build_systems(store, replay, model)
    return store, replay, {name: partial(_find_ids, find) for name, find in systems.items()}


def _find_ids(
    find: Callable[[str, Any], list[Document]], query: str, history: Any
) -> list[str | None]:
    return [document.id for document in find(query, history)]


def build_systems(
    store: Store, replay: Replay, model: Any
) -> dict[str, Callable[[str, Any], list[Document]]]:
    """By name, what finds the documents of a question and its conversation; the classic ones know no conversations."""
    retriever = store.as_retriever(search_kwargs={"k": RETURNED})
    words = Words(store=store)
    systems: dict[str, Callable[[str, Any], list[Document]]] = {
        "store.as_retriever(k=10)": lambda query, _: retriever.invoke(query)
    }
    try:
        from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
    except ImportError:
        print(
            "langchain-classic is not installed: MultiQueryRetriever and EnsembleRetriever are left out"
        )
    else:
        multi = MultiQueryRetriever.from_llm(retriever, replay)
        whole = MultiQueryRetriever.from_llm(retriever, replay, include_original=True)
        both = EnsembleRetriever(retrievers=[retriever, words], weights=[0.5, 0.5])
        systems["MultiQueryRetriever"] = lambda query, _: multi.invoke(query)
        systems["MultiQueryRetriever, include_original"] = lambda query, _: whole.invoke(query)
        systems["EnsembleRetriever of vectors and words"] = lambda query, _: both.invoke(query)

    def ours(inner: Any, config: Any) -> Callable[[str, Any], list[Document]]:
        made = QueryTransformRetriever(retriever=inner, config=config, client=model, k=RETURNED)
        return lambda query, history: made.invoke(query, history=history)

    def hybrid() -> qtm.Hybrid:
        return qtm.Hybrid(
            store.similarity_search_with_score, lambda query, k: words.invoke(query, k=k)
        )

    systems["ours around the retriever, rules"] = ours(retriever, "rules")
    systems["ours around the store, rules"] = ours(store, "rules")
    systems["ours around qtm.Hybrid, rules"] = ours(hybrid(), "rules")
    systems["ours around the retriever, balanced"] = ours(retriever, "balanced")
    systems["ours around the store, balanced"] = ours(store, "balanced")
    systems["ours around qtm.Hybrid, balanced"] = ours(hybrid(), "balanced")
    return systems


def measure(source: Source, framework: Any) -> dict[str, Line]:
    """Every system on every set, the plain retriever first."""
    lines: dict[str, Line] = {}
    for name in source.names:
        replies = records(source.recording(name))
        with prepared(source, name) as one:
            calls = CountingModel(one.bench.model)
            store, replay, systems = framework.set_up(one, calls)
            for system, find in systems.items():
                line = lines.setdefault(system, Line())
                store.searches, replay.calls, calls.calls = 0, 0, 0
                found = {}
                for question in one.data.questions:
                    replay.reply = replies[question.id]
                    found[question.id] = find(question.text, question.history)[:RETURNED]
                line.sets[name] = dict(evaluate(one.data.qrels, found).values[PRIMARY])
                line.asked += len(found)
                line.searches += store.searches
                line.calls += replay.calls + calls.calls
        print(f"{name}: measured", flush=True)
    return lines


class CountingModel:
    """The recorded model, and how often it was asked."""

    def __init__(self, model: Any) -> None:
        self.model, self.name, self.calls = model, model.name, 0

    def complete(self, prompt: Any, deadline: Any) -> Any:
        self.calls += 1
        return self.model.complete(prompt, deadline)

    async def acomplete(self, prompt: Any, deadline: Any) -> Any:
        self.calls += 1
        return await self.model.acomplete(prompt, deadline)


def build_table(lines: dict[str, Line]) -> str:
    """One row for each system."""
    plain, rows = next(iter(lines.values())), []
    for system, line in lines.items():
        ndcg = [mean(list(values.values())) for values in line.sets.values()]
        apart = [
            mean([value - plain.sets[name][it] for it, value in values.items()])
            for name, values in line.sets.items()
        ]
        hurt = [
            mean([float(value < plain.sets[name][it] - TOLERANCE) for it, value in values.items()])
            for name, values in line.sets.items()
        ]
        gain = "" if line is plain else f"{100 * mean(apart):+.1f}"
        cells = [*(f"{it:.3f}" for it in ndcg), f"{mean(ndcg):.3f}", gain, f"{mean(hurt):.0%}"]
        rows.append(
            [system, *cells, f"{line.searches / line.asked:.1f}", f"{line.calls / line.asked:.1f}"]
        )
    head = [
        "system",
        *plain.sets,
        "mean of sets",
        "gain",
        "hurt",
        "searches a question",
        "model calls",
    ]
    return table(head, rows)


def compare_pairs(lines: dict[str, Line], pairs: Sequence[tuple[str, str]]) -> str:
    """Points between the two systems of each pair, by set."""
    names = list(next(iter(lines.values())).sets)
    rows = []
    for ours, theirs in pairs:
        found = [
            points(
                difference(
                    [lines[ours].sets[name][it] - value for it, value in values.items()], seed=SEED
                )
            )
            for name, values in lines[theirs].sets.items()
        ]
        rows.append([f"{ours} over {theirs}", *found])
    return table(["points of nDCG@10", *names], rows)


def report_quality(source: Source, framework: Any) -> None:
    lines = measure(source, framework)
    about = circumstances(source, "")
    name = _find_framework_name(framework)
    module = f"benchmarks.adapters{name and f' --framework {name}'}"
    about["command"] = f"python -m {module} --data {source.data} --recordings {source.recordings}"
    about["command"] += "" if source.is_whole else f" --sets {','.join(source.names)}"
    about["versions"] |= {package: _find_version(package) for package in framework.PACKAGES}
    pairs = [pair for pair in framework.PAIRS if set(pair) <= lines.keys()]
    parts = [framework.HEAD.strip(), told(about), build_table(lines)]
    parts += [compare_pairs(lines, pairs)] if pairs else []
    text = "\n\n".join(parts)
    print(text)
    if source.is_whole and pairs:
        (RESULTS / f"adapters{name and f'-{name}'}.md").write_text(f"{text}\n", encoding="utf-8")


def _find_framework_name(framework: Any) -> str:
    """What `--framework` calls it, ``""`` for LangChain."""
    return str(framework.__name__).partition("adapters_")[2]


def _find_version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "not installed"


PACKAGES: Final = ("langchain-core", "langchain-classic")
PAIRS: Final = (
    ("ours around the retriever, balanced", "MultiQueryRetriever, include_original"),
    ("ours around qtm.Hybrid, rules", "EnsembleRetriever of vectors and words"),
)
HEAD: Final = """# The LangChain retriever beside what people move from

nDCG@10 of the first ten documents, *gain* over the plain retriever in points and *hurt*, the share of questions that do
worse than with it, both means of sets. MultiQueryRetriever and EnsembleRetriever are those of langchain-classic, with
lists of ten; the model of the former replays the recorded rewrite and sub-queries, ours the whole recording, in a call.
Ours is `QueryTransformRetriever(retriever=..., config="rules"` or `"balanced", k=10)`. In canard_dev it gets the
conversation, which the classic retrievers take no notice of.
"""


_LANGCHAIN: Final = sys.modules[__name__]


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--framework", choices=["langchain", "llamaindex", "haystack"], default="langchain"
    )
    parser.add_argument(
        "--sets",
        default="",
        help="names with commas, only printed; all that were recorded by default",
    )
    options = parser.parse_args(None if arguments is None else list(arguments))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    framework: Any = _LANGCHAIN
    if options.framework != "langchain":
        framework = import_module(f"benchmarks.adapters_{options.framework}")
    report_quality(Source.of(options.data, options.recordings, options.sets), framework)


if __name__ == "__main__":
    main()
