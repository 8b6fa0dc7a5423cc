"""Document indexes: a schema of fields, and documents that are searched by vectors, by BM25 or by a query string.

BM25 is that of SQLite's FTS5. Of a query string the words are read.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from tests.support.pinecone_server import rules
from tests.support.pinecone_server.filtering import meets
from tests.support.pinecone_server.rules import Refused
from tests.support.pinecone_server.state import embed, score, split_words

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
        documents = rules.read_mapping(body, "documents").get("documents")
        for document in map(rules.read_mapping, rules.read_list(documents, 1_000, "documents")):
            id_ = rules.read_id(document.get("_id"))
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
        body = rules.read_mapping(body, "score_by top_k include_fields filter")
        top_k = rules.read_count(body.get("top_k"), 10_000, "top_k")
        clauses = list(
            map(rules.read_mapping, rules.read_list(body.get("score_by"), 100, "score_by"))
        )
        fields = body.get("include_fields") or []
        condition = rules.read_mapping(body.get("filter", {}))
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
        kind, query = clause.get("type"), clause.get("query")
        names = clause.get("fields") or [clause.get("field")]
        if kind == "query_string":
            return self._search_string(rules.read_text(query, "query"), held)
        if kind == "text":
            scores = Counter[str]()
            for name in names:
                scores.update(self._search_words(name, query, held))
            return scores
        (name,) = names
        declared = self.schema.get(name, Field())
        values = {id_: document[name] for id_, document in held.items() if name in document}
        if kind in ("embed", "sparse_embed") and getattr(declared, str(kind)):
            asked = embed(rules.read_text(query, "query"))
            return {id_: score("cosine", asked, embed(text)) for id_, text in values.items()}
        if declared.kind != kind:
            raise Refused(f"the field {name} is not declared {kind}")
        if kind == "sparse_vector":
            wanted = read_sparse(clause.get("sparse_values"))
            return {
                id_: sum(weight * read_sparse(it).get(at, 0.0) for at, weight in wanted.items())
                for id_, it in values.items()
            }
        numbers = rules.read_numbers(clause.get("values"), "values")
        if len(numbers) != declared.dimension:
            raise Refused(f"the field {name} takes vectors of {declared.dimension} numbers")
        return {id_: score("dot", numbers, it) for id_, it in values.items()}

    def _search_string(self, query: str, held: Documents) -> dict[str, Any]:
        if not query.strip() or query.count('"') % 2 or query.count("(") != query.count(")"):
            raise Refused("the query string cannot be parsed")
        scores = Counter[str]()
        # A question mark stands for a letter more, which no word here has.
        text = re.sub(r"\b(AND|OR|NOT)\b|\w+:|\w+\?|\^\d+", " ", query)
        for name in (name for name, one in self.schema.items() if one.full_text):
            scores.update(self._search_words(name, text, held))
        return scores

    def _search_words(self, name: str, query: Any, held: Documents) -> dict[str, Any]:
        """The documents whose field *name* has any word of *query*, by SQLite's BM25, higher is better."""
        if not self.schema.get(name, Field()).full_text:
            raise Refused(f"the field {name} is not declared with full_text_search")
        if not (words := split_words(rules.read_text(query, "query"))):
            return {}
        rows = [(id_, it[name]) for id_, it in held.items() if isinstance(it.get(name), str)]
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("CREATE VIRTUAL TABLE texts USING fts5(id UNINDEXED, text)")
            database.executemany("INSERT INTO texts VALUES (?, ?)", rows)
            find = "SELECT id, -bm25(texts) FROM texts WHERE texts MATCH ?"
            return dict(database.execute(find, (" OR ".join(f'"{word}"' for word in words),)))


def read_sparse(value: Any) -> dict[int, float]:
    held = rules.read_mapping(value, "indices values")
    weights = rules.read_numbers(held.get("values"), "sparse values")
    return dict(zip(rules.read_list(held.get("indices"), 2_048, "indices"), weights, strict=True))
