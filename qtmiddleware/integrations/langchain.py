"""Wrap a retriever, vector store, runnable or function as a LangChain retriever.

    from qtmiddleware.integrations.langchain import QueryTransformRetriever

    retriever = QueryTransformRetriever(
        retriever=vectorstore.as_retriever(), config="balanced", client=llm, k=4
    )
    history = [HumanMessage("..."), AIMessage("...")]
    documents = retriever.invoke("And last year?", history=history)

Every search runs as a child of the retriever's run, so callbacks and traces show the searches.
After each retrieval, callback handlers receive the custom event `EVENT` with the details.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import MIDDLEWARE_OPTIONS, Adapter
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.binding import find_top_k_name

with require_package("langchain-core", "0.3.86", extra="langchain"):
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
        adispatch_custom_event,
        dispatch_custom_event,
    )
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import Runnable, RunnableConfig
    from langchain_core.runnables.base import RunnableBindingBase
    from langchain_core.runnables.config import patch_config, set_config_context
    from langchain_core.vectorstores import VectorStore
    from pydantic import ConfigDict, Field, PrivateAttr

EVENT: Final = "qtmiddleware.retrieval"
"""The name of the custom event that each retrieval sends. Its data is a query-log record."""

_ACCEPTED: Final = (
    "a retriever or other Runnable of LangChain, a vector store, a function of a query (plain or"
    " async), or a function that qtm.middleware wrapped"
)


class QueryTransformRetriever(BaseRetriever):
    """A LangChain retriever that improves the results of your *retriever*.

    Only *k* can be changed after creation. ``invoke`` passes its arguments on to *retriever*,
    except:

    - ``history``: the conversation so far, as LangChain messages or any other history that
      `Wrapped.retrieve` accepts.
    - ``qtm_config``: settings for this call, or the name of a preset.

    The fields *config*, *client*, *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are
    the arguments of `QueryMiddleware`.

    *retriever* is one of:

    - A vector store. Its scores improve the ranking.
    - A retriever or another Runnable. It returns no scores.
    - A sync or async function that takes a query. Let it return (document, score) pairs, because
      scores improve the ranking.
    - A function that is already wrapped.

    Results that are not documents, such as Pinecone's matches, are converted.

    qtmiddleware asks the retriever for more than *k* documents, to have candidates for reranking.
    If your retriever takes no number of documents, make it return about 50 documents. A retriever
    that searches by ``mmr`` is asked for exactly *k* documents, because more would reduce the
    variety.

    Attributes:
        retriever: Your retriever, as described above.
        k: The number of documents to return; by default the retriever's own number. The ``k`` of
            ``invoke(query, k=...)`` overrides this number.

    Raises:
        ConfigError: *retriever* has an unsupported type, or a setting is not valid.
        ValidationError: A field is unknown. The error is pydantic's.
    """

    model_config = ConfigDict(
        arbitrary_types_allowed=True,
        extra="forbid",
        validate_assignment=True,
    )

    retriever: Any = Field(frozen=True)
    k: int | None = Field(default=None, gt=0)
    config: Any = Field(default=None, frozen=True)
    client: Any = Field(default=None, frozen=True, repr=False)
    reranker: Any = Field(default=None, frozen=True, repr=False)
    redact: Any = Field(default=None, frozen=True, repr=False)
    observers: Any = Field(default=(), frozen=True, repr=False)
    on_retrieval: Any = Field(default=None, frozen=True, repr=False)
    clock: Any = Field(default=None, frozen=True, repr=False)

    _adapter: Adapter = PrivateAttr()
    _default_k: int | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # Type checkers derive the signature from the fields.

        def __init__(self, **fields: Any) -> None:
            # No pydantic validator: pydantic would turn the errors raised here into its own.
            super().__init__(**fields)
            inner, bound = _unwrap_bindings(self.retriever)
            name, self._default_k = _find_k(inner, bound)
            self._adapter = Adapter(
                _make_functions(self.retriever, inner, name),
                {name: getattr(self, name) for name in MIDDLEWARE_OPTIONS},
                accepted=_ACCEPTED,
                items="documents",
                awaited="`ainvoke` or `aretrieve`",
                count_name=name,
                never_widens=getattr(inner, "search_type", None) == "mmr",
            )

    def retrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        history: Iterable[Any] | None = None,
        config: RunnableConfig | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
        **retriever_arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``raw`` of a match is the document or the (document, score) pair that your
        retriever returned. `invoke` returns only the documents.

        Args:
            query: The question.
            k: The number of documents to return. Overrides the field *k*.
            history: The conversation so far.
            config: LangChain's config for the call. Its callbacks see the searches.
            qtm_config: Settings for this call, or the name of a preset.
            retriever_arguments: More arguments for your retriever.

        Raises:
            ConfigError: A setting is not valid.
            WrapError: Your retriever is an async function. Use `aretrieve`.

        Exceptions of your retriever pass through unchanged.
        """
        arguments = {
            **retriever_arguments,
            "history": history,
            "qtm_config": qtm_config,
        }
        ask = partial(
            self._adapter.retrieve,
            query,
            arguments,
            *(k, self.k, self._default_k),
        )
        if config is None:
            return ask()
        with set_config_context(config) as context:
            return context.run(ask)

    async def aretrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        history: Iterable[Any] | None = None,
        config: RunnableConfig | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
        **retriever_arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `retrieve`."""
        arguments = {
            **retriever_arguments,
            "history": history,
            "qtm_config": qtm_config,
        }
        retrieving = self._adapter.aretrieve(
            query,
            arguments,
            *(k, self.k, self._default_k),
        )
        if config is None:
            return await retrieving
        with set_config_context(config) as context:
            return await asyncio.create_task(retrieving, context=context)

    @property
    def search(self) -> Any:
        """The wrapped function that `invoke` calls. Use it to call ``check`` or ``answer``."""
        return self._adapter.search

    def model_copy(
        self,
        *,
        update: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> QueryTransformRetriever:
        """Return a copy of this retriever with the fields in *update* replaced.

        The copy shares the values of the other fields, even with ``deep=True``, because they may
        hold connections or locks.
        """
        return type(self)(**{**self._get_fields(), **(update or {})})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> QueryTransformRetriever:
        return self.model_copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._adapter.reduce(self, self._get_fields())

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        **retriever_arguments: Any,
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        retrieval = self.retrieve(query, config=config, **retriever_arguments)
        if _has_event_listener(run_manager):
            record = self._adapter.build_record(retrieval)
            dispatch_custom_event(EVENT, record, config=config)
        return self._convert(retrieval)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        **retriever_arguments: Any,
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        retrieval = await self.aretrieve(query, config=config, **retriever_arguments)
        if _has_event_listener(run_manager):
            record = self._adapter.build_record(retrieval)
            await adispatch_custom_event(EVENT, record, config=config)
        return self._convert(retrieval)

    def _convert(self, retrieval: Retrieval) -> list[Document]:
        return self._adapter.convert_matches(retrieval, Document, _make_document)

    def _get_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}


def _make_functions(
    retriever: Any,
    inner: Any,
    count_name: str | None,
) -> tuple[Any, ...]:
    """Return *retriever*, which calls *inner*, as a function and, if possible, an async one."""
    if isinstance(retriever, VectorStore):
        # The base class has a method with scores too, but it only raises an error.
        own_method = type(inner).similarity_search_with_score
        if own_method is VectorStore.similarity_search_with_score:
            return inner.similarity_search, inner.asimilarity_search
        return (
            inner.similarity_search_with_score,
            inner.asimilarity_search_with_score,
        )
    if not isinstance(retriever, Runnable):
        return (retriever,)

    def search(query: Any, **arguments: Any) -> Any:
        return retriever.invoke(query, **arguments)

    async def asearch(query: Any, **arguments: Any) -> Any:
        return await retriever.ainvoke(query, **arguments)

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.invoke"
    # LangChain's default asynchronous method calls the blocking one in a thread and takes no
    # arguments, so it could not pass the number on. Then the middleware uses its own thread.
    if count_name and not _accepts(inner._aget_relevant_documents, count_name):
        return (search,)
    return search, asearch


def _unwrap_bindings(runnable: Any) -> tuple[Any, dict[str, Any]]:
    """Return the runnable that ``bind`` or ``with_config`` wrapped, and its bound arguments."""
    arguments: dict[str, Any] = {}
    while isinstance(runnable, RunnableBindingBase):
        # In nested bindings, the outer one overrides the inner one.
        arguments = {**runnable.kwargs, **arguments}
        runnable = runnable.bound
    return runnable, arguments


def _find_k(inner: Any, bound: dict[str, Any]) -> tuple[str | None, int | None]:
    """Return the name and the default of the argument for the number of documents, if known.

    *bound* are the arguments that are bound to *inner*.
    """
    if not isinstance(inner, BaseRetriever):
        return None, None
    fields = {**vars(inner), **getattr(inner, "search_kwargs", {}), **bound}
    store = getattr(inner, "vectorstore", None)
    method = inner._get_relevant_documents
    name = find_top_k_name(inspect.signature(method).parameters)
    if name is None and _accepts(method, ""):
        # A retriever that accepts any argument may ask a model about each document, as compressors
        # do. So it is asked for more documents only if it has such a field or a store.
        usual = None if store is None else "k"
        name = next((it for it in ("k", "top_k") if it in fields), usual)
    values = [fields.get(name)]
    for search in (method, getattr(store, "similarity_search", None)):
        parameter = inspect.signature(search).parameters.get(name or "") if search else None
        values.append(getattr(parameter, "default", None))
    return name, next((it for it in values if type(it) is int and it > 0), None)


def _accepts(method: Callable[..., Any], argument_name: str) -> bool:
    """Return whether *method* accepts a keyword argument *argument_name*."""
    parameters = inspect.signature(method).parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    return argument_name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def _has_event_listener(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
) -> bool:
    """Return whether a callback handler in *run_manager* receives custom events."""
    # Without a listener, building the record would cost time for nothing.
    handlers = run_manager.inheritable_handlers
    return not all(handler.ignore_custom_event for handler in handlers)


def _make_document(id_: str | None, text: str, metadata: dict[str, Any]) -> Document:
    return Document(id=id_, page_content=text, metadata=metadata)
