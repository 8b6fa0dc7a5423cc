"""Wrap a retriever for LlamaIndex, or rerank nodes in a postprocessor without a model.

    from qtmiddleware.integrations.llamaindex import (
        KeywordEvidencePostprocessor,
        QueryTransformRetriever,
    )

    retriever = QueryTransformRetriever(index, config="balanced", client=llm, similarity_top_k=4)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

Every search is a nested retrieval, so callbacks and spans show the searches. After each retrieval,
event handlers receive a `QueryTransformEvent` with the details.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, ResponseShapeError, WrapError
from qtmiddleware.integrations import require_package
from qtmiddleware.types import Match, Retrieval
from qtmiddleware.wrapping.query_log import TextWriter, build_record
from qtmiddleware.wrapping.query_middleware import QueryMiddleware
from qtmiddleware.wrapping.wrapped import Wrapped, refuse_to_pickle

with require_package("llama-index-core", "0.12.31", extra="llamaindex"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.instrumentation import get_dispatcher
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
# Other fields that set how many nodes a retriever returns: sparse, hybrid, images, graph chunks.
_COUNT_NAMES: Final = re.compile(r"top_k$|^num_chunks")
_BUNDLE: Final = re.compile("[Bb]undle|QueryType")

_dispatcher: Final = get_dispatcher(__name__)


class QueryTransformEvent(BaseEvent):
    """An event with the details of one retrieval.

    Attributes:
        record: The details, in the format of a query-log record.
    """

    record: dict[str, Any]

    @classmethod
    def class_name(cls) -> str:
        """Return the event's name in LlamaIndex."""
        return "QueryTransformEvent"


_MIDDLEWARE_OPTIONS: Final = ("client", "reranker", "redact", "observers", "on_retrieval", "clock")
"""The options that `QueryMiddleware` gets, except the config."""


class QueryTransformRetriever(BaseRetriever):
    """A LlamaIndex retriever that improves the results of your *retriever*.

    Only *similarity_top_k* and *history* can be changed after creation.

    *config*, *client*, *reranker*, *redact*, *observers*, *on_retrieval* and *clock* are the
    arguments of `QueryMiddleware`.

    *retriever* is one of:

    - A retriever or an index.
    - A sync or async function that takes a query. The function gets the question as text, or as a
      `QueryBundle` if a parameter's name or type asks for one.
    - A function that is already wrapped.

    Results that are not nodes, such as Pinecone's matches, are converted.

    qtmiddleware asks the retriever for more than *similarity_top_k* nodes, to have candidates for
    reranking. If your retriever takes no number of nodes, make it return about 50 nodes. Two types
    of retrievers are never asked for more nodes:

    - A retriever that searches by ``mmr``, because more nodes would reduce the variety.
    - A retriever whose nodes represent objects, because each object would be queried.

    Args:
        retriever: Your retriever, as described above.
        similarity_top_k: The number of nodes to return; by default the retriever's own number.
        history: The conversation so far: messages, or a LlamaIndex memory, which is read per call.
        callback_manager: LlamaIndex's callback manager; by default that of *retriever*.
        base_arguments: Further arguments for LlamaIndex's `BaseRetriever`.

    Raises `ConfigError` if *retriever* has an unsupported type or a setting is not valid.
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
        **base_arguments: Any,
    ) -> None:
        settings = {
            "config": config, "client": client, "reranker": reranker, "redact": redact,
            "observers": observers, "on_retrieval": on_retrieval, "clock": clock,
        }  # fmt: skip
        self._options = {
            "retriever": retriever,
            **settings,
            "callback_manager": callback_manager,
            **base_arguments,
        }
        self._inner: Any = (
            retriever.as_retriever() if isinstance(retriever, BaseIndex) else retriever
        )
        self._can_set_node_count = self._never_widens = self._takes_bundle = False
        self.similarity_top_k = similarity_top_k
        self.history = history
        self._search, self._asearch = self._wrap_retriever(settings)
        super().__init__(
            callback_manager or getattr(self._inner, "callback_manager", None), **base_arguments
        )

    def find(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
    ) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``response`` has the type that your retriever returns, usually a list of scored
        nodes.

        Args:
            query: The question.
            similarity_top_k: The number of nodes to return; overrides the retriever's number.
            history: The conversation so far; overrides the retriever's history.
            qtm_config: Settings for this call, or the name of a preset.

        Raises:
            ConfigError: A setting is not valid.
            WrapError: Your retriever is an async function. Use `afind`.

        Exceptions of your retriever pass through unchanged.
        """
        if self._search.is_async:
            raise WrapError(f"{self._search!r} is asynchronous: use `aretrieve` or `afind`")
        node_count = self._choose_node_count(similarity_top_k)
        messages = _read_messages(self.history if history is None else history)
        return self._limit_nodes(
            self._bind_call(self._search.retrieve, query, node_count, messages, qtm_config)(),
            node_count,
        )

    async def afind(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `find`."""
        node_count = self._choose_node_count(similarity_top_k)
        messages = await _aread_messages(self.history if history is None else history)
        return self._limit_nodes(
            await self._bind_call(
                self._asearch.aretrieve, query, node_count, messages, qtm_config
            )(),
            node_count,
        )

    def with_history(self, history: Iterable[Any] | BaseMemory | None) -> QueryTransformRetriever:
        """Return a copy of this retriever with another conversation *history*.

        The copy and this retriever share everything else. Use one copy per session.
        """
        retriever_copy = copy.copy(self)
        retriever_copy.history = history
        return retriever_copy

    @property
    def similarity_top_k(self) -> int | None:
        """The number of nodes that a call returns by default; ``None`` if it is unknown."""
        return self._choose_node_count(None)

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
        """The wrapped function that `retrieve` calls. Use it to call ``check`` or ``answer``.

        Pass the number of nodes and the history yourself: ``check(question, similarity_top_k=4)``.
        """
        return self._search

    def __copy__(self) -> QueryTransformRetriever:
        retriever_copy: QueryTransformRetriever = object.__new__(type(self))
        retriever_copy.__dict__.update(self.__dict__)
        return retriever_copy

    def __deepcopy__(self, memo: dict[int, Any]) -> QueryTransformRetriever:
        return copy.copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if any(self._options[name] for name in _MIDDLEWARE_OPTIONS):
            raise refuse_to_pickle(self)
        options = {
            **self._options,
            "similarity_top_k": self._similarity_top_k,
            "history": self.history,
        }
        return partial(type(self), **options), ()

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"retriever": self._inner} if isinstance(self._inner, PromptMixin) else {}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._read_and_publish_nodes(self.find(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._read_and_publish_nodes(await self.afind(query_bundle))

    def _read_and_publish_nodes(self, retrieval: Retrieval) -> list[NodeWithScore]:
        """Return the nodes in *retrieval*, and send an event if an event handler listens."""
        if _has_event_listener():
            record = build_record(retrieval, TextWriter(self._options["redact"]))
            _dispatcher.event(QueryTransformEvent(record=record))
        return _read_nodes(retrieval)

    def _wrap_retriever(self, settings: Mapping[str, Any]) -> tuple[Any, Any]:
        """Wrap the retriever, and return the wrapped functions for sync and for async calls.

        *settings* are the arguments of `QueryMiddleware`. Raises `ConfigError` if the retriever has
        an unsupported type.
        """
        inner = self._inner
        is_retriever = isinstance(inner, BaseRetriever)
        is_wrapped = isinstance(inner, Wrapped)
        if is_wrapped and (repeated := [name for name, value in settings.items() if value]):
            raise _build_config_error(
                f"retriever is already wrapped; set {', '.join(repeated)} where you wrap it",
                inner,
            )
        if not is_retriever and (not callable(inner) or isinstance(inner, type)):
            raise _build_config_error(
                f"retriever must be {_ACCEPTED}, not {_describe_type(inner)}", inner
            )
        self._takes_bundle = is_retriever or _takes_query_bundle(inner)
        if is_wrapped:
            return inner, inner
        middleware = QueryMiddleware(**settings)
        if not is_retriever:
            search = middleware.wrap(inner)
            return search, search
        self._can_set_node_count = _can_set_node_count(inner)
        self._never_widens = getattr(inner, "_vector_store_query_mode", None) == "mmr"
        blocking = middleware.wrap(_Search(inner, self._can_set_node_count))
        # LlamaIndex's default async method calls the sync method on the event loop. The middleware
        # calls the sync method in a thread instead, so the loop is not blocked.
        if type(inner)._aretrieve is BaseRetriever._aretrieve:
            return blocking, blocking
        return blocking, middleware.wrap(_AsyncSearch(inner, self._can_set_node_count))

    def _choose_node_count(self, similarity_top_k: int | None) -> int | None:
        """Return the number of nodes to return: *similarity_top_k*, or else the retriever's number.

        Returns ``None`` if no number is set.
        """
        default_count = self._inner.similarity_top_k if self._can_set_node_count else None
        return next(
            (
                node_count
                for node_count in (similarity_top_k, self._similarity_top_k, default_count)
                if node_count is not None
            ),
            None,
        )

    def _bind_call(
        self,
        retrieve: Callable[..., Any],
        query: QueryType,
        node_count: int | None,
        messages: Any,
        qtm_config: Mapping[str, Any] | str | None,
    ) -> partial[Any]:
        """Return a function without parameters that calls *retrieve* with the other arguments."""
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        arguments: dict[str, Any] = {"history": messages, "qtm_config": qtm_config}
        if (name := self._search.top_k_argument) is not None and node_count is not None:
            arguments[name] = node_count
        # With *node_count* candidates, the middleware does not ask the retriever for more.
        if self._never_widens and node_count is not None:
            arguments["config"] = {"keywordEvidence": {"candidates": node_count}}
        return partial(retrieve, bundle if self._takes_bundle else bundle.query_str, **arguments)

    def _limit_nodes(self, retrieval: Retrieval, node_count: int | None) -> Retrieval:
        """Return *retrieval*, truncated to *node_count* nodes.

        Returns *retrieval* unchanged if the wrapped function limits the number itself, or if
        *node_count* is ``None``.
        """
        if node_count is None or self._search.top_k_argument is not None:
            return retrieval
        response = (
            retrieval.response[:node_count]
            if isinstance(retrieval.response, list)
            else retrieval.response
        )
        return replace(retrieval, matches=retrieval.matches[:node_count], response=response)


class KeywordEvidencePostprocessor(BaseNodePostprocessor):
    """Reranks nodes by the question's keywords, without a model.

    Pass about 50 nodes from any search. The nodes are reordered by their scores and keywords, as
    `QueryTransformRetriever` does after a search. The nodes keep their scores. The order does not
    change if there is no question or the nodes have no text.

    Attributes:
        top_n: The number of nodes to return; by default all.
        config: The settings, as for `QueryMiddleware`. No model is ever called.

    Raises:
        ConfigError: A setting is not valid.
        ValidationError: A field is unknown. The error is pydantic's.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    top_n: int | None = Field(default=None, gt=0)
    config: Any = Field(default=None, frozen=True)

    _search: Any = PrivateAttr()

    if not TYPE_CHECKING:  # Type checkers derive the signature from the fields.

        def __init__(self, **fields: Any) -> None:
            # No pydantic validator: pydantic would turn the errors raised here into its own.
            super().__init__(**fields)
            config = Config.load(self.config, origin="QueryMiddleware")
            self._search = QueryMiddleware(config.overridden({"transformationType": "none"})).wrap(
                _return_nodes
            )

    @classmethod
    def class_name(cls) -> str:
        """Return the postprocessor's name in LlamaIndex."""
        return "KeywordEvidencePostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is not None:
            nodes = self._search(query_bundle.query_str, nodes)
        return nodes[: self.top_n]


class _Search:
    """Calls *retriever* with a query and the number of nodes.

    If *can_set_node_count* is true, a copy of *retriever* with this number is called. Otherwise,
    *retriever* is called, and its result is truncated.
    """

    def __init__(self, retriever: BaseRetriever, can_set_node_count: bool) -> None:
        self.retriever = retriever
        self.can_set_node_count = can_set_node_count

    def __call__(self, query: Any, similarity_top_k: int | None = None) -> list[NodeWithScore]:
        return self.limit_nodes(
            self.choose_retriever(similarity_top_k).retrieve(query), similarity_top_k
        )

    def choose_retriever(self, node_count: int | None) -> Any:
        """Return a copy of the retriever that returns *node_count* nodes.

        Returns the retriever itself if *node_count* is ``None`` or cannot be set.
        """
        if node_count is None or not self.can_set_node_count:
            return self.retriever
        # Another call may search with the same retriever now, so its own number stays unchanged.
        return _copy_with_node_count(self.retriever, node_count)

    def limit_nodes(
        self, nodes: list[NodeWithScore], node_count: int | None
    ) -> list[NodeWithScore]:
        """Return the first *node_count* nodes.

        Returns all *nodes* if the retriever limits the number itself, or if *node_count* is
        ``None``.
        """
        return nodes if node_count is None or self.can_set_node_count else nodes[:node_count]

    def __repr__(self) -> str:
        return f"{type(self.retriever).__name__}.retrieve"


class _AsyncSearch(_Search):
    """Calls *retriever* asynchronously with a query and the number of nodes."""

    async def __call__(  # type: ignore[override]
        self, query: Any, similarity_top_k: int | None = None
    ) -> list[NodeWithScore]:
        return self.limit_nodes(
            await self.choose_retriever(similarity_top_k).aretrieve(query), similarity_top_k
        )


def _read_messages(history: Any) -> Any:
    """Return the messages in *history*, a LlamaIndex memory.

    Any other *history* is returned unchanged. If the memory raises an exception, returns a list
    with this exception.
    """
    try:
        return history.get_all() if isinstance(history, BaseMemory) else history
    except Exception as error:
        # An exception is no message, so the retrieval reports the history as unreadable.
        return [error]


async def _aread_messages(history: Any) -> Any:
    """Return the messages in *history*. This is the async version of `_read_messages`."""
    try:
        return await history.aget_all() if isinstance(history, BaseMemory) else history
    except Exception as error:
        return [error]


def _return_nodes(query: str, nodes: list[NodeWithScore]) -> list[NodeWithScore]:  # noqa: ARG001
    return nodes


def _copy_with_node_count(retriever: BaseRetriever, node_count: int) -> Any:
    """Return a copy of *retriever* that returns *node_count* nodes."""
    retriever_copy: Any = copy.copy(retriever)
    retriever_copy.similarity_top_k = node_count
    return retriever_copy


def _can_set_node_count(retriever: BaseRetriever) -> bool:
    """Return whether the retriever's ``similarity_top_k`` can be set.

    Returns ``False`` if another attribute also limits the number of nodes, or if the nodes
    represent objects.
    """
    fields = vars(retriever)
    other_counts = [
        name
        for name in fields
        if _COUNT_NAMES.search(name) and name.lstrip("_") != "similarity_top_k"
    ]
    if getattr(retriever, "object_map", None) or any(
        fields[name] is not None for name in other_counts
    ):
        return False
    node_count = getattr(retriever, "similarity_top_k", None)
    if type(node_count) is not int or node_count < 1:
        return False
    # A property may ignore the value or reject it, so a copy shows whether it can be set.
    try:
        accepted = _copy_with_node_count(retriever, node_count + 1).similarity_top_k
    except (AttributeError, TypeError, ValueError):
        return False
    return bool(accepted == node_count + 1)


def _takes_query_bundle(function: Callable[..., Any]) -> bool:
    """Return whether a parameter's name or type shows that *function* takes a `QueryBundle`."""
    try:
        return any(
            _BUNDLE.search(str(parameter))
            for parameter in inspect.signature(function).parameters.values()
        )
    except (ValueError, TypeError):  # Some builtins have no signature.
        return False


def _has_event_listener() -> bool:
    """Return whether an event handler receives this module's events."""
    dispatcher = _dispatcher
    while all(isinstance(handler, NullEventHandler) for handler in dispatcher.event_handlers):
        if not dispatcher.propagate:
            return False
        dispatcher = dispatcher.parent
    return True


def _read_nodes(retrieval: Retrieval) -> list[NodeWithScore]:
    """Return the nodes in *retrieval*, best first.

    Raises `ResponseShapeError` if the retriever's response contains neither nodes nor passages.
    """
    if isinstance(retrieval.response, list) and all(
        isinstance(node, NodeWithScore) for node in retrieval.response
    ):
        return retrieval.response
    if any((entry.stage, entry.reason) == _UNREADABLE for entry in retrieval.degradations):
        shape = _describe_type(retrieval.response)
        message = f"retriever must return nodes, (node, score) pairs or passages, not {shape}"
        raise ResponseShapeError(message, shape=shape)
    # A match that only a variant found has no score for the question. It gets the lowest score of
    # the question's list, because with a higher score the question would have found it.
    lowest = min(
        (match.score for match in retrieval.matches if match.score is not None), default=None
    )
    return [
        _make_node(match, lowest if match.score is None else match.score)
        for match in retrieval.matches
    ]


def _make_node(match: Match, score: float | None) -> NodeWithScore:
    """Return the node in *match*, or a new node with the match's text, metadata and *score*.

    If the node in *match* has no score, it gets *score*. Raises `ResponseShapeError` if *match* has
    neither a node nor a text.
    """
    raw = match.raw[0] if isinstance(match.raw, tuple | list) and match.raw else match.raw
    if isinstance(raw, NodeWithScore):
        return raw
    if isinstance(raw, BaseNode):
        return NodeWithScore(node=raw, score=score)
    if match.text is None:
        shape = _describe_type(raw)
        message = (
            f"retriever returned {shape} without text; set keywordEvidence.fields.text to the field"
            " that holds it"
        )
        raise ResponseShapeError(message, shape=shape)
    metadata = {name: value for name, value in match.metadata.items() if value is not match.text}
    fields = {} if match.id is None else {"id_": match.id}
    return NodeWithScore(node=TextNode(text=match.text, metadata=metadata, **fields), score=score)


def _build_config_error(error_message: str, rejected_value: Any) -> ConfigError:
    return ConfigError(
        error_message, path="retriever", value=_describe_type(rejected_value), allowed=_ACCEPTED
    )


def _describe_type(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
