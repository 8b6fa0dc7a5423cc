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
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.config import Config
from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import Adapter, check_count, list_scores
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

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
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType, TextNode

_ACCEPTED: Final = (
    "a retriever or an index of LlamaIndex, a function of a query (plain or async), or a function"
    " that qtm.middleware wrapped"
)
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
        inner: Any = retriever.as_retriever() if isinstance(retriever, BaseIndex) else retriever
        self._inner = inner
        options = {
            "config": config,
            "client": client,
            "reranker": reranker,
            "redact": redact,
            "observers": observers,
            "on_retrieval": on_retrieval,
            "clock": clock,
        }
        self._arguments = {
            "retriever": retriever,
            "callback_manager": callback_manager,
            **options,
            **base_arguments,
        }
        self._can_set_node_count = _can_set_node_count(inner)
        self._takes_bundle = isinstance(inner, BaseRetriever) or _takes_query_bundle(inner)
        self.similarity_top_k = similarity_top_k
        self.history = history
        self._adapter = Adapter(
            _make_functions(inner) if isinstance(inner, BaseRetriever) else (inner,),
            options,
            accepted=_ACCEPTED,
            items="nodes",
            awaited="`aretrieve` or `afind`",
            count_name="top_k" if self._can_set_node_count else None,
            never_widens=getattr(inner, "_vector_store_query_mode", None) == "mmr",
        )
        callback_manager = callback_manager or getattr(inner, "callback_manager", None)
        super().__init__(callback_manager, **base_arguments)

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
        messages = _read_messages(self.history if history is None else history)
        arguments = {"history": messages, "qtm_config": qtm_config}
        counts = similarity_top_k, self.similarity_top_k
        return self._adapter.retrieve(self._read_query(query), arguments, *counts)

    async def afind(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        qtm_config: Mapping[str, Any] | str | None = None,
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `find`."""
        messages = await _aread_messages(self.history if history is None else history)
        arguments = {"history": messages, "qtm_config": qtm_config}
        counts = similarity_top_k, self.similarity_top_k
        return await self._adapter.aretrieve(self._read_query(query), arguments, *counts)

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
        if self._similarity_top_k is None and self._can_set_node_count:
            return self._inner.similarity_top_k  # type: ignore[no-any-return]
        return self._similarity_top_k

    @similarity_top_k.setter
    def similarity_top_k(self, similarity_top_k: int | None) -> None:
        check_count("similarity_top_k", similarity_top_k)
        self._similarity_top_k = similarity_top_k

    @property
    def search(self) -> Any:
        """The wrapped function that `retrieve` calls. Use it to call ``check`` or ``answer``.

        Pass the number of nodes and the history yourself: ``check(question, top_k=4)``.
        """
        return self._adapter.search

    def __copy__(self) -> QueryTransformRetriever:
        retriever_copy: QueryTransformRetriever = object.__new__(type(self))
        retriever_copy.__dict__.update(self.__dict__)
        return retriever_copy

    def __deepcopy__(self, memo: dict[int, Any]) -> QueryTransformRetriever:
        return copy.copy(self)

    def __reduce__(self) -> tuple[Any, ...]:
        own = {"similarity_top_k": self._similarity_top_k, "history": self.history}
        return self._adapter.reduce(self, self._arguments | own)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._tell_and_convert(self.find(query_bundle))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._tell_and_convert(await self.afind(query_bundle))

    def _tell_and_convert(self, retrieval: Retrieval) -> list[NodeWithScore]:
        """Return the nodes in *retrieval*, and send an event if an event handler listens."""
        if _has_event_listener():
            _dispatcher.event(QueryTransformEvent(record=self._adapter.build_record(retrieval)))
        response = retrieval.response
        if isinstance(response, list) and all(isinstance(it, NodeWithScore) for it in response):
            return response
        nodes = self._adapter.convert_matches(
            retrieval,
            (NodeWithScore, BaseNode),
            _make_node,
        )
        return [
            node if isinstance(node, NodeWithScore) else NodeWithScore(node=node, score=score)
            for node, score in zip(nodes, list_scores(retrieval), strict=True)
        ]

    def _read_query(self, query: QueryType) -> Any:
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        return bundle if self._takes_bundle else bundle.query_str


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
            config = config.overridden({"transformationType": "none"})
            self._search = QueryMiddleware(config).wrap(_return_nodes)

    @classmethod
    def class_name(cls) -> str:
        """Return the postprocessor's name in LlamaIndex."""
        return "KeywordEvidencePostprocessor"

    def _postprocess_nodes(
        self,
        nodes: list[NodeWithScore],
        query_bundle: QueryBundle | None = None,
    ) -> list[NodeWithScore]:
        if query_bundle is not None:
            nodes = self._search(query_bundle.query_str, nodes)
        return nodes[: self.top_n]


def _make_functions(retriever: BaseRetriever) -> tuple[Callable[..., Any], ...]:
    """Return *retriever* as a function and, if it has an async method, an async function."""

    def search(query: Any, **numbers: int) -> Any:
        return _copy_with_node_count(retriever, **numbers).retrieve(query)

    async def asearch(query: Any, **numbers: int) -> Any:
        return await _copy_with_node_count(retriever, **numbers).aretrieve(query)

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.retrieve"
    # LlamaIndex's default async method calls the sync method on the event loop. The middleware
    # calls the sync method in a thread instead, so the loop is not blocked.
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:
        return (search,)
    return search, asearch


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


def _copy_with_node_count(retriever: BaseRetriever, top_k: int | None = None) -> Any:
    """Return *retriever*, or a copy that returns *top_k* nodes.

    Another call may search with the same retriever now, so its own number stays unchanged.
    """
    if top_k is None:
        return retriever
    retriever_copy: Any = copy.copy(retriever)
    retriever_copy.similarity_top_k = top_k
    return retriever_copy


def _can_set_node_count(retriever: Any) -> bool:
    """Return whether *retriever* is a retriever whose ``similarity_top_k`` can be set.

    Returns ``False`` if another attribute also limits the number of nodes, or if the nodes
    represent objects.
    """
    node_count = getattr(retriever, "similarity_top_k", None)
    if not isinstance(retriever, BaseRetriever) or type(node_count) is not int or node_count < 1:
        return False
    own = {"similarity_top_k", "_similarity_top_k"}
    has_other_count = any(
        value is not None and name not in own and _COUNT_NAMES.search(name)
        for name, value in vars(retriever).items()
    )
    if has_other_count or getattr(retriever, "object_map", None):
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


def _make_node(
    id_: str | None,
    text: str,
    metadata: dict[str, Any],
) -> TextNode:
    node_id = {} if id_ is None else {"id_": id_}
    return TextNode(text=text, metadata=metadata, **node_id)
