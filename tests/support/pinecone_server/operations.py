"""The operations of one index and of the hosted models: from the body of a request to the body of its answer."""

from __future__ import annotations

from typing import Any

from tests.support.pinecone_server import models, rules
from tests.support.pinecone_server.errors import Refused
from tests.support.pinecone_server.state import Index, Stored

USAGE = {"readUnits": 1}


def upsert(index: Index, body: Any) -> dict[str, Any]:
    body = rules.mapping(body, "vectors namespace")
    records: dict[str, Stored] = {}
    vectors = rules.listed(body.get("vectors"), 1_000, "vectors")
    for vector in vectors:
        vector = rules.mapping(vector, "id values metadata")
        values = rules.numbers(vector.get("values"), "values")
        records[rules.id_(vector.get("id"))] = Stored(
            values, rules.metadata(vector.get("metadata"))
        )
    index.put(rules.namespace(body.get("namespace")), records)
    return {"upsertedCount": len(vectors)}


def query(index: Index, body: Any) -> dict[str, Any]:
    body = rules.mapping(body, "namespace topK filter includeValues includeMetadata vector")
    found = index.nearest(
        namespace := rules.namespace(body.get("namespace")),
        rules.numbers(body.get("vector"), "vector"),
        rules.whole(body.get("topK"), 1, 10_000, "topK"),
        rules.mapping(body.get("filter", {})),
    )
    with_values = rules.flag(body, "includeValues")
    with_metadata = rules.flag(body, "includeMetadata")
    matches = [
        {"id": id_, "score": score, "values": one.values if with_values else []}
        | ({"metadata": one.metadata} if with_metadata else {})
        for id_, score, one in found
    ]
    return {"matches": matches, "namespace": namespace, "usage": USAGE}


def delete(index: Index, body: Any) -> dict[str, Any]:
    body = rules.mapping(body, "ids namespace")
    ids = rules.listed(body.get("ids"), 1_000, "ids")
    index.remove(rules.namespace(body.get("namespace")), list(map(rules.id_, ids)))
    return {}


def stats(index: Index, body: Any) -> dict[str, Any]:
    rules.mapping(body, "")
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
    for record in map(rules.mapping, records):
        id_ = rules.id_(record.pop("_id", None))
        values = index.embedded(rules.text(record.get("text"), "text"))
        made[id_] = Stored(values, rules.metadata(record))
    index.put(rules.namespace(namespace), made)
    return {}


def search_records(index: Index, namespace: str, body: Any) -> dict[str, Any]:
    body = rules.mapping(body, "query fields")
    asked = rules.mapping(body.get("query"), "top_k filter inputs")
    text = rules.text(rules.mapping(asked.get("inputs")).get("text"), "inputs.text")
    top_k = rules.whole(asked.get("top_k"), 1, 10_000, "top_k")
    condition = rules.mapping(asked.get("filter", {}))
    found = index.nearest(rules.namespace(namespace), index.embedded(text), top_k, condition)
    wanted = body.get("fields") or ["*"]
    hits = [
        {
            "_id": id_,
            "_score": score,
            "fields": {key: it for key, it in one.metadata.items() if {key, "*"} & set(wanted)},
        }
        for id_, score, one in found
    ]
    usage = {"read_units": 1, "embed_total_tokens": len(models.words(text))}
    return {"result": {"hits": hits}, "usage": usage, "namespace": namespace}


def rerank(body: Any) -> dict[str, Any]:
    keys = "model query documents top_n return_documents rank_fields parameters"
    body = rules.mapping(body, keys)
    model, asked = rules.text(body.get("model"), "model"), rules.text(body.get("query"), "query")
    if model not in models.RERANKERS:
        raise Refused(f"Model '{model}' not found", 404)
    most, most_words = models.RERANKERS[model]
    (field,) = body.get("rank_fields", ["text"])
    documents = [rules.mapping(it) for it in rules.listed(body.get("documents"), most, "documents")]
    texts = [rules.text(document.get(field), field) for document in documents]
    top_n = rules.whole(body.get("top_n", len(texts)), 1, 2**63, "top_n")
    is_cohere = model.startswith("cohere")
    parameters = rules.mapping(
        body.get("parameters", {}), "max_chunks_per_doc" if is_cohere else "truncate"
    )
    if not asked.strip():
        raise Refused("a query is needed")
    longest = max(len(models.words(f"{asked} {text}")) for text in texts)
    if longest > most_words and not is_cohere and parameters.get("truncate") != "END":
        raise Refused(f"a query and document exceed the token limit of {most_words}")
    is_returned = rules.flag(body, "return_documents", default=True)
    data: list[dict[str, Any]] = [
        {"index": at, "score": models.relevance(asked, text)}
        | ({"document": documents[at]} if is_returned else {})
        for at, text in enumerate(texts)
    ]
    data.sort(key=lambda one: -one["score"])
    return {"model": model, "data": data[:top_n], "usage": {"rerank_units": 1}}
