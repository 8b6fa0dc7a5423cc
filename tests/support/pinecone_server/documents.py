"""Document indexes: a schema of fields, and documents that are searched by vectors, by BM25 or by a query string.

BM25 is that of SQLite's FTS5. A query string is read as far as tests need it: words, ``field:word``,
``field:(words)``, ``word^2`` and quotes.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from tests.support.pinecone_server import models, rules
from tests.support.pinecone_server.errors import Refused
from tests.support.pinecone_server.filtering import meets

USAGE = {"read_units": 1, "egress_bytes": 0}
Documents = dict[str, dict[str, Any]]


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
    namespaces: dict[str, Documents] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock, repr=False)

    def upsert(self, namespace: str, body: Any) -> dict[str, Any]:
        kept: Documents = {}
        documents = rules.mapping(body, "documents").get("documents")
        for document in map(rules.mapping, rules.listed(documents, 1_000, "documents")):
            id_ = rules.id_(document.get("_id"))
            for name, one in self.schema.items():
                if (one.kind == "dense_vector" or one.embed) and name not in document:
                    raise Refused(f"document {id_} needs the field {name}")
            kept[id_] = {
                key: float(value) if rules.is_number(value) else value
                for key, value in document.items()
            }
        with self.lock:
            self.namespaces.setdefault(namespace, {}).update(kept)
        return {"upserted_count": len(kept)}

    def search(self, namespace: str, body: Any) -> dict[str, Any]:
        body = rules.mapping(body, "score_by top_k include_fields filter")
        top_k = rules.whole(body.get("top_k"), 1, 10_000, "top_k")
        clauses = list(map(rules.mapping, rules.listed(body.get("score_by"), 100, "score_by")))
        fields = body.get("include_fields") or []
        condition = rules.mapping(body.get("filter", {}))
        for name in fields:
            if not self.schema.get(name, Field()).store_text:
                raise Refused(f"the text of the field {name} is not stored")
        for name in condition:
            if self.schema.get(name, Field()).is_data:
                raise Refused(f"{name} is a data field and takes no comparison")
        meets({}, condition)
        with self.lock:
            held = dict(self.namespaces.get(namespace, {}))
        held = {id_: document for id_, document in held.items() if meets(document, condition)}
        scores = Counter[str]()
        for clause in clauses:
            if len(clauses) > 1 and clause.get("type") not in ("text", "query_string"):
                raise Refused("a vector clause must stand alone")
            scores.update(self._score(clause, held))
        best = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))[:top_k]
        matches = [
            {"_id": id_, "_score": round(score, 6), **self._show(held[id_], fields)}
            for id_, score in best
        ]
        return {"matches": matches, "namespace": namespace, "usage": USAGE}

    def _show(self, document: dict[str, Any], fields: list[str]) -> dict[str, Any]:
        stored = [name for name in document if self.schema.get(name, Field()).store_text]
        wanted = stored if "*" in fields else fields
        return {name: document[name] for name in wanted if name in document and name != "_id"}

    def _score(self, clause: dict[str, Any], held: Documents) -> dict[str, Any]:
        """The scores of the documents that *clause* finds."""
        kind = clause.get("type")
        names = clause.get("fields") or [clause.get("field")]
        if kind == "query_string":
            return self._search_string(rules.text(clause.get("query"), "query"), held)
        if kind == "text":
            scores = Counter[str]()
            for name in names:
                scores.update(self._search_words(name, clause.get("query"), held))
            return scores
        (name,) = names
        texts = {id_: document[name] for id_, document in held.items() if name in document}
        declared = self.schema.get(name, Field())
        if kind in ("embed", "sparse_embed") and getattr(declared, kind):
            query = rules.text(clause.get("query"), "query")
            if kind == "embed":
                dense = models.dense(query, 1_024)
                return {id_: _dot(dense, models.dense(it, 1_024)) for id_, it in texts.items()}
            sparse = models.sparse(query, "query")
            held_terms = {id_: models.sparse(it, "passage") for id_, it in texts.items()}
        elif declared.kind != kind:
            raise Refused(f"the field {name} is not declared {kind}")
        elif kind == "dense_vector":
            values = rules.numbers(clause.get("values"), "values")
            if len(values) != declared.dimension:
                raise Refused(f"the field {name} takes vectors of {declared.dimension} numbers")
            return {id_: _dot(values, it) for id_, it in texts.items()}
        else:
            sparse = rules.sparse(clause.get("sparse_values"))
            held_terms = {id_: rules.sparse(it) for id_, it in texts.items()}
        return {
            id_: sum(weight * terms.get(at, 0.0) for at, weight in sparse.items())
            for id_, terms in held_terms.items()
        }

    def _search_string(self, query: str, held: Documents) -> dict[str, Any]:
        if not query.strip() or query.count('"') % 2 or query.count("(") != query.count(")"):
            raise Refused("the query string cannot be parsed")
        searched = [name for name, one in self.schema.items() if one.full_text]
        scores = Counter[str]()
        for name, group, word in re.findall(r"(?:(\w+):)?(?:\(([^)]*)\)|([^\s()]+))", query):
            text, _, boost = (group or word).partition("^")
            if text in ("AND", "OR", "NOT") or "?" in text:
                continue  # a question mark stands for a letter more, which no word here has
            for one in [name] if name else searched:
                found = self._search_words(one, text, held)
                scores.update({id_: score * float(boost or 1) for id_, score in found.items()})
        return scores

    def _search_words(self, name: str, query: Any, held: Documents) -> dict[str, Any]:
        """The documents whose field *name* has any word of *query*, by SQLite's BM25, higher is better."""
        if not self.schema.get(name, Field()).full_text:
            raise Refused(f"the field {name} is not declared with full_text_search")
        if not (words := models.words(rules.text(query, "query"))):
            return {}
        rows = [(id_, it[name]) for id_, it in held.items() if isinstance(it.get(name), str)]
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("CREATE VIRTUAL TABLE texts USING fts5(id UNINDEXED, text)")
            database.executemany("INSERT INTO texts VALUES (?, ?)", rows)
            find = "SELECT id, -bm25(texts) FROM texts WHERE texts MATCH ?"
            return dict(database.execute(find, (" OR ".join(f'"{word}"' for word in words),)))


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
