"""Searching by vectors and by words at the same time, and one list of both.

The vector search gets the question as it is, the word search the keywords the rules make of it:
stripping a question of its question words costs the former quality and gains the latter some.

``weighted``  Sum of both scores times their weights, the scores of each list brought to 0 to 1 first (min-max; a list
              of equal scores is 1 throughout). A passage missing from a list takes 0, the list's
              lowest.
``rrf``       Sum of weight / (k + rank), ranks from 1 (Cormack, Clarke and Büttcher, 2009).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.config.kit_settings import HybridSettings
from qtmiddleware.config.settings import PreprocessSettings
from qtmiddleware.errors import ConfigError, ModelError, StoreError, WrapError
from qtmiddleware.preprocessing import preprocess as to_keywords
from qtmiddleware.protocols import Embedder, Filter, KeywordStore, Record, Store
from qtmiddleware.retrieval.fusion import sum_weighted
from qtmiddleware.retrieval.responses import read_id, read_metadata, read_response, read_text
from qtmiddleware.retrieval.searching import note_embedding, note_initial_list, note_reads
from qtmiddleware.runtime.background_loop import is_async
from qtmiddleware.runtime.drivers import Bulkhead, current_bulkhead
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.types import DEFAULT_NAMESPACE, Key, Ranking, Variant

logger: Final = get_logger("qtmiddleware")

PATIENCE: Final = 10.0
"""Seconds the word search is waited for once the vector search is there."""

Search = Callable[..., Any]
"""A search of ``(query, top_k)``, and of ``filter=`` where one is given; returns any shape the middleware reads."""


@dataclass(frozen=True, slots=True)
class _Results:
    """What one of the two searches returned: its *ranking*, and the best place of each passage in it."""

    ranking: Ranking
    places: Mapping[Key, int]

    def score(self, key: Key) -> float | None:
        """Returns the search's own number for a passage, ``None`` where it did not find it."""
        return self.ranking.scores[self.places[key]] if key in self.places else None

    def record(self, key: Key) -> Record:
        """Returns a passage this search found."""
        item = self.ranking.items[self.places[key]]
        record = {
            "id": read_id(item),
            "score": 0.0,
            "text": read_text(item, None) or "",
            "metadata": dict(read_metadata(item)),
        }
        return record if key[0] == DEFAULT_NAMESPACE else {**record, "namespace": key[0]}


def _read_results(query: str, weight: float, response: Any) -> _Results:
    """Reads *response*; raises `ResponseShapeError` where it is of no known shape."""
    note_reads(response)
    ranking = read_response(Variant("original", query, weight), response).ranking
    places: dict[Key, int] = {}
    for place, key in enumerate(ranking.keys):
        places.setdefault(key, place)
    return _Results(ranking, places)


class Hybrid:
    """Two searches of one's own, by vectors and by words, as one: ``search(query, top_k, filter=None)``.

    *vector_search* and *keyword_search* take ``(query, top_k)``, and ``filter=`` too where a call
    gives one. Both return matches in any shape the middleware reads, such as those of two Pinecone
    indexes, dense and sparse. They run at the same time, the word search in a daemon thread with a
    copy of the caller's context, each for ``max(options.fusion_top_k, top_k)`` candidates; *top_k*
    is *options.search_top_k* by default.

    A call returns records ``{"id", "score", "text", "metadata"}`` (and ``"namespace"`` where there
    is one), best first, equal ones by id. The score is 0 to 1 by the method ``weighted`` and 0 to 1
    / (rrf_k + 1) by ``rrf``, with weights taken as shares of their sum; beside it stand
    ``"vector_score"`` and ``"bm25_score"``, the searches' own, ``None`` where that search did not
    find the passage. Where scores are missing or do not follow the order, ranks count.

    Within a search that a middleware makes beside its original, the word search's thread is one of
    that middleware's ``limits.maxThreads``; elsewhere at most 256 word searches run at a time.

    A search of weight 0 is not run. What the vector search raises passes through; where the word
    search fails, or is not there *patience* seconds after the vector search, the result is that of
    the vector search alone, and the first time is logged as a warning. Raises `ConfigError` where
    both weights are 0 and `WrapError` for async functions.
    """

    def __init__(
        self,
        vector_search: Search,
        keyword_search: Search,
        *,
        options: HybridSettings | None = None,
        preprocess: PreprocessSettings | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._options = options = options or HybridSettings()
        self._preprocess = preprocess or PreprocessSettings()
        self._vector_search, self._keyword_search = vector_search, keyword_search
        self._patience = patience
        self._has_warned = False
        self._bulkhead = Bulkhead()
        whole = options.vector_weight + options.bm25_weight
        if not whole > 0:
            raise ConfigError(
                "hybrid.vectorWeight and hybrid.bm25Weight are both 0; set one of them above 0",
                path="hybrid.vectorWeight",
                allowed="at least one weight above 0",
            )
        if is_async(vector_search) or is_async(keyword_search):
            raise WrapError("hybrid search needs plain functions, not async functions")
        self._weights = options.vector_weight / whole, options.bm25_weight / whole
        # So that whoever reads the signature sees how many passages a call without top_k gives.
        own = inspect.signature(self.__call__)
        top_k = own.parameters["top_k"].replace(default=options.search_top_k)
        self.__signature__ = own.replace(
            parameters=list(({**own.parameters, "top_k": top_k}).values())
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(options={self._options!r})"

    def __call__(
        self,
        query: str,
        top_k: int | None = None,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """The best *top_k* passages for *query* that meet *filter*."""
        top_k = self._options.search_top_k if top_k is None else top_k
        if top_k < 1:
            return []
        width = max(self._options.fusion_top_k, top_k)
        condition = {} if filter is None else {"filter": filter}
        vector_weight, bm25_weight = self._weights

        def search_vectors() -> _Results:
            return _read_results(
                query, vector_weight, self._vector_search(query, width, **condition)
            )

        def search_words() -> _Results:
            keywords = self._keywords(query)
            return _read_results(
                keywords, bm25_weight, self._keyword_search(keywords, width, **condition)
            )

        if not bm25_weight:
            return self._merge(search_vectors(), None, top_k)
        if not vector_weight:
            return self._merge(None, search_words(), top_k)
        bulkhead = current_bulkhead() or self._bulkhead
        words = _start(search_words, bulkhead)
        vectors = search_vectors()
        return self._merge(vectors, self._wait_for(words, bulkhead), top_k)

    def _merge(self, vectors: _Results | None, words: _Results | None, top_k: int) -> list[Record]:
        """Returns the best *top_k* records of both searches, whose lists are noted for who asked."""
        for name, results in (("vector", vectors), ("bm25", words)):
            if results is not None:
                note_initial_list(name, results.ranking)
        return _merge(vectors, words, self._options, top_k)

    def _keywords(self, query: str) -> str:
        rules = self._preprocess
        if not rules.enabled:
            return query
        return to_keywords(
            query,
            language=rules.language,
            keep_words=rules.keep_words,
            extra_words=rules.extra_words,
        )

    def _wait_for(self, words: Future[_Results], bulkhead: Bulkhead) -> _Results | None:
        """Returns what the word search found, ``None`` where it failed or is late; a foreign error is named by kind."""
        try:
            return words.result(timeout=self._patience)
        except Exception as error:
            bulkhead.give_up(not words.done())
            level, self._has_warned = logging.DEBUG if self._has_warned else logging.WARNING, True
            kind = type(error).__name__
            why = error if isinstance(error, StoreError) and error.__cause__ is None else kind
            about: dict[str, Any] = {"event": "word_search_failed", "error": kind}
            logger.log(
                level,
                "the keyword search failed (%s); only the vector search was used",
                why,
                **about,
            )
            return None


def _start(search: Callable[[], _Results], bulkhead: Bulkhead) -> Future[_Results]:
    """Performs *search* in a daemon thread of ours, in a copy of the caller's context, while the caller goes on."""
    future: Future[_Results] = Future()

    def work() -> None:
        try:
            future.set_result(search())
        except BaseException as error:
            # In a thread of ours nobody else would hear of an interrupt or exit.
            future.set_exception(error)

    try:
        bulkhead.start(partial(copy_context().run, work))
    except ModelError as error:
        future.set_exception(error)
    return future


def _merge(
    vectors: _Results | None, words: _Results | None, options: HybridSettings, top_k: int
) -> list[Record]:
    """Returns the best *top_k* records of both searches."""
    searches = [results for results in (vectors, words) if results is not None]
    ranked = sum_weighted([it.ranking for it in searches], options.method, rrf_k=options.rrf_k)
    return [
        {
            **_build_record(key, searches),
            "score": score,
            "vector_score": vectors.score(key) if vectors is not None else None,
            "bm25_score": words.score(key) if words is not None else None,
        }
        for key, score in ranked[:top_k]
    ]


def _build_record(key: Key, searches: Sequence[_Results]) -> Record:
    """Returns a passage as the first search that found it has it; what that lacks comes from the other."""
    first, *others = [results.record(key) for results in searches if key in results.places]
    for other in others:
        first["text"] = first["text"] or other["text"]
        first["metadata"] = first["metadata"] or other["metadata"]
    return first


class HybridSearch(Hybrid):
    """A store searched by vectors and by words at the same time; all else is as `Hybrid` says.

    *embedder* makes the question's vector; a store that embeds gets the text itself and needs none.
    Raises `StoreError` where the store has no word search, `ConfigError` where it takes vectors and
    there is no embedder.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder | None,
        *,
        options: HybridSettings | None = None,
        preprocess: PreprocessSettings | None = None,
    ) -> None:
        options = options or HybridSettings()
        if options.bm25_weight and not isinstance(store, KeywordStore):
            raise StoreError(
                f"{type(store).__name__} has no keyword search, which hybrid.enabled needs; use"
                " sqlite, lancedb or pinecone with store.sparseIndex, or set hybrid.bm25Weight"
                " to 0"
            )
        if options.vector_weight and not store.embeds and embedder is None:
            raise ConfigError(
                f"{type(store).__name__} needs vectors; pass an embedder", path="embedder"
            )

        def nearest(query: str, top_k: int, **condition: Any) -> list[Record]:
            if store.embeds or embedder is None:
                return store.search(query, top_k, **condition)
            began = perf_counter()
            vector = embedder.embed([query])[0]
            note_embedding(perf_counter() - began)
            return store.search(vector, top_k, **condition)

        word_search: Search = store.keyword_search if isinstance(store, KeywordStore) else nearest
        super().__init__(nearest, word_search, options=options, preprocess=preprocess)
