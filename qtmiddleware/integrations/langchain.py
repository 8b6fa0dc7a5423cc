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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.integrations import require_package
from qtmiddleware.types import Match, Retrieval
from qtmiddleware.wrapping.binding import find_top_k_name
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped, refuse_to_pickle

with require_package("langchain-core", "0.3.86", extra="langchain"):
    from langchain_core.callbacks import (
        AsyncCallbackManagerForRetrieverRun,
        CallbackManagerForRetrieverRun,
        adispatch_custom_event,
        dispatch_custom_event,
    )
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever, LangSmithRetrieverParams
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
_K_FIELDS: Final = ("k", "top_k")
_MIDDLEWARE_FIELDS: Final = ("client", "reranker", "redact", "observers", "on_retrieval", "clock")
"""The fields that `QueryMiddleware` gets, except the config."""
_UNREADABLE: Final = ("response", "unreadable")


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
        arbitrary_types_allowed=True, extra="forbid", validate_assignment=True
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

    _search: Any = PrivateAttr()
    _asearch: Any = PrivateAttr()
    _default_k: int | None = PrivateAttr(default=None)
    _never_widens: bool = PrivateAttr(default=False)

    if not TYPE_CHECKING:  # Type checkers derive the signature from the fields.

        def __init__(self, **fields: Any) -> None:
            # No pydantic validator: pydantic would turn the errors raised here into its own.
            super().__init__(**fields)
            self._wrap_retriever()

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
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `ainvoke` or `aretrieve`")
        arguments = self._build_arguments(k, history, qtm_config, retriever_arguments)
        ask = partial(self._search.retrieve, query, **arguments)
        if config is None:
            return self._limit_matches(ask(), k)
        with set_config_context(config) as context:
            return self._limit_matches(context.run(ask), k)

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
        arguments = self._build_arguments(k, history, qtm_config, retriever_arguments)
        retrieving = self._asearch.aretrieve(query, **arguments)
        if config is None:
            return self._limit_matches(await retrieving, k)
        with set_config_context(config) as context:
            return self._limit_matches(await asyncio.create_task(retrieving, context=context), k)

    @property
    def search(self) -> Any:
        """The wrapped function that `invoke` calls. Use it to call ``check`` or ``answer``."""
        return self._search

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, **_: Any
    ) -> QueryTransformRetriever:
        """Return a copy of this retriever with the fields in *update* replaced.

        The copy shares the values of the other fields, even with ``deep=True``, because they may
        hold connections or locks.
        """
        return type(self)(**{**self._get_fields(), **(update or {})})

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> QueryTransformRetriever:
        return self.model_copy()

    def __reduce__(self) -> tuple[Any, ...]:
        if any(getattr(self, name) for name in _MIDDLEWARE_FIELDS):
            raise refuse_to_pickle(self)
        return partial(type(self), **self._get_fields()), ()

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        inner = (
            self.retriever._get_ls_params(**kwargs)
            if isinstance(self.retriever, BaseRetriever)
            else {}
        )
        return LangSmithRetrieverParams(**{**inner, **super()._get_ls_params(**kwargs)})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **retriever_arguments: Any
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        retrieval = self.retrieve(query, config=config, **retriever_arguments)
        if _has_event_listener(run_manager):
            dispatch_custom_event(EVENT, self._build_record(retrieval), config=config)
        return _read_documents(retrieval)

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
            await adispatch_custom_event(EVENT, self._build_record(retrieval), config=config)
        return _read_documents(retrieval)

    def _build_record(self, retrieval: Retrieval) -> dict[str, Any]:
        return build_record(retrieval, TextWriter(self.redact))

    def _get_fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def _wrap_retriever(self) -> None:
        """Wrap the retriever, once for sync calls and once for async calls.

        Raises `ConfigError` if the retriever has an unsupported type.
        """
        inner = self.retriever
        options = self._get_fields()
        settings = {name: options[name] for name in ("config", *_MIDDLEWARE_FIELDS)}
        if isinstance(inner, Wrapped):
            if repeated := [name for name, value in settings.items() if value]:
                raise _build_config_error(
                    f"retriever is already wrapped; set {', '.join(repeated)} where you wrap it",
                    inner,
                )
            self._search = self._asearch = inner
            return
        if not isinstance(inner, Runnable | VectorStore) and (
            not callable(inner) or isinstance(inner, type)
        ):
            raise _build_config_error(
                f"retriever must be {_ACCEPTED}, not {_describe_type(inner)}", inner
            )
        middleware = QueryMiddleware(**settings)
        if isinstance(inner, Runnable):
            name, self._default_k = _find_k_name_and_default(inner)
            self._never_widens = getattr(_unwrap_bindings(inner)[0], "search_type", None) == "mmr"
            functions: tuple[Callable[..., Any], ...] = (_Search(inner, name),)
            # LangChain's default asynchronous method calls the blocking one in a thread and takes
            # no arguments, so it could not pass k on. Then the middleware uses its own thread.
            if name is None or _accepts_argument(
                _unwrap_bindings(inner)[0]._aget_relevant_documents, name
            ):
                functions = (*functions, _AsyncSearch(inner, name))
        elif isinstance(inner, VectorStore):
            functions = _find_search_methods(inner)
        else:
            functions = (inner,)
        self._search = middleware.wrap(functions[0])
        self._asearch = middleware.wrap(functions[-1])

    def _choose_k(self, k: int | None) -> int | None:
        """Return the number of documents to return: *k*, or else the retriever's number.

        Returns ``None`` if no number is set.
        """
        return next((count for count in (k, self.k, self._default_k) if count is not None), None)

    def _build_arguments(
        self,
        k: int | None,
        history: Any,
        qtm_config: Mapping[str, Any] | str | None,
        retriever_arguments: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the keyword arguments for the wrapped function, without the query."""
        count = self._choose_k(k)
        arguments = {**retriever_arguments, "history": history, "qtm_config": qtm_config}
        if (name := self._search.top_k_argument) is not None and count is not None:
            arguments.setdefault(name, count)
        # With *count* candidates, the middleware does not ask the retriever for more.
        if self._never_widens and isinstance(count, int):
            arguments["config"] = {"keywordEvidence": {"candidates": count}}
        return arguments

    def _limit_matches(self, retrieval: Retrieval, k: int | None) -> Retrieval:
        """Return *retrieval*, truncated to *k* documents.

        If *k* is ``None``, the retriever's own number is the limit. If the wrapped function limits
        the number itself, *retrieval* is returned unchanged.
        """
        count = self._choose_k(k) if self._search.top_k_argument is None else None
        return (
            retrieval
            if type(count) is not int or count < 1
            else replace(retrieval, matches=retrieval.matches[:count])
        )


class _Search:
    """Calls *runnable* with a query and the number of documents.

    *k_name* is the name of the runnable's argument for the number of documents; ``None`` if the
    runnable has no such argument.
    """

    def __init__(self, runnable: Runnable[Any, Any], k_name: str | None) -> None:
        self.runnable, self.k_name = runnable, k_name

    def __call__(self, query: Any, k: int | None = None, **retriever_arguments: Any) -> Any:
        return self.limit_documents(
            self.runnable.invoke(query, **self.add_k(k, retriever_arguments)), k
        )

    def add_k(self, k: int | None, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return *arguments* plus the number *k*, under the runnable's name for this argument.

        Returns *arguments* unchanged if *k* is ``None`` or the runnable takes no number of
        documents.
        """
        return arguments if k is None or self.k_name is None else {**arguments, self.k_name: k}

    def limit_documents(self, documents: Any, k: int | None) -> Any:
        """Return the first *k* documents.

        Returns all *documents* if the runnable limits the number itself, or if *k* is ``None``.
        """
        is_longer = (
            k is not None
            and self.k_name is None
            and isinstance(documents, list)
            and len(documents) > k > 0
        )
        return documents[:k] if is_longer else documents

    def __repr__(self) -> str:
        return f"{type(self.runnable).__name__}.invoke"


class _AsyncSearch(_Search):
    """Calls *runnable* asynchronously with a query and the number of documents."""

    async def __call__(self, query: Any, k: int | None = None, **retriever_arguments: Any) -> Any:
        return self.limit_documents(
            await self.runnable.ainvoke(query, **self.add_k(k, retriever_arguments)), k
        )


def _find_search_methods(store: VectorStore) -> tuple[Callable[..., Any], ...]:
    """Return the sync and the async search method of *store*.

    The methods return scores too, if *store* supports scores.
    """
    # The base class has a method with scores too, but it only raises an error.
    if type(store).similarity_search_with_score is VectorStore.similarity_search_with_score:
        return store.similarity_search, store.asimilarity_search
    return store.similarity_search_with_score, store.asimilarity_search_with_score


def _unwrap_bindings(runnable: Any) -> tuple[Any, dict[str, Any]]:
    """Return the runnable that ``bind`` or ``with_config`` wrapped, and its bound arguments.

    If nothing was bound, *runnable* itself and an empty dict are returned.
    """
    arguments: dict[str, Any] = {}
    while isinstance(runnable, RunnableBindingBase):
        # In nested bindings, the outer one overrides the inner one.
        arguments = {**runnable.kwargs, **arguments}
        runnable = runnable.bound
    return runnable, arguments


def _find_k_name_and_default(runnable: Any) -> tuple[str | None, int | None]:
    """Return the name and the default of the runnable's argument for the number of documents.

    The name is ``None`` if there is no such argument. The default is ``None`` if it is unknown.
    """
    inner, arguments = _unwrap_bindings(runnable)
    if not isinstance(inner, BaseRetriever):
        return None, None
    fields = {**vars(inner), **getattr(inner, "search_kwargs", {}), **arguments}
    store = getattr(inner, "vectorstore", None)
    name = find_top_k_name(inspect.signature(inner._get_relevant_documents).parameters)
    if name is None and _accepts_argument(inner._get_relevant_documents, ""):
        # A retriever that accepts any argument may ask a model about each document, as compressors
        # do. So it is asked for more documents only if it has such a field or a store.
        name = next(
            (name for name in _K_FIELDS if name in fields), None if store is None else _K_FIELDS[0]
        )
    if name is None:
        return None, None
    searches = (inner._get_relevant_documents, getattr(store, "similarity_search", None))
    parameters = (
        inspect.signature(search).parameters.get(name) for search in searches if callable(search)
    )
    values = (
        fields.get(name),
        *(parameter.default for parameter in parameters if parameter is not None),
    )
    return name, next((value for value in values if type(value) is int and value > 0), None)


def _accepts_argument(method: Callable[..., Any], argument_name: str) -> bool:
    """Return whether *method* accepts a keyword argument *argument_name*."""
    parameters = inspect.signature(method).parameters
    return argument_name in parameters or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _has_event_listener(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
) -> bool:
    """Return whether a callback handler in *run_manager* receives custom events."""
    # Without a listener, building the record would cost time for nothing.
    return any(not handler.ignore_custom_event for handler in run_manager.inheritable_handlers)


def _read_documents(retrieval: Retrieval) -> list[Document]:
    """Return the documents in *retrieval*, best first.

    Raises `ResponseShapeError` if the retriever's response contains neither documents nor passages.
    """
    if any((entry.stage, entry.reason) == _UNREADABLE for entry in retrieval.degradations):
        shape = _describe_type(retrieval.response)
        message = (
            f"retriever must return documents, (document, score) pairs or passages, not {shape}"
        )
        raise ResponseShapeError(message, shape=shape)
    return [_make_document(match) for match in retrieval.matches]


def _make_document(match: Match) -> Document:
    """Return the document in *match*, or a new document with the match's text and metadata.

    Raises `ResponseShapeError` if *match* has neither a document nor a text.
    """
    raw = match.raw[0] if isinstance(match.raw, tuple | list) and match.raw else match.raw
    if isinstance(raw, Document):
        return raw
    if match.text is None:
        shape = _describe_type(raw)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.fields.text to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    metadata = {name: value for name, value in match.metadata.items() if value is not match.text}
    return Document(id=match.id, page_content=match.text, metadata=metadata)


def _build_config_error(error_message: str, rejected_value: Any) -> ConfigError:
    return ConfigError(
        error_message, path="retriever", value=_describe_type(rejected_value), allowed=_ACCEPTED
    )


def _describe_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
