"""The bounded memory that forgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

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


@given(
    st.integers(1, 5), st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=40)
)
def test_it_holds_the_last_used_and_never_more_than_its_bound(
    bound: int, uses: list[tuple[str, bool]]
) -> None:
    cache = TransformationCache(CacheSettings(max_entries=bound), clock=lambda: 0.0)
    recent: list[str] = []
    for name, writes in uses:
        if writes:
            cache.put(name, Transformation())
        held = name in recent
        assert (cache.get(name) is not None) == (writes or held)
        if writes or held:
            recent = [*(it for it in recent if it != name), name][-bound:]
        assert len(cache) == len(recent)
