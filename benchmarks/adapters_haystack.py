"""Haystack's part of `benchmarks.adapters`: its retriever, QueryExpander, MultiQueryTextRetriever and DocumentJoiner.

All of it is haystack-ai's own, in pipelines, over one exact search; every model replays the same
recording.
"""

# ruff: noqa: ARG002
# The signatures are the framework's own.

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from haystack import Document, Pipeline, component
from haystack.components.joiners import DocumentJoiner
from haystack.components.query import QueryExpander
from haystack.components.retrievers import MultiQueryTextRetriever
from haystack.core.super_component import SuperComponent
from haystack.dataclasses import ChatMessage

import qtmiddleware as qtm
from benchmarks.functions import Corpus
from benchmarks.quality.sets import Prepared
from qtmiddleware.integrations.haystack import QueryTransformRetriever

RETURNED: Final = 10
MOST_QUERIES: Final = 16  # more than were recorded, as QueryExpander would leave out the rest

PACKAGES: Final = ("haystack-ai",)
PAIRS: Final = (
    ("ours, balanced", "QueryExpander and MultiQueryTextRetriever"),
    ("ours around qtm.Hybrid, rules", "DocumentJoiner of vectors and words"),
)
HEAD: Final = """# The Haystack retriever beside what people move from

nDCG@10 of the first ten documents, *gain* over the plain retriever in points and *hurt*, the share of questions that do
worse than with it, both means of sets. All of haystack-ai, in pipelines, with lists of ten; the chat generator of
QueryExpander replays the recorded rewrite and sub-queries, ours the whole recording, in a call. DocumentJoiner merges
by reciprocal ranks. Ours is `QueryTransformRetriever(retriever, config="rules"` or `"balanced", top_k=10)`. In
canard_dev it gets the conversation.
"""

Find = Callable[[str, Any], list[str]]


class Store:
    """One data set; it counts its searches."""

    def __init__(self, one: Prepared) -> None:
        self.corpus, self.searches = Corpus(one), 0

    def search(self, find: Any, query: str, top_k: int) -> list[Document]:
        self.searches += 1
        rows = self.corpus.show(find(query), top_k)
        return [Document(id=it["id"], content=it["text"], score=it["score"]) for it in rows]


@component
class Vectors:
    """Exact search by vectors."""

    def __init__(self, store: Store, top_k: int = RETURNED) -> None:
        self.store, self.top_k = store, top_k

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        return {
            "documents": self.store.search(
                self.store.corpus.find_nearest, query, top_k or self.top_k
            )
        }


@component
class Words:
    """BM25 over the same passages."""

    def __init__(self, store: Store, top_k: int = RETURNED) -> None:
        self.store, self.top_k = store, top_k

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        return {
            "documents": self.store.search(self.store.corpus.find_words, query, top_k or self.top_k)
        }


@component
class Replay:
    """Answers QueryExpander's prompt with the recorded rewrite and sub-queries of the question at hand."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] = {}
        self.calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        self.calls += 1
        queries = [self.reply["rewrite"], *self.reply["sub_queries"]]
        return {"replies": [ChatMessage.from_assistant(json.dumps({"queries": queries}))]}


def join(store: Store) -> SuperComponent:
    """The pipeline of vectors and words, merged by reciprocal ranks."""
    pipeline = Pipeline()
    pipeline.add_component("vectors", Vectors(store))
    pipeline.add_component("words", Words(store))
    pipeline.add_component("joiner", DocumentJoiner(join_mode="reciprocal_rank_fusion"))
    pipeline.connect("vectors", "joiner")
    pipeline.connect("words", "joiner")
    sockets = {"query": ["vectors.query", "words.query"], "top_k": ["vectors.top_k", "words.top_k"]}
    return SuperComponent(pipeline, sockets, {"joiner.documents": "documents"})


def expand(store: Store, replay: Replay) -> Find:
    """QueryExpander before MultiQueryTextRetriever, as their pages show them."""
    pipeline = Pipeline()
    pipeline.add_component(
        "expander", QueryExpander(chat_generator=replay, n_expansions=MOST_QUERIES)
    )
    pipeline.add_component("retriever", MultiQueryTextRetriever(retriever=Vectors(store)))
    pipeline.connect("expander.queries", "retriever.queries")
    return lambda query, _: _ids(pipeline.run({"expander": {"query": query}})["retriever"])


def set_up(one: Prepared, model: Any) -> tuple[Store, Replay, dict[str, Find]]:
    """The store and the model that count, and by name what finds the ids for a question and its conversation."""
    store, replay = Store(one), Replay()
    vectors, words, joined = Vectors(store), Words(store), join(store)

    def ours(inner: Any, config: str) -> Find:
        pipeline = Pipeline()
        retriever = QueryTransformRetriever(inner, config=config, client=model, top_k=RETURNED)
        pipeline.add_component("retriever", retriever)
        return lambda query, history: _ids(
            pipeline.run({"retriever": {"query": query, "history": history}})["retriever"]
        )

    def hybrid() -> qtm.Hybrid:
        return qtm.Hybrid(
            lambda query, top_k: vectors.run(query, top_k=top_k)["documents"],
            lambda query, top_k: words.run(query, top_k=top_k)["documents"],
        )

    return store, replay, {
        "retriever.run(query, top_k=10)": lambda query, _: _ids(vectors.run(query)),
        "QueryExpander and MultiQueryTextRetriever": expand(store, replay),
        "DocumentJoiner of vectors and words": lambda query, _: _ids(joined.run(query=query)),
        "ours, rules": ours(vectors, "rules"),
        "ours around the pipeline of DocumentJoiner, rules": ours(joined, "rules"),
        "ours around qtm.Hybrid, rules": ours(hybrid(), "rules"),
        "ours, balanced": ours(vectors, "balanced"),
        "ours around qtm.Hybrid, balanced": ours(hybrid(), "balanced"),
    }  # fmt: skip


def _ids(found: Any) -> list[str]:
    return [document.id for document in found["documents"]]
