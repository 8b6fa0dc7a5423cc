"""The operations of one index and of the hosted models: from the body of a request to the body of its answer."""

from __future__ import annotations

from typing import Any

from tests.support.pinecone_server import filtering, models, rules
from tests.support.pinecone_server.errors import Refused
from tests.support.pinecone_server.rules import rule
from tests.support.pinecone_server.state import Index, Stored

USAGE = {"readUnits": 1}


def upsert(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "vectors namespace", "the request")
    namespace, vectors = rules.namespace(body.get("namespace")), body.get("vectors")
    rule(
        isinstance(vectors, list) and 1 <= len(vectors) <= 1_000,
        "vectors must be a list of 1 to 1000",
    )
    records: dict[str, Stored] = {}
    for one in vectors or ():
        vector = rules.mapping(one, "a vector")
        rules.only_keys(vector, "id values metadata", "a vector")
        id_ = rules.id_(vector.get("id"))
        values = tuple(rules.numbers(vector.get("values"), "values"))
        records[id_] = Stored(values, rules.metadata(vector.get("metadata"), whose=f"for {id_}"))
    index.put(namespace, records)
    return {"upsertedCount": len(vectors or ())}


def query(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(
        body, "namespace topK filter includeValues includeMetadata vector", "the request"
    )
    namespace = rules.namespace(body.get("namespace"))
    top_k = rules.whole(body.get("topK"), 1, 10_000, "topK")
    values, metadata = (
        rules.flag(body.get("includeValues"), "iV"),
        rules.flag(body.get("includeMetadata"), "iM"),
    )
    if "filter" in body:
        rules.mapping(body["filter"], "filter")
    vector = tuple(rules.numbers(body.get("vector"), "vector"))
    found = index.nearest(namespace, vector, top_k, filtering.check(body.get("filter")))
    matches = [
        {"id": id_, "score": score, "values": list(one.values) if values else []}
        | ({"metadata": one.metadata} if metadata else {})
        for id_, score, one in found
    ]
    return {"matches": matches, "namespace": namespace, "usage": USAGE}


def delete(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "ids namespace", "the request")
    index.remove(rules.namespace(body.get("namespace")), rules.ids(body.get("ids")))
    return {}


def stats(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "", "the request")
    counts = {name: {"vectorCount": len(held)} for name, held in index.namespaces.items()}
    return {
        "namespaces": counts,
        "indexFullness": 0.0,
        "totalVectorCount": sum(one["vectorCount"] for one in counts.values()),
        "metric": index.metric,
        "vectorType": index.kind,
        "dimension": index.dimension or None,
    }


def upsert_records(index: Index, namespace: str, records: Any) -> None:
    made: dict[str, Stored] = {}
    for one in records:
        record = dict(rules.mapping(one, "a record"))
        id_ = rules.id_(record.pop("_id", None))
        text = rules.text(record.get(index.text_field), index.text_field)
        made[id_] = Stored(index.embedded(text), rules.metadata(record, whose=f"for {id_}"))
    index.put(rules.namespace(namespace), made)


def search_records(index: Index, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "query fields", "the request")
    asked = rules.mapping(body.get("query"), "query")
    rules.only_keys(asked, "top_k filter inputs", "query")
    text = rules.text(rules.mapping(asked.get("inputs"), "inputs").get("text"), "inputs.text")
    found = index.nearest(
        rules.namespace(namespace),
        index.embedded(text),
        rules.whole(asked.get("top_k"), 1, 10_000, "top_k"),
        filtering.check(asked.get("filter")),
    )
    wanted = body.get("fields") or ["*"]
    hits = [
        {
            "_id": id_,
            "_score": score,
            "fields": {
                key: value for key, value in one.metadata.items() if key in wanted or "*" in wanted
            },
        }
        for id_, score, one in found
    ]
    usage = {"read_units": 1, "embed_total_tokens": len(models.words(text))}
    return {"result": {"hits": hits}, "usage": usage, "namespace": namespace}


def embed(body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "model inputs parameters", "the request")
    model = rules.text(body.get("model"), "model")
    parameters = rules.mapping(body.get("parameters", {}), "parameters")
    inputs = rules.texts(body.get("inputs"), "inputs", "text", models.MOST_INPUTS)
    if model not in models.DENSE:
        raise Refused(f"Model '{model}' not found", 404)
    if parameters.get("input_type") not in ("passage", "query"):
        raise Refused("input_type must be passage or query")
    if any(not text.strip() for text in inputs):
        raise Refused("inputs must not be empty")
    data = [
        {"vector_type": "dense", "values": models.dense(text, models.DENSE[model])}
        for text in inputs
    ]
    tokens = sum(len(models.words(text)) for text in inputs)
    return {
        "model": model,
        "vector_type": "dense",
        "data": data,
        "usage": {"total_tokens": tokens},
    }


def rerank(body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(
        body, "model query documents top_n return_documents rank_fields parameters", "the request"
    )
    model, asked = rules.text(body.get("model"), "model"), rules.text(body.get("query"), "query")
    parameters = rules.mapping(body.get("parameters", {}), "parameters")
    returned = rules.flag(body.get("return_documents", True), "return_documents")
    rank_fields, documents = body.get("rank_fields", ["text"]), body.get("documents")
    rule(isinstance(rank_fields, list), "rank_fields must be a list")
    fields = [rules.text(field, "a rank field") for field in rank_fields]
    top_n = rules.whole(body["top_n"], -(2**63), 2**63, "top_n") if "top_n" in body else None
    rule(isinstance(documents, list), "documents must be a list")
    for document in documents or ():
        rules.mapping(document, "a document")
    if model not in models.RERANKERS:
        raise Refused(f"Model '{model}' not found", 404)
    if len(fields) != 1 or not asked.strip() or (top_n is not None and top_n < 1):
        raise Refused("one rank field, a query and a positive top_n are needed")
    most, most_words = models.RERANKERS[model]
    texts = rules.texts(documents, "documents", fields[0], most)
    if set(parameters) - ({"max_chunks_per_doc"} if model.startswith("cohere") else {"truncate"}):
        raise Refused("a parameter is not known to the model")
    cut = parameters.get("truncate") == "END" or model.startswith("cohere")
    if not cut and any(
        len(models.words(asked)) + len(models.words(text)) > most_words for text in texts
    ):
        raise Refused(
            f"Request contains a query+document pair that exceeds the token limit of {most_words}"
        )
    data: list[dict[str, Any]] = [
        {"index": at, "score": models.relevance(asked, text)}
        | ({"document": documents[at]} if returned else {})  # type: ignore[index]
        for at, text in enumerate(texts)
    ]
    data.sort(key=lambda one: -one["score"])
    return {"model": model, "data": data[:top_n], "usage": {"rerank_units": 1}}
