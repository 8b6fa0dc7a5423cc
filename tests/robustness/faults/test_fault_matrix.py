"""On every pair of what can go wrong, the wrapped function is never worse than the plain one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.robustness.faults.cases import SEARCHES, Case, covering
from tests.robustness.faults.expected import REASONS, expected
from tests.robustness.faults.laws import try_case
from tests.robustness.faults.playing import Limits, Servers, served

SEED = 7
HASTY = Limits()
PATIENT = Limits(20_000, 25_000)


@pytest.fixture(scope="module")
def servers(certificate: tuple[Path, Path]) -> Iterator[Servers]:
    # Every case looks for what is left by collecting garbage; what the other tests hold is none of
    # it.
    gc.collect()
    gc.freeze()
    with served(certificate) as found:
        yield found


def limits(case: Case) -> Limits:
    """Little time only where time is the fault; elsewhere a busy machine has all it needs."""
    waits = REASONS.get(case.model) == "timeout" or case.search == "slow"
    return HASTY if waits or "timeout" in expected(case, case.drawn(SEED)).excused else PATIENT


def list_parameters() -> Iterator[Any]:
    """Every case; a third, in which all models and all searches come, is for every day."""
    for place, case in enumerate(covering()):
        is_everyday = (place // len(SEARCHES) + place) % 3 == 0
        yield pytest.param(case, marks=[] if is_everyday else pytest.mark.thorough, id=case.name)


@pytest.mark.parametrize("case", list(list_parameters()))
def test_a_bad_day_is_never_worse_than_the_plain_function(case: Case, servers: Servers) -> None:
    assert try_case(case, SEED, servers, limits(case)) == []
