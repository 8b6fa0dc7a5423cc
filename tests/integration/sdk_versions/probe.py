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

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.responses import read_response, replace_score
from qtmiddleware.types import Passage, Variant
from qtmiddleware.wrapping.binding import Arguments, Binding


def plain(value: Any) -> Any:
    """Everything *value* holds, as plain data."""
    if callable(getattr(type(value), "to_dict", None)):
        value = value.to_dict()
    elif dataclasses.is_dataclass(value):
        value = {it.name: getattr(value, it.name) for it in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def listed(response: Any) -> tuple[Any, Any]:
    """The list of matches by attribute and by subscript, as users of this client write it."""
    if hasattr(type(response), "result"):
        return response.result.hits, response["result"]["hits"]
    return response.matches, response["matches"]


def read(response: Any, text_field: str | None = None) -> Any:
    """The result of a search as it is read, with the shape and the passages."""
    fields = {} if text_field is None else {"text": text_field}
    options = KeywordEvidenceSettings(fields=fields)
    return read_response(Variant("original", "q"), response, options=options)


def told(passage: Passage) -> Any:
    """What *passage* is, apart from its item and its score."""
    return passage.key, passage.id, passage.metadata, passage.text


def report(response: Any) -> dict[str, Any]:
    """What is read out of *response*, and what became of a copy with its first two items, reversed."""
    before = plain(response)
    result = read(response)
    shape, passages = result.shape, result.ranking.passages
    items = [passage.item for passage in passages]
    chosen = list(items[:2])[::-1]
    rebuilt = shape.rebuild(response, chosen)
    by_attribute, by_subscript = listed(rebuilt)
    anew = shape.rebuild(response, [replace_score(passage, 0.125) for passage in passages])
    rescored = read(anew).ranking.passages
    kept = {
        "untouched": plain(response) == before and list(shape.items(response)) == list(items),
        "type": type(rebuilt) is type(response),
        "items": all(
            a is b is c for a, b, c in zip(chosen, by_attribute, by_subscript, strict=True)
        ),
        "usage": rebuilt.usage is not None,
        "rest": {**plain(rebuilt), "matches": 0, "result": 0}
        == {**before, "matches": 0, "result": 0},
        "info": plain(getattr(rebuilt, "response_info", None))
        == plain(getattr(response, "response_info", None)),
        "whole": plain(shape.rebuild(response, items)) == before,
        "scores": all(it.score == 0.125 and type(it.item) is type(items[0]) for it in rescored),
        "all but the scores": list(map(told, rescored)) == list(map(told, passages)),
    }
    return {
        "keys": result.ranking.keys,
        "scores": result.ranking.scores,
        "metadata": [dict(passage.metadata) for passage in passages],
        "texts": [passage.text for passage in passages],
        "named_texts": [passage.text for passage in read(response, "score").ranking.passages],
        "keys_of_rebuilt": read(rebuilt).ranking.keys,
        "kept": kept,
    }


def searched(index: Any, kwargs: dict[str, Any]) -> Any:
    arguments = Arguments(Binding(index.search), (), kwargs)
    assert arguments.read_query() == "old words"
    arguments = arguments.replace("new words", 7)
    return index.search(*arguments.args, **arguments.kwargs)


def queried(index: Any) -> Any:
    binding = Binding(index.query, takes_vector=True)
    arguments = Arguments(binding, ("words",), {"top_k": 3, "namespace": "ns"})
    arguments = arguments.replace([0.5, 0.25], 7)
    return index.query(*arguments.args, **arguments.kwargs)


def main(host: str) -> dict[str, Any]:
    index = Pinecone(api_key="k", host=host).Index(host=host)
    query = {"vector": [0.5, 0.25], "top_k": 3, "include_metadata": True}
    return {
        "version": version("pinecone"),
        "query": report(index.query(**query, namespace="ns")),
        "called": report(queried(index)),
        "empty": report(index.query(**query, namespace="empty")),
        "later": report(index.query(**query, namespace="ns", async_req=True).get()),
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
