"""Whole retrievals over stored vectors return what they returned before, and the built-in model gives these vectors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

from tests.golden.cases import CASES, Case, load
from tests.golden.functions import build_functions
from tests.golden.orders import (
    PRESETS,
    Orders,
    ask,
    find_differences,
    measure,
    read,
    wrap,
)
from tests.golden.vectors import DIMENSION, StoredVectors, embed
from tests.support.shared_data import needs_shared_data

DEMO = CASES[0]
# What `auto` does depends on the questions before.
UNLEARNED = [preset for preset in PRESETS if preset != "auto"]
LEAST_COSINE = 0.9999
TEXTS_PER_CASE = 8


CI = [needs_shared_data, pytest.mark.thorough]
each_case = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case is DEMO else CI, id=case.name) for case in CASES],
)


@each_case
def test_every_retrieval_returns_the_kept_passages_in_the_kept_order_with_the_kept_scores(
    case: Case,
) -> None:
    moved = find_differences(read(case), measure(case))
    assert not moved, "if this is meant, run: python -m tests.golden"


@each_case
def test_the_built_in_model_gives_the_stored_vectors(case: Case) -> None:
    texts = list(load(case).texts())
    stored = StoredVectors(case.path("npz"))
    for text in islice(texts, 0, None, len(texts) // TEXTS_PER_CASE):
        kept, now = stored.find(text), embed(text)
        assert now.shape == (DIMENSION,)
        cosine = kept @ now / (np.linalg.norm(kept) * np.linalg.norm(now))
        assert cosine >= LEAST_COSINE, text


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
