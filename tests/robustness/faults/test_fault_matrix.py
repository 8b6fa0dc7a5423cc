"""Every pair of what can go wrong is never worse than the plain function; all: `python -m tests.robustness.faults`."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from threading import Event, Thread
from typing import Any

import pytest

from tests.robustness.faults import watching
from tests.robustness.faults.cases import (
    DIMENSIONS,
    KINDS,
    MODELS,
    SEARCHES,
    WAYS,
    Case,
    Draw,
    covering,
    matrix,
)
from tests.robustness.faults.expected import REASONS, expected
from tests.robustness.faults.laws import Verdict, judged
from tests.robustness.faults.playing import Limits, Played, Player, Servers, served
from tests.robustness.faults.trying import tried

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


def test_the_matrix_is_the_whole_product() -> None:
    names = {case.name for case in matrix()}
    assert names == {"+".join(row) for row in product(MODELS, SEARCHES, WAYS, KINDS)}
    assert len(names) == len(matrix()) == 21 * 9 * 2 * 5 == 1_890


def test_every_pair_of_any_two_dimensions_is_played() -> None:
    cases = covering()
    assert len(cases) == len(set(cases)) == len(MODELS) * len(SEARCHES)
    for one, other in combinations(DIMENSIONS, 2):
        played = {(getattr(case, one), getattr(case, other)) for case in cases}
        assert played == set(product(DIMENSIONS[one], DIMENSIONS[other]))


@pytest.mark.parametrize("case", covering(), ids=lambda it: it.name)
def test_a_bad_day_is_never_worse_than_the_plain_function(case: Case, servers: Servers) -> None:
    assert tried(case, SEED, servers, limits(case), times=False).last == []


GOOD = Case("ok", "ok", "sync", "combined")
LONELY = Case("500", "ok", "sync", "rewrite")


@pytest.mark.parametrize("case", [GOOD, LONELY], ids=lambda it: it.name)
def test_the_laws_are_broken_by_what_breaks_them(case: Case, servers: Servers) -> None:
    draw = Draw("function", "given", 0, evidence=False)
    played = Player(case, draw, servers, PATIENT).play()

    def broken(**changes: Any) -> set[str]:
        return {law for law, _ in verdict(replace(played, **changes))}

    def verdict(changed: Played) -> Verdict:
        return judged(case, draw, changed, PATIENT)

    def answered(matches: list[Any]) -> Any:
        whole = [it for it in played.retrieval.matches if it.raw in matches]
        response = type(played.plain)(matches=matches, namespace="dogs")
        return replace(played.retrieval, response=response, matches=tuple(whole))

    first, *rest = played.retrieval.response.matches
    assert broken() == set()
    assert "as many as plain" in broken(retrieval=answered(rest))
    assert "no new duplicates" in broken(retrieval=answered([first, *rest, first]))
    assert "plain's scores" in broken(
        retrieval=answered([type(first)(id="p0", score=7.0, metadata=first.metadata)])
    )
    assert "only what was found" in broken(
        retrieval=answered([type(first)(id="x", score=0.9, metadata={"text": "x"})])
    )
    assert ("same as plain" in broken(retrieval=answered([*rest, first]))) is (case is LONELY)
    assert "matches are the response" in broken(retrieval=replace(played.retrieval, matches=()))
    assert "type" in broken(retrieval=replace(played.retrieval, response=_Twin(played.plain)))
    assert "original query" in broken(
        retrieval=replace(played.retrieval, original_query="Does Jaco")
    )
    assert "status" in broken(
        retrieval=replace(played.retrieval, status="full" if case is LONELY else "degraded")
    )
    assert broken(error=ValueError("x"), retrieval=None) == {"nothing is raised"}
    assert broken(seconds=25.1) == {"time"}
    assert broken(arguments={}) == {"no mutation"}
    assert broken(served=[(played.plain, None)]) == {"no mutation"}


class _Twin:
    """Something that can be read like the response it was made of, and is of another type."""

    def __init__(self, response: Any) -> None:
        self.matches = response.matches


def test_what_is_left_behind_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "DRAIN_SECONDS", 0.05)
    monkeypatch.setattr(watching, "TASK_SECONDS", 0.05)
    ended, kept = Event(), list[Any]()

    async def failing() -> None:
        raise ValueError("nobody asks")

    async def careless() -> None:
        watch.listens_to(asyncio.get_running_loop())
        asyncio.get_running_loop().create_task(failing())
        kept.append(asyncio.create_task(asyncio.sleep(20)))
        await watch.tasks_left()

    with watching.Watch() as watch:
        Thread(target=ended.wait, name="qtmiddleware").start()
        kept.append(socket.socket())
        failing()
        asyncio.run(careless())
        watch.drain()
        watch.files_left()
    ended.set()
    kept[0].close()
    said = "\n".join(watch.complaints)
    for what in (
        "never awaited",
        "never retrieved",
        "a task is left",
        "qtmiddleware is at work",
        "1 more open files",
    ):
        assert what in said
