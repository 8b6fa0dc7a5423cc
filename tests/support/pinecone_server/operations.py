"""The operations of one index and of the hosted models: from the body of a request to the body of its answer."""

from __future__ import annotations

from typing import Any

from tests.support.pinecone_server import rules
from tests.support.pinecone_server.rules import Refused
from tests.support.pinecone_server.state import Index, Stored, split_words

USAGE = {"readUnits": 1}
RERANKERS = {"bge-reranker-v2-m3": 1024, "pinecone-rerank-v0": 512}
"""The most words that are read of a query with a document."""


def read_namespace(value: Any) -> str:
    return rules.read_text("" if value is None else value, "namespace") or "__default__"


def upsert(index: Index, body: Any) -> dict[str, Any]:
    body = rules.read_mapping(body, "vectors namespace")
    records: dict[str, Stored] = {}
    vectors = rules.read_list(body.get("vectors"), 1_000, "vectors")
    for vector in vectors:
        vector = rules.read_mapping(vector, "id values metadata")
        values = rules.read_numbers(vector.get("values"), "values")
        records[rules.read_id(vector.get("id"))] = Stored(
            values, rules.read_metadata(vector.get("metadata"))
        )
    index.put(read_namespace(body.get("namespace")), records)
    return {"upsertedCount": len(vectors)}


def query(index: Index, body: Any) -> dict[str, Any]:
    body = rules.read_mapping(body, "namespace topK filter includeValues includeMetadata vector")
    found = index.find_nearest(
        namespace := read_namespace(body.get("namespace")),
        rules.read_numbers(body.get("vector"), "vector"),
        rules.read_count(body.get("topK"), 10_000, "topK"),
        rules.read_mapping(body.get("filter", {})),
    )
    with_values, with_metadata = (body.get(f"include{it}") for it in ("Values", "Metadata"))
    matches = [
        {"id": id_, "score": score, "values": one.values if with_values else []}
        | ({"metadata": one.metadata} if with_metadata else {})
        for id_, score, one in found
    ]
    return {"matches": matches, "namespace": namespace, "usage": USAGE}


def delete(index: Index, body: Any) -> dict[str, Any]:
    body = rules.read_mapping(body, "ids namespace")
    ids = rules.read_list(body.get("ids"), 1_000, "ids")
    index.remove(read_namespace(body.get("namespace")), list(map(rules.read_id, ids)))
    return {}


def stats(index: Index, body: Any) -> dict[str, Any]:
    rules.read_mapping(body, "")
    counts = {name: len(held) for name, held in index.namespaces.items()}
    return {
        "namespaces": {name: {"vectorCount": count} for name, count in counts.items()},
        "indexFullness": 0.0,
        "totalVectorCount": sum(counts.values()),
        "metric": index.metric,
        "vectorType": index.kind,
        "dimension": index.dimension or None,
    }


def upsert_records(index: Index, namespace: str, records: list[Any]) -> dict[str, Any]:
    made: dict[str, Stored] = {}
    for record in map(rules.read_mapping, records):
        id_ = rules.read_id(record.pop("_id", None))
        values = index.embed(rules.read_text(record.get("text"), "text"))
        made[id_] = Stored(values, rules.read_metadata(record))
    index.put(read_namespace(namespace), made)
    return {}


def search_records(index: Index, namespace: str, body: Any) -> dict[str, Any]:
    body = rules.read_mapping(body, "query fields")
    asked = rules.read_mapping(body.get("query"), "top_k filter inputs")
    text = rules.read_text(rules.read_mapping(asked.get("inputs")).get("text"), "inputs.text")
    top_k = rules.read_count(asked.get("top_k"), 10_000, "top_k")
    condition = rules.read_mapping(asked.get("filter", {}))
    found = index.find_nearest(read_namespace(namespace), index.embed(text), top_k, condition)
    wanted = body.get("fields") or ["*"]
    hits = [
        {
            "_id": id_,
            "_score": score,
            "fields": {key: it for key, it in one.metadata.items() if {key, "*"} & set(wanted)},
        }
        for id_, score, one in found
    ]
    usage = {"read_units": 1, "embed_total_tokens": len(split_words(text))}
    return {"result": {"hits": hits}, "usage": usage, "namespace": namespace}


def rerank(body: Any) -> dict[str, Any]:
    keys = "model query documents top_n return_documents rank_fields parameters"
    body = rules.read_mapping(body, keys)
    model = rules.read_text(body.get("model"), "model")
    query = rules.read_text(body.get("query"), "query")
    if model not in RERANKERS:
        raise Refused(f"Model '{model}' not found", 404)
    (field,) = body.get("rank_fields", ["text"])
    documents = [
        rules.read_mapping(it) for it in rules.read_list(body.get("documents"), 100, "documents")
    ]
    texts = [rules.read_text(document.get(field), field) for document in documents]
    wanted = set(split_words(query))
    longest = len(wanted) + max(len(split_words(text)) for text in texts)
    parameters = rules.read_mapping(body.get("parameters", {}), "truncate")
    if longest > RERANKERS[model] and parameters.get("truncate") != "END":
        raise Refused(f"a query and document exceed the token limit of {RERANKERS[model]}")
    data: list[dict[str, Any]] = [
        {"index": at, "score": len(wanted & set(split_words(text))) / len(wanted)}
        | ({"document": documents[at]} if body.get("return_documents", True) else {})
        for at, text in enumerate(texts)
    ]
    data.sort(key=lambda one: -one["score"])
    top_n = body.get("top_n", len(data))
    return {"model": model, "data": data[:top_n], "usage": {"rerank_units": 1}}
