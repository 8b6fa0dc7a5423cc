from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.tuning import (
    FREE_TIERS,
    TRYING,
    TUNED,
    Budget,
    Tuned,
    split_dataset,
    tune_settings,
)
from qtmiddleware.testing import ScriptedModel
from tests.support.tuning_world import bench, collection, model, texts

pytestmark = pytest.mark.thorough

TWO_TIERS = ("hyde", "rules")


@pytest.fixture(scope="module")
def data() -> Dataset:
    return collection()


@pytest.fixture(scope="module")
def asked(data: Dataset) -> tuple[Tuned, ScriptedModel, set[str]]:
    """Two tiers tuned, the model that was asked, and what it was asked about while candidates were tried."""
    answering = model(data)
    while_trying: list[set[str]] = []

    def progress(name: str, _done: int, _total: int) -> None:
        if name != TRYING and not while_trying:
            while_trying.append({prompt.query for prompt in answering.prompts})

    return (
        tune_settings(bench(data, answering), data, tiers=TWO_TIERS, progress=progress),
        answering,
        while_trying[0],
    )


@pytest.fixture(scope="module")
def found(asked: tuple[Tuned, ScriptedModel, set[str]]) -> Tuned:
    return asked[0]


def test_a_config_that_beats_the_raw_query_and_the_default_is_found(found: Tuned) -> None:
    assert found.is_better, found.refusals
    assert found.chosen == found.tuned == TUNED
    assert found.score.difference.is_significant
    assert found.score.means["nDCG@10"] > found.comparison["rules"].means["nDCG@10"]


def test_the_config_holds_nothing_but_what_differs_from_the_defaults_and_loads(
    found: Tuned,
) -> None:
    loaded = {
        key: value
        for key, value, origin in Config.load(found.config, environ={}).rows()
        if origin != "default"
    }
    defaults = {key: value for key, value, _ in Config.load(Settings()).rows()}
    assert loaded
    assert all(value != defaults[key] for key, value in loaded.items())


def test_only_the_held_out_questions_are_reported_on(found: Tuned, data: Dataset) -> None:
    train, held = split_dataset(data)
    assert found.trained_on == len(train.questions)
    assert found.comparison.questions == len(held.questions)
    assert all(set(score.gains) == set(held.qrels) for score in found.comparison.systems)
    assert all(set(trial.score.gains) == set(train.qrels) for trial in found.trials)


def test_the_library_s_defaults_are_reported_beside_the_tuned_config(found: Tuned) -> None:
    assert [score.name for score in found.comparison.systems] == ["raw", "rules", TUNED]
    assert set(found.trained) == {"raw", "rules", TUNED}


def test_the_same_seed_finds_the_same(data: Dataset) -> None:
    first, again = (tune_settings(bench(data), data, tiers=FREE_TIERS, seed=7) for _ in range(2))
    assert (again.config, again.chosen, again.refusals) == (
        first.config,
        first.chosen,
        first.refusals,
    )
    assert again.score.gains == first.score.gains
    assert [trial.name for trial in again.trials] == [trial.name for trial in first.trials]


def test_the_outcome_is_plain_data_and_plain_words(found: Tuned) -> None:
    told = found.to_dict()
    assert json.loads(json.dumps(told)) == told
    assert told["training"]["candidates"] == len(found.trials)
    summary = found.summary()
    assert f"{len(found.trials)} candidates tried on 25 questions" in summary
    assert "is the part that does not carry over" in summary
    assert "Recommended: the tuned config, which the held-out questions confirm." in summary


def test_no_text_of_a_question_is_shown(found: Tuned, data: Dataset) -> None:
    shown = repr(found) + found.summary() + json.dumps(found.to_dict())
    assert not any(text in shown for text in texts(data.questions))


def test_the_search_never_asks_about_a_held_out_question(
    asked: tuple[Tuned, ScriptedModel, set[str]], data: Dataset
) -> None:
    assert asked[2] == texts(split_dataset(data)[0].questions)


def test_every_candidate_is_tried_once_and_every_reply_had_once(
    asked: tuple[Tuned, ScriptedModel, set[str]],
) -> None:
    configs = [json.dumps(trial.config) for trial in asked[0].trials]
    assert len(configs) == len(set(configs)) > 10
    prompts = [(prompt.mode, prompt.query) for prompt in asked[1].prompts]
    assert len(prompts) == len(set(prompts))


def test_a_kept_reply_counts_for_every_candidate_that_needs_it(
    asked: tuple[Tuned, ScriptedModel, set[str]],
) -> None:
    always = [
        trial
        for trial in asked[0].trials
        if trial.tier == "hyde" and "escalation" not in trial.name
    ]
    assert len(always) > 5
    assert {trial.score.call_rate for trial in always} == {1.0}


def test_judgements_at_random_are_refused() -> None:
    shuffled = collection(seed=3)
    silent = ScriptedModel(AssertionError("asked"))
    found = tune_settings(bench(shuffled, silent), shuffled, tiers=FREE_TIERS)
    assert not found.is_better
    assert f"Refused: {found.refusals[0]}" in found.summary()
    assert not silent.prompts
    assert all(trial.calls_per_question == 0 for trial in found.trials)


def test_the_default_is_recommended_where_what_was_found_does_not_carry_over(data: Dataset) -> None:
    misled = texts(split_dataset(data)[1].questions)
    found = tune_settings(bench(data, model(data, misled=misled)), data, tiers=TWO_TIERS)
    assert found.trained[found.tuned].tier == "hyde"
    assert found.chosen == found.default == "rules"
    assert found.is_better
    assert found.overfit > 0.2
    assert found.config == {}
    summary = found.summary()
    assert (
        "Recommended: the default, rules, because the held-out questions do not confirm the choice."
        in summary
    )
    assert "its figures may be a little too good" in summary


def test_the_held_out_judgements_decide_nothing_that_is_tried_or_decided(
    data: Dataset, found: Tuned
) -> None:
    held = [question.id for question in split_dataset(data)[1].questions]
    turned = dict(zip(held, (data.qrels[it] for it in reversed(held)), strict=True))
    other = tune_settings(
        bench(data), replace(data, qrels={**data.qrels, **turned}), tiers=TWO_TIERS
    )
    assert [(it.name, it.mean_ndcg) for it in other.trials] == [
        (it.name, it.mean_ndcg) for it in found.trials
    ]
    assert other.trained[other.tuned].config == found.trained[found.tuned].config
    assert not other.is_better


def test_a_gain_that_the_luck_of_many_tries_explains_leaves_the_default() -> None:
    decided = []
    for seed in range(4):
        noise = collection(seed=seed)
        found = tune_settings(bench(noise), noise, tiers=FREE_TIERS, seed=seed)
        best = max(found.trials, key=lambda trial: trial.mean_ndcg)
        assert not found.is_better
        decided.append(
            (
                found.tuned in (found.default, "raw"),
                best.mean_ndcg > found.trained[found.default].mean_ndcg,
            )
        )
    assert all(is_default for is_default, _ in decided)
    assert any(is_ahead for _, is_ahead in decided)


def test_a_default_that_is_beyond_the_budget_is_told_with_the_reason(data: Dataset) -> None:
    found = tune_settings(
        bench(data), data, tiers=("combined", "rules"), budget=Budget(max_call_rate=0.0)
    )
    assert (
        "Beyond the budget: combined, as on the former it calls the model for 100.0%"
        in found.summary()
    )


def test_what_breaks_the_budget_on_the_held_out_questions_is_refused(data: Dataset) -> None:
    held = split_dataset(data)[1].questions
    misled = texts(held[: len(held) // 2])
    found = tune_settings(
        bench(data, model(data, misled=misled)),
        data,
        tiers=("hyde",),
        budget=Budget(max_hurt_rate=0.0),
    )
    assert found.trained[found.tuned].score.hurt_rate == 0.0
    assert found.comparison[found.tuned].hurt_rate > 0.0
    assert not found.is_better
    assert "of the questions get worse, the budget is 0.0%" in found.refusals[0]


def test_no_call_is_spent_where_none_is_allowed(data: Dataset) -> None:
    found = tune_settings(bench(data), data, tiers=TWO_TIERS, budget=Budget(max_call_rate=0.0))
    assert found.default == "rules"
    assert found.score.call_rate == 0.0
    assert all(trial.broken_limits for trial in found.trials if trial.calls_per_question)


def test_no_more_is_searched_than_the_budget_of_searches_allows(data: Dataset) -> None:
    found = tune_settings(bench(data), data, tiers=("hyde",), budget=Budget(max_searches=1))
    best = found.trained[found.tuned]
    assert (best.tier, best.broken_limits) == ("hyde", ())
    assert best.score.searches_per_question == found.score.searches_per_question == 1.0
    assert found.config["limits"] == {"maxSearches": 1}


def test_a_gate_keeps_the_call_rate_of_the_budget(data: Dataset) -> None:
    found = tune_settings(bench(data), data, tiers=("hyde",), budget=Budget(max_call_rate=0.3))
    best = found.trained[found.tuned]
    assert best.tier == "hyde"
    assert not best.broken_limits
    assert 0.0 < best.score.call_rate <= 0.3
    assert best.settings["escalation.targetCallRate"] <= 0.3
    assert Config.load(found.config, environ={}).settings.escalation.mode == "auto"


def test_where_nothing_is_within_the_budget_the_raw_query_stays(data: Dataset) -> None:
    found = tune_settings(bench(data), data, tiers=FREE_TIERS, budget=Budget(max_added_ms=0.0))
    assert not found.is_better
    assert found.tuned == found.default == "raw"
    assert "Keep the raw query, raise the budget" in found.refusals[0]


def test_too_few_questions_are_refused_before_anything_runs() -> None:
    few = collection(10)
    answering = model(few)
    with pytest.raises(
        ConfigError, match="10 judged questions are too few to tune on: 40 are needed"
    ):
        tune_settings(bench(few, answering), few)
    assert not answering.prompts


def test_a_seed_that_no_draw_takes_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, not -1"):
        tune_settings(bench(data), data, seed=-1)


def test_an_unknown_tier_is_refused(data: Dataset) -> None:
    with pytest.raises(ConfigError, match="there is no system 'best'"):
        tune_settings(bench(data), data, tiers=("best",))


def test_what_was_given_stays_as_it_is(data: Dataset) -> None:
    given = bench(data)
    before = (given.store, given.embedder, given.model, replace(data))
    tune_settings(given, data, tiers=FREE_TIERS, budget=Budget(max_added_ms=0.0))
    assert (given.store, given.embedder, given.model, data) == before
    assert given.store.count() == len(data.passages)
