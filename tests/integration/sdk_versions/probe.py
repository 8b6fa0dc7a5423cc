"""Runs one version of the Pinecone client against the server at argv[1] and reports as JSON what its answers became.

Run in a process of its own, with nothing to import but the standard library, that client and the
package.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[3]))

from pinecone import Pinecone

from qtmiddleware.retrieval.responses import (
    find_shape,
    read_keys_and_scores,
    read_metadata,
    read_score,
    read_text,
    replace_score,
    wait_for_response,
)
from qtmiddleware.wrapping.signatures import read_signature


def plain(value: Any) -> Any:
    """Everything *value* holds, as plain data."""
    if callable(getattr(type(value), "to_dict", None)):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def listed(response: Any) -> tuple[Any, Any]:
    """The list of matches by attribute and by subscript, as users of this client write it."""
    if hasattr(type(response), "result"):
        return response.result.hits, response["result"]["hits"]
    return response.matches, response["matches"]


def info(response: Any) -> Any:
    return getattr(response, "response_info", None)


def told(response: Any, item: Any) -> Any:
    """What *item* is, apart from its score."""
    return read_keys_and_scores(response, [item])[0], read_metadata(item), read_text(item, None)


def report(response: Any) -> dict[str, Any]:
    """What is read out of *response*, and what became of a copy with its first two items, reversed."""
    before = plain(response)
    shape = find_shape(response)
    items = shape.items(response)
    chosen = list(items[:2])[::-1]
    rebuilt = shape.rebuild(response, chosen)
    by_attribute, by_subscript = listed(rebuilt)
    anew = [replace_score(item, 0.125) for item in items]
    return {
        "keys": read_keys_and_scores(response, items)[0],
        "scores": [read_score(item) for item in items],
        "metadata": [dict(read_metadata(item)) for item in items],
        "texts": [read_text(item, None) for item in items],
        "named_texts": [read_text(item, "score") for item in items],
        "untouched": plain(response) == before and list(shape.items(response)) == list(items),
        "same_type": type(rebuilt) is type(response),
        "same_items": all(
            a is b is c for a, b, c in zip(chosen, by_attribute, by_subscript, strict=True)
        ),
        "same_usage": plain(rebuilt.usage) == plain(response.usage) and rebuilt.usage is not None,
        "same_info": plain(info(rebuilt)) == plain(info(response)),
        "same_rest": {**plain(rebuilt), "matches": 0, "result": 0}
        == {**before, "matches": 0, "result": 0},
        "whole_again": plain(shape.rebuild(response, items)) == before,
        "rescored": all(read_score(it) == 0.125 and type(it) is type(items[0]) for it in anew),
        "same_but_score": [told(response, it) for it in anew]
        == [told(response, it) for it in items],
        "keys_of_rebuilt": read_keys_and_scores(rebuilt, shape.items(rebuilt))[0],
    }


def searched(index: Any, kwargs: dict[str, Any]) -> Any:
    shape = read_signature(index.search)
    assert shape.read_query((), kwargs) == "old words"
    args, kwargs = shape.replace_arguments((), kwargs, query="new words", top_k=7)
    return index.search(*args, **kwargs)


def queried(index: Any) -> Any:
    shape = read_signature(index.query, takes_vector=True)
    args, kwargs = shape.replace_arguments(
        ("words",), {"top_k": 3, "namespace": "ns"}, query=[0.5, 0.25], top_k=7
    )
    return index.query(*args, **kwargs)


def main(host: str) -> dict[str, Any]:
    index = Pinecone(api_key="k", host=host).Index(host=host)
    query = {"vector": [0.5, 0.25], "top_k": 3, "include_metadata": True}
    return {
        "version": version("pinecone"),
        "query": report(index.query(**query, namespace="ns")),
        "called": report(queried(index)),
        "empty": report(index.query(**query, namespace="empty")),
        "later": report(wait_for_response(index.query(**query, namespace="ns", async_req=True))),
        "namespaces": report(
            index.query_namespaces(vector=[0.5, 0.25], namespaces=["a"], metric="cosine", top_k=3)
        ),
        "search": report(
            searched(
                index,
                {"namespace": "ns", "query": {"inputs": {"text": "old words"}, "top_k": 3}},
            )
        ),
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
