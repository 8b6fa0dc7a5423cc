"""A wrapped retrieval function: the same signature, the same return type, better results."""

from __future__ import annotations

import functools
import inspect
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
    SupportsIndex,
    TypeVar,
    overload,
)

from qtmiddleware.config import Layers, current_overrides
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError, InvalidQuery, WrapError
from qtmiddleware.retrieval.history import read_history
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.pipeline import retrieval_flow
from qtmiddleware.retrieval.request import Request, build_invalid_query, find_query_problem
from qtmiddleware.retrieval.searching import is_nested_call
from qtmiddleware.runtime.drivers import acall_all, arun, call_all, run
from qtmiddleware.runtime.observing import is_telling
from qtmiddleware.types import Answer, Degradation, Retrieval
from qtmiddleware.wrapping.call_context import CallContext, ContextSource
from qtmiddleware.wrapping.clauses import ClauseProblem, may_add_text
from qtmiddleware.wrapping.invocation import Invocation, as_awaitable
from qtmiddleware.wrapping.pickling import (
    ADVICE,
    check_picklable,
    find_import_name,
    is_in,
    modules_by_value,
)
from qtmiddleware.wrapping.shadow import is_drawn
from qtmiddleware.wrapping.signatures import CallSignature, has_parameter

if TYPE_CHECKING:
    from qtmiddleware.answering import AnswerFlow, AnswerStream, AsyncAnswerStream
    from qtmiddleware.runtime.steps import Flow
    from qtmiddleware.tools.search_tool import SearchTool
    from qtmiddleware.wrapping.check import Check

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Asks(Protocol[P, T_co]):
    """A method that takes the arguments of the wrapped function and the reserved words beside them."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...
    @overload
    def __call__(
        self,
        *args: Any,
        history: Iterable[Any] | None,
        config: Any = ...,
        qtm_config: Mapping[str, Any] | None = ...,
        **kwargs: Any,
    ) -> T_co: ...
    @overload
    def __call__(
        self, *args: Any, config: Any, qtm_config: Mapping[str, Any] | None = ..., **kwargs: Any
    ) -> T_co: ...
    @overload
    def __call__(self, *args: Any, qtm_config: Mapping[str, Any] | None, **kwargs: Any) -> T_co: ...


class _Asking(Protocol[T_co]):
    """Such a method where it is defined."""

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Callable[..., T_co]: ...
    @overload
    def __get__(
        self, instance: Wrapped[P, Any] | Bound[P, Any], owner: type | None = None
    ) -> Asks[P, T_co]: ...


# Special names that are the function's where they are not set here: Python 3.14 no longer copies
# annotations.
_OF_THE_FUNCTION: Final = frozenset({"__annotations__", "__isabstractmethod__"})


def _asks(method: Callable[..., T]) -> _Asking[T]:
    """*method* itself, of which type checkers see what it takes: a `ParamSpec` cannot stand beside further keywords."""
    return method


class Wrapped(Generic[P, R]):
    """A synchronous retrieval function with the middleware around it.

    Called, it takes and returns what the function does. `retrieve` and `aretrieve` return a
    `Retrieval` instead, `answer`, `stream_answer` and their asynchronous twins what the language
    model answers from it. All arguments are the function's own but these, the reserved words of
    those methods:

    *history*: the conversation so far, oldest first; a function with a parameter of that name gets
    it too.
    *config*: settings for this call; a function with a parameter of that name gets it in our place.
    *qtm_config*: settings for this call, whatever parameters the function has.

    A function that searches through itself gets, within its own search, what the plain function
    returns: the searches stay as many as it makes itself. A context variable says so, which threads
    and tasks of ours carry along.
    """

    is_async = False
    _is_qtmiddleware = True

    def __init__(self, fn: Callable[P, R], signature: CallSignature, source: ContextSource) -> None:
        self._fn = fn
        self._signature = signature
        self._source = source
        self._takes_history = has_parameter(fn, "history")
        self._takes_config = has_parameter(fn, "config")
        # Not the function's own attributes: they are found through `__getattr__` and must not hide
        # ours.
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns for these arguments, with better matches in it."""
        if self._passes_through():
            return self._fn(*args, **kwargs)
        if (share := self._find_shadow_share()) is not None:
            began = perf_counter()
            response = self._fn(*args, **kwargs)
            self._start_shadow(share, args, kwargs, response, perf_counter() - began)
            return response
        request, call = self._prepare(args, kwargs, brief=True)
        return call.finish(run(retrieval_flow(request), call)).response  # type: ignore[no-any-return]

    @_asks
    def retrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Any = None,
        qtm_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """What the function finds for these arguments, with the account of how it was found.

        *history* is the conversation so far, oldest first; *config* overrides settings for this
        call, as *qtm_config* does where the function has a ``config`` of its own. What cannot be
        worked with (a blank, overlong or non-text query, a vector or an id in its place) is passed
        on as it is, and ``degradations`` says why. Raises what the function itself raises, and
        `ConfigError` for bad settings.
        """
        request, call = self._prepare(args, kwargs, history, config, qtm_config)
        return call.finish(run(retrieval_flow(request), call))

    @_asks
    async def aretrieve(
        self,
        *args: Any,
        history: Iterable[Any] | None = None,
        config: Any = None,
        qtm_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Retrieval:
        """`retrieve` without blocking the running loop; a synchronous function runs in threads of our own."""
        request, call = self._prepare(args, kwargs, history, config, qtm_config)
        return call.finish(await arun(retrieval_flow(request), call))

    def retrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """`retrieve` for each of a list of queries, which stands where the query would; in their number and order.

        At most ``limits.maxConcurrency`` are under way at once. All other arguments are those of
        `retrieve`, the same for each. Raises `InvalidQuery` for what is no list, and what one of
        them raises.
        """
        calls = [partial(self.retrieve, *one, **named) for one, named in self._each(args, kwargs)]
        return call_all(
            calls, self._context.bulkhead, self._context.settings.limits.max_concurrency
        )

    async def aretrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """`retrieve_many` without blocking the running loop."""
        calls = [partial(self.aretrieve, *one, **named) for one, named in self._each(args, kwargs)]
        return await acall_all(calls, self._context.settings.limits.max_concurrency)

    @_asks
    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """The answer to the query of these arguments from what the function finds for them, with citations.

        *history* and *config* may be among them, as for `retrieve`. Raises what `retrieve` raises,
        `InvalidQuery` for a query that cannot be answered (blank, overlong or no text), and
        `ModelError` where the language model gives no answer; what was found is the error's
        ``retrieval`` then.
        """
        answering, call = self._answering(args, kwargs)
        return run(answering.flow(), call)

    @_asks
    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """`answer` without blocking the running loop."""
        answering, call = self._answering(args, kwargs)
        return await arun(answering.flow(), call)

    @_asks
    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """`answer` piece by piece: what the function finds is there at once, the text comes as the model writes it."""
        from qtmiddleware.answering import AnswerStream

        return AnswerStream(*self._answering(args, kwargs))

    @_asks
    def astream_answer(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """`stream_answer` without blocking the running loop; nothing is called before it is iterated or entered."""
        from qtmiddleware.answering import AsyncAnswerStream

        return AsyncAnswerStream(*self._answering(args, kwargs))

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """What is understood of this function, and what the middleware changes, tried with these arguments.

        They are those of `retrieve`: a question, or a list of them as for `retrieve_many`, and what
        the function needs beside it. A question of a list may be ``{"question": text, "relevant":
        [id, ...]}`` with the passages that answer it. The first is looked at in detail: the
        function is called about ten times, as it is and as the middleware would call it; if the
        settings ask a model or a reranker, it is asked once. Then, for at most ten of the list, the
        order of the plain call is compared with that of the rules, which takes two calls per
        question.

        Print the result. Raises nothing that the function raises, `ConfigError` for bad settings
        and `InvalidQuery` for a ``relevant`` that is no list of ids.
        """
        return run(*self._checking(args, kwargs))

    async def acheck(self, *args: Any, **kwargs: Any) -> Check:
        """`check` without blocking the running loop."""
        return await arun(*self._checking(args, kwargs))

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

        The tool has a name, a description, a JSON schema and two callables, `run` and `arun`, which
        agent frameworks take as they are.

        Args:
            name: The tool's name, which the model reads.
            collection: What the function searches, such as "the staff handbook".
            about: One sentence on what the collection holds.
            fields: Names of the metadata that each result shows.
            arguments: Arguments of the function beside the question and the number of passages.
        """
        from qtmiddleware.tools.search_tool import SearchTool

        return SearchTool(
            self, name=name, collection=collection, about=about, fields=fields, arguments=arguments
        )

    @property
    def middleware(self) -> Any:
        """The `QueryMiddleware` around this function, with its `health`, `ready`, `reload` and `close`."""
        return self._source.middleware

    @property
    def _context(self) -> CallContext:
        """What a call that begins now works with."""
        return self._source.current()

    @property
    def top_k_argument(self) -> str | None:
        """The parameter that says how many passages are wanted, if the signature shows one and it holds the number."""
        name = self._signature.top_k_argument
        return None if name is None or "." in name else name

    def configured(self, config: Mapping[str, Any]) -> Self:
        """The same function under the settings of *config*, laid over its own, which learns for itself.

        Raises `ConfigError` for what is impossible or cannot change once a function is wrapped, as
        the store.
        """
        return type(self)(self._fn, self._signature, self._source.configured(config))

    def _answering(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[AnswerFlow, Invocation]:
        # Those who only retrieve do not wait for what answers.
        from qtmiddleware.answering import AnswerFlow

        ours = (kwargs.pop(name, None) for name in ("history", "config", "qtm_config"))
        request, call = self._prepare(args, kwargs, *ours)
        if request.problem is not None and request.problem.reason != "nested":
            raise build_invalid_query(request.problem, self._signature.argument)
        # An answer has no pages.
        return AnswerFlow(replace(request, page=""), call.chat, call.finish), call

    def _checking(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Flow[Check], Invocation]:
        from qtmiddleware.wrapping.check import check
        from qtmiddleware.wrapping.order_sample import read_questions

        signature = self._signature.of_call(args, kwargs)
        try:
            questions = read_questions(signature.passed(args, kwargs)) or []
        except WrapError:
            questions = []
        if questions:
            args, kwargs = signature.replace(
                args, kwargs, query=questions[0].text, is_one_of_list=True
            )
        ours = (kwargs.pop(name, None) for name in ("history", "config", "qtm_config"))
        request, call = self._prepare(args, kwargs, *ours)
        # What is tried is no retrieval of anybody's.
        request = replace(request, hooks=())
        if request.problem is None and not request.embeds:
            # A text may be passed where the function itself has no place for it.
            call.args, call.kwargs = signature.replace(
                call.args, call.kwargs, query=request.original, top_k=None
            )
        return check(request, call, questions), call

    def _each(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Yields the arguments of each call where a list of queries stands in place of the query."""
        signature = self._signature.of_call(args, kwargs)
        queries = signature.passed(args, kwargs)
        if not isinstance(queries, list | tuple):
            name = signature.argument
            raise InvalidQuery(
                f"{name} must be a list of queries, not {type(queries).__name__}; for one query use"
                " retrieve"
            )
        history = kwargs.get("history")
        if isinstance(history, Iterator):
            kwargs = {**kwargs, "history": tuple(history)}
        for query in queries:
            yield signature.replace(args, kwargs, query=query, is_one_of_list=True)

    def _prepare(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        history: Any = None,
        config: Any = None,
        qtm_config: Mapping[str, Any] | None = None,
        *,
        brief: bool = False,
    ) -> tuple[Request, Invocation]:
        """Returns what the flow works on, and what it searches with."""
        if isinstance(history, Iterator):
            history = tuple(history)
        if history and self._takes_history:
            kwargs = {**kwargs, "history": history}
        if config is not None and self._takes_config:
            kwargs, config = {**kwargs, "config": config}, None
        overrides = (*current_overrides(), *(layer for layer in (config, qtm_config) if layer))
        context = self._read_context(overrides, is_theirs=config is not None)
        signature = self._signature.of_call(args, kwargs)
        if context.embedder is not None and not signature.takes_vector(args, kwargs):
            context = replace(context, embedder=None)
        original, problem = self._find_query(signature, args, kwargs, context.settings)
        # Without a query nothing shows where the number of passages would be either, and nothing is
        # cut.
        top_k = signature.top_k(args, kwargs) if problem is None else None
        page = self._find_page(args, kwargs, context.learned) if problem is None else ""
        conversation = read_history(history)
        model = None if context.settings.transformation_type == "none" else context.model
        hooks = () if is_telling() else context.hooks
        request = Request(
            original=original,
            history=conversation.messages,
            settings=context.settings,
            learned=context.learned,
            cache=context.cache,
            sampler=context.sampler,
            # What is no number of passages is the function's own affair.
            top_k=top_k if top_k is None or top_k > 0 else None,
            problem=problem,
            history_problem=conversation.problem,
            page=page,
            page_is_known=self._signature.paging.is_named,
            shape=context.shape,
            model=model.name if model else "",
            models={"model": model, "embedding": context.embedder, "rerank": context.reranker},
            reason_to_wait=model.reason_to_wait if model else lambda: None,
            bulkhead=context.bulkhead,
            glossary=context.glossary,
            embeds=context.embedder is not None,
            text_fields=(
                self._choose_text_fields(signature, args, kwargs, context.settings)
                if problem is None
                else ()
            ),
            response_only=brief
            and context.log is None
            and not context.observation.is_observed
            and not hooks,
            observation=context.observation,
            hooks=hooks,
            clock=context.components.clock,
            reranker_is_unloaded=getattr(context.reranker, "is_unread", False) is True,
        )
        call = Invocation(
            self._fn, signature, args, kwargs, original, context, self.is_async, known_model=model
        )
        call.adds_field = problem is None
        if problem is None and (share := context.settings.shadow) is not None and is_drawn(share):
            call.shadow = partial(call.start_shadow, request)
        return request, call

    def _find_page(self, args: tuple[Any, ...], kwargs: dict[str, Any], learned: Learned) -> str:
        """Returns the argument that asks for a page, ``""`` if none does.

        If only some calls show that the function has pages, those after the first such call count
        too: the first page is often asked for without a word.
        """
        paging = self._signature.paging
        page = paging.find(args, kwargs)
        if page:
            learned.page = page
        return learned.page if paging.is_open else page

    def _find_shadow_share(self) -> float | None:
        """Returns the share of calls for the shadow; ``None`` also where the function cannot be called as we are."""
        overrides = current_overrides()
        context = self._source.current(overrides) if overrides else self._context
        return None if context.embedder is not None else context.settings.shadow

    def _start_shadow(
        self,
        share: float,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        response: Any,
        seconds: float,
    ) -> None:
        """Retrieve what was called for beside the caller, who has *response* already; raises nothing."""
        if is_drawn(share):
            with suppress(Exception):
                request, call = self._prepare(args, kwargs)
                if request.problem is None:
                    call.start_shadow(request, response, seconds * 1e3)

    def _read_context(self, overrides: Layers, *, is_theirs: bool) -> CallContext:
        """Returns the context under *overrides*; where one may be meant for the function, a bad one is refused so."""
        try:
            return self._source.current(overrides)
        except ConfigError as error:
            if not is_theirs or not self._signature.takes_any_keyword:
                raise
            name = self._signature.function_name
            what = (
                f"{error}; config= sets options of qtmiddleware: if {name}() needs config=, add a"
            )
            raise ConfigError(
                f"{what} parameter of that name", path=error.path, value=error.value, allowed=error.allowed,
                source=error.source,
            ) from None  # fmt: skip

    def _passes_through(self) -> bool:
        """Whether a call is the function's own: nothing is to be done, or the function searches through itself."""
        return (self._context.is_off and not current_overrides()) or is_nested_call(self._fn)

    def _find_query(
        self,
        signature: CallSignature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: Settings,
    ) -> tuple[Any, Degradation | None]:
        """Returns the query as it was passed, ``""`` where there is none, and why it cannot be worked with."""
        try:
            query = signature.query(args, kwargs)
        except ClauseProblem as error:
            return error.found, Degradation("query", error.reason, str(error))
        except WrapError as error:
            return "", Degradation("query", "missing", str(error))
        problem = find_query_problem(query, settings)
        if problem is None and is_nested_call(self._fn):
            problem = Degradation(
                "query",
                "nested",
                "the function calls itself; the inner call is passed through unchanged",
            )
        return query, problem

    @staticmethod
    def _choose_text_fields(
        signature: CallSignature, args: tuple[Any, ...], kwargs: dict[str, Any], settings: Settings
    ) -> tuple[str, ...]:
        """Returns the fields that are searched by words beside the clause of this call."""
        fields = settings.hybrid.text_fields
        return fields if fields and may_add_text(signature.read_clauses(args, kwargs)) else ()

    # A class method, on the class or on an object; then what is looked up on the class, a method,
    # and what is static. By `Callable`, as mypy does not look at the first parameter otherwise; not
    # each of us is one that takes a class.
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
        """What a plain function would be as a class attribute: itself on the class, a method on an instance."""
        return Bound(self, instance) if instance is not None and binds(self._fn) else self

    def __set_name__(self, owner: type, name: str) -> None:
        # A pydantic model, which LangChain's retrievers are, takes what is no plain function for
        # the value of a private attribute, so that the method of the parent would be called in its
        # place, and find nothing.
        parents = owner.__mro__[1:]
        if name.startswith("_") and any(
            name in it.__dict__ and hasattr(it, "model_fields") for it in parents
        ):
            whole = f"{owner.__name__}.{name}"
            raise WrapError(
                f"{whole} cannot be wrapped inside the pydantic model {owner.__name__}; wrap it"
                f" after the class body: {whole} = qtm.middleware({whole})"
            )

    def __getattr__(self, name: str) -> Any:
        # Whatever else the function has is reachable through us; special names and what is not set
        # yet are not.
        if (name.startswith("__") and name not in _OF_THE_FUNCTION) or name == "_fn":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._fn, name)

    def __copy__(self) -> Wrapped[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> Wrapped[P, R]:
        return self

    def __reduce_ex__(self, _: SupportsIndex) -> Any:
        """Like a function, pickled by its name where that is ours, else as how it is made.

        Nothing made along the way is taken along: clients, caches, locks and keys are those of the
        other process. Raises `PicklingError`, which says what to do.
        """
        modules, name = modules_by_value(), find_import_name(self._fn, self)
        if name is not None and (modules is None or not is_in(self._fn.__module__, modules)):
            return name
        middleware, options, below = (
            self._source.middleware,
            self._source.options,
            self._source.layers,
        )
        if options is None:
            from pickle import PicklingError

            raise PicklingError(f"{self!r} cannot be pickled; {ADVICE}")
        given = {f"the function of {self!r}": self._fn, **{f"{it}=": options[it] for it in options}}
        for what, it in given.items():
            check_picklable(what, it, by_value=modules is not None)
        # Empty at first: a function that searches through itself holds what is being made here.
        return _empty, (type(self),), (self._fn, middleware, options, below)

    def __setstate__(self, made_of: tuple[Callable[P, R], Any, Mapping[str, Any], Layers]) -> None:
        fn, middleware, options, below = made_of
        made: Wrapped[P, R] = middleware.wrap(fn, **options)
        for layer in below:
            made = made.configured(layer)
        vars(self).update(vars(made))

    def __repr__(self) -> str:
        return f"<qtmiddleware around {getattr(self._fn, '__qualname__', type(self._fn).__name__)}>"


class AsyncWrapped(Wrapped[P, Coroutine[Any, Any, R]]):
    """An asynchronous retrieval function with the middleware around it; `retrieve` is `aretrieve` here."""

    is_async = True

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        signature: CallSignature,
        source: ContextSource,
    ) -> None:
        super().__init__(fn, signature, source)
        mark_as_coroutine_function(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns for these arguments, with better matches in it."""
        if self._passes_through():
            return await as_awaitable(self._fn(*args, **kwargs))  # type: ignore[no-any-return]
        if (share := self._find_shadow_share()) is not None:
            began = perf_counter()
            response = await as_awaitable(self._fn(*args, **kwargs))
            self._start_shadow(share, args, kwargs, response, perf_counter() - began)
            return response  # type: ignore[no-any-return]
        request, call = self._prepare(args, kwargs, brief=True)
        return call.finish(await arun(retrieval_flow(request), call)).response  # type: ignore[no-any-return]

    @_asks
    def retrieve(self, *_args: Any, **_kwargs: Any) -> Retrieval:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aretrieve(...)`")

    def check(self, *_args: Any, **_kwargs: Any) -> Check:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....acheck(...)`")

    def retrieve_many(self, *_args: Any, **_kwargs: Any) -> list[Retrieval]:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aretrieve_many(...)`")

    @_asks
    def answer(self, *_args: Any, **_kwargs: Any) -> Answer:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `await ....aanswer(...)`")

    @_asks
    def stream_answer(self, *_args: Any, **_kwargs: Any) -> AnswerStream:
        """Refused: an asynchronous function cannot be waited for here."""
        raise WrapError(f"{self!r} is asynchronous: use `async with ....astream_answer(...)`")


def _empty(kind: type[Wrapped[..., Any]]) -> Wrapped[..., Any]:
    return kind.__new__(kind)


class Bound(Generic[P, R]):
    """What ``instance.method`` is for a wrapped method; equal to another look-up of the same one, as methods are."""

    def __init__(self, wrapped: Any, instance: Any) -> None:
        # First of all: on Python 3.12 and newer the mark would go to `__func__` once that is set.
        if wrapped.is_async:
            mark_as_coroutine_function(self)
        self.__self__ = instance
        self.__func__ = wrapped
        functools.update_wrapper(self, wrapped.__wrapped__, updated=())
        self.__wrapped__ = wrapped.__wrapped__.__get__(instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the wrapped method on this object."""
        return self.__func__(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    def retrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.retrieve` on this object."""
        return self.__func__.retrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    async def aretrieve(self, *args: Any, **kwargs: Any) -> Retrieval:
        """`Wrapped.aretrieve` on this object."""
        return await self.__func__.aretrieve(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def retrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """`Wrapped.retrieve_many` on this object."""
        return self.__func__.retrieve_many(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    async def aretrieve_many(self, *args: Any, **kwargs: Any) -> list[Retrieval]:
        """`Wrapped.aretrieve_many` on this object."""
        return await self.__func__.aretrieve_many(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    def answer(self, *args: Any, **kwargs: Any) -> Answer:
        """`Wrapped.answer` on this object."""
        return self.__func__.answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    async def aanswer(self, *args: Any, **kwargs: Any) -> Answer:
        """`Wrapped.aanswer` on this object."""
        return await self.__func__.aanswer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    def stream_answer(self, *args: Any, **kwargs: Any) -> AnswerStream:
        """`Wrapped.stream_answer` on this object."""
        return self.__func__.stream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    @_asks
    def astream_answer(self, *args: Any, **kwargs: Any) -> AsyncAnswerStream:
        """`Wrapped.astream_answer` on this object."""
        return self.__func__.astream_answer(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def check(self, *args: Any, **kwargs: Any) -> Check:
        """`Wrapped.check` on this object."""
        return self.__func__.check(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    async def acheck(self, *args: Any, **kwargs: Any) -> Check:
        """`Wrapped.acheck` on this object."""
        return await self.__func__.acheck(self.__self__, *args, **kwargs)  # type: ignore[no-any-return]

    def as_tool(self, **options: Any) -> SearchTool:
        """`Wrapped.as_tool` on this object."""
        from qtmiddleware.tools.search_tool import SearchTool

        return SearchTool(self, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__annotations__":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.__func__, name)

    def __reduce__(self) -> Any:
        # As a plain method is: by its object and its name there, where that gives the same.
        name = getattr(self.__func__, "__name__", "")
        if getattr(self.__self__, name, None) == self:
            return getattr, (self.__self__, name)
        return Bound, (self.__func__, self.__self__)

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
    """A class method around a wrapped function, which keeps the methods of the wrapped function reachable.

    From Python 3.13 on a plain one no longer asks the function it holds how to be bound.
    """

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.__func__.__get__(type(instance) if owner is None else owner)


def binds(fn: Any) -> bool:
    """Whether *fn*, as a class attribute, would become a method: functions do, partials and objects do not."""
    return isinstance(fn, types.FunctionType) or hasattr(type(fn), "_is_qtmiddleware")


def mark_as_coroutine_function(target: Any) -> None:
    """Let frameworks that ask (`inspect.iscoroutinefunction`, before 3.12 asyncio's) see that it must be awaited."""
    if hasattr(inspect, "markcoroutinefunction"):
        inspect.markcoroutinefunction(target)
    else:
        import asyncio.coroutines

        target._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]
