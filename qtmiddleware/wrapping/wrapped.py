"""Wrap a retrieval function: keep its signature and return type, and improve its results."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

from qtmiddleware.errors import InvalidQuery, WrapError
from qtmiddleware.retrieval.call import Call, build_query_error, find_query_problem
from qtmiddleware.retrieval.call_stack import is_nested_call
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.runtime.concurrency import (
    UNLIMITED,
    Threads,
    drive,
    gather_results,
    make_async_io,
)
from qtmiddleware.runtime.observing import is_inside_hook
from qtmiddleware.runtime.services import arun, run
from qtmiddleware.types import Answer, Degradation, Retrieval
from qtmiddleware.wrapping.binding import Arguments
from qtmiddleware.wrapping.calling import Caller, Function, await_result
from qtmiddleware.wrapping.clauses import VECTOR_CLAUSES, NoQuestion
from qtmiddleware.wrapping.engine import Engine
from qtmiddleware.wrapping.shadow import should_start_shadow_retrieval

if TYPE_CHECKING:
    from qtmiddleware.answering import AnswerFlow, AnswerStream
    from qtmiddleware.kit.check import Check
    from qtmiddleware.providers.embedding import CallableEmbedder
    from qtmiddleware.tools.search_tool import SearchTool
    from qtmiddleware.wrapping.query_middleware import QueryMiddleware

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
W = TypeVar("W", bound="Wrapped[..., Any]")
T = TypeVar("T")


# Special names that `__getattr__` reads from the function. From Python 3.14 on,
# `functools.update_wrapper` no longer copies the annotations themselves.
_FORWARDED_SPECIAL_NAMES: Final = frozenset({"__annotations__", "__isabstractmethod__"})


class CopiedAsItself:
    """The base class of objects with locks and clients, which every copy of their holder shares."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Wrapped(CopiedAsItself, Generic[P, R]):
    """A retrieval function wrapped with the middleware.

    A call takes the function's arguments and returns the function's type. The other methods take
    three more keywords:

    - *history*: the conversation so far, oldest message first. If the function has a parameter of
      that name, the function gets it too.
    - *config*: settings for this call. If the function has a parameter of that name, the function
      gets the value instead.
    - *qtm_config*: settings for this call, whatever parameters the function has.

    An asynchronous function has only the asynchronous methods, such as `aretrieve`; the others
    raise `WrapError`. If the function calls its wrapped version, this inner call is a plain call.

    Attributes:
        middleware: The `QueryMiddleware`, which offers `health`, `reload` and `close`.
        wrap_options: The options of `QueryMiddleware.wrap`.
        is_async: Whether calls of the function must be awaited.
        query_argument: The question's parameter; ``inputs.text`` is a field of ``inputs``.
        top_k_argument: The parameter for the number of passages; ``None`` if there is no such
            parameter or the number is a field of another argument.
    """

    _is_qtmiddleware = True
    # The object that a method is bound to, as the first of its arguments.
    _bound_to: tuple[Any, ...] = ()

    def __init__(
        self, function: Function, middleware: QueryMiddleware, options: Mapping[str, Any]
    ) -> None:
        self._function = function
        self.middleware = middleware
        self.wrap_options = dict(options)
        self.is_async = function.is_async
        self.query_argument = function.binding.argument
        number = function.binding.top_k_argument or "."
        self.top_k_argument = None if "." in number else number
        # `updated=()` does not copy the function's own attributes: `__getattr__` finds them, and a
        # copy could hide an attribute of this class.
        functools.update_wrapper(self, function.fn, updated=())
        if function.is_async:
            mark_as_coroutine_function(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with the given arguments, and improve the matches in its response."""
        caller = self._make_direct_caller(args, kwargs)
        if caller is None:
            return self._function.fn(*self._bound_to, *args, **kwargs)  # type: ignore[no-any-return]
        return caller.retrieve().response  # type: ignore[no-any-return]

    def retrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """Search with the given arguments, and return the passages and a record of the search.

        If the query is blank, too long or not a text (such as a vector or an id), the call passes
        through unchanged, and ``degradations`` says why.

        Raises:
            ConfigError: for invalid settings. Exceptions from the function itself pass through.
        """
        return self._prepare(args, kwargs, awaited="aretrieve").retrieve()

    async def aretrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """Search as `retrieve` does, without blocking the running event loop.

        A synchronous function runs in one of qtmiddleware's threads.
        """
        return await self._prepare(args, kwargs).aretrieve()

    def retrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Call `retrieve` for each query in a list, passed instead of the query, in the same order.

        At most ``limits.maxConcurrency`` queries run at once.

        Raises:
            InvalidQuery: if the queries are not a list or tuple. Exceptions from any call pass
                through.
        """
        self._refuse_if_async("aretrieve_many")
        engine = self.middleware.engine
        # The threads of the middleware may all be busy, and a plain call would need none of them.
        io = Threads(UNLIMITED)
        calls = self._make_calls(self.retrieve, args, kwargs)
        works = [partial(io.blocking, call) for call in calls]
        return drive(gather_results(io, works, engine.settings.limits.max_concurrency))

    async def aretrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """Search as `retrieve_many` does, without blocking the running event loop."""
        engine = self.middleware.engine
        io = make_async_io(engine.bulkhead)
        calls = self._make_calls(self.aretrieve, args, kwargs)
        return await gather_results(io, calls, engine.settings.limits.max_concurrency)

    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """Return the language model's answer to the query, with citations of the passages found.

        Raises:
            InvalidQuery: if the query is blank, too long or not a text.
            ModelError: if the model gives no answer; its ``retrieval`` holds the passages found.
                Exceptions that `retrieve` raises pass through.
        """
        flow, caller = self._prepare_answer(args, kwargs, awaited="aanswer")
        return run(flow.answer, caller.bulkhead, caller.search)

    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """Return the model's answer as `answer` does, without blocking the event loop."""
        flow, caller = self._prepare_answer(args, kwargs)
        return await arun(flow.answer, caller.bulkhead, caller.search)

    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """Return a stream of the answer: first the passages, then the text piece by piece."""
        from qtmiddleware.answering import AnswerStream

        flow, caller = self._prepare_answer(args, kwargs, awaited="astream_answer")
        return AnswerStream(flow, caller.bulkhead, caller.search, is_async=False)

    def astream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """Return a stream of the answer for ``async for``; the search starts with it."""
        from qtmiddleware.answering import AnswerStream

        flow, caller = self._prepare_answer(args, kwargs)
        return AnswerStream(flow, caller.bulkhead, caller.search, is_async=True)

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """Report how qtmiddleware reads this function, and what it changes for a question.

        In place of the question you may pass a list of up to ten. Each is asked once with the
        rules, the first once more with a model or reranker if the settings use one. Print the
        result to read it.

        Raises:
            ConfigError: for invalid settings. Exceptions from the function are reported, not
                raised.
        """
        from qtmiddleware.kit.check import check

        self._refuse_if_async("acheck")
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
        """Return this function as a tool for agents: description, schema, `run` and `arun`.

        Args:
            name: The name by which the model calls the tool.
            collection: What the function searches, such as "the staff handbook".
            about: One sentence on what the collection holds.
            fields: The names of the metadata fields that each result shows.
            arguments: The function's other arguments, such as a namespace.
        """
        from qtmiddleware.tools.search_tool import SearchTool

        return SearchTool(
            self, name=name, collection=collection, about=about, fields=fields, arguments=arguments
        )

    # --- one call ---------------------------------------------------------------------------------

    def _refuse_if_async(self, awaited: str) -> None:
        if self.is_async and awaited:
            way = "async for piece in" if awaited == "astream_answer" else "await"
            raise WrapError(f"{self!r} is asynchronous: use `{way} ....{awaited}(...)`")

    def _make_direct_caller(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Caller | None:
        """Return the caller for a call without options; ``None`` if the plain function will do."""
        function, engine = self._function, self.middleware.engine
        if is_nested_call(function.fn):
            return None
        share = engine.settings.shadow
        is_shadowed = should_start_shadow_retrieval(share)
        changes_nothing = engine.is_off and function.hook is None
        # In shadow mode, a call that is not sampled gets the plain result.
        is_left_out = share is not None and not is_shadowed
        # With an embedder, the function takes vectors, so it cannot be called with the text.
        if function.embedder is None and (changes_nothing or is_left_out):
            return None
        return self._make_caller(engine, args, kwargs, is_shadowed=is_shadowed)

    def _prepare(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, awaited: str = ""
    ) -> Caller:
        """Return the caller for a method whose asynchronous form is *awaited*."""
        self._refuse_if_async(awaited)
        binding = self._function.binding
        # ``None`` is passed on where the function has no other default.
        taken = [
            name
            for name in kwargs
            if name in binding.named
            and (kwargs[name] is not None or binding.read_default(name) is None)
        ]
        history, config, qtm_config = (
            kwargs.pop(name, None) for name in ("history", "config", "qtm_config")
        )
        # The function and the transformation may both read the history, and an iterator can be read
        # only once.
        if isinstance(history, Iterator):
            history = tuple(history)
        if "history" in taken:
            kwargs["history"] = history
        if "config" in taken:
            kwargs["config"], config = config, None
        layers = tuple(layer for layer in (config, qtm_config) if layer)
        engine = self.middleware.engine.override(layers)
        is_shadowed = should_start_shadow_retrieval(engine.settings.shadow)
        return self._make_caller(engine, args, kwargs, history, is_shadowed=is_shadowed)

    def _prepare_answer(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, awaited: str = ""
    ) -> tuple[AnswerFlow, Caller]:
        # Imported here so that a caller who only retrieves does not pay for these modules.
        from qtmiddleware.answering import AnswerFlow

        caller = self._prepare(args, kwargs, awaited=awaited)
        problem = caller.call.problem
        # The text of a nested call is a valid question: the model can answer it from the plain
        # function's passages.
        if problem is not None and problem.reason not in ("nested", "iterator"):
            raise build_query_error(problem, self._function.binding.argument)
        # An answer has no pages.
        # A synthesis asks the model for sub-queries whatever the settings say.
        call = replace(caller.call, page="", model=caller.engine.model)
        return AnswerFlow(call, caller.engine.chat_model, caller.finish_retrieval), caller

    def _make_calls(
        self, method: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Callable[[], T]]:
        """Return one call of *method* per query. The caller passed the queries as a list."""
        # The first call would exhaust an iterator, and the others would see no history.
        if isinstance(history := kwargs.get("history"), Iterator):
            kwargs["history"] = tuple(history)
        arguments = Arguments(self._function.binding, (*self._bound_to, *args), kwargs)
        queries = arguments.read_passed_query()
        if not isinstance(queries, list | tuple):
            raise InvalidQuery(
                f"{arguments.binding.argument} must be a list of queries, not"
                f" {type(queries).__name__}; for one query use retrieve"
            )
        first = len(self._bound_to)
        calls = map(arguments.replace, queries)
        return [partial(method, *call.args[first:], **call.kwargs) for call in calls]

    def _make_caller(
        self,
        engine: Engine,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: Any = None,
        *,
        is_shadowed: bool,
    ) -> Caller:
        function, settings = self._function, engine.settings
        binding, learned = function.binding, function.learned
        arguments = Arguments(binding, (*self._bound_to, *args), kwargs)
        original, problem = self._find_query_and_problem(arguments)
        top_k, page = None, ""
        # Without a query, nothing shows where the number of passages would be either, and the
        # response is not cut.
        if problem is None:
            top_k = arguments.read_top_k()
            page = arguments.find_page()
            learned.page = page or learned.page
            # Callers often request the first page without the argument. So after one call with a
            # page in **kwargs, every call counts as paged.
            page = learned.page if binding.may_have_pages else page
        conversation = read_history(history)
        # A hook may itself retrieve. Calling the hook for that retrieval would never end.
        hooks = () if is_inside_hook.get() else (function.hook, engine.hook)
        call = Call(
            original=original,
            history=conversation.messages,
            history_problem=conversation.problem,
            settings=settings,
            learned=learned,
            engine=engine,
            model=None if settings.transformation_type == "none" else engine.model,
            # If the value is not a valid number of passages, only the function can say what it
            # means.
            top_k=top_k if top_k is None or top_k > 0 else None,
            problem=problem,
            page=page,
            page_is_known=binding.is_page_named,
            shape=function.shape,
            embedder=self._choose_embedder(arguments),
            observation=engine.observation,
            hooks=tuple(hook for hook in hooks if hook is not None),
        )
        return Caller(function, arguments, call, engine, is_shadowed and problem is None)

    def _choose_embedder(self, arguments: Arguments) -> CallableEmbedder | None:
        """Return the embedder of the texts; ``None`` if this call takes a text."""
        embedder = self._function.embedder
        # A document search wrapped with `embed=` may also be called with a text clause. Its text
        # must not be replaced by a vector. Without clauses, there is no type; unreadable ones have
        # an empty one.
        clause_type = None if embedder is None else arguments.read_clause_type()
        return embedder if clause_type is None or clause_type in VECTOR_CLAUSES else None

    def _find_query_and_problem(self, arguments: Arguments) -> tuple[Any, Degradation | None]:
        """Return the query, ``""`` if there is none, and why it cannot be improved."""
        try:
            query = arguments.read_query()
        except NoQuestion as error:
            return error.value, Degradation("query", error.reason, str(error))
        problem = find_query_problem(query)
        if problem is None and is_nested_call(self._function.fn):
            problem = Degradation(
                "query",
                "nested",
                "the function calls itself; the inner call is passed through unchanged",
            )
        if problem is None and (name := arguments.find_iterator()):
            problem = Degradation("query", "iterator", f"{name} can be read only once")
        return query, problem

    # --- what Python asks of a function -----------------------------------------------------------

    # The overloads, in order: a class method, looked up on the class or on an object; any function
    # looked up on the class; a method looked up on an object; a static function. `self` is typed as
    # a `Callable` because mypy would otherwise ignore the first parameter. The first overload is
    # ignored because not every wrapped function takes a class.
    @overload
    def __get__(  # type: ignore[misc]
        self: Callable[Concatenate[type[S], Q], R], instance: S | None, owner: type[S]
    ) -> Wrapped[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: Callable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Wrapped[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or self._bound_to or not can_become_method(self._function.fn):
            return self
        bound = object.__new__(type(self))
        vars(bound).update(
            vars(self),
            _bound_to=(instance,),
            __self__=instance,
            __func__=self,
            __wrapped__=self._function.fn.__get__(instance),
        )
        return bound

    def __set_name__(self, owner: type, name: str) -> None:
        # LangChain's retrievers are pydantic models. A pydantic model treats anything but a plain
        # function as the value of a private attribute, so the parent's method would be called
        # instead of this one, and find nothing.
        is_model = any(hasattr(parent, "model_fields") for parent in owner.__mro__[1:])
        if is_model and name.startswith("_"):
            full_name = f"{owner.__name__}.{name}"
            raise WrapError(
                f"{full_name} cannot be wrapped inside the pydantic model {owner.__name__}; wrap it"
                f" after the class body: {full_name} = qtm.middleware({full_name})"
            )

    def __getattr__(self, name: str) -> Any:
        # The function's other attributes are reachable through this object. Special names are not,
        # and neither is `_function` before it is set, which would recurse.
        if (name.startswith("__") and name not in _FORWARDED_SPECIAL_NAMES) or name == "_function":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._function.fn, name)

    def __reduce__(self) -> Any:
        # A decorated function of a module is found by its name.
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(str(getattr(self, "__module__", None)))
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not self:
            raise refuse_to_pickle(self)
        return name

    def __repr__(self) -> str:
        fn = self._function.fn
        name = f"<qtmiddleware around {getattr(fn, '__qualname__', type(fn).__name__)}>"
        return f"<bound {name}>" if self._bound_to else name


class AsyncWrapped(Wrapped[P, Coroutine[Any, Any, Any]]):
    """A wrapped asynchronous function. FastAPI looks at ``__call__`` to learn that it is one."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function with the given arguments, and improve the matches in its response."""
        caller = self._make_direct_caller(args, kwargs)
        if caller is None:
            return await await_result(self._function.fn(*self._bound_to, *args, **kwargs))
        return (await caller.aretrieve()).response


def read_learned(wrapped: Wrapped[..., Any]) -> Learned:
    """Return what *wrapped* has learned of its function, which later calls go on changing."""
    return wrapped._function.learned


def copy_with_learned(wrapped: W, learned: Learned) -> W:
    """Return a copy of *wrapped* that has learned nothing but *learned*."""
    duplicate = object.__new__(type(wrapped))
    vars(duplicate).update(
        vars(wrapped), _function=replace(wrapped._function, learned=learned.copy())
    )
    return duplicate


def refuse_to_pickle(unpicklable: object) -> TypeError:
    """Return the error for an object that cannot be pickled."""
    return TypeError(f"{unpicklable!r} cannot be pickled; create the middleware in the worker")


class WrappedClassMethod(classmethod):  # type: ignore[type-arg]
    """A class method that keeps `retrieve`, which a plain one loses from Python 3.13 on."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.__func__.__get__(type(instance) if owner is None else owner)


def can_become_method(fn: Any) -> bool:
    """Return whether *fn*, as an attribute of a class, becomes a method, as functions do."""
    return isinstance(fn, types.FunctionType) or hasattr(type(fn), "_is_qtmiddleware")


def mark_as_coroutine_function(target: Any) -> None:
    """Mark *target* for `inspect.iscoroutinefunction`, or for asyncio's before Python 3.12."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(target)
    else:
        import asyncio.coroutines

        target._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
