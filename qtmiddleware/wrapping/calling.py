"""Call a wrapped function for one question: once for each text to search for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import SetupWarning, is_rate_limit
from qtmiddleware.protocols import RetrievalHook
from qtmiddleware.retrieval.call import Call, build_paging_warning
from qtmiddleware.retrieval.call_stack import RunningCall
from qtmiddleware.retrieval.flow import retrieve
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.responses import Shape, list_fields
from qtmiddleware.runtime.concurrency import IO, Bulkhead
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import Search, Services, arun, run
from qtmiddleware.types import Retrieval, add_degradation
from qtmiddleware.wrapping.binding import QUERIES, Arguments, Binding
from qtmiddleware.wrapping.engine import Engine

if TYPE_CHECKING:
    from qtmiddleware.providers.embedding import CallableEmbedder

logger: Final = get_logger("qtmiddleware")


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class Function:
    """A function that was wrapped, and what its calls have shown.

    *told* holds what the user was told of: ``pages``, the ``question`` that was not found, or the
    ``problem`` that stops improvements.
    """

    fn: Callable[..., Any]
    binding: Binding
    is_async: bool
    shape: Shape | None
    embedder: CallableEmbedder | None
    hook: RetrievalHook | None
    told: set[str]
    learned: Learned = field(default_factory=Learned)


async def await_result(value: Any) -> Any:
    """Return the result of *value*, or *value* if a function only looked asynchronous."""
    return await value if hasattr(value, "__await__") else value


@dataclass(eq=False, repr=False, slots=True)
class Caller:
    """Calls a wrapped function for one `Call`, and if it *is_shadowed* once more afterwards.

    The first call for the question gets the caller's own objects. The function may change these, so
    every other call gets copies of what *unchanged* holds.
    """

    function: Function
    arguments: Arguments
    call: Call
    engine: Engine
    is_shadowed: bool = False
    unchanged: Arguments = field(init=False)
    was_called: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Copy the arguments before the function can change them."""
        self.unchanged = self.arguments.copy()

    # --- the whole flow ---------------------------------------------------------------------------

    def retrieve(self) -> Retrieval:
        """Return the finished retrieval."""
        return self.finish_retrieval(run(partial(retrieve, self.call), self.bulkhead, self.search))

    async def aretrieve(self) -> Retrieval:
        """Return the finished retrieval, without blocking the event loop."""
        return self.finish_retrieval(
            await arun(partial(retrieve, self.call), self.bulkhead, self.search)
        )

    # --- what the flow has done for it ------------------------------------------------------------

    @property
    def bulkhead(self) -> Bulkhead:
        """The thread pool for all work except the search for the original query."""
        return self.engine.bulkhead

    async def search(self, search: Search, services: Services) -> Any:
        """Call the function for the text of *search*, and return its response.

        If it fails for more passages than the caller asked for, it is called again with the
        caller's own number. Exceptions from the last call pass through.
        """
        query: Any = search.text
        if self.call.embedder is not None and query is not None:
            query = search.vector
            if query is None:
                began = perf_counter()
                (query,) = await services.embed(self.call.embedder, (search.text or "",))
                search.embed_seconds = perf_counter() - began
        widening, narrow_by = self.call.learned.widening, search.narrow_by
        try:
            return await self._run_search(search, query, search.top_k, services.io)
        except Exception as error:
            # Another call is the last thing that a service with too many calls needs.
            if narrow_by is None or search.top_k is None or is_rate_limit(error):
                raise
            if narrow_by.passed:
                # The next calls ask for fewer passages at once. Nobody waits for a variant now.
                widening.stop()
                if search.kind != "original":
                    raise
        response = await self._run_search(search, query, None, services.io)
        search.top_k = None
        widening.stop()
        return response

    # --- one search -------------------------------------------------------------------------------

    async def _run_search(self, search: Search, query: Any, top_k: int | None, io: IO) -> Any:
        if not self.function.is_async:
            return await io.blocking(partial(self._block, search, query, top_k))
        with RunningCall(search) as call:
            call.fn = self.function.fn
            return await await_result(self._call_function(search, query, top_k))

    def _block(self, search: Search, query: Any, top_k: int | None) -> Any:
        with RunningCall(search) as call:
            call.fn = self.function.fn
            return self._call_function(search, query, top_k)

    def _call_function(self, search: Search, query: Any, top_k: int | None) -> Any:
        is_first = search.kind == "original" and not self.was_called
        self.was_called |= is_first
        arguments = self.arguments if is_first else self.unchanged.copy()
        is_own = query is None or query is self.call.original
        if top_k is not None:
            arguments = arguments.replace_top_k(top_k)
        arguments = arguments.move_query() if is_own else arguments.replace(query)
        return self.function.fn(*arguments.args, **arguments.kwargs)

    # --- afterwards -------------------------------------------------------------------------------

    def finish_retrieval(self, retrieval: Retrieval) -> Retrieval:
        """Log *retrieval*, and return it, with a degradation if the query log cannot be written."""
        self.warn_about_setup_once(retrieval)
        # In shadow mode, the record of the shadow holds the plain function's result too.
        if self.engine.log is not None and not self.is_shadowed:
            degradation = self.engine.log.append_record(retrieval)
            if degradation is not None:
                retrieval = add_degradation(retrieval, degradation)
        if logger.isEnabledFor(logging.DEBUG):
            from qtmiddleware.wrapping.query_log import log_texts

            log_texts(retrieval, self.engine.redact)
        if self.is_shadowed:
            # The shadow really changes the results, tells no hook and has no shadow.
            settings = replace(self.call.settings, shadow=None)
            call = replace(self.call, settings=settings, hooks=())
            shadow = replace(self, arguments=self.unchanged, call=call, is_shadowed=False)
            self.engine.shadow_runs.start(shadow, retrieval)
        return retrieval

    def warn_about_setup_once(self, retrieval: Retrieval) -> None:
        """Warn once if the function returns pages, and once if its results cannot be improved."""
        learned, told = self.call.learned, self.function.told
        query_id, name = retrieval.trace.query_id, self.function.binding.function_name
        problem = self.call.problem
        if problem is not None and problem.reason == "not_text" and "question" not in told:
            fields = list_fields(self.call.original)
            texts = [usual for usual in QUERIES if isinstance(fields.get(usual), str)]
            if texts:
                told.add("question")
                path = f"{self.function.binding.argument}.{texts[0]}"
                message = f"{name}(): the question is not found; name it by query_arg='{path}'"
                self._warn(message, query_id)
        # A user who named the argument knows about the pages.
        page = "" if self.function.binding.is_page_named else learned.page
        if page and "pages" not in told:
            told.add("pages")
            message = f"{name}(): {build_paging_warning(page)}, with page_arg={page!r} if it does"
            logger.warning("%s", message, event="paged", query_id=query_id)
        if learned.problem and "problem" not in told:
            told.add("problem")
            self._warn(f"{name}(): {learned.problem} (details: .check(question))", query_id)

    def _warn(self, message: str, query_id: str) -> None:
        logger.warning("%s", message, event="setup_problem", query_id=query_id)
        # A warning filter may turn the warning into an error, which would cost the user the
        # result.
        with suppress(Exception):
            warnings.warn(message, SetupWarning, stacklevel=1)
