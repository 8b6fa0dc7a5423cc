"""Responses that keep passages in columns: Chroma's results, documents beside their scores."""

from __future__ import annotations

import copy
import operator
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses import (
    find_shape,
    read_keys_and_scores,
    read_response,
    read_score,
    read_text,
    replace_score,
)
from qtmiddleware.types import DEFAULT_NAMESPACE as DEFAULT
from qtmiddleware.types import Variant

TEXTS = ["the first", "the second", "the third"]
SCORES = [0.75, 0.5, 0.25]


def chroma(*, nested: bool = True, count: int = 3, **columns: Any) -> dict[str, Any]:
    """What Chroma's ``query`` returns, or, not nested, its ``get``."""
    lists: dict[str, Any] = {
        "ids": ["a", "b", "c"][:count],
        "documents": TEXTS[:count],
        "metadatas": [{"n": n} for n in range(count)],
        **({"distances": [0.25, 0.5, 0.75][:count]} if nested else {}),
        **columns,
    }
    inner = {
        name: [values] if nested and values is not None else values
        for name, values in lists.items()
    }
    rest = {
        "embeddings": None,
        "uris": None,
        "data": None,
        "included": ["metadatas", "documents", "distances"],
    }
    return {**rest, **inner}


def read(response: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Keys, scores and texts."""
    shape = find_shape(response)
    items = shape.items(response)
    keys = read_keys_and_scores(response, items)[0]
    return keys, [read_score(item) for item in items], [read_text(item, None) for item in items]


def kept(response: Any, *places: int) -> Any:
    """A response with the items at these *places* alone."""
    shape = find_shape(response)
    items = shape.items(response)
    return shape.rebuild(response, [items[place] for place in places])


def refused(response: Any) -> str:
    with pytest.raises(ResponseShapeError) as caught:
        read_response(Variant("original", "q"), response)
    return str(caught.value)


# Chroma


@pytest.mark.parametrize("nested", [True, False])
def test_chromas_columns_are_read_and_written_back(nested: bool) -> None:
    response = chroma(nested=nested)
    before = copy.deepcopy(response)
    keys, scores, texts = read(response)
    assert [key for _, key in keys] == ["a", "b", "c"]
    assert scores == ([0.25, 0.5, 0.75] if nested else [None] * 3)
    assert texts == TEXTS
    made = kept(response, 2, 0)
    assert read(made)[0] == [(DEFAULT, "c"), (DEFAULT, "a")]
    assert made["metadatas"] == ([[{"n": 2}, {"n": 0}]] if nested else [{"n": 2}, {"n": 0}])
    assert made["included"] == before["included"]
    assert [name for name, column in made.items() if column is None] == [
        "embeddings",
        "uris",
        "data",
    ]
    assert list(made) == list(response)
    assert response == before
    assert kept(response, 0, 1, 2) == before


@pytest.mark.parametrize("nested", [True, False])
def test_chroma_finding_nothing_is_no_error_and_can_be_filled(nested: bool) -> None:
    response, other = chroma(nested=nested, count=0), chroma(nested=nested)
    shape = find_shape(response)
    assert list(shape.items(response)) == []
    assert shape.rebuild(response, []) == response
    made = shape.rebuild(response, shape.items(other))
    assert {**made, "included": 0} == {**other, "included": 0}


def test_vectors_of_chroma_stay_an_array() -> None:
    vectors = np.arange(6, dtype="float32").reshape(3, 2)
    for nested in (True, False):
        found = kept(chroma(nested=nested, embeddings=vectors), 2, 0)["embeddings"]
        inner = found[0] if nested else found
        assert type(found) is (list if nested else np.ndarray)
        assert inner.dtype == vectors.dtype
        assert inner.tolist() == [[4, 5], [0, 1]]
    nothing = kept(chroma(nested=False, embeddings=vectors))["embeddings"]
    assert nothing.shape == (0, 2)


def test_a_column_that_only_some_responses_have_is_filled_with_none() -> None:
    response, other = (
        chroma(uris=["u", "v", "w"]),
        chroma(documents=None, embeddings=[[0.0], [1.0], [2.0]]),
    )
    made = find_shape(response).rebuild(
        response, [*find_shape(other).items(other)[:1], *find_shape(response).items(response)]
    )
    assert made["uris"] == [[None, "u", "v", "w"]]
    assert made["documents"] == [[None, *TEXTS]]
    assert made["embeddings"] is None


def test_columns_chroma_does_not_know_are_kept_beside_their_passage() -> None:
    response = {
        "ids": ["a", "b"],
        "texts": TEXTS[:2],
        "titles": ["x", "y"],
        "scores": [0.5, 0.25],
        "notes": ["kept"],
        5: [6, 7],
    }
    assert read(response)[1:] == ([0.5, 0.25], TEXTS[:2])
    assert kept(response, 1) == {
        "ids": ["b"],
        "texts": TEXTS[1:2],
        "titles": ["y"],
        "scores": [0.25],
        "notes": ["kept"],
        5: [7],
    }


def test_distances_of_chroma_can_be_written_anew() -> None:
    response = chroma()
    shape = find_shape(response)
    made = shape.rebuild(response, [replace_score(item, 0.125) for item in shape.items(response)])
    assert made["distances"] == [[0.125] * 3]
    assert response["distances"] == [[0.25, 0.5, 0.75]]


@pytest.mark.parametrize(
    "response",
    [
        {"ids": [["a"], ["b"]], "documents": [["x"], ["y"]]},
        {"ids": [[], []], "documents": [[], []]},
        {"ids": ["a", "b"], "documents": ["x"]},
        {"ids": [["a"]], "documents": ["x"]},
    ],
)
def test_several_queries_at_once_and_columns_of_two_lengths_are_refused(response: Any) -> None:
    assert "dict" in refused(response)


# Documents beside their scores


@dataclass
class Found:
    documents: list[Any]
    scores: Any
    took: float = 0.5


Pair = namedtuple("Pair", ["docs", "numbers"])
DICTS = [{"id": i, "text": t} for i, t in zip("abc", TEXTS, strict=True)]


@pytest.mark.parametrize(
    "response",
    [
        (DICTS, SCORES),
        [DICTS, SCORES],
        (tuple(DICTS), tuple(SCORES)),
        (DICTS, np.array(SCORES)),
        (np.array(DICTS, dtype=object), np.array(SCORES, dtype="float32")),
        Pair(DICTS, SCORES),
        Found(DICTS, SCORES),
        {"documents": DICTS, "scores": SCORES, "took": 1},
        {"results": DICTS, "distances": SCORES},
    ],
)
def test_documents_beside_their_scores_are_read_and_written_back_together(response: Any) -> None:
    before = copy.deepcopy(response)
    assert read(response) == ([(DEFAULT, "a"), (DEFAULT, "b"), (DEFAULT, "c")], SCORES, TEXTS)
    made = kept(response, 2, 0)
    assert type(made) is type(response)
    assert read(made) == (
        [(DEFAULT, "c"), (DEFAULT, "a")],
        [0.25, 0.75],
        ["the third", "the first"],
    )
    for old, new in zip(parts(response), parts(made), strict=True):
        assert type(old) is type(new)
        assert getattr(old, "dtype", None) == getattr(new, "dtype", None)
    assert repr(response) == repr(before)
    assert repr(kept(response, 0, 1, 2)) == repr(before)
    shape = find_shape(response)
    assert read(shape.rebuild(response, [replace_score(shape.items(response)[0], 9.0)]))[1] == [9.0]


def parts(response: Any) -> list[Any]:
    if isinstance(response, Found):
        return [response.documents, response.scores, response.took]
    return list(response.values() if isinstance(response, dict) else response)


def test_whole_scores_can_be_written_anew_with_fractions() -> None:
    response = (TEXTS, np.array([3, 2, 1]))
    shape = find_shape(response)
    made = shape.rebuild(response, [replace_score(item, 0.5) for item in shape.items(response)])
    assert made[1].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "response", [([], []), [[], []], {"documents": [], "scores": []}, ([], np.array([]))]
)
def test_no_documents_and_no_scores_can_be_filled(response: Any) -> None:
    shape = find_shape(response)
    assert list(shape.items(response)) == []
    assert type(shape.rebuild(response, [])) is type(response)
    made = shape.rebuild(response, [(TEXTS[0], 0.5)])
    assert read(made) == ([(DEFAULT, "\0the first")], [0.5], ["the first"])


@pytest.mark.parametrize(
    "response",
    [
        (DICTS[0], DICTS[1]),
        [DICTS[0], DICTS[1]],
        [("a", 0.5), ("b", 0.25)],
        (["a", 0.5], ["b", 0.25]),
        [(1, 0.5), (2, 0.25)],
        [(DICTS[0], 0.5), (DICTS[1], 0.25)],
        ["one text", "another"],
        {"documents": DICTS, "scores": SCORES[:2]},
        {"documents": DICTS, "scores": ["high", "low", "low"]},
    ],
)
def test_two_items_are_not_taken_for_documents_and_scores(response: Any) -> None:
    items = response["documents"] if isinstance(response, dict) else response
    assert all(map(operator.is_, find_shape(response).items(response), items))


@pytest.mark.parametrize(
    "response", [(DICTS, SCORES[:2]), (DICTS, [0.5, None, 0.25]), ([np.zeros(2)] * 2, [0.5, 0.25])]
)
def test_two_lists_that_do_not_fit_each_other_are_refused(response: Any) -> None:
    assert "read=" in refused(response)


# Arrays of texts


@pytest.mark.parametrize("dtype", [object, str])
def test_an_array_of_texts_is_read_and_stays_an_array(dtype: Any) -> None:
    response = np.array(TEXTS, dtype=dtype)
    shape = find_shape(response)
    assert read(response)[2] == TEXTS
    made = shape.rebuild(
        response, [*shape.items(response)[::-1], "one that is longer than all of these"]
    )
    assert type(made) is np.ndarray
    assert made.dtype.kind == response.dtype.kind
    assert made.tolist() == [*TEXTS[::-1], "one that is longer than all of these"]


@pytest.mark.parametrize(
    "response", [np.zeros(3), np.zeros((2, 2)), np.array([TEXTS]), np.ma.array(TEXTS)]
)
def test_an_array_of_numbers_or_of_lists_or_with_a_mask_is_refused(response: Any) -> None:
    assert "rray" in refused(response)


# The whole way

PASSAGES = [
    "The weather in the valley was mild that spring.",
    "The committee met on Tuesday to discuss parking.",
    "Tomatoes need plenty of sun and water.",
    "The new library opens in June.",
    "A train leaves for the coast every hour.",
    "Paint dries faster in warm rooms.",
    "Jaco has no health concerns according to the vet.",
    "The museum closes early in winter.",
]
NUMBERS = [0.8 - 0.01 * place for place in range(8)]
NAMES = [f"p{place}" for place in range(8)]
WHOLE: list[Any] = [
    ((PASSAGES, NUMBERS), lambda it: it[0]),
    (list(zip(PASSAGES, NUMBERS, strict=True)), lambda it: [text for text, _ in it]),
    (
        {"ids": [NAMES], "documents": [PASSAGES], "distances": [sorted(NUMBERS)]},
        lambda it: it["documents"][0],
    ),
    (np.array(PASSAGES, dtype=object), list),
]


@pytest.mark.parametrize(("response", "texts"), WHOLE)
def test_a_wrapped_function_returns_the_answer_further_up_in_its_own_type(
    response: Any, texts: Any
) -> None:
    @qtm.middleware
    def retrieve(query: str) -> Any:
        return response

    found = retrieve("Does Jaco have any health concerns?")
    assert type(found) is type(response)
    assert sorted(texts(found)) == sorted(PASSAGES)
    assert texts(found).index(PASSAGES[6]) < 6
    assert retrieve.retrieve("Does Jaco have any health concerns?").status == "full"


def test_a_wrapped_function_that_returns_several_queries_results_returns_them_as_they_are() -> None:
    response = {"ids": [["a"], ["b"]], "documents": [["x"], ["y"]]}

    @qtm.middleware
    def retrieve(query: str) -> Any:
        return response

    assert retrieve("Does Jaco have any health concerns?") is response
