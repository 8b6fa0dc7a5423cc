"""A retriever of LangChain with the middleware in it, around any retriever, store, runnable or function.

    from qtmiddleware.integrations.langchain import QueryTransformRetriever

    retriever = QueryTransformRetriever(retriever=vectorstore.as_retriever(), config="balanced",
    client=llm, k=4) documents = retriever.invoke("And last year?", history=[HumanMessage("..."),
    AIMessage("...")])

Every search runs under the retriever's own run, so that callbacks and traces show it. Where
somebody listens, the custom event `EVENT` tells how the documents were found.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.integrations import needs
from qtmiddleware.types import Match, Retrieval
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.signatures import TOP_KS
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

with needs("langchain-core", "0.3.86", extra="langchain"):
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
"""The custom event of each retrieval; its data is the record that the query log has, with the same keys."""

_ACCEPTED: Final = (
    "a retriever or other Runnable of LangChain, a vector store, a function of a query (plain or"
    " async), or a function that qtm.middleware wrapped"
)
_USUAL: Final = ("k", "top_k")
_OF_MIDDLEWARE: Final = ("client", "reranker", "redact", "observers", "on_retrieval", "clock")
"""What of `QueryMiddleware` a retriever is made with, beside the config. Copies of the retriever share it."""
_UNREADABLE: Final = ("response", "unreadable")


class QueryTransformRetriever(BaseRetriever):
    """Finds better documents with the *retriever* you have; `invoke` and its kin return documents of that retriever.

    *retriever* is a retriever or other Runnable, a vector store, a function of a query, plain or
    async, or a function that is wrapped already, which brings its own options. A store and a
    function that returns pairs of document and score show the middleware scores, which it weighs
    better with than with the bare order of a retriever. What is no document, as a match of
    Pinecone, becomes one.

    *k* is how many documents to return, by default what *retriever* returns by itself;
    ``invoke(query, k=...)`` goes before it. Where *retriever* takes such a number it is asked for
    more, so that there is something to weigh, else it should return more by itself (some 50) and
    *k* be given. One that searches by ``mmr`` is never asked for more, which would undo the variety
    of its documents.

    *config*, *client*, *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are those of
    `QueryMiddleware`; but *k* they cannot be set later. Further arguments of a call go to
    *retriever*, ``history`` and ``qtm_config`` excepted: the conversation so far, as messages of
    LangChain or what else `Wrapped.retrieve` takes, and settings for the call.

    Raises `ConfigError` for a *retriever* that is none and for bad settings, and pydantic's
    ``ValidationError`` for what is no field.
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
    _usual_k: int | None = PrivateAttr(default=None)
    _keeps_width: bool = PrivateAttr(default=False)

    if not TYPE_CHECKING:  # Type checkers go by the fields.

        def __init__(self, **fields: Any) -> None:
            # Not a validator of pydantic: that would make a ValidationError of what is raised here.
            super().__init__(**fields)
            self._wrap()

    def retrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        history: Iterable[Any] | None = None,
        config: RunnableConfig | None = None,
        qtm_config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Retrieval:
        """What `invoke` returns as ``matches``, each with its scores, and the account of how it was found.

        A match's ``raw`` is the document or the pair that was found. *config* is LangChain's, under
        whose callbacks the searches run; *more* goes to the inner retriever. Raises what that
        raises, `ConfigError` for bad settings, and `WrapError` around an asynchronous function.
        """
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `ainvoke` or `aretrieve`")
        given = self._arguments(k, history, qtm_config, more)
        ask = partial(self._search.retrieve, query, **given)
        if config is None:
            return self._cut(ask(), k)
        with set_config_context(config) as context:
            return self._cut(context.run(ask), k)

    async def aretrieve(
        self,
        query: str,
        *,
        k: int | None = None,
        history: Iterable[Any] | None = None,
        config: RunnableConfig | None = None,
        qtm_config: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Retrieval:
        """`retrieve` without blocking the running loop."""
        given = self._arguments(k, history, qtm_config, more)
        asking = self._asearch.aretrieve(query, **given)
        if config is None:
            return self._cut(await asking, k)
        with set_config_context(config) as context:
            return self._cut(await asyncio.create_task(asking, context=context), k)

    @property
    def search(self) -> Any:
        """The wrapped function behind `invoke`: its ``check(question)``, ``answer(...)`` and ``middleware``."""
        return self._search  # a `Wrapped`, or the method that a wrapped one is on its object

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> QueryTransformRetriever:
        """A retriever made of the same fields, or of copies of them as in `copy.deepcopy`, and of *update*."""
        return type(self)(
            **{**(self._copy_fields({}) if deep else self._fields()), **(update or {})}
        )

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> QueryTransformRetriever:
        return type(self)(**self._copy_fields({} if memo is None else memo))

    def _copy_fields(self, memo: dict[int, Any]) -> dict[str, Any]:
        """Copies of the fields; a client, and what else may hold connections, threads or locks, is shared."""
        fields = self._fields()
        return {
            **copy.deepcopy({it: fields[it] for it in fields if it not in _OF_MIDDLEWARE}, memo),
            **{it: fields[it] for it in _OF_MIDDLEWARE},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # What was made along the way (threads, locks, clients of ours) is that of the other
        # process.
        return partial(type(self), **self._fields()), ()

    def _get_ls_params(self, **kwargs: Any) -> LangSmithRetrieverParams:
        inner = (
            self.retriever._get_ls_params(**kwargs)
            if isinstance(self.retriever, BaseRetriever)
            else {}
        )
        return LangSmithRetrieverParams(**{**inner, **super()._get_ls_params(**kwargs)})

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **more: Any
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        found = self.retrieve(query, config=config, **more)
        if _is_heard(run_manager):
            dispatch_custom_event(EVENT, self._describe(found), config=config)
        return _read_documents(found)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **more: Any
    ) -> list[Document]:
        config = patch_config(None, callbacks=run_manager.get_child())
        found = await self.aretrieve(query, config=config, **more)
        if _is_heard(run_manager):
            await adispatch_custom_event(EVENT, self._describe(found), config=config)
        return _read_documents(found)

    def _describe(self, found: Retrieval) -> dict[str, Any]:
        return build_record(found, TextWriter(self.redact))

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in type(self).model_fields}

    def _wrap(self) -> None:
        """Wrap what *retriever* is searched with, once for blocking and once for awaiting calls."""
        inner, options = self.retriever, self._fields()
        given = {name: options[name] for name in ("config", *_OF_MIDDLEWARE)}
        if isinstance(inner, Wrapped | Bound):
            if set_too := [name for name, value in given.items() if value]:
                raise _refuse(
                    f"retriever is already wrapped; set {', '.join(set_too)} where you wrap it",
                    inner,
                )
            self._search = self._asearch = inner
            return
        if not isinstance(inner, Runnable | VectorStore) and (
            not callable(inner) or isinstance(inner, type)
        ):
            raise _refuse(f"retriever must be {_ACCEPTED}, not {_name_type(inner)}", inner)
        middleware = QueryMiddleware(**given)
        if isinstance(inner, Runnable):
            name, self._usual_k = _find_k(inner)
            self._keeps_width = getattr(_unbind(inner)[0], "search_type", None) == "mmr"
            functions: tuple[Callable[..., Any], ...] = (_Search(inner, name),)
            # LangChain's own asynchronous method, which calls the blocking one in a thread, takes
            # no arguments.
            if name is None or _takes(_unbind(inner)[0]._aget_relevant_documents, name):
                functions = (*functions, _AsyncSearch(inner, name))
        elif isinstance(inner, VectorStore):
            functions = _find_searches(inner)
        else:
            functions = (inner,)
        self._search, self._asearch = middleware.wrap(functions[0]), middleware.wrap(functions[-1])

    def _find_wanted(self, k: int | None) -> int | None:
        """How many documents are wanted of a call that says *k*."""
        return next((it for it in (k, self.k, self._usual_k) if it is not None), None)

    def _arguments(
        self,
        k: int | None,
        history: Any,
        qtm_config: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What the function is called with beside the query."""
        wanted, given = self._find_wanted(k), {**more, "history": history, "qtm_config": qtm_config}
        if (name := self._search.top_k_argument) is not None and wanted is not None:
            given.setdefault(name, wanted)
        if self._keeps_width and isinstance(wanted, int):
            given["qtm_config"] = {"keywordEvidence": {"candidates": wanted}, **(qtm_config or {})}
        return given

    def _cut(self, found: Retrieval, k: int | None) -> Retrieval:
        """The best of what was *found* by a function that cannot be told how many are wanted."""
        wanted = self._find_wanted(k) if self._search.top_k_argument is None else None
        return (
            found
            if type(wanted) is not int or wanted < 1
            else replace(found, matches=found.matches[:wanted])
        )


class _Search:
    """Calls *runnable* as a function of a query and *k*, which it is passed as *k_name* where it takes that."""

    def __init__(self, runnable: Runnable[Any, Any], k_name: str | None) -> None:
        self.runnable, self.k_name = runnable, k_name

    def __call__(self, query: Any, k: int | None = None, **more: Any) -> Any:
        return self.cut(self.runnable.invoke(query, **self.name_k(k, more)), k)

    def name_k(self, k: int | None, more: dict[str, Any]) -> dict[str, Any]:
        """*more* with *k* in it."""
        return more if k is None or self.k_name is None else {**more, self.k_name: k}

    def cut(self, found: Any, k: int | None) -> Any:
        """No more than were asked for, of one that cannot be asked."""
        is_longer = (
            k is not None and self.k_name is None and isinstance(found, list) and len(found) > k > 0
        )
        return found[:k] if is_longer else found

    def __repr__(self) -> str:
        return f"{type(self.runnable).__name__}.invoke"


class _AsyncSearch(_Search):
    """The same, to be awaited."""

    async def __call__(self, query: Any, k: int | None = None, **more: Any) -> Any:
        return self.cut(await self.runnable.ainvoke(query, **self.name_k(k, more)), k)


def _find_searches(store: VectorStore) -> tuple[Callable[..., Any], ...]:
    """The store's own search, with scores where it has them."""
    if type(store).similarity_search_with_score is VectorStore.similarity_search_with_score:
        return store.similarity_search, store.asimilarity_search
    return store.similarity_search_with_score, store.asimilarity_search_with_score


def _unbind(runnable: Any) -> tuple[Any, dict[str, Any]]:
    """What *runnable* was before ``bind``, ``with_config`` and ``with_retry``, and the arguments they bound."""
    bound: dict[str, Any] = {}
    while isinstance(runnable, RunnableBindingBase):
        bound = {**runnable.kwargs, **bound}
        runnable = runnable.bound
    return runnable, bound


def _find_k(runnable: Any) -> tuple[str | None, int | None]:
    """The argument that says how many documents are wanted, ``None`` without one, and how many there are by itself."""
    inner, bound = _unbind(runnable)
    if not isinstance(inner, BaseRetriever):
        return None, None
    fields = {**vars(inner), **getattr(inner, "search_kwargs", {}), **bound}
    store = getattr(inner, "vectorstore", None)
    name = next(
        (it for it in TOP_KS if it in inspect.signature(inner._get_relevant_documents).parameters),
        None,
    )
    if name is None and _takes(inner._get_relevant_documents, ""):
        # What passes anything on may ask a model about each document, as compressors do.
        name = next((it for it in _USUAL if it in fields), None if store is None else _USUAL[0])
    if name is None:
        return None, None
    searches = (inner._get_relevant_documents, getattr(store, "similarity_search", None))
    usual = (inspect.signature(it).parameters.get(name) for it in searches if callable(it))
    values = (fields.get(name), *(it.default for it in usual if it is not None))
    return name, next((it for it in values if type(it) is int and it > 0), None)


def _takes(method: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(method).parameters
    return name in parameters or any(it.kind is it.VAR_KEYWORD for it in parameters.values())


def _is_heard(
    run_manager: CallbackManagerForRetrieverRun | AsyncCallbackManagerForRetrieverRun,
) -> bool:
    return any(not it.ignore_custom_event for it in run_manager.inheritable_handlers)


def _read_documents(found: Retrieval) -> list[Document]:
    """The documents of *found*; raises `ResponseShapeError` where there are none to be read."""
    if any((it.stage, it.reason) == _UNREADABLE for it in found.degradations):
        shape = _name_type(found.response)
        message = (
            f"retriever must return documents, (document, score) pairs or passages, not {shape}"
        )
        raise ResponseShapeError(message, shape=shape)
    return [_make_document(match) for match in found.matches]


def _make_document(match: Match) -> Document:
    raw = match.raw[0] if isinstance(match.raw, tuple | list) and match.raw else match.raw
    if isinstance(raw, Document):
        return raw
    if match.text is None:
        shape = _name_type(raw)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.textField to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    metadata = {name: value for name, value in match.metadata.items() if value is not match.text}
    return Document(id=match.id, page_content=match.text, metadata=metadata)


def _refuse(message: str, value: Any) -> ConfigError:
    return ConfigError(message, path="retriever", value=_name_type(value), allowed=_ACCEPTED)


def _name_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
