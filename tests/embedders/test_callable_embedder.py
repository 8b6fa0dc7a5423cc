from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.embedders import CallableEmbedder
from qtmiddleware.errors import EmbeddingError
from qtmiddleware.ports import Embedder


def lengths(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


async def lengths_async(texts: list[str]) -> list[list[float]]:
    return lengths(texts)


def test_a_function_becomes_an_embedder() -> None:
    embedder = CallableEmbedder(lengths)
    assert isinstance(embedder, Embedder)
    assert embedder.embed(("a", "abc")) == [[1.0, 1.0], [3.0, 1.0]]
    assert (embedder.name, embedder.dimension, embedder.can_async) == ("lengths", 2, False)


def test_the_dimension_is_learned_without_a_first_call_of_the_user() -> None:
    assert CallableEmbedder(lengths).dimension == 2
    assert CallableEmbedder(lengths_async, dimension=2, name="mine").dimension == 2


@pytest.mark.parametrize(
    "made",
    [np.ones((2, 3), dtype=np.float32), [np.ones(3), np.ones(3)], ((1, 1, 1), (1, 1, 1)), [[np.float64(1)] * 3] * 2],
    ids=["one array", "arrays", "tuples", "numpy numbers"],
)
def test_any_kind_of_numbers_comes_out_as_floats(made: Any) -> None:
    found = CallableEmbedder(lambda texts: made).embed(["a", "b"])
    assert found == [[1.0] * 3] * 2
    assert all(type(number) is float for vector in found for number in vector)


@pytest.mark.parametrize(
    "made",
    [[[1.0]], [[1.0]] * 3, [[1.0], [1.0, 2.0]], [[], []], None, [1.0, 2.0], ["12", "34"], [["a"], ["b"]], "ab"],
    ids=["too few", "too many", "ragged", "empty", "None", "flat", "texts", "no numbers", "a text"],
)
def test_anything_else_is_an_embedding_error(made: Any) -> None:
    with pytest.raises(EmbeddingError):
        CallableEmbedder(lambda texts: made, name="mine").embed(["a", "b"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float32("nan"), 10**400])
def test_a_number_that_is_not_finite_is_an_embedding_error(number: Any) -> None:
    with pytest.raises(EmbeddingError):
        CallableEmbedder(lambda texts: [[1.0, number]]).embed(["a"])


def test_a_length_other_than_before_is_an_embedding_error() -> None:
    embedder = CallableEmbedder(lambda texts: [[1.0] * len(texts[0])])
    embedder.embed(["four"])
    with pytest.raises(EmbeddingError, match="of 5 numbers, not 4"):
        embedder.embed(["fifth"])


def test_what_the_function_raises_passes_through() -> None:
    def broken(texts: list[str]) -> list[list[float]]:
        raise TimeoutError("theirs")

    with pytest.raises(TimeoutError, match="theirs"):
        CallableEmbedder(broken).embed(["a"])


def test_the_callers_list_is_not_handed_out() -> None:
    given_texts = ["a"]
    CallableEmbedder(lambda texts: (texts.append("more"), [[1.0]])[1]).embed(given_texts)
    assert given_texts == ["a"]


def test_an_async_function_is_refused() -> None:
    class Client:
        async def __call__(self, texts: list[str]) -> list[list[float]]:
            return lengths(texts)

    for fn in (lengths_async, Client()):
        embedder = CallableEmbedder(fn)  # type: ignore[arg-type]
        assert embedder.can_async
        with pytest.raises(EmbeddingError, match="is async; give a plain function"):
            embedder.embed(["abc"])


def test_a_coroutine_in_disguise_is_named() -> None:
    with pytest.raises(EmbeddingError, match="give a plain function"):
        CallableEmbedder(lambda texts: lengths_async(texts)).embed(["a"])


def test_no_texts_call_nothing() -> None:
    assert CallableEmbedder(lambda texts: pytest.fail("was called")).embed([]) == []


@given(st.lists(st.text(), max_size=5))
def test_texts_arrive_unchanged(texts: list[str]) -> None:
    seen: list[str] = []
    CallableEmbedder(lambda given_texts: (seen.extend(given_texts), lengths(given_texts))[1]).embed(texts)
    assert seen == texts
