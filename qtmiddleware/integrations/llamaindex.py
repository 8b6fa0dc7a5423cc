"""Wrap a retriever for LlamaIndex, or rerank nodes in a postprocessor without a model.

    from qtmiddleware.integrations.llamaindex import (
        KeywordEvidencePostprocessor,
        QueryTransformRetriever,
    )

    retriever = QueryTransformRetriever(index, config="balanced", client=llm, similarity_top_k=4)
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm)

Every search is a nested retrieval, so callbacks and spans show the searches.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Unpack

from qtmiddleware.config import Config
from qtmiddleware.integrations import require_package
from qtmiddleware.integrations.adapter import Adapter, check_count, convert_matches
from qtmiddleware.types import Retrieval
from qtmiddleware.wrapping.engine import MiddlewareOptions
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

with require_package("llama-index-core", "0.12.31", extra="llamaindex"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
    from llama_index.core.callbacks import CallbackManager
    from llama_index.core.indices.base import BaseIndex
    from llama_index.core.memory import BaseMemory
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import BaseNode, NodeWithScore, QueryBundle, QueryType, TextNode

_ACCEPTED: Final = (
    "a retriever or an index of LlamaIndex, a function of a query (plain or async), or a function"
    " that qtm.middleware wrapped"
)
# Other fields that set how many nodes a retriever returns: sparse, hybrid, images, graph chunks.
_OTHER_COUNTS: Final = re.compile(r"(?<!similarity_)top_k$|image_similarity_top_k$|^num_chunks")


class QueryTransformRetriever(BaseRetriever):
    """A LlamaIndex retriever that improves the results of your *retriever*.

    Only *similarity_top_k* and *history* can be changed after creation.

    *retriever* is a retriever, an index, a sync or async function that takes a query as text, or a
    function that is already wrapped. Results that are not nodes, such as Pinecone's matches, are
    converted.

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
        config: The configuration, as for `QueryMiddleware`.
        options: The other options of `QueryMiddleware`, such as *client*.

    Raises `ConfigError` if *retriever* has an unsupported type or a setting is not valid.
    """

    def __init__(
        self,
        retriever: Any,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        callback_manager: CallbackManager | None = None,
        config: Any = None,
        **options: Unpack[MiddlewareOptions],
    ) -> None:
        check_count("similarity_top_k", similarity_top_k)
        inner: Any = retriever.as_retriever() if isinstance(retriever, BaseIndex) else retriever
        self.similarity_top_k = similarity_top_k
        self.history = history
        self._inner = inner
        self._takes_count = _takes_count(inner)
        self._adapter = Adapter(
            _make_functions(inner) if isinstance(inner, BaseRetriever) else (inner,),
            {"config": config, **options},
            accepted=_ACCEPTED,
            count_name="top_k" if self._takes_count else None,
            never_widens=getattr(inner, "_vector_store_query_mode", None) == "mmr",
        )
        super().__init__(callback_manager or getattr(inner, "callback_manager", None))

    def find(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        **arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` with the matches for *query* and all their scores.

        The field ``response`` has the type that your retriever returns, usually a list of scored
        nodes.

        Args:
            query: The question.
            similarity_top_k: The number of nodes to return; overrides the retriever's number.
            history: The conversation so far; overrides the retriever's history.
            arguments: *qtm_config*, which holds settings for this call, and your function's own.

        Exceptions of your retriever pass through unchanged.
        """
        messages = self.history if history is None else history
        if isinstance(messages, BaseMemory):
            try:
                messages = messages.get_all()
            except Exception as error:
                # An exception is no message, so the retrieval reports the history as unreadable.
                messages = [error]
        arguments["history"] = messages
        return self._adapter.retrieve(*self._list_arguments(query, similarity_top_k, arguments))

    async def afind(
        self,
        query: QueryType,
        *,
        similarity_top_k: int | None = None,
        history: Iterable[Any] | BaseMemory | None = None,
        **arguments: Any,
    ) -> Retrieval:
        """Return a `Retrieval` for *query*. This is the async version of `find`."""
        messages = self.history if history is None else history
        if isinstance(messages, BaseMemory):
            try:
                messages = await messages.aget_all()
            except Exception as error:
                messages = [error]
        arguments["history"] = messages
        call = self._list_arguments(query, similarity_top_k, arguments)
        return await self._adapter.aretrieve(*call)

    def with_history(
        self,
        history: Iterable[Any] | BaseMemory | None,
    ) -> QueryTransformRetriever:
        """Return a copy of this retriever with another conversation *history*.

        The copy and this retriever share everything else. Use one copy per session.
        """
        retriever_copy = copy.copy(self)
        retriever_copy.history = history
        return retriever_copy

    @property
    def search(self) -> Any:
        """The wrapped function that `retrieve` calls. Use it to call ``check`` or ``answer``.

        Pass the number of nodes and the history yourself: ``check(question, top_k=4)``.
        """
        return self._adapter.search

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _convert(self.find(query_bundle))

    async def _aretrieve(
        self,
        query_bundle: QueryBundle,
    ) -> list[NodeWithScore]:
        return _convert(await self.afind(query_bundle))

    def _list_arguments(
        self,
        query: QueryType,
        count: int | None,
        arguments: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Return the arguments of `Adapter.retrieve`."""
        bundle = query if isinstance(query, QueryBundle) else QueryBundle(query)
        own = self._inner.similarity_top_k if self._takes_count else None
        asked = bundle if isinstance(self._inner, BaseRetriever) else bundle.query_str
        return asked, arguments, count, self.similarity_top_k, own


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


def _return_nodes(query: str, nodes: list[NodeWithScore]) -> list[NodeWithScore]:  # noqa: ARG001
    return nodes


def _make_functions(retriever: BaseRetriever) -> tuple[Callable[..., Any], ...]:
    """Return *retriever* as a function and, if it has an async method, an async function."""

    def search(query: Any, **numbers: int) -> Any:
        return _copy_with_count(retriever, **numbers).retrieve(query)

    async def asearch(query: Any, **numbers: int) -> Any:
        return await _copy_with_count(retriever, **numbers).aretrieve(query)

    search.__qualname__ = asearch.__qualname__ = f"{type(retriever).__name__}.retrieve"
    # LlamaIndex's default async method calls the sync method on the event loop. The middleware
    # calls the sync method in a thread instead, so the loop is not blocked.
    if type(retriever)._aretrieve is BaseRetriever._aretrieve:
        return (search,)
    return search, asearch


def _copy_with_count(
    retriever: BaseRetriever,
    top_k: int | None = None,
) -> Any:
    """Return *retriever*, or a copy that returns *top_k* nodes.

    Another call may search with the same retriever now, so its own number stays unchanged.
    """
    if top_k is None:
        return retriever
    retriever_copy: Any = copy.copy(retriever)
    retriever_copy.similarity_top_k = top_k
    return retriever_copy


def _takes_count(retriever: Any) -> bool:
    """Return whether ``similarity_top_k`` alone sets how many nodes *retriever* returns."""
    return (
        isinstance(retriever, BaseRetriever)
        and type(getattr(retriever, "similarity_top_k", None)) is int
        and not getattr(retriever, "object_map", None)
        and not any(
            value is not None and _OTHER_COUNTS.search(name)
            for name, value in vars(retriever).items()
        )
    )


def _convert(retrieval: Retrieval) -> list[NodeWithScore]:
    own_types = NodeWithScore, BaseNode
    return [
        item if isinstance(item, NodeWithScore) else NodeWithScore(node=item, score=score)
        for item, score in convert_matches(retrieval, own_types, _make_node)
    ]


def _make_node(id_: str | None, text: str, metadata: dict[str, Any]) -> TextNode:
    node_id = {} if id_ is None else {"id_": id_}
    return TextNode(text=text, metadata=metadata, **node_id)
