"""The settings themselves: immutable, described, and with defaults inside their own limits."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import Field, FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import pytest
from qtmiddleware.config.options import META

from qtmiddleware.config.settings import FusionSettings, LlmSettings, Settings
from qtmiddleware.providers.llms.prices import find_prices


def every_field(group: Any = None, above: str = "") -> Iterator[tuple[str, Field[Any], Any]]:
    group = Settings() if group is None else group
    for field in fields(group):
        value = getattr(group, field.name)
        yield above + field.name, field, value
        if is_dataclass(value):
            yield from every_field(value, f"{above}{field.name}.")


EVERY_FIELD = list(every_field())
IDS = [name for name, _, _ in EVERY_FIELD]


@pytest.mark.parametrize(("name", "field", "value"), EVERY_FIELD, ids=IDS)
def test_every_option_has_a_meaning(name: str, field: Field[Any], value: Any) -> None:
    description = field.metadata[META]["description"]
    assert description.endswith(".")
    assert "|" not in description, "it would break the table of the reference"
    assert "\n" not in description


@pytest.mark.parametrize(("name", "field", "value"), EVERY_FIELD, ids=IDS)
def test_every_default_lies_inside_its_own_limits(name: str, field: Field[Any], value: Any) -> None:
    meta = field.metadata[META]
    assert set(meta) <= {"description", "ge", "le", "min_length"}
    for single in value.values() if isinstance(value, dict) else [value]:
        if single is not None:
            assert "ge" not in meta or single >= meta["ge"]
            assert "le" not in meta or single <= meta["le"]
            assert "min_length" not in meta or len(single) >= meta["min_length"]


@pytest.mark.parametrize(("name", "field", "value"), EVERY_FIELD, ids=IDS)
def test_every_number_has_a_lower_limit(name: str, field: Field[Any], value: Any) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert "ge" in field.metadata[META]


def test_pickled_settings_come_back_as_they_were() -> None:
    settings = replace(Settings(top_k=7), llm=LlmSettings(prompts={"rewrite": "Rewrite it."}))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(settings, protocol)) == settings
    assert copy.deepcopy(settings) == settings


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(FrozenInstanceError):
        settings.top_k = 5  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        settings.fusion.rrf_k = 5  # type: ignore[misc]


def test_two_settings_do_not_share_their_prompts() -> None:
    first, second = LlmSettings().prompts, LlmSettings().prompts
    assert isinstance(first, Mapping)
    assert first is not second


def test_options_are_given_by_name() -> None:
    with pytest.raises(TypeError):
        FusionSettings("max")  # type: ignore[call-arg]


def test_the_defaults_of_the_seeds_are_kept() -> None:
    settings = Settings()
    seeds = (settings.chunk_size, settings.chunk_overlap, settings.top_k, settings.max_sub_queries)
    assert seeds == (800, 200, 4, 4)


def test_the_default_models_have_a_price_and_are_asked_not_to_think() -> None:
    settings = Settings()
    assert settings.chat_model == settings.transformation_model == "gpt-6-luna"
    assert find_prices(settings.chat_model) is not None
    assert settings.llm.reasoning_effort == "auto"


def test_no_model_is_called_by_default() -> None:
    settings = Settings()
    assert settings.transformation_type == "none"
    assert settings.preprocess.enabled
    assert settings.preprocess.apply_to == "keywords"
    assert settings.keyword_evidence.enabled
    assert settings.fusion.method == "anchored"
