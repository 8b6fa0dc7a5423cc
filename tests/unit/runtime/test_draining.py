"""What is replaced is closed after the last call inside it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest

from qtmiddleware.runtime.forking import Draining


def test_what_nobody_uses_is_closed_at_once() -> None:
    closed: list[int] = []
    draining = Draining(lambda: closed.append(1))
    with draining:
        pass
    assert closed == []
    draining.close_when_unused()
    assert closed == [1]


def test_the_last_of_several_calls_closes_even_where_it_fails() -> None:
    closed: list[int] = []
    draining = Draining(lambda: closed.append(1))

    def fails() -> None:
        with draining:
            draining.close_when_unused()
            raise KeyError

    with draining:
        with pytest.raises(KeyError):
            fails()
        assert closed == []
    assert closed == [1]


def test_a_call_that_comes_late_is_let_in_and_closes_again() -> None:
    closed: list[int] = []
    draining = Draining(lambda: closed.append(1))
    draining.close_when_unused()
    with draining:
        assert closed == [1]
    assert closed == [1, 1]


def test_a_generator_that_is_thrown_away_while_it_is_closed_does_not_stop_it() -> None:
    closed: list[int] = []

    def close() -> None:
        gc.collect()
        closed.append(1)

    draining = Draining(close)

    def pieces() -> Iterator[int]:
        with draining:
            yield 1

    def left_in_a_circle() -> None:
        begun = pieces()
        next(begun)
        circle: list[object] = [begun]
        circle.append(circle)

    left_in_a_circle()
    with draining:
        draining.close_when_unused()
    gc.collect()
    assert closed


def test_nothing_is_closed_under_a_call_of_many_threads() -> None:
    lock, inside, wrong = Lock(), [0], []
    draining = Draining(lambda: wrong.append(inside[0]) if inside[0] else None)

    def call(number: int) -> None:
        with draining:
            with lock:
                inside[0] += 1
            if number == 500:
                draining.close_when_unused()
            with lock:
                inside[0] -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(2_000)))
    assert wrong == []
