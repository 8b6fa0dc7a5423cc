"""Whole retrievals over stored vectors return the passages, order and scores they returned before."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.golden.cases import CASES, Case, load
from tests.golden.functions import TOP_K, build_functions
from tests.golden.orders import (
    PRESETS,
    Orders,
    ask,
    find_differences,
    measure,
    read,
    read_order,
    wrap,
)
from tests.golden.vectors import StoredVectors
from tests.support.shared_data import needs_shared_data

DEMO = CASES[0]
# What `auto` does depends on the questions before.
UNLEARNED = [preset for preset in PRESETS if preset != "auto"]


def list_parameters() -> list[Any]:
    marks = {
        case: [
            *([] if case is DEMO else [needs_shared_data]),
            *([] if case.is_everyday else [pytest.mark.thorough]),
        ]
        for case in CASES
    }
    return [pytest.param(case, marks=marks[case], id=case.name) for case in CASES]


@pytest.mark.parametrize("case", list_parameters())
def test_every_retrieval_returns_the_kept_passages_in_the_kept_order_with_the_kept_scores(
    case: Case,
) -> None:
    moved = find_differences(read(case), measure(case))
    assert not moved, "if this is meant, run: python -m tests.golden"


@pytest.mark.parametrize("preset", UNLEARNED)
def test_an_order_depends_neither_on_the_questions_before_nor_on_those_asked_at_the_same_time(
    preset: str,
) -> None:
    collection = load(DEMO)
    dense = build_functions(collection, StoredVectors(DEMO.path("npz")))["dense"]
    search = wrap(collection, dense, preset)
    with ThreadPoolExecutor(4) as pool:
        backwards = {
            question.id: pool.submit(ask, search, question)
            for question in collection.questions[::-1]
        }
        found = {id_: order.result() for id_, order in backwards.items()}
    now: Orders = {"dense": {preset: found}}
    assert not find_differences({"dense": {preset: read(DEMO)["dense"][preset]}}, now)


@pytest.mark.parametrize("preset", PRESETS)
async def test_an_async_function_returns_the_same_order(preset: str) -> None:
    collection = load(DEMO)
    dense = build_functions(collection, StoredVectors(DEMO.path("npz")))["dense"]

    async def search_vectors(query: str, top_k: int = TOP_K) -> Any:
        await asyncio.sleep(0)
        return dense(query, top_k)

    search = wrap(collection, search_vectors, preset)
    now: Orders = {
        "dense": {
            preset: {
                question.id: read_order(
                    await search.aretrieve(question.text, top_k=TOP_K, history=question.history)
                )
                for question in collection.questions
            }
        }
    }
    assert not find_differences({"dense": {preset: read(DEMO)["dense"][preset]}}, now)
