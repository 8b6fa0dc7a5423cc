from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config import Config, list_key_names
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import SYSTEMS
from qtmiddleware.kit.evaluation.tuning import TIERS, flat, nested
from qtmiddleware.kit.evaluation.tuning.search import list_tuning_options
from qtmiddleware.kit.evaluation.tuning.trials import drop_default_values

DEFAULTS = {key: value for key, value, _ in Config.load(Settings()).rows()}


def keys_of(settings: dict[str, Any]) -> set[str]:
    axes = list_tuning_options(settings, max_call_rate=None, has_word_search=True)
    return {key for options in axes.values() for it in options for key in it}


@pytest.mark.parametrize("tier", TIERS)
def test_every_value_that_is_tried_is_allowed_and_the_default_is_among_them(tier: str) -> None:
    settings = flat(SYSTEMS[tier])
    for options in list_tuning_options(settings, max_call_rate=None, has_word_search=True).values():
        tried = [Config.load(nested({**settings, **it}), environ={}).settings for it in options]
        assert len(tried) == len(set(map(repr, tried))) > 1
        assert Config.load(nested(settings), environ={}).settings in tried


def test_only_what_makes_a_difference_is_tried() -> None:
    assert not any(
        "fusion" in key or "escalation" in key for key in keys_of(flat(SYSTEMS["rules"]))
    )
    voices = {"fusion.weights.rewrite", "fusion.weights.subQueries", "fusion.weights.stepBack"}
    assert keys_of(flat(SYSTEMS["combined"])) - keys_of(flat(SYSTEMS["combined, no hyde"])) == {
        "fusion.weights.hyde"
    }
    assert voices < keys_of(flat(SYSTEMS["combined, no hyde"]))
    assert keys_of(flat(SYSTEMS["decompose"])) & voices == {"fusion.weights.subQueries"}


def test_a_store_without_words_is_not_searched_by_them() -> None:
    found = list_tuning_options(flat(SYSTEMS["rules"]), max_call_rate=None, has_word_search=False)
    assert "hybrid.enabled" not in found


@given(limit=st.floats(0.01, 0.99))
def test_no_call_rate_beyond_the_budget_is_tried_and_the_limit_is(limit: float) -> None:
    options = list_tuning_options(flat(SYSTEMS["hyde"]), max_call_rate=limit, has_word_search=True)[
        "escalation"
    ]
    rates = [it["escalation.targetCallRate"] for it in options]
    assert max(rates) == limit
    assert all(it["escalation.mode"] == "auto" for it in options)


@given(chosen=st.sets(st.sampled_from(sorted(DEFAULTS))))
def test_settings_that_have_their_defaults_are_left_out(chosen: set[str]) -> None:
    assert drop_default_values({key: DEFAULTS[key] for key in chosen}) == {}


@given(weight=st.floats(0.0, 1.0), apply_to=st.sampled_from(["keywords", "text", "both"]))
def test_what_is_left_means_the_same(weight: float, apply_to: str) -> None:
    settings = {
        "transformationType": "hyde",
        "keywordEvidence.weight": weight,
        "preprocess.applyTo": apply_to,
    }
    small = nested(drop_default_values(settings))
    assert (
        Config.load(small, environ={}).settings
        == Config.load(nested(settings), environ={}).settings
    )
    assert set(flat(small)) <= set(list_key_names())


def test_a_target_that_no_gate_uses_is_left_out() -> None:
    assert (
        drop_default_values({"escalation.mode": "always", "escalation.targetCallRate": 0.2}) == {}
    )
