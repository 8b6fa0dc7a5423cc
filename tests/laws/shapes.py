"""Responses in the shapes that people's functions return, made of passages and read back by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from pinecone import Document, QueryResponse, ScoredVector
from pinecone.models.documents.responses import DocumentSearchUsage, SearchDocumentsResponse


class Row(NamedTuple):
    """One passage as a response holds it; ``None`` for what the response does not hold."""

    id: str | None
    text: str | None
    score: float | None
    page: int | None

    @property
    def name(self) -> str | None:
        """What tells this passage apart from others."""
        return self.id if self.id is not None else self.text


@dataclass(frozen=True)
class Shape:
    """How rows become a response, and how to read its rows and what stands beside them."""

    build: Callable[[Sequence[Row]], Any]
    read: Callable[[Any], list[Row]]
    frame: Callable[[Any], Any] = lambda response: None
    can_lack: tuple[str, ...] = ("no text", "no scores", "no ids")


def _drop_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _read_dict(item: dict[str, Any]) -> Row:
    assert set(item) <= {"id", "text", "score", "page"}, item
    return Row(item.get("id"), item.get("text"), item.get("score"), item.get("page"))


def _read_nested(item: dict[str, Any]) -> Row:
    assert set(item) <= {"id", "score", "metadata"}, item
    metadata = item["metadata"]
    return Row(item.get("id"), metadata.get("text"), item.get("score"), metadata.get("page"))


@dataclass
class Hit:
    id: str | None
    content: str | None
    score: float | None
    page: int | None


@dataclass
class Hits:
    """What a service of one's own returns."""

    hits: list[Hit]
    took: int = 3
    warnings: list[str] = field(default_factory=lambda: ["the index is being built"])


class TextDocument:
    """A document as LangChain has them."""

    def __init__(self, page_content: str, metadata: dict[str, Any], id: str | None = None) -> None:  # noqa: A002
        self.page_content = page_content
        self.metadata = metadata
        self.id = id

    def __repr__(self) -> str:
        return f"TextDocument({self.page_content!r}, {self.metadata!r}, {self.id!r})"


def _build_document(row: Row) -> TextDocument:
    return TextDocument(row.text or "", {"page": row.page}, row.id)


def _read_document(document: TextDocument, score: float | None = None) -> Row:
    return Row(document.id, document.page_content, score, document.metadata["page"])


def _build_query_response(rows: Sequence[Row]) -> QueryResponse:
    return QueryResponse(
        matches=[
            ScoredVector(
                id=str(row.id),
                score=row.score or 0.0,
                metadata=_drop_none(text=row.text, page=row.page),
            )
            for row in rows
        ],
        namespace="zoo",
    )


def _build_documents_response(rows: Sequence[Row]) -> SearchDocumentsResponse:
    return SearchDocumentsResponse(
        matches=[
            Document(_drop_none(_id=row.id, _score=row.score, body=row.text, page=row.page))
            for row in rows
        ],
        namespace="zoo",
        usage=DocumentSearchUsage(read_units=2),
        response_info=None,
    )


def _read_documents_response(response: SearchDocumentsResponse) -> list[Row]:
    found = [match.to_dict() for match in response.matches]
    return [Row(it["_id"], it.get("body"), it["_score"], it["page"]) for it in found]


def _build_columns(rows: Sequence[Row]) -> dict[str, Any]:
    def column(values: Sequence[Any]) -> Any:
        return [list(values)] if all(value is not None for value in values) else None

    return {
        "ids": [[row.id for row in rows]],
        "documents": column([row.text for row in rows]),
        "metadatas": [[{"page": row.page} for row in rows]],
        # Distances: the nearest comes first.
        "distances": column([None if row.score is None else 1 - row.score for row in rows]),
        "embeddings": None,
        "included": ["documents", "metadatas", "distances"],
    }


def _read_columns(response: dict[str, Any]) -> list[Row]:
    ids = response["ids"][0]
    nothing = [None] * len(ids)
    texts = nothing if response["documents"] is None else response["documents"][0]
    distances = nothing if response["distances"] is None else response["distances"][0]
    columns = zip(ids, texts, distances, response["metadatas"][0], strict=True)
    return [
        Row(name, text, None if distance is None else 1 - distance, metadata["page"])
        for name, text, distance, metadata in columns
    ]


def _build_dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [_drop_none(**row._asdict()) for row in rows]


SHAPES: Final[dict[str, Shape]] = {
    "dicts": Shape(_build_dicts, lambda response: list(map(_read_dict, response))),
    "metadata": Shape(
        lambda rows: [
            _drop_none(
                id=row.id, score=row.score, metadata=_drop_none(text=row.text, page=row.page)
            )
            for row in rows
        ],
        lambda response: list(map(_read_nested, response)),
    ),
    "mapping": Shape(
        lambda rows: {"took": 3, "matches": _build_dicts(rows), "usage": {"units": [1]}},
        lambda response: list(map(_read_dict, response["matches"])),
        lambda response: (list(response), response["took"], response["usage"]),
    ),
    "dataclass": Shape(
        lambda rows: Hits([Hit(*row) for row in rows]),
        lambda response: [Row(it.id, it.content, it.score, it.page) for it in response.hits],
        lambda response: (response.took, response.warnings),
    ),
    "query response": Shape(
        _build_query_response,
        lambda response: [
            Row(it.id, (it.metadata or {}).get("text"), it.score, (it.metadata or {}).get("page"))
            for it in response.matches
        ],
        lambda response: (response.namespace, response.usage),
        can_lack=("no text",),
    ),
    "documents response": Shape(
        _build_documents_response,
        _read_documents_response,
        lambda response: (response.namespace, response.usage.read_units),
        can_lack=("no text",),
    ),
    "pairs": Shape(
        lambda rows: [(row.text or row.id, row.score) for row in rows],
        lambda response: [Row(None, text, score, None) for text, score in response],
        can_lack=("no text",),
    ),
    "columns": Shape(
        _build_columns,
        _read_columns,
        lambda response: (list(response), response["included"], response["embeddings"]),
        can_lack=("no text", "no scores"),
    ),
    "documents": Shape(
        lambda rows: list(map(_build_document, rows)),
        lambda response: list(map(_read_document, response)),
        can_lack=("no ids",),
    ),
    "documents and scores": Shape(
        lambda rows: [(_build_document(row), row.score) for row in rows],
        lambda response: [_read_document(*pair) for pair in response],
        can_lack=("no ids",),
    ),
}
