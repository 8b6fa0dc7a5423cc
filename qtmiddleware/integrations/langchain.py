"""Wrap a retriever, vector store, runnable or function as a LangChain retriever.

    from qtmiddleware.integrations.langchain import QueryTransformRetriever

    retriever = QueryTransformRetriever(
        retriever=vectorstore.as_retriever(), config="balanced", client=llm, k=4
    )
    history = [HumanMessage("..."), AIMessage("...")]
    documents = retriever.invoke("And last year?", history=history)

Every search runs as a child of the retriever's run, so callbacks and traces show the searches.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import Adapter, convert_matches
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.binding import find_top_k_name

with require_package("langchain-core", "0.3.86", extra="langchain"):
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
    )
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables import Runnable
    from langchain_core.runnables.base import RunnableBindingBase
    from langchain_core.runnables.config import patch_config, set_config_context
    from langchain_core.vectorstores import VectorStore, VectorStoreRetriever
    from pydantic import ConfigDict, Field, PrivateAttr

_ACCEPTED: Final = (
    "a retriever or other Runnable of LangChain, a vector store, a function of a query (plain or"
    " async), or a function that qtm.middleware wrapped"
)
_OPTIONS: Final = (
    *("config", "client", "reranker", "redact"),
    *("observers", "on_retrieval", "clock", "cache"),
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

    qtmiddleware asks a vector store, its retriever, or a retriever whose method takes a number for
    more than *k* documents, to have candidates for reranking. Make any other one return about 50
    documents. A retriever that searches by ``mmr`` is asked for exactly *k* documents, because more
    would reduce the variety.

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
    cache: Any = Field(default=None, frozen=True, repr=False)

    _adapter: Adapter = PrivateAttr()
    _default_k: int | None = PrivateAttr(default=None)

    if not TYPE_CHECKING:  # Type checkers derive the signature from the fields.

        def __init__(self, **fields: Any) -> None:
            # No pydantic validator: pydantic would turn the errors raised here into its own.
            super().__init__(**fields)
            inner, bound = _unwrap_bindings(self.retriever)
            name, self._default_k = _find_k(inner, bound)
            self._adapter = Adapter(
                _make_functions(self.retriever, inner),
                {name: getattr(self, name) for name in _OPTIONS},
                accepted=_ACCEPTED,
                count_name=name,
                never_widens=getattr(inner, "search_type", None) == "mmr",
            )

    def retrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        **arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``raw`` of a match is the document or the (document, score) pair that your
        retriever returned. *arguments* are those of `invoke`: *history*, *qtm_config*, and your
        retriever's own.

        Exceptions of your retriever pass through unchanged.
        """
        return self._adapter.retrieve(
            query,
            arguments,
            k,
            self.k,
            self._default_k,
        )

    async def aretrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        **arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `retrieve`."""
        return await self._adapter.aretrieve(
            query,
            arguments,
            k,
            self.k,
            self._default_k,
        )

    @property
    def search(self) -> Any:
        """The wrapped function that `invoke` calls. Use it to call ``check`` or ``answer``."""
        return self._adapter.search

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        **arguments: Any,
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        with set_config_context(config) as context:
            retrieval = context.run(self.retrieve, query, **arguments)
        return _convert(retrieval)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        **arguments: Any,
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        with set_config_context(config) as context:
            retrieving = self.aretrieve(query, **arguments)
            retrieval = await asyncio.create_task(retrieving, context=context)
        return _convert(retrieval)


def _make_functions(retriever: Any, inner: Any) -> tuple[Any, ...]:
    """Return *retriever*, which calls *inner*, as a function and, if possible, an async one."""
    if isinstance(retriever, VectorStore):
        # The base class has a method with scores too, but it only raises an error.
        own_method = type(inner).similarity_search_with_score
        if own_method is VectorStore.similarity_search_with_score:
            return inner.similarity_search, inner.asimilarity_search
        return inner.similarity_search_with_score, inner.asimilarity_search_with_score
    if not isinstance(retriever, Runnable):
        return (retriever,)

    def search(query: Any, **arguments: Any) -> Any:
        return retriever.invoke(query, **arguments)

    async def asearch(query: Any, **arguments: Any) -> Any:
        return await retriever.ainvoke(query, **arguments)

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.invoke"
    # LangChain's default asynchronous method calls the blocking one in a thread, without its
    # arguments. The middleware calls the blocking one in a thread of its own instead.
    own_method = getattr(type(inner), "_aget_relevant_documents", None)
    if own_method is BaseRetriever._aget_relevant_documents:
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


def _find_k(
    inner: Any,
    bound: dict[str, Any],
) -> tuple[str | None, int | None]:
    """Return the name and the default of the argument for the number of documents, if known.

    *bound* are the arguments that are bound to *inner*. A retriever that takes any argument may
    pass them to a client that rejects a number, so only a method's own parameter counts.
    """
    if not isinstance(inner, BaseRetriever):
        return None, None
    if isinstance(inner, VectorStoreRetriever):
        fields, name = inner.search_kwargs, "k"
        parameters = inspect.signature(inner.vectorstore.similarity_search).parameters
    else:
        fields = vars(inner)
        parameters = inspect.signature(inner._get_relevant_documents).parameters
        name = find_top_k_name(parameters) or ""
    values = {**fields, **bound}.get(name), getattr(parameters.get(name), "default", None)
    number = next((value for value in values if type(value) is int and value > 0), None)
    return name or None, number


def _convert(retrieval: Retrieval) -> list[Document]:
    return [document for document, _ in convert_matches(retrieval, Document, _make_document)]


def _make_document(
    id_: str | None,
    text: str,
    metadata: dict[str, Any],
) -> Document:
    return Document(id=id_, page_content=text, metadata=metadata)
