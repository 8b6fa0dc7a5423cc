"""Document indexes: a schema of fields, and documents that are searched by vectors, by BM25 or by a query string.

BM25 is that of SQLite's FTS5. A query string is read as far as tests need it: words,
``field:word``, ``field:(words)``, ``word^2`` and quotes.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from tests.support.pinecone_server import filtering, models, rules
from tests.support.pinecone_server.errors import Refused

USAGE = {"read_units": 1, "egress_bytes": 0}
DIMENSION = 1024
"""Of the vectors that an index makes of texts itself."""


@dataclass(frozen=True)
class Field:
    """One field of a schema; *kind* is ``string``, ``dense_vector`` or ``sparse_vector``."""

    kind: str = "string"
    dimension: int = 0
    full_text: bool = False
    embed: bool = False
    sparse_embed: bool = False
    store_text: bool = True

    @property
    def is_data(self) -> bool:
        return self.kind != "string" or self.full_text or self.embed or self.sparse_embed


@dataclass
class DocumentIndex:
    """An index with a schema of its own; what the schema does not name is metadata."""

    name: str
    schema: dict[str, Field]
    namespaces: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock, repr=False)

    def upsert(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        rules.only_keys(body, "documents", "the request")
        documents = body.get("documents")
        rules.rule(
            isinstance(documents, list) and 1 <= len(documents) <= 1_000, "documents must be a list"
        )
        kept: dict[str, dict[str, Any]] = {}
        for document in documents or ():
            id_ = rules.id_(rules.mapping(document, "a document").get("_id"))
            for name, one in self.schema.items():
                if (one.kind == "dense_vector" or one.embed) and name not in document:
                    raise Refused(f"document {id_} needs the field {name}")
            if not any(name in document for name, one in self.schema.items() if one.is_data):
                raise Refused(f"document {id_} has no searchable field")
            kept[id_] = {
                key: float(value) if rules.is_number(value) else value
                for key, value in document.items()
            }
        with self.lock:
            self.namespaces.setdefault(namespace, {}).update(kept)
        return {"upserted_count": len(kept)}

    def search(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        rules.only_keys(body, "score_by top_k include_fields filter", "the request")
        top_k = rules.whole(body.get("top_k"), 1, 10_000, "top_k")
        clauses = body.get("score_by")
        rules.rule(
            isinstance(clauses, list) and 1 <= len(clauses) <= 100,
            "score_by must be a list of clauses",
        )
        fields = body.get("include_fields") or []
        rules.rule(isinstance(fields, list), "include_fields must be a list")
        for name in fields:
            if name in self.schema and not self.schema[rules.text(name, "a field")].store_text:
                raise Refused(f"the text of the field {name} is not stored")
        if "filter" in body:
            rules.mapping(body["filter"], "filter")
        condition = filtering.check(body.get("filter"))
        for name in condition or {}:
            if name in self.schema and self.schema[name].is_data:
                raise Refused(f"{name} is a data field and takes no comparison")
        with self.lock:
            held = dict(self.namespaces.get(namespace, {}))
        held = {
            id_: one
            for id_, one in held.items()
            if condition is None or filtering.meets(one, condition)
        }
        scores: dict[str, float] = {}
        tokens = 0
        for clause in clauses or ():
            found, count = self._score(
                rules.mapping(clause, "a clause"), held, alone=len(clauses or ()) == 1
            )
            tokens += count
            for id_, score in found.items():
                scores[id_] = scores.get(id_, 0.0) + score
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:top_k]
        matches = [
            {"_id": id_, "_score": round(score, 6), **self._show(held[id_], fields)}
            for id_, score in best
        ]
        usage = USAGE | ({"embed_total_tokens": tokens} if tokens else {})
        return {"matches": matches, "namespace": namespace, "usage": usage}

    def _show(self, document: dict[str, Any], fields: list[str]) -> dict[str, Any]:
        wanted = (
            {name for name in document if self.schema.get(name, Field()).store_text}
            if "*" in fields
            else fields
        )
        return {name: document[name] for name in wanted if name in document and name != "_id"}

    def _score(
        self, clause: dict[str, Any], held: dict[str, dict[str, Any]], *, alone: bool
    ) -> tuple[dict[str, float], int]:
        """The scores of the documents that *clause* finds, and how many tokens were embedded for it."""
        kind = clause.get("type")
        names = clause.get("fields") or [clause.get("field")]
        if kind in ("text", "query_string"):
            query = rules.text(clause.get("query"), "query").strip()
            if not query:
                raise Refused("the query is empty")
            if kind == "query_string":
                return self._search_string(query, held), 0
            for name in names:
                self._check_aspect(name, "full_text", "full_text_search")
            return _add(
                _bm25(query, {id_: one.get(name) for id_, one in held.items()}) for name in names
            ), 0
        if not alone:
            raise Refused("a vector clause must stand alone")
        (name,) = names
        if kind in ("embed", "sparse_embed"):
            self._check_aspect(name, kind, kind)
            query = rules.text(clause.get("query"), "query")
            texts = {id_: one[name] for id_, one in held.items() if name in one}
            if kind == "embed":
                wanted = models.dense(query, DIMENSION)
                found = {
                    id_: _dot(wanted, models.dense(text, DIMENSION)) for id_, text in texts.items()
                }
            else:
                sparse = models.sparse(query, "query")
                found = {
                    id_: _dot_sparse(sparse, models.sparse(text, "passage"))
                    for id_, text in texts.items()
                }
            return found, len(models.words(query))
        if name not in self.schema or self.schema[name].kind != kind:
            raise Refused(f"the field {name} is not declared {kind}")
        if kind == "sparse_vector":
            sparse = rules.sparse(clause.get("sparse_values"))
            kept = {id_: rules.sparse(one[name]) for id_, one in held.items() if name in one}
            return {id_: _dot_sparse(sparse, values) for id_, values in kept.items()}, 0
        values = rules.numbers(clause.get("values"), "values")
        if len(values) != self.schema[name].dimension:
            raise Refused(
                f"the vector has {len(values)} numbers, the field {name} {self.schema[name].dimension}"
            )
        return {id_: _dot(values, one[name]) for id_, one in held.items()}, 0

    def _check_aspect(self, name: Any, aspect: str, called: str) -> None:
        if name not in self.schema or not getattr(self.schema[name], aspect):
            raise Refused(f"the field {name} is not declared with {called}")

    def _search_string(self, query: str, held: dict[str, dict[str, Any]]) -> dict[str, float]:
        if query.count('"') % 2 or query.count("(") != query.count(")"):
            raise Refused("the query string cannot be parsed")
        searched = [name for name, one in self.schema.items() if one.full_text]
        scores = []
        for name, group, word in re.findall(r"(?:(\w+):)?(?:\(([^)]*)\)|([^\s()]+))", query):
            if name:
                self._check_aspect(name, "full_text", "full_text_search")
            text, _, boost = (group or word).partition("^")
            if text in ("AND", "OR", "NOT") or "?" in text:
                continue  # a question mark stands for a letter more, which no word here has
            for one in [name] if name else searched:
                found = _bm25(text, {id_: document.get(one) for id_, document in held.items()})
                scores.append({id_: score * float(boost or 1) for id_, score in found.items()})
        return _add(scores)


def _add(lists: Any) -> dict[str, float]:
    sums: dict[str, float] = {}
    for found in lists:
        for id_, score in found.items():
            sums[id_] = sums.get(id_, 0.0) + score
    return sums


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def _dot_sparse(one: dict[int, float], other: dict[int, float]) -> float:
    return sum(weight * other.get(at, 0.0) for at, weight in one.items())


def _bm25(query: str, texts: dict[str, Any]) -> dict[str, float]:
    """The texts that hold any word of *query*, by SQLite's BM25, higher is better."""
    words = models.words(query)
    if not words:
        return {}
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE VIRTUAL TABLE texts USING fts5(id UNINDEXED, text)")
        rows = [(id_, text) for id_, text in texts.items() if isinstance(text, str)]
        database.executemany("INSERT INTO texts VALUES (?, ?)", rows)
        asked = " OR ".join(f'"{word}"' for word in words)
        found = database.execute(
            "SELECT id, -bm25(texts) FROM texts WHERE texts MATCH ?", (asked,)
        ).fetchall()
    database.close()
    return {str(id_): float(score) for id_, score in found}
