"""The bounded memory that forgets."""

from __future__ import annotations

import pytest

from qtmiddleware.config.settings import CacheSettings
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.types import Transformation
from tests.support.clock import Clock


def test_a_value_is_kept_for_its_time_which_writing_begins_anew_and_reading_does_not(
    clock: Clock,
) -> None:
    old, new = Transformation(rewrite="old"), Transformation(rewrite="new")
    cache = TransformationCache(CacheSettings(ttl_seconds=60), clock=clock)
    cache.put(("read", 1), old)
    cache.put("written", old)
    clock.now += 59.999
    assert (cache.get(("read", 1)), cache.get("unknown")) == (old, None)
    cache.put("written", new)
    clock.now += 0.001
    assert (cache.get(("read", 1)), cache.get("written"), len(cache)) == (None, new, 1)


def test_it_holds_the_last_used_and_never_more_than_its_bound(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtmiddleware.runtime.cache.MAX_ENTRIES", 2)
    cache = TransformationCache(CacheSettings(), clock=clock)
    for name in "aba":
        cache.put(name, Transformation())
    cache.put("c", Transformation())
    assert (cache.get("b"), len(cache)) == (None, 2)
    assert cache.get("a") is not None
    cache.put("d", Transformation())
    assert (cache.get("c"), len(cache)) == (None, 2)
