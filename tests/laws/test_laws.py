"""The laws of the design hold for every kind of function, on good and on bad days."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings

from tests.laws.cases import Case, any_case, cover_pairs
from tests.laws.laws import find_broken_laws

patiently = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key and no address of the machine's own: without a client there is no model."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "QTM_LLM_BASE_URL", "QTM_CONFIG"):
        monkeypatch.delenv(name, raising=False)


MERGED: Final = tuple(
    Case(way=way, search="one fails", setting=setting)
    for way in ("blocking", "async")
    for setting in ("thorough", "all")
)
"""What takes three conditions: one search of several fails, and the others are merged."""


@pytest.mark.parametrize("case", [*cover_pairs(), *MERGED], ids=str)
def test_every_law_holds_for_every_pair_of_conditions(case: Case) -> None:
    assert find_broken_laws(case) == {}


@settings(patiently, max_examples=40)
@given(any_case)
def test_every_law_holds_in_any_case(case: Case) -> None:
    assert find_broken_laws(case) == {}


@pytest.mark.thorough
@settings(patiently, max_examples=400)
@given(any_case)
def test_every_law_holds_in_many_more_cases(case: Case) -> None:
    assert find_broken_laws(case) == {}
