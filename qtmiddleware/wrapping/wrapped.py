"""Wrap a retrieval function: keep its signature and return type, and improve its results."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

from qtmiddleware.config import Layers
from qtmiddleware.errors import ConfigError, InvalidQuery, WrapError
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.pipeline import build_retrieval_flow
from qtmiddleware.retrieval.request import Request, build_query_error, find_query_problem
from qtmiddleware.retrieval.searching import is_nested_call
from qtmiddleware.runtime.drivers import acall_all, arun, call_all, run
from qtmiddleware.runtime.observing import is_inside_hook
from qtmiddleware.types import Answer, Degradation, Retrieval
from qtmiddleware.wrapping.binding import Arguments, Binding, has_parameter
from qtmiddleware.wrapping.call_context import CallContext, ContextSource
from qtmiddleware.wrapping.clauses import ClauseProblem, are_vector_clauses, can_add_text_clause
from qtmiddleware.wrapping.invocation import Invocation, make_awaitable
from qtmiddleware.wrapping.shadow import should_start_shadow_retrieval

if TYPE_CHECKING:
    from qtmiddleware.answering import AnswerFlow, AnswerStream, AsyncAnswerStream
    from qtmiddleware.kit.check import Check
    from qtmiddleware.tools.search_tool import SearchTool

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class AskMethod(Protocol[P, T_co]):
    """The type of `Wrapped.retrieve` and similar methods, for type checkers.

    Each of these methods takes the wrapped function's arguments, and the keywords *history*,
    *config* and *qtm_config*.
    """

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(
        self,
        *args: Any,
        history: Iterable[Any] | None,
        config: Any = ...,
        qtm_config: Mapping[str, Any] | str | None = ...,
        **kwargs: Any,
    ) -> T_co: ...
    @overload
    def __call__(
        self,
        *args: Any,
        config: Any,
        qtm_config: Mapping[str, Any] | str | None = ...,
        **kwargs: Any,
    ) -> T_co: ...
    @overload
    def __call__(
        self, *args: Any, qtm_config: Mapping[str, Any] | str | None, **kwargs: Any
    ) -> T_co: ...


class _AskDescriptor(Protocol[T_co]):
    """A descriptor that becomes an `AskMethod` when it is read from an object."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Callable[..., T_co]: ...
    @overload
    def __get__(
        self, instance: Wrapped[P, Any] | Bound[P, Any], owner: type | None = None
    ) -> AskMethod[P, T_co]: ...


# Special names that `__getattr__` reads from the function. From Python 3.14 on,
# `functools.update_wrapper` no longer copies the annotations themselves.
_FORWARDED_SPECIAL_NAMES: Final = frozenset({"__annotations__", "__isabstractmethod__"})


def _type_as_ask_method(method: Callable[..., T]) -> _AskDescriptor[T]:
    """Return *method* unchanged. Type checkers see the result as an `AskMethod`.

    Python's type hints cannot add keyword parameters to a `ParamSpec`. The methods therefore
    accept any arguments, and the overloads of `AskMethod` declare the valid ones.
    """
    return method


class Wrapped(Generic[P, R]):
    """A synchronous retrieval function wrapped with the middleware.

    Call this object with the function's own arguments. It returns the type that the function
    returns. `retrieve` and `aretrieve` return a `Retrieval` instead. `answer`, `stream_answer` and
    their asynchronous variants return the language model's answer, based on the passages found. All
    of these methods take the function's arguments and three more keywords:

    - *history*: the conversation so far, oldest message first. If the function has a parameter of
      that name, the function gets the conversation too.
    - *config*: settings for this call. If the function has a parameter of that name, the value goes
      to the function instead of to qtmiddleware.
    - *qtm_config*: settings for this call, whatever parameters the function has.

    If the function calls its wrapped version during a search, this inner call returns the plain
    function's result.
    """

    is_async = False
    _is_qtmiddleware = True

    def __init__(
        self,
        fn: Callable[P, R],
        binding: Binding,
        source: ContextSource,
        options: Mapping[str, Any],
    ) -> None:
        self._fn = fn
        self._options = options
        self._binding = binding
        self._source = source
        self._takes_history = has_parameter(fn, "history")
        self._takes_config = has_parameter(fn, "config")
        # `updated=()` does not copy the function's own attributes: `__getattr__` finds them, and a
        # copy could hide an attribute of this class.
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the given arguments, and improve the matches in its response."""
        if self._should_pass_through():
            return self._fn(*args, **kwargs)
        if (probability := self._find_shadow_probability()) is not None:
            began = perf_counter()
            response = self._fn(*args, **kwargs)
            self._start_shadow_retrieval(
                probability, args, kwargs, response, perf_counter() - began
            )
            return response
        request, invocation = self._build_request_and_invocation(args, kwargs)
        return invocation.finish_retrieval(run(build_retrieval_flow(request), invocation)).response  # type: ignore[no-any-return]

    @_type_as_ask_method
    def retrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Any = None,
        qtm_config: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """Search with the given arguments, and return the passages and a record of the search.

        If the query is blank, too long or not a text (such as a vector or an id), the call passes
        through unchanged, and ``degradations`` says why.

        Args:
            *args: the function's own positional arguments.
            history: the conversation so far, oldest message first.
            config: settings, or the name of a preset, that override the middleware's for this call.
            qtm_config: the same as *config*, for a function that has its own ``config`` parameter.
            **kwargs: the function's own keyword arguments.

        Raises:
            ConfigError: for invalid settings. Exceptions from the function itself pass through.
        """
        request, invocation = self._build_request_and_invocation(
            args, kwargs, history, config, qtm_config
        )
        return invocation.finish_retrieval(run(build_retrieval_flow(request), invocation))

    @_type_as_ask_method
    async def aretrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Any = None,
        qtm_config: Mapping[str, Any] | str | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """Search as `retrieve` does, without blocking the running event loop.

        If the function is synchronous, it runs in one of qtmiddleware's threads.
        """
        request, invocation = self._build_request_and_invocation(
            args, kwargs, history, config, qtm_config
        )
        return invocation.finish_retrieval(await arun(build_retrieval_flow(request), invocation))

    def retrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Call `retrieve` for each query in a list, and return the results in the same order.

        Pass the list instead of the query. The other arguments are those of `retrieve`, and apply
        to each query. At most ``limits.maxConcurrency`` queries run at once.

        Raises:
            InvalidQuery: if the queries are not a list or tuple. Exceptions from any of the calls
                pass through.
        """
        calls, context = self._make_calls(self.retrieve, args, kwargs), self._context
        return call_all(calls, context.bulkhead, context.settings.limits.max_concurrency)

    async def aretrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Search for each query as `retrieve_many` does, without blocking the event loop."""
        calls = self._make_calls(self.aretrieve, args, kwargs)
        return await acall_all(calls, self._context.settings.limits.max_concurrency)

    @_type_as_ask_method
    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """Return the language model's answer to the query, with citations of the passages found.

        The arguments are those of `retrieve`, including *history* and *config*.

        Raises:
            InvalidQuery: if the query cannot be answered (blank, too long or not a text).
            ModelError: if the language model gives no answer. The error's ``retrieval`` then holds
                the passages found. Exceptions that `retrieve` raises pass through.
        """
        answer_flow, invocation = self._build_answer_flow_and_invocation(args, kwargs)
        return run(answer_flow.build_flow(), invocation)

    @_type_as_ask_method
    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """Return the model's answer as `answer` does, without blocking the event loop."""
        answer_flow, invocation = self._build_answer_flow_and_invocation(args, kwargs)
        return await arun(answer_flow.build_flow(), invocation)

    @_type_as_ask_method
    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """Return a stream of the answer: first the passages, then the text piece by piece."""
        from qtmiddleware.answering import AnswerStream

        return AnswerStream(*self._build_answer_flow_and_invocation(args, kwargs))

    @_type_as_ask_method
    def astream_answer(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """Return a stream of the answer for ``async for`` and ``async with``.

        The function and the model are called only when you enter the stream or iterate over it.
        """
        from qtmiddleware.answering import AsyncAnswerStream

        return AsyncAnswerStream(*self._build_answer_flow_and_invocation(args, kwargs))

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """Report how qtmiddleware reads this function, and what it changes for a question.

        The arguments are those of `retrieve`. In place of the question you may pass a list of
        questions, of which at most ten are asked.

        The check asks each question twice: with your function alone and with the rules. If the
        settings use a model or a reranker, the first question is asked once more, with these. Print
        the result to read it.

        Raises:
            ConfigError: for invalid settings. Exceptions from the function are reported, not
                raised.
        """
        from qtmiddleware.kit.check import check

        return check(self, args, kwargs)

    async def acheck(self, *args: Any, **kwargs: Any) -> Check:
        """Check the function as `check` does, without blocking the running event loop."""
        from qtmiddleware.kit.check import acheck

        return await acheck(self, args, kwargs)

    def as_tool(
        self,
        *,
        name: str = "search",
        collection: str = "",
        about: str = "",
        fields: Sequence[str] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> SearchTool:
        """Return this function as a tool that agents can call.

        The tool has a name, a description, a JSON schema and two callables, `run` and `arun`. You
        can pass these to an agent framework unchanged.

        Args:
            name: The name by which the model calls the tool.
            collection: What the function searches, such as "the staff handbook".
            about: One sentence on what the collection holds.
            fields: The names of the metadata fields that each result shows.
            arguments: The function's other arguments, such as a namespace. Do not include the
                question or the number of passages.
        """
        from qtmiddleware.tools.search_tool import SearchTool

        return SearchTool(
            self, name=name, collection=collection, about=about, fields=fields, arguments=arguments
        )

    @property
    def middleware(self) -> Any:
        """The `QueryMiddleware`, which offers `health`, `ready`, `reload` and `close`."""
        return self._source.middleware

    @property
    def wrap_options(self) -> dict[str, Any]:
        """The options of `QueryMiddleware.wrap` that this function was wrapped with."""
        return dict(self._options)

    @property
    def query_argument(self) -> str:
        """The name of the parameter that holds the question; ``inputs.text`` is a field of one."""
        return self._binding.argument

    @property
    def _context(self) -> CallContext:
        """The settings and components for a call that begins now."""
        return self._source.get_context()

    @property
    def top_k_argument(self) -> str | None:
        """The name of the parameter that sets the number of passages.

        ``None`` if the signature has no such parameter, or if the number is a field of another
        argument.
        """
        name = self._binding.top_k_argument
        return None if name is None or "." in name else name

    def _build_answer_flow_and_invocation(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[AnswerFlow, Invocation]:
        """Return the flow that answers the query, and the invocation that performs the searches."""
        # Imported here so that a caller who only retrieves does not pay for these modules.
        from qtmiddleware.answering import AnswerFlow

        reserved = (kwargs.pop(name, None) for name in ("history", "config", "qtm_config"))
        request, invocation = self._build_request_and_invocation(args, kwargs, *reserved)
        # The text of a nested call is a valid question: the model can answer it from the plain
        # function's passages.
        if request.problem is not None and request.problem.reason != "nested":
            raise build_query_error(request.problem, self._binding.argument)
        # An answer has no pages.
        return AnswerFlow(
            replace(request, page=""), invocation.chat, invocation.finish_retrieval
        ), invocation

    def _make_calls(
        self, method: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Callable[[], T]]:
        """Return one call of *method* per query. The caller passed the queries as a list."""
        queries = self._binding.bind(args, kwargs).read_passed_query()
        if not isinstance(queries, list | tuple):
            name, kind = self._binding.argument, type(queries).__name__
            raise InvalidQuery(
                f"{name} must be a list of queries, not {kind}; for one query use retrieve"
            )
        # The first call would exhaust an iterator, and the others would see no history.
        if isinstance(history := kwargs.get("history"), Iterator):
            kwargs = {**kwargs, "history": tuple(history)}
        arguments = self._binding.bind(args, kwargs)
        calls = [arguments.replace(query, is_one_of_list=True) for query in queries]
        return [partial(method, *call.args, **call.kwargs) for call in calls]

    def _build_request_and_invocation(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: Any = None,
        config_argument: Any = None,
        qtm_config: Mapping[str, Any] | str | None = None,
    ) -> tuple[Request, Invocation]:
        """Return the request for one call, and the invocation that performs its searches.

        Args:
            args: the positional arguments for the function.
            kwargs: the keyword arguments for the function.
            history: the conversation so far, oldest message first.
            config_argument: the value of ``config=``. If the function has a parameter of that name,
                the value goes to the function. Otherwise, it holds settings for this call.
            qtm_config: settings for this call.
        """
        # The function and the transformation may both read the history, and an iterator can be read
        # only once.
        if isinstance(history, Iterator):
            history = tuple(history)
        if history and self._takes_history:
            kwargs = {**kwargs, "history": history}
        if config_argument is not None and self._takes_config:
            kwargs, config_argument = {**kwargs, "config": config_argument}, None
        overrides = tuple(layer for layer in (config_argument, qtm_config) if layer)
        context = self._read_context(overrides, is_config_ambiguous=config_argument is not None)
        arguments = self._binding.bind(args, kwargs)
        # A document search wrapped with `embed=` may also be called with a text clause. Its text
        # must not be replaced by a vector.
        text_fields, clauses = context.settings.hybrid.text_fields, None
        if text_fields or context.embedder is not None:
            clauses = arguments.read_clauses()
        if context.embedder is not None and not (clauses is None or are_vector_clauses(clauses)):
            context = replace(context, embedder=None)
        original, problem = self._find_query_and_problem(arguments)
        if problem is not None and self._binding.ambiguity:
            context.learned.record_problem(self._binding.ambiguity)
        # Without a query, nothing shows where the number of passages would be either, and the
        # response is not cut.
        top_k = arguments.read_top_k() if problem is None else None
        page = self._find_page_argument(arguments, context.learned) if problem is None else ""
        conversation = read_history(history)
        model = None if context.settings.transformation_type == "none" else context.model
        # A hook may itself retrieve. Calling the hook for that retrieval would never end.
        hooks = () if is_inside_hook() else context.hooks
        request = Request(
            original=original,
            history=conversation.messages,
            settings=context.settings,
            learned=context.learned,
            cache=context.cache,
            sampler=context.sampler,
            # If the value is not a valid number of passages, only the function can say what it
            # means.
            top_k=top_k if top_k is None or top_k > 0 else None,
            problem=problem,
            history_problem=conversation.problem,
            fuse=context.components.fuse,
            page=page,
            page_is_known=self._binding.is_page_named,
            shape=context.shape,
            model=model.name if model else "",
            models={"model": model, "embedding": context.embedder, "rerank": context.reranker},
            find_blocking_error=model.find_blocking_error if model else lambda: None,
            bulkhead=context.bulkhead,
            glossary=context.glossary,
            embeds=context.embedder is not None,
            # Beside a search by vectors, the settings may ask for a search by keywords.
            text_fields=(text_fields if problem is None and can_add_text_clause(clauses) else ()),
            observation=context.observation,
            hooks=hooks,
            clock=context.components.clock,
        )
        invocation = Invocation(
            self._fn, arguments, original, context, self.is_async, known_model=model
        )
        invocation.adds_field = problem is None
        if (
            problem is None
            and (share := context.settings.shadow) is not None
            and should_start_shadow_retrieval(share)
        ):
            invocation.shadow = partial(invocation.start_shadow_retrieval, request)
        return request, invocation

    def _find_page_argument(self, arguments: Arguments, learned: Learned) -> str:
        """Return the name of the argument that selects a page of results, or ``""``.

        If the signature has no page argument, a call may still pass one through ``**kwargs``. After
        the first such call, every call counts as paged, because callers often request the first
        page without a page argument.
        """
        page_argument = arguments.find_page()
        if page_argument:
            learned.page = page_argument
        return learned.page if self._binding.may_have_pages else page_argument

    def _find_shadow_probability(self) -> float | None:
        """Return the probability of a shadow retrieval, or ``None`` if shadow mode is off.

        Also returns ``None`` if the function takes vectors, because the plain function could not
        search for the caller's text.
        """
        context = self._context
        return None if context.embedder is not None else context.settings.shadow

    def _start_shadow_retrieval(
        self,
        probability: float,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        response: Any,
        response_seconds: float,
    ) -> None:
        """Start a shadow retrieval in the background with the given *probability*. Never raises.

        Args:
            probability: The probability that the retrieval starts, from 0 to 1.
            args: The positional arguments of the caller's call.
            kwargs: The keyword arguments of the caller's call.
            response: The plain function's response, which the caller gets.
            response_seconds: The time that the plain function took, in seconds.
        """
        if should_start_shadow_retrieval(probability):
            # The caller already has a response. An error here must not take it away.
            with suppress(Exception):
                request, invocation = self._build_request_and_invocation(args, kwargs)
                if request.problem is None:
                    invocation.start_shadow_retrieval(request, response, response_seconds * 1e3)

    def _read_context(self, overrides: Layers, *, is_config_ambiguous: bool) -> CallContext:
        """Return this call's context. *overrides* override the settings.

        Raises `ConfigError` for invalid settings. *is_config_ambiguous* says that the caller may
        have meant ``config`` for the function's ``**kwargs``. The error then explains how to pass
        ``config`` to the function.
        """
        try:
            return self._source.get_context(overrides)
        except ConfigError as error:
            if not is_config_ambiguous or not self._binding.has_var_keyword:
                raise
            name = self._binding.function_name
            message = (
                f"{error}; config= sets options of qtmiddleware: if {name}() needs config=, add a"
            )
            raise ConfigError(
                f"{message} parameter of that name",
                path=error.path, value=error.value, allowed=error.allowed, source=error.source,
            ) from None  # fmt: skip

    def _should_pass_through(self) -> bool:
        """Return whether to call only the plain function.

        True if the settings change nothing, or if the function is calling itself.
        """
        return self._context.is_off or is_nested_call(self._fn)

    def _find_query_and_problem(self, arguments: Arguments) -> tuple[Any, Degradation | None]:
        """Return this call's query, and a degradation if the query cannot be improved.

        The query is ``""`` if the call has none. The degradation is ``None`` if the query can be
        improved.
        """
        try:
            query = arguments.read_query()
        except ClauseProblem as error:
            return error.clause_value, Degradation("query", error.reason, str(error))
        except WrapError as error:
            return "", Degradation("query", "missing", str(error))
        problem = find_query_problem(query)
        if problem is None and is_nested_call(self._fn):
            problem = Degradation(
                "query",
                "nested",
                "the function calls itself; the inner call is passed through unchanged",
            )
        return query, problem

    # The overloads, in order: a class method, looked up on the class or on an object; any function
    # looked up on the class; a method looked up on an object; a static function. `self` is typed as
    # a `Callable` because mypy would otherwise ignore the first parameter. The first overload is
    # ignored because not every wrapped function takes a class.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[S], Q], R], instance: S | None, owner: type[S]
    ) -> Bound[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: Callable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Bound[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return a bound method when read from an instance, or this object from a class."""
        return (
            Bound(self, instance) if instance is not None and can_become_method(self._fn) else self
        )

    def __set_name__(self, owner: type, name: str) -> None:
        # LangChain's retrievers are pydantic models. A pydantic model treats anything but a plain
        # function as the value of a private attribute, so the parent's method would be called
        # instead of this one, and find nothing.
        parents = owner.__mro__[1:]
        if name.startswith("_") and any(
            name in parent.__dict__ and hasattr(parent, "model_fields") for parent in parents
        ):
            full_name = f"{owner.__name__}.{name}"
            raise WrapError(
                f"{full_name} cannot be wrapped inside the pydantic model {owner.__name__}; wrap it"
                f" after the class body: {full_name} = qtm.middleware({full_name})"
            )

    def __getattr__(self, name: str) -> Any:
        # The function's other attributes are reachable through this object. Special names are not,
        # and neither is `_fn` before it is set, which would recurse.
        if (name.startswith("__") and name not in _FORWARDED_SPECIAL_NAMES) or name == "_fn":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._fn, name)

    # A copy of a plain function is the function itself, too. The locks and clients inside could not
    # be copied anyway.
    def __copy__(self) -> Wrapped[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> Wrapped[P, R]:
        return self

    def __reduce__(self) -> Any:
        """Pickle this object by its import name, or by its function and its middleware.

        Raises `TypeError` if the function has no import name and was wrapped with options or is not
        a plain function, because these may hold connections or keys.
        """
        if (name := find_import_name(self._fn, self)) is not None:
            return name
        has_options = any(option is not None for option in self._options.values())
        if has_options or not isinstance(self._fn, types.FunctionType):
            raise refuse_to_pickle(self)
        return _wrap, (self._source.middleware, self._fn)

    def __repr__(self) -> str:
        return f"<qtmiddleware around {getattr(self._fn, '__qualname__', type(self._fn).__name__)}>"


class AsyncWrapped(Wrapped[P, Coroutine[Any, Any, R]]):
    """An asynchronous retrieval function wrapped with the middleware.

    Use the asynchronous methods, such as `aretrieve`. The synchronous methods raise `WrapError`.
    """

    is_async = True

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        binding: Binding,
        source: ContextSource,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(fn, binding, source, options)
        mark_as_coroutine_function(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the given arguments, and improve the matches in its response."""
        if self._should_pass_through():
            return await make_awaitable(self._fn(*args, **kwargs))  # type: ignore[no-any-return]
        if (probability := self._find_shadow_probability()) is not None:
            began = perf_counter()
            response = await make_awaitable(self._fn(*args, **kwargs))
            self._start_shadow_retrieval(
                probability, args, kwargs, response, perf_counter() - began
            )
            return response  # type: ignore[no-any-return]
        request, invocation = self._build_request_and_invocation(args, kwargs)
        return invocation.finish_retrieval(  # type: ignore[no-any-return]
            await arun(build_retrieval_flow(request), invocation)
        ).response

    @_type_as_ask_method
    def retrieve(self, *_args: Any, **_kwargs: Any) -> Retrieval:
        """Raise `WrapError`: an asynchronous function needs `aretrieve`."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aretrieve(...)`")

    def check(self, *_args: Any, **_kwargs: Any) -> Check:
        """Raise `WrapError`: an asynchronous function needs `acheck`."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....acheck(...)`")

    def retrieve_many(self, *_args: Any, **_kwargs: Any) -> list[Retrieval]:
        """Raise `WrapError`: an asynchronous function needs `aretrieve_many`."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aretrieve_many(...)`")

    @_type_as_ask_method
    def answer(self, *_args: Any, **_kwargs: Any) -> Answer:
        """Raise `WrapError`: an asynchronous function needs `aanswer`."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aanswer(...)`")

    @_type_as_ask_method
    def stream_answer(self, *_args: Any, **_kwargs: Any) -> AnswerStream:
        """Raise `WrapError`: an asynchronous function needs `astream_answer`."""
        raise WrapError(f"{self!r} is asynchronous: use `async with ....astream_answer(...)`")


def _wrap(middleware: Any, fn: Callable[..., Any]) -> Any:
    return middleware.wrap(fn)


def find_import_name(fn: Any, expected_object: object) -> str | None:
    """Return the name by which *fn* can be imported, or ``None`` if there is none.

    The name is the qualified name of *fn*. In the module of *fn*, the name must refer to
    *expected_object*.
    """
    name = getattr(fn, "__qualname__", None)
    if not isinstance(name, str):
        return None
    container: Any = sys.modules.get(str(getattr(fn, "__module__", None)))
    for part in name.split("."):
        container = getattr(container, part, None)
    return name if container is expected_object else None


def refuse_to_pickle(unpicklable: object) -> TypeError:
    """Return the error for an object that cannot be pickled."""
    return TypeError(f"{unpicklable!r} cannot be pickled; create the middleware in the worker")


class Bound(Generic[P, R]):
    """A wrapped method bound to an object, such as ``instance.method``.

    Like plain methods, bound methods are equal if they have the same method and object.
    """

    def __init__(self, wrapped: Any, instance: Any) -> None:
        # Mark before anything else: on Python 3.12 and newer, `markcoroutinefunction` marks
        # `__func__` instead once that attribute is set.
        if wrapped.is_async:
            mark_as_coroutine_function(self)
        self.__self__ = instance
        self.__func__ = wrapped
        functools.update_wrapper(self, wrapped.__wrapped__, updated=())
        self.__wrapped__ = wrapped.__wrapped__.__get__(instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the wrapped method on the object that it is bound to."""
        return self.__func__(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    def retrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """Call `Wrapped.retrieve` on the object that this method is bound to."""
        return self.__func__.retrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    async def aretrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """Call `Wrapped.aretrieve` on the object that this method is bound to."""
        return await self.__func__.aretrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def retrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Call `Wrapped.retrieve_many` on the object that this method is bound to."""
        return self.__func__.retrieve_many(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    async def aretrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Call `Wrapped.aretrieve_many` on the object that this method is bound to."""
        return await self.__func__.aretrieve_many(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """Call `Wrapped.answer` on the object that this method is bound to."""
        return self.__func__.answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """Call `Wrapped.aanswer` on the object that this method is bound to."""
        return await self.__func__.aanswer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """Call `Wrapped.stream_answer` on the object that this method is bound to."""
        return self.__func__.stream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_type_as_ask_method
    def astream_answer(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """Call `Wrapped.astream_answer` on the object that this method is bound to."""
        return self.__func__.astream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """Check the bound method as `Wrapped.check` does."""
        return type(self.__func__).check(self, *args, **kwargs)  # type: ignore[no-any-return]

    async def acheck(self, *args: Any, **kwargs: Any) -> Check:
        """Check the bound method as `Wrapped.acheck` does."""
        return await type(self.__func__).acheck(self, *args, **kwargs)  # type: ignore[no-any-return]

    def as_tool(self, **options: Any) -> SearchTool:
        """Return this method as a tool that agents can call.

        The options are those of `Wrapped.as_tool`.
        """
        from qtmiddleware.tools.search_tool import SearchTool

        return SearchTool(self, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__annotations__":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        # Pickle as a plain method: by the object and the method's name.
        return getattr, (self.__self__, self.__func__.__name__)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Bound)
            and self.__func__ is other.__func__
            and self.__self__ is other.__self__
        )

    def __hash__(self) -> int:
        return hash((id(self.__func__), id(self.__self__)))

    def __repr__(self) -> str:
        return f"<bound {self.__func__!r}>"


class WrappedClassMethod(classmethod):  # type: ignore[type-arg]
    """A class method that keeps the methods of a wrapped function, such as `retrieve`.

    From Python 3.13 on, a plain `classmethod` no longer calls ``__get__`` of its function.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.__func__.__get__(type(instance) if owner is None else owner)


def can_become_method(fn: Any) -> bool:
    """Return whether *fn* becomes a method when it is an attribute of a class.

    Functions become methods. Partials and other callable objects do not.
    """
    return isinstance(fn, types.FunctionType) or hasattr(type(fn), "_is_qtmiddleware")


def mark_as_coroutine_function(target: Any) -> None:
    """Mark *target* as a coroutine function for `inspect.iscoroutinefunction`.

    Before Python 3.12, sets asyncio's private marker instead.
    """
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(target)
    else:
        import asyncio.coroutines

        target._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
