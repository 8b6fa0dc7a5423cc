"""The built-in embedding model gives the vectors that are stored."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tests.golden.cases import CASES, Case, load
from tests.golden.vectors import DIMENSION, StoredVectors, embed
from tests.support.shared_data import needs_shared_data

LEAST_COSINE = 0.9999
TEXTS_PER_CASE = 8


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[] if case.name == "demo" else [needs_shared_data, pytest.mark.thorough],
            id=case.name,
        )
        for case in CASES
    ],
)
def test_the_built_in_model_gives_the_stored_vectors(case: Case) -> None:
    texts = list(load(case).texts())
    stored = StoredVectors(case.path("npz"))
    for text in islice(texts, 0, None, len(texts) // TEXTS_PER_CASE):
        kept, now = stored.find(text), embed(text)
        assert now.shape == (DIMENSION,)
        cosine = kept @ now / (np.linalg.norm(kept) * np.linalg.norm(now))
        assert cosine >= LEAST_COSINE, text
