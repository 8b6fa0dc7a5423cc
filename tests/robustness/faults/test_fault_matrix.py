"""Every pair of what can go wrong is never worse than the plain function; all: `python -m tests.robustness.faults`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest

from tests.robustness.faults.cases import (
    DIMENSIONS,
    Case,
    Draw,
    covering,
    matrix,
)
from tests.robustness.faults.expected import REASONS, expected
from tests.robustness.faults.laws import judged, try_case
from tests.robustness.faults.playing import Limits, Player, Servers, served

SEED = 7
HASTY = Limits()
PATIENT = Limits(20_000, 25_000)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    # Every case looks for what is left by collecting garbage; what the other tests hold is none of
    # it.
    gc.collect()
    gc.freeze()
    with served() as found:
        yield found
    gc.unfreeze()


def limits(case: Case) -> Limits:
    """Little time only where time is the fault; elsewhere a busy machine has all it needs."""
    waits = REASONS.get(case.model) == "timeout" or case.search == "slow"
    return HASTY if waits or "timeout" in expected(case, case.drawn(SEED)).excused else PATIENT


def test_every_pair_of_any_two_dimensions_is_played() -> None:
    assert len(set(matrix())) == 21 * 9 * 2 * 5
    for one, other in combinations(DIMENSIONS, 2):
        played = {(getattr(case, one), getattr(case, other)) for case in covering()}
        assert played == set(product(DIMENSIONS[one], DIMENSIONS[other]))


@pytest.mark.parametrize("case", covering(), ids=lambda it: it.name)
def test_a_bad_day_is_never_worse_than_the_plain_function(case: Case, servers: Servers) -> None:
    assert try_case(case, SEED, servers, limits(case), times=False).last == []


@pytest.mark.parametrize("model", ["ok", "500"])
def test_the_laws_are_broken_by_what_breaks_them(model: str, servers: Servers) -> None:
    case, draw = Case(model, "ok", "sync", "rewrite"), Draw("function", "given", 0, evidence=False)
    played = Player(case, draw, servers, PATIENT).play()
    first, *rest = played.retrieval.response.matches

    def broken(**changes: Any) -> set[str]:
        return {law for law, _ in judged(case, draw, replace(played, **changes), PATIENT)}

    def retrieved(**changes: Any) -> set[str]:
        return broken(retrieval=replace(played.retrieval, **changes))

    def answered(*matches: Any) -> set[str]:
        return retrieved(response=type(played.plain)(matches=list(matches), namespace="dogs"))

    assert broken() == set()
    assert "as many as plain" in answered(*rest)
    assert "no new duplicates" in answered(first, *rest, first)
    assert "plain's scores" in answered(type(first)(id="p0", score=7.0, metadata=first.metadata))
    assert "only what was found" in answered(type(first)(id="x", score=0.9, metadata={"text": "x"}))
    assert ("same as plain" in answered(*rest, first)) is (model == "500")
    assert "matches are the response" in retrieved(matches=())
    assert "type" in retrieved(response=SimpleNamespace(matches=played.plain.matches))
    assert "original query" in retrieved(original_query="Does Jaco")
    assert "status" in retrieved(status="full" if model == "500" else "degraded")
    assert broken(error=ValueError("x"), retrieval=None) == {"nothing is raised"}
    assert broken(seconds=25.1) == {"time"}
    assert broken(arguments={}) == broken(served=[(played.plain, None)]) == {"no mutation"}
