"""Search by vectors and by words at the same time, and merge the results of both searches.

The vector search gets the question, and the word search gets keywords from the question.

``hybrid.method`` sets how a passage's merged score is computed:

- ``weighted``: the sum of each search's scores, scaled to 0 to 1 (min-max), times its weight. Equal
  scores become 1. A passage gets 0 from a search that did not find it.
- ``rrf``: reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009): the sum of weight /
  (k + rank) over both searches. Ranks begin at 1, and k is ``fusion.rrfK``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any, Final

from qtmiddleware.config.settings import HybridMethod, HybridSettings, PreprocessSettings
from qtmiddleware.errors import ModelError, StoreError, WrapError
from qtmiddleware.preprocessing import preprocess as to_keywords
from qtmiddleware.protocols import Embedder, Filter, KeywordStore, Record, Store
from qtmiddleware.retrieval.call_stack import record_embedding_time, record_unmerged_list
from qtmiddleware.retrieval.fusion import sum_weighted_scores
from qtmiddleware.retrieval.responses import read_response
from qtmiddleware.runtime.concurrency import current_bulkhead, is_async
from qtmiddleware.runtime.logs import LogSampler, get_logger
from qtmiddleware.types import DEFAULT_NAMESPACE, Ranking, Variant

logger: Final = get_logger("qtmiddleware")

# A search function: takes the query, the number of passages, and ``filter=`` if there is one.
Search = Callable[..., Any]


class Hybrid:
    """A search function that merges the results of a vector search and a word search.

    Call the object with ``(query, top_k, filter=None)``. The result is a list of records ``{"id",
    "score", "text", "metadata"}``, sorted by score, best first, then by id. A record also has
    ``"namespace"``, if the passage has one, and the scores of both searches, ``"vector_score"`` and
    ``"bm25_score"``, which are ``None`` for a search that did not find the passage.

    Merged scores are 0 to 1 with the method ``weighted``, and 0 to 1 / (rrf_k + 1) with ``rrf``. If
    a search returns no scores, or results that are not sorted by score, the ranks replace them.

    A search with weight 0 is not run. An exception from the vector search is raised to the caller.
    If the word search fails, only the vector search's passages are returned, with a warning.

    Args:
        vector_search: a function of ``(query, top_k)``, and ``filter=`` if the call has a filter.
            It returns a response in any shape that the middleware reads.
        keyword_search: a function with the same parameters that searches by words.
        options: the settings group ``hybrid``. Each search is asked for ``fusion_top_k`` passages,
            or for *top_k* passages if that is more. ``search_top_k`` is the default of *top_k*.
        rrf_k: the constant k of the method ``rrf``.
        preprocess: the rules that extract the keywords for the word search.

    Raises:
        WrapError: if one of the functions is async.
    """

    def __init__(
        self,
        vector_search: Search,
        keyword_search: Search,
        *,
        options: HybridSettings | None = None,
        rrf_k: int = 60,
        preprocess: PreprocessSettings | None = None,
    ) -> None:
        self._options = options = options or HybridSettings()
        self._rrf_k = rrf_k
        self._preprocess = preprocess or PreprocessSettings()
        self._vector_search, self._keyword_search = vector_search, keyword_search
        self._sampler = LogSampler()
        total_weight = options.vector_weight + options.bm25_weight
        if is_async(vector_search) or is_async(keyword_search):
            raise WrapError("hybrid search needs plain functions, not async functions")
        self._vector_weight = options.vector_weight / total_weight
        self._bm25_weight = options.bm25_weight / total_weight
        # Code that reads the signature, as the middleware does, sees how many passages a call
        # without top_k returns.
        signature = inspect.signature(self.__call__)
        top_k = signature.parameters["top_k"].replace(default=options.search_top_k)
        parameters = {**signature.parameters, "top_k": top_k}
        self.__signature__ = signature.replace(parameters=list(parameters.values()))

    def __repr__(self) -> str:
        return f"Hybrid(options={self._options!r})"

    def __call__(
        self,
        query: str,
        top_k: int | None = None,
        filter: Filter | None = None,  # noqa: A002
    ) -> list[Record]:
        """Return the *top_k* passages that best match *query* and meet *filter*, best first."""
        top_k = self._options.search_top_k if top_k is None else top_k
        if top_k < 1:
            return []
        width = max(self._options.fusion_top_k, top_k)
        # Without a filter, the searches need no parameter for it.
        condition = {} if filter is None else {"filter": filter}
        vector_weight, bm25_weight = self._vector_weight, self._bm25_weight

        def run_search(search: Search, text: str, weight: float) -> Ranking:
            response = search(text, width, **condition)
            return read_response(Variant("original", text, weight), response).ranking

        def search_words() -> Ranking:
            return run_search(self._keyword_search, self._extract_keywords(query), bm25_weight)

        if not vector_weight:
            rankings = {"bm25": search_words()}
        else:
            # The word search starts first, because the vector search blocks this thread.
            pending = _start(search_words) if bm25_weight else None
            rankings = {"vector": run_search(self._vector_search, query, vector_weight)}
            try:
                if pending is not None:
                    rankings["bm25"] = pending.result()
            except Exception as error:
                # Only the kind of the error: its message may quote a text.
                kind = type(error).__name__
                message = "the keyword search failed, so only the vector search was used"
                event = "word_search_failed"
                self._sampler.log(logger, event, {kind: ""}, message=message, error=kind)
        for name, ranking in rankings.items():
            record_unmerged_list(name, ranking)
        return _merge_rankings(rankings, self._options.method, self._rrf_k, top_k)

    def _extract_keywords(self, query: str) -> str:
        rules = self._preprocess
        if not rules.enabled:
            return query
        return to_keywords(
            query,
            language=rules.language,
            keep_words=rules.keep_words,
            extra_words=rules.extra_words,
        )


def _start(search: Callable[[], Ranking]) -> Future[Ranking]:
    """Start *search* in a daemon thread with the caller's context; within the caller's limit."""
    future: Future[Ranking] = Future()

    def perform() -> None:
        try:
            future.set_result(search())
        except BaseException as error:
            # This thread has no other handler: the caller has to see an interrupt or exit too.
            future.set_exception(error)

    try:
        current_bulkhead.get().start(partial(copy_context().run, perform))
    except ModelError as error:
        future.set_exception(error)
    return future


def _merge_rankings(
    rankings: Mapping[str, Ranking], method: HybridMethod, rrf_k: int, top_k: int
) -> list[Record]:
    """Merge the *rankings*, by the name of their search, and return the best *top_k* as records."""
    # If a search returns a passage twice, its first and better position counts.
    positions = {
        name: {key: position for position, key in reversed(list(enumerate(ranking.keys)))}
        for name, ranking in rankings.items()
    }
    records = []
    merged = sum_weighted_scores(list(rankings.values()), method, rrf_k=rrf_k)
    for key, merged_score in merged[:top_k]:
        # The passage's position in each search that found it.
        found = {name: places[key] for name, places in positions.items() if key in places}
        passages = [rankings[name].passages[position] for name, position in found.items()]
        record = {
            "id": passages[0].id,
            "score": merged_score,
            # One of two separate indexes may store no texts or metadata.
            "text": next((passage.text for passage in passages if passage.text), ""),
            "metadata": dict(next((one.metadata for one in passages if one.metadata), {})),
        }
        if key[0] != DEFAULT_NAMESPACE:
            record["namespace"] = key[0]
        for name in ("vector", "bm25"):
            is_found = name in found
            record[f"{name}_score"] = rankings[name].scores[found[name]] if is_found else None
        records.append(record)
    return records


def search_store(
    store: Store,
    embedder: Embedder,
    *,
    options: HybridSettings,
    rrf_k: int,
    preprocess: PreprocessSettings,
) -> Hybrid:
    """Return a function that searches one store by vectors and by words at the same time.

    Raises `StoreError` if *store* has no word search.
    """
    if options.bm25_weight and not isinstance(store, KeywordStore):
        raise StoreError(
            f"{type(store).__name__} has no keyword search, which hybrid.enabled needs; use"
            " sqlite, or set hybrid.bm25Weight to 0"
        )

    def search_vectors(query: str, top_k: int, **filter_argument: Any) -> list[Record]:
        start = perf_counter()
        vector = embedder.embed([query])[0]
        record_embedding_time(perf_counter() - start)
        return store.search(vector, top_k, **filter_argument)

    # With a weight of 0, the second function is never called.
    search_words = getattr(store, "keyword_search", search_vectors)
    return Hybrid(search_vectors, search_words, options=options, rrf_k=rrf_k, preprocess=preprocess)
