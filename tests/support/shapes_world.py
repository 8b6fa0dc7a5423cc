"""Classes and rows that search functions return, as the packages have them that people use."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool


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
