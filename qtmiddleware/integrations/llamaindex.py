"""A retriever of LlamaIndex with the middleware in it, and a node postprocessor for the free tier.

    from qtmiddleware.integrations.llamaindex import KeywordEvidencePostprocessor,
    QueryTransformRetriever

    retriever = QueryTransformRetriever(index, config="balanced", client=llm, similarity_top_k=4)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

Every search is a retrieval within the retriever's own, so that callbacks and spans show it. Where
somebody listens to the instrumentation, a `QueryTransformEvent` tells how the nodes were found.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.integrations import needs
from qtmiddleware.types import Match, Retrieval
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Bound, Wrapped

with needs("llama-index-core", "0.12.31", extra="llamaindex"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
    from llama_index.core.instrumentation.event_handlers import NullEventHandler
    from llama_index.core.instrumentation.events import BaseEvent
    from llama_index.core.memory import BaseMemory
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.prompts.mixin import PromptMixin, PromptMixinType
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType, TextNode

_ACCEPTED: Final = (
    "a retriever or an index of LlamaIndex, a function of a query (plain or async), or a function"
    " that qtm.middleware wrapped"
)
_UNREADABLE: Final = ("response", "unreadable")
# Numbers beside similarity_top_k by which a retriever counts: sparse, hybrid, images, chunks of a
# graph.
_COUNTS: Final = re.compile(r"top_k$|^num_chunks")
_BUNDLE: Final = re.compile("[Bb]undle|QueryType")

_dispatcher: Final = get_dispatcher(__name__)


class QueryTransformEvent(BaseEvent):
    """Tells how nodes were found; *record* is what the query log has, with the same keys."""

    record: dict[str, Any]

    @classmethod
    def class_name(cls) -> str:
        """The name that handlers know it by."""
        return "QueryTransformEvent"


class QueryTransformRetriever(BaseRetriever):
    """Finds better nodes with the *retriever* you have; `retrieve` and `aretrieve` return nodes of that retriever.

    *retriever* is a retriever, an index, a function of a query, plain or async, or a function that
    is wrapped already, which brings its own options. Functions get the text, and those that say so
    by a parameter's name or type the `QueryBundle`. What they return that is no node, as a match of
    Pinecone, becomes one.

    *similarity_top_k* is how many nodes to return, by default what *retriever* returns by itself.
    Where *retriever* takes such a number it is asked for more, so that there is something to weigh,
    else it should return more by itself (some 50) and the number be given here. One that searches
    by ``mmr`` is never asked for more, which would undo the variety of its nodes, nor one whose
    nodes stand for objects, each of which would be asked.

    *history* is the conversation so far: a memory of LlamaIndex, which is read at every call, or
    messages. *config*,
    *client*, *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are those of
    `QueryMiddleware`.
    *callback_manager*, by default that of *retriever*, and *more* are those of LlamaIndex's
    `BaseRetriever`. Only *similarity_top_k* and
    *history* can be set later.

    Raises `ConfigError` for a *retriever* that is none and for bad settings.
    """

    def __init__(
        self,
        retriever: Any,
        *,
        similarity_top_k: int | None = None,
        history: Any = None,
        config: Any = None,
        client: Any = None,
        reranker: Any = None,
        redact: Any = None,
        observers: Sequence[Any] = (),
        on_retrieval: Any = None,
        clock: Any = None,
        callback_manager: CallbackManager | None = None,
        **more: Any,
    ) -> None:
        given = {
            "config": config, "client": client, "reranker": reranker, "redact": redact, "observers": observers,
            "on_retrieval": on_retrieval, "clock": clock,
        }  # fmt: skip
        self._options = {
            "retriever": retriever,
            **given,
            "callback_manager": callback_manager,
            **more,
        }
        self._inner: Any = (
            retriever.as_retriever() if isinstance(retriever, BaseIndex) else retriever
        )
        self._is_counted = self._keeps_width = self._takes_bundle = False
        self.similarity_top_k = similarity_top_k
        self.history = history
        self._search, self._asearch = self._wrap(given)
        super().__init__(callback_manager or getattr(self._inner, "callback_manager", None), **more)

    def find(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        qtm_config: Mapping[str, Any] | None = None,
    ) -> Retrieval:
        """What `retrieve` returns as ``matches``, each with its scores, and the account of how it was found.

        *similarity_top_k* and *history* go before the retriever's own, *qtm_config* holds settings
        for the call. ``response`` is what *retriever* returns, nodes with scores. Raises what
        *retriever* raises, `ConfigError` for bad settings, and `WrapError` around an asynchronous
        function.
        """
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `aretrieve` or `afind`")
        wanted = self._find_wanted(similarity_top_k)
        turns = _read_turns(self.history if history is None else history)
        return self._cut(
            self._prepare(self._search.retrieve, query, wanted, turns, qtm_config)(), wanted
        )

    async def afind(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        qtm_config: Mapping[str, Any] | None = None,
    ) -> Retrieval:
        """`find` without blocking the running loop."""
        wanted = self._find_wanted(similarity_top_k)
        turns = await _aread_turns(self.history if history is None else history)
        return self._cut(
            await self._prepare(self._asearch.aretrieve, query, wanted, turns, qtm_config)(), wanted
        )

    def with_history(self, history: Iterable[Any] | BaseMemory | None) -> QueryTransformRetriever:
        """This retriever in the conversation *history*: all but that is shared, so that each session may have one."""
        twin = copy.copy(self)
        twin.history = history
        return twin

    @property
    def similarity_top_k(self) -> int | None:
        """How many nodes are returned; ``None`` where *retriever* says nothing of it."""
        return self._find_wanted(None)

    @similarity_top_k.setter
    def similarity_top_k(self, similarity_top_k: int | None) -> None:
        if similarity_top_k is not None and (
            type(similarity_top_k) is not int or similarity_top_k < 1
        ):
            message = (
                f"similarity_top_k must be a whole number of at least 1, not {similarity_top_k!r}"
            )
            raise ConfigError(message, path="similarity_top_k", value=similarity_top_k)
        self._similarity_top_k = similarity_top_k

    @property
    def search(self) -> Any:
        """The wrapped function behind `retrieve`, with its ``check``, ``answer`` and ``middleware``.

        It knows neither *similarity_top_k* nor *history* of ours: ``check(question,
        similarity_top_k=4)``.
        """
        return self._search  # a `Wrapped`, or the method that a wrapped one is on its object

    def __copy__(self) -> QueryTransformRetriever:
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        # What was made along the way (threads, locks, clients of ours) is that of the other
        # process.
        options = {
            **self._options,
            "similarity_top_k": self._similarity_top_k,
            "history": self.history,
        }
        return _make_retriever, (type(self), options)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self._inner} if isinstance(self._inner, PromptMixin) else {}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._tell(self.find(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._tell(await self.afind(query_bundle))

    def _tell(self, found: Retrieval) -> list[NodeWithScore]:
        """The nodes of *found*, of which an event tells those who listen."""
        if _is_heard():
            record = build_record(found, TextWriter(self._options["redact"]))
            _dispatcher.event(QueryTransformEvent(record=record))
        return _read_nodes(found)

    def _wrap(self, given: Mapping[str, Any]) -> tuple[Any, Any]:
        """What *retriever* is searched with, wrapped once for blocking and once for awaiting calls."""
        inner = self._inner
        is_retriever, is_wrapped = (
            isinstance(inner, BaseRetriever),
            isinstance(inner, Wrapped | Bound),
        )
        if is_wrapped and (set_too := [name for name, value in given.items() if value]):
            raise _refuse(
                f"retriever is already wrapped; set {', '.join(set_too)} where you wrap it", inner
            )
        if not is_retriever and (not callable(inner) or isinstance(inner, type)):
            raise _refuse(f"retriever must be {_ACCEPTED}, not {_name_type(inner)}", inner)
        self._takes_bundle = is_retriever or _takes_bundle(inner)
        if is_wrapped:
            return inner, inner
        middleware = QueryMiddleware(**given)
        if not is_retriever:
            search = middleware.wrap(inner)
            return search, search
        self._is_counted = _is_counted(inner)
        self._keeps_width = getattr(inner, "_vector_store_query_mode", None) == "mmr"
        blocking = middleware.wrap(_Search(inner, self._is_counted))
        # LlamaIndex' own asynchronous method calls the blocking one in the loop; ours does so in a
        # thread.
        if type(inner)._aretrieve is BaseRetriever._aretrieve:
            return blocking, blocking
        return blocking, middleware.wrap(_AsyncSearch(inner, self._is_counted))

    def _find_wanted(self, similarity_top_k: int | None) -> int | None:
        """How many nodes are wanted of a call that says *similarity_top_k*."""
        usual = self._inner.similarity_top_k if self._is_counted else None
        return next(
            (it for it in (similarity_top_k, self._similarity_top_k, usual) if it is not None), None
        )

    def _prepare(
        self,
        ask: Callable[..., Any],
        query: QueryType,
        wanted: int | None,
        turns: Any,
        qtm_config: Mapping[str, Any] | None,
    ) -> partial[Any]:
        """*ask* with all that it is called with."""
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        named: dict[str, Any] = {"history": turns, "qtm_config": qtm_config}
        if (name := self._search.top_k_argument) is not None and wanted is not None:
            named[name] = wanted
        if self._keeps_width and wanted is not None:
            named["qtm_config"] = {"keywordEvidence": {"candidates": wanted}, **(qtm_config or {})}
        return partial(ask, bundle if self._takes_bundle else bundle.query_str, **named)

    def _cut(self, found: Retrieval, wanted: int | None) -> Retrieval:
        """The best of what was *found* by a function that cannot be told how many are wanted."""
        if wanted is None or self._search.top_k_argument is not None:
            return found
        response = found.response[:wanted] if isinstance(found.response, list) else found.response
        return replace(found, matches=found.matches[:wanted], response=response)


class KeywordEvidencePostprocessor(BaseNodePostprocessor):
    """Puts nodes first that hold the keywords of the question, by the rules tier, without any call.

    Scores and words are weighed as behind a search, whatever found the nodes; some 50 of them are
    best. They stay the objects they are, with the scores they have, and none is lost: *top_n* is
    how many to return, by default all. Without a question, or without texts, they stay as they are.

    *config* is that of `QueryMiddleware`, of which a model is never asked. Raises `ConfigError` for
    bad settings and pydantic's ``ValidationError`` for what is no field.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    top_n: int | None = Field(default=None, gt=0)
    config: Any = Field(default=None, frozen=True)

    _search: Any = PrivateAttr()

    if not TYPE_CHECKING:  # Type checkers go by the fields.

        def __init__(self, **fields: Any) -> None:
            # Not a validator of pydantic: that would make a ValidationError of what is raised here.
            super().__init__(**fields)
            self._search = (
                QueryMiddleware(self.config)
                .wrap(_return_nodes)
                .configured({"transformationType": "none"})
            )

    @classmethod
    def class_name(cls) -> str:
        """The name it is saved under."""
        return "KeywordEvidencePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is not None:
            nodes = self._search(query_bundle.query_str, nodes)
        return nodes[: self.top_n]


class _Search:
    """Calls *retriever* as a function of a query and a number, which it is given where it *is_counted*."""

    def __init__(self, retriever: BaseRetriever, is_counted: bool) -> None:
        self.retriever, self.is_counted = retriever, is_counted

    def __call__(self, query: Any, similarity_top_k: int | None = None) -> list[NodeWithScore]:
        return self.cut(self.widen(similarity_top_k).retrieve(query), similarity_top_k)

    def widen(self, count: int | None) -> Any:
        """The retriever, or one like it for *count* nodes: others may search with it at the same time."""
        if count is None or not self.is_counted:
            return self.retriever
        return _set_count(self.retriever, count)

    def cut(self, nodes: list[NodeWithScore], count: int | None) -> list[NodeWithScore]:
        """No more than were asked for, of one that cannot be asked."""
        return nodes if count is None or self.is_counted else nodes[:count]

    def __repr__(self) -> str:
        return f"{type(self.retriever).__name__}.retrieve"


class _AsyncSearch(_Search):
    """The same, to be awaited."""

    async def __call__(  # type: ignore[override]
        self, query: Any, similarity_top_k: int | None = None
    ) -> list[NodeWithScore]:
        return self.cut(await self.widen(similarity_top_k).aretrieve(query), similarity_top_k)


def _read_turns(history: Any) -> Any:
    """The messages of *history*; what a memory raises stands in their place, and is told as an unreadable one."""
    try:
        return history.get_all() if isinstance(history, BaseMemory) else history
    except Exception as error:
        return [error]


async def _aread_turns(history: Any) -> Any:
    try:
        return await history.aget_all() if isinstance(history, BaseMemory) else history
    except Exception as error:
        return [error]


def _return_nodes(query: str, nodes: list[NodeWithScore]) -> list[NodeWithScore]:  # noqa: ARG001
    return nodes


def _make_retriever(
    kind: type[QueryTransformRetriever], options: Mapping[str, Any]
) -> QueryTransformRetriever:
    return kind(**options)


def _set_count(retriever: BaseRetriever, count: int) -> Any:
    twin: Any = copy.copy(retriever)
    twin.similarity_top_k = count
    return twin


def _is_counted(retriever: BaseRetriever) -> bool:
    """Whether ``similarity_top_k``, and nothing else, says how many nodes *retriever* returns, and can be set."""
    fields = vars(retriever)
    others = [
        name for name in fields if _COUNTS.search(name) and name.lstrip("_") != "similarity_top_k"
    ]
    if getattr(retriever, "object_map", None) or any(fields[name] is not None for name in others):
        return False
    count = getattr(retriever, "similarity_top_k", None)
    if type(count) is not int or count < 1:
        return False
    try:
        asked = _set_count(retriever, count + 1).similarity_top_k
    except (AttributeError, TypeError, ValueError):
        return False
    return bool(asked == count + 1)


def _takes_bundle(function: Callable[..., Any]) -> bool:
    try:
        return any(
            _BUNDLE.search(str(it)) for it in inspect.signature(function).parameters.values()
        )
    except (ValueError, TypeError):  # some builtins tell nothing
        return False


def _is_heard() -> bool:
    """Whether anybody listens to the events of this module."""
    dispatcher = _dispatcher
    while all(isinstance(it, NullEventHandler) for it in dispatcher.event_handlers):
        if not dispatcher.propagate:
            return False
        dispatcher = dispatcher.parent
    return True


def _read_nodes(found: Retrieval) -> list[NodeWithScore]:
    """The nodes of *found*; raises `ResponseShapeError` where there are none to be read."""
    if isinstance(found.response, list) and all(
        isinstance(it, NodeWithScore) for it in found.response
    ):
        return found.response
    if any((it.stage, it.reason) == _UNREADABLE for it in found.degradations):
        shape = _name_type(found.response)
        message = f"retriever must return nodes, (node, score) pairs or passages, not {shape}"
        raise ResponseShapeError(message, shape=shape)
    # What only variants found has no score for the question; with a better one than these its own
    # list would hold it.
    lowest = min((it.score for it in found.matches if it.score is not None), default=None)
    return [_make_node(it, lowest if it.score is None else it.score) for it in found.matches]


def _make_node(match: Match, score: float | None) -> NodeWithScore:
    raw = match.raw[0] if isinstance(match.raw, tuple | list) and match.raw else match.raw
    if isinstance(raw, NodeWithScore):
        return raw
    if isinstance(raw, BaseNode):
        return NodeWithScore(node=raw, score=score)
    if match.text is None:
        shape = _name_type(raw)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.textField to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    metadata = {name: value for name, value in match.metadata.items() if value is not match.text}
    named = {} if match.id is None else {"id_": match.id}
    return NodeWithScore(node=TextNode(text=match.text, metadata=metadata, **named), score=score)


def _refuse(message: str, value: Any) -> ConfigError:
    return ConfigError(message, path="retriever", value=_name_type(value), allowed=_ACCEPTED)


def _name_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
