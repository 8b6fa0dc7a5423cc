from __future__ import annotations

import pytest

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import (
    BASELINE,
    FREE,
    MEASURED,
    SYSTEMS,
    USUAL,
    asks_a_model,
    chosen,
)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_a_config_that_can_be_measured(name: str) -> None:
    settings = Config.load(MEASURED).overridden(SYSTEMS[name]).settings
    assert asks_a_model(name) == (settings.transformation_type != "none")
    assert not settings.cache.enabled
    assert settings.log.path is None


def test_the_baseline_passes_everything_through() -> None:
    settings = Config.load(SYSTEMS[BASELINE]).settings
    assert settings.transformation_type == "none"
    assert not any(
        it.enabled for it in (settings.preprocess, settings.keyword_evidence, settings.rerank)
    )


def test_the_free_ones_ask_no_model_and_the_usual_ones_need_no_store_of_ours() -> None:
    assert not any(map(asks_a_model, FREE))
    assert set(FREE) < set(USUAL) < set(SYSTEMS)
    assert not any(Config.load(SYSTEMS[name]).settings.hybrid.enabled for name in USUAL)


def test_the_baseline_comes_first_and_every_system_once() -> None:
    assert list(chosen(["rules", "hyde", "off", "rules"])) == ["off", "rules", "hyde"]
    assert list(chosen([])) == ["off"]


def test_an_unknown_system_is_refused_with_those_there_are() -> None:
    for ask in (lambda: chosen(["rules", "Rules"]), lambda: asks_a_model("Rules")):
        with pytest.raises(
            ConfigError,
            match="there is no system 'Rules'; the systems are: off; preprocessed as text; rules",
        ):
            ask()
