"""What there is to choose: every transform has its prompt, and every option that shapes a reply its place in the cache key."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, get_args, get_origin

import pytest

from qtmiddleware.catalogue import (
    TEXT_FIELDS,
    TRANSFORMS,
    list_prompt_names,
)
from qtmiddleware.config.introspection import (
    Key,
    list_all_keys,
    list_choices,
    list_names,
    unwrap,
)
from qtmiddleware.config.settings import OwnTransform, Range, Settings
from qtmiddleware.providers.llms.openai import build_request
from qtmiddleware.retrieval.transform_stage import build_cache_key
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Message


def test_a_prompt_asks_for_the_texts_of_its_row_and_every_prompt_is_there() -> None:
    for row in TRANSFORMS.values():
        if row.fields:
            (prompt,) = build_prompts(Settings(transformation_type=row.name), "q")
            assert tuple(field.name for field in prompt.fields) == row.fields
            assert all(field.shape == TEXT_FIELDS[field.name].shape for field in prompt.fields)
    assert set(PROMPTS) == set(list_prompt_names())
    assert {name for name, prompt in PROMPTS.items() if prompt.mode == name} == set(PROMPTS)


HISTORY = (
    Message("user", "Who founded Acme?"),
    Message("assistant", "Jane Roe."),
    Message("user", "And when?"),
)
TYPES = ("combined", "multi_query", "all")


def other_value(key: Key) -> Any:
    """A value of *key* that is not its default."""
    type_, notes, _ = unwrap(key.hint)
    names, default = list_names(key.hint), key.read_value(Settings())
    if choices := list_choices(key.hint):
        return next(choice for choice in choices if choice != default)
    if type_ is bool:
        return not default
    if type_ is str:
        return "http://other.example" if key.name.endswith(("Url", "host")) else "other"
    if get_origin(type_) is tuple:
        return ("other",)
    if get_origin(type_) is Mapping:
        value = unwrap(get_args(type_)[1])[0]
        if value is OwnTransform:
            return {"jargon": OwnTransform(prompt="Say it otherwise.", fields={"rewrite": 0.5})}
        other = "Say it otherwise." if value is str else 0.0 if default else 0.25
        return dict.fromkeys(names if value is float else names[:1] or ("CR",), other)
    limits = next(note.constraints for note in notes if isinstance(note, Range))
    low, high = limits["ge"], limits.get("le", 10**9)
    step = 1 if type_ is int else 0.25
    start = low if default is None else default
    return start + step if start + step <= high else max(low, start - step)


def changed(key: Key, base: Settings) -> Settings:
    def put(holder: Any, path: tuple[str, ...]) -> Any:
        name, *rest = path
        value = put(getattr(holder, name), tuple(rest)) if rest else other_value(key)
        return replace(holder, **{name: value})

    settings: Settings = put(base, key.path)
    return settings


def list_requests(settings: Settings) -> list[Any]:
    """The prompts, what a model would be sent for each, and where."""
    return [
        (prompt, build_request(settings.transformation_model, settings.llm, prompt, host="host"))
        for prompt in build_prompts(settings, "And when?", HISTORY)
    ] + [settings.llm.base_url]


def make_cache_key(settings: Settings) -> Hashable:
    prompts = build_prompts(settings, "And when?", HISTORY)
    model = settings.transformation_model
    return build_cache_key(model, settings, prompts, "And when?", HISTORY, ())


def test_an_option_that_shapes_what_a_model_is_sent_is_part_of_the_cache_key(
    subtests: pytest.Subtests,
) -> None:
    for key, kind in product(list_all_keys(), TYPES):
        base = Settings(transformation_type=kind)
        other = changed(key, base)
        with subtests.test(key.name):
            assert list_requests(base) == list_requests(other) or make_cache_key(
                base
            ) != make_cache_key(other)
