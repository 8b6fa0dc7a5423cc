"""Search results in every shape the middleware reads, made of rows and read back by other means than its own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from pinecone import QueryResponse, ScoredVector
from pydantic import BaseModel, ConfigDict
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool


class LangChainDocument(BaseModel):
    """Has the fields of LangChain's Document, and its private way with unknown ones."""

    model_config = ConfigDict(extra="ignore")
    page_content: str
    metadata: dict[str, Any] = {}
    id: str | None = None
    type: str = "Document"


class TextNode(BaseModel):
    id_: str
    text: str
    metadata: dict[str, Any] = {}

    @property
    def node_id(self) -> str:
        return self.id_


class NodeWithScore(BaseModel):
    node: TextNode
    score: float | None = None

    @property
    def node_id(self) -> str:
        return self.node.node_id

    @property
    def id_(self) -> str:
        return self.node.id_

    @property
    def text(self) -> str:
        return self.node.text

    @property
    def metadata(self) -> dict[str, Any]:
        return self.node.metadata


class QdrantPoint(BaseModel):
    id: int | str | UUID
    score: float
    payload: dict[str, Any] | None = None


class Base(DeclarativeBase):
    pass


class Chunk(Base):
    """A table as people have it beside pgvector."""

    __tablename__ = "chunks"
    id: Mapped[str] = mapped_column(primary_key=True)
    content: Mapped[str]


@dataclass
class PayloadHit:
    """Keeps all but the score in its payload, and no id."""

    score: float
    payload: dict[str, Any]


class Row(NamedTuple):
    """One passage as a search found it."""

    id: str
    text: str
    score: float


@dataclass(frozen=True)
class ResultShape:
    """How rows become a response, and how to read what tells its passages apart.

    *row_key* is the same of a row. Where there is a text, keywords can be evidence.
    """

    build: Callable[[Sequence[Row]], Any]
    keys: Callable[[Any], list[str]]
    has_text: bool = True
    row_key: Callable[[Row], str] = lambda row: row.id


def query_response(rows: Sequence[Row]) -> Any:
    matches = [
        ScoredVector(id=row.id, score=row.score, metadata={"text": row.text}) for row in rows
    ]
    return QueryResponse(matches=matches, namespace="ns")


def by_text(row: Row) -> str:
    return row.text


def dicts(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{"id": row.id, "score": row.score, "text": row.text} for row in rows]


def document(row: Row) -> LangChainDocument:
    return LangChainDocument(page_content=row.text, metadata={"page": 1}, id=row.id)


SELECT: Final = """
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS content,
        json_extract(value, '$[2]') AS distance FROM json_each(:rows) ORDER BY key
"""
ENGINE: Final = sa.create_engine("sqlite://", poolclass=NullPool)


def sqlite_rows(rows: Sequence[Row], row_factory: Any = sqlite3.Row) -> list[Any]:
    """What a cursor of sqlite3 fetches: its rows with names, or plain tuples."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = row_factory
        return connection.execute(SELECT, {"rows": json.dumps(rows)}).fetchall()


def sqlalchemy_rows(rows: Sequence[Row], *columns: Any) -> list[sa.Row[Any]]:
    """What a session of SQLAlchemy returns for a ``select`` of *columns* and a distance."""
    distance: sa.ColumnClause[float] = sa.column("distance")
    text = (
        sa.text(SELECT).bindparams(rows=json.dumps(rows)).columns(Chunk.id, Chunk.content, distance)
    )
    with Session(ENGINE) as session:
        return [*session.execute(sa.select(*columns, distance).from_statement(text)).all()]


def chroma(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "ids": [[row.id for row in rows]],
        "documents": [[row.text for row in rows]],
        "metadatas": [[{"page": 1} for _ in rows]],
        "distances": [[row.score for row in rows]],
        "embeddings": None,
        "included": ["documents", "metadatas", "distances"],
    }


SHAPES: Final[dict[str, ResultShape]] = {
    "dicts": ResultShape(dicts, lambda r: [it["id"] for it in r]),
    "Pinecone's query response": ResultShape(query_response, lambda r: [it.id for it in r.matches]),
    "(id, score)": ResultShape(
        lambda rows: [(row.id, row.score) for row in rows],
        lambda r: [it[0] for it in r],
        has_text=False,
    ),
    "nodes": ResultShape(
        lambda rows: [
            NodeWithScore(node=TextNode(id_=row.id, text=row.text), score=row.score) for row in rows
        ],
        lambda r: [it.node.id_ for it in r],
    ),
    "texts": ResultShape(lambda rows: [row.text for row in rows], list, row_key=by_text),
    "(document, score)": ResultShape(
        lambda rows: [(document(row), row.score) for row in rows],
        lambda r: [it[0].id for it in r],
    ),
    "Chroma's columns": ResultShape(chroma, lambda r: list(r["ids"][0])),
    "rows of sqlite3": ResultShape(sqlite_rows, lambda r: [it["id"] for it in r]),
    "rows of SQLAlchemy, each an object and its distance": ResultShape(
        lambda rows: sqlalchemy_rows(rows, Chunk), lambda r: [it.Chunk.id for it in r]
    ),
}
"""Those that differ most in how passages are told apart; `tests.laws` has others."""
