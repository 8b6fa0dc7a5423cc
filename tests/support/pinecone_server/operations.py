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
        rules.only_keys(vector, "id values sparseValues metadata", "a vector")
        id_ = rules.id_(vector.get("id"))
        given, sparse = vector.get("values"), vector.get("sparseValues")
        # The client sends an empty list where there are no dense values, as 2026-07 allows beside
        # sparse ones.
        values = (
            ()
            if given is None or (given == [] and sparse is not None)
            else tuple(rules.numbers(given, "values"))
        )
        rule(bool(values) or sparse is not None, "a vector must have values")
        weights = {} if sparse is None else rules.sparse(sparse)
        records[id_] = Stored(
            values, weights, rules.metadata(vector.get("metadata"), whose=f"for {id_}")
        )
    index.put(namespace, records)
    return {"upsertedCount": len(vectors or ())}


def query(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(
        body,
        "namespace topK filter includeValues includeMetadata vector sparseVector id scanFactor maxCandidates queries",
        "the request",
    )
    namespace = rules.namespace(body.get("namespace"))
    top_k = rules.whole(body.get("topK"), 1, 10_000, "topK")
    values, metadata = (
        rules.flag(body.get("includeValues"), "iV"),
        rules.flag(body.get("includeMetadata"), "iM"),
    )
    vector, sparse, id_ = body.get("vector"), body.get("sparseVector"), body.get("id")
    for key, low, high in (("scanFactor", 0.5, 4.0), ("maxCandidates", 1, 100_000)):
        if key in body:
            rule(
                rules.is_number(body[key]) and low <= body[key] <= high,
                f"{key} must be from {low} to {high}",
            )
            rule(key == "scanFactor" or rules.is_whole(body[key]), f"{key} must be whole")
    if "queries" in body:
        raise Refused("queries is not served")
    rule(id_ is None or (vector is None and sparse is None), "id stands alone")
    if "filter" in body:
        rules.mapping(body["filter"], "filter")
    given = Stored(
        () if vector is None else tuple(rules.numbers(vector, "vector")),
        {} if sparse is None else rules.sparse(sparse),
    )
    rule(id_ is not None or vector is not None or sparse is not None, "a vector or an id is needed")
    condition = filtering.check(body.get("filter"))
    if id_ is not None:
        held = index.namespaces.get(namespace, {}).get(rules.id_(id_))
        if held is None:
            return {"matches": [], "namespace": namespace, "usage": USAGE}
        given = held
    found = index.nearest(namespace, given, top_k, condition)
    matches = [
        {"id": id_, "score": score, "values": list(one.values) if values else []}
        | ({"metadata": one.metadata} if metadata else {})
        for id_, score, one in found
    ]
    return {"matches": matches, "namespace": namespace, "usage": USAGE}


def delete(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "ids deleteAll namespace filter", "the request")
    namespace, everything = (
        rules.namespace(body.get("namespace")),
        rules.flag(body.get("deleteAll"), "deleteAll"),
    )
    ids = None if body.get("ids") is None else rules.ids(body["ids"])
    if "filter" in body:
        rules.mapping(body["filter"], "filter")
        rule(bool(body["filter"]), "the filter must not be empty")
    condition = filtering.check(body.get("filter"))
    rule(
        [ids is not None, everything, condition is not None].count(True) == 1,
        "ids, deleteAll or filter is needed",
    )
    index.remove(namespace, ids, condition)
    return {}


def stats(index: Index, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "filter", "the request")
    if body.get("filter") is not None or "filter" in body:
        rules.mapping(body.get("filter"), "filter")
        raise Refused(
            "Serverless indexes do not support describing index stats with metadata filtering"
        )
    counts = {name: {"vectorCount": len(held)} for name, held in index.namespaces.items()}
    answer = {
        "namespaces": counts,
        "indexFullness": 0.0,
        "totalVectorCount": sum(one["vectorCount"] for one in counts.values()),
        "metric": index.metric,
        "vectorType": index.kind,
    }
    return answer | ({"dimension": index.dimension} if index.kind == "dense" else {})


def fetch(index: Index, ids: list[str], namespace: str) -> dict[str, Any]:
    name = rules.namespace(namespace)
    held = index.namespaces.get(name, {})
    found = {id_: held[id_] for id_ in rules.ids(ids) if id_ in held}
    vectors = {
        id_: {"id": id_, "metadata": one.metadata}
        | ({"values": list(one.values)} if one.values else {})
        | (
            {"sparseValues": {"indices": list(one.sparse), "values": list(one.sparse.values())}}
            if one.sparse
            else {}
        )
        for id_, one in found.items()
    }
    return {"vectors": vectors, "namespace": name, "usage": USAGE}


def list_ids(index: Index, prefix: str, limit: int, after: str, namespace: str) -> dict[str, Any]:
    name = rules.namespace(namespace)
    rest = sorted(
        id_ for id_ in index.namespaces.get(name, {}) if id_.startswith(prefix) and id_ > after
    )
    answer: dict[str, Any] = {
        "vectors": [{"id": id_} for id_ in rest[:limit]],
        "namespace": name,
        "usage": USAGE,
    }
    return answer | ({"pagination": {"next": rest[limit - 1]}} if len(rest) > limit else {})


def upsert_records(index: Index, namespace: str, records: Any) -> None:
    if not 1 <= len(records) <= models.MOST_INPUTS:
        raise Refused(f"a request takes 1 to {models.MOST_INPUTS} records, not {len(records)}")
    made: dict[str, Stored] = {}
    for one in records:
        record = dict(rules.mapping(one, "a record"))
        id_ = rules.id_(record.pop("_id", None))
        text = rules.text(record.get(index.text_field), index.text_field)
        vector = index.embedded(text, "passage")
        made[id_] = Stored(vector.values, vector.sparse, rules.metadata(record, whose=f"for {id_}"))
    index.put(rules.namespace(namespace), made)


def search_records(index: Index, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
    rules.only_keys(body, "query fields rerank", "the request")
    asked = rules.mapping(body.get("query"), "query")
    rules.only_keys(asked, "top_k filter inputs vector id match_terms", "query")
    top_k = rules.whole(asked.get("top_k"), 1, 10_000, "top_k")
    fields = body.get("fields")
    rule("fields" not in body or isinstance(fields, list), "fields must be a list")
    wanted = [rules.text(field, "a field") for field in fields or ()]
    inputs = rules.mapping(asked["inputs"], "inputs") if "inputs" in asked else None
    if "filter" in asked:
        rules.mapping(asked["filter"], "filter")
    for other in ("vector", "match_terms"):
        if other in asked:
            rules.mapping(asked[other], other)
            raise Refused(f"{other} is not served")
    if "id" in asked:
        rule(len(rules.text(asked["id"], "id")) <= 512, "id must be at most 512 characters")
        raise Refused("id is not served")
    if "rerank" in body:
        rules.mapping(body["rerank"], "rerank")
        raise Refused("rerank is not served")
    condition = filtering.check(asked.get("filter"))
    rule(inputs is not None, "inputs are needed")
    text = rules.text((inputs or {}).get("text"), "inputs.text")
    found = index.nearest(
        rules.namespace(namespace), index.embedded(text, "query"), top_k, condition
    )
    hits = [
        {
            "_id": id_,
            "_score": score,
            "fields": {
                key: value
                for key, value in one.metadata.items()
                if not wanted or key in wanted or "*" in wanted
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
    if model not in models.DENSE and model not in models.SPARSE:
        raise Refused(f"Model '{model}' not found", 404)
    kind = parameters.get("input_type")
    if kind not in ("passage", "query"):
        raise Refused("input_type must be passage or query")
    if any(not text.strip() for text in inputs):
        raise Refused("inputs must not be empty")
    if model in models.SPARSE:
        vectors = [models.sparse(text, kind) for text in inputs]
        data: list[dict[str, Any]] = [
            {
                "vector_type": "sparse",
                "sparse_indices": list(one),
                "sparse_values": list(one.values()),
            }
            for one in vectors
        ]
    else:
        data = [
            {"vector_type": "dense", "values": models.dense(text, models.DENSE[model])}
            for text in inputs
        ]
    tokens = sum(len(models.words(text)) for text in inputs)
    return {
        "model": model,
        "vector_type": data[0]["vector_type"],
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
