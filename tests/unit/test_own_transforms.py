"""Transformations that users define: what a definition may hold, what the model is told, what a variant weighs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.catalogue import FILLED_BY, TEXT_FIELDS
from qtmiddleware.config import Config
from qtmiddleware.config.settings import Settings, to_camel_case
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.transform_stage import build_cache_key
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Message

PROMPT = "Say it as the trade says it."
KINDS = ", ".join(map(to_camel_case, FILLED_BY))


def load(config: Any = None, **environ: str) -> Settings:
    return Config.load(config, environ=environ).settings


def define(*fields: str, prompt: str = PROMPT, **weights: Any) -> dict[str, Any]:
    return {"prompt": prompt, "fields": weights or dict.fromkeys(fields)}


def choose(definition: Any, name: str = "jargon", **more: Any) -> dict[str, Any]:
    """A config with one transformation, which it asks for."""
    return {"transformationType": name, "transforms": {name: definition}, **more}


@pytest.mark.parametrize(
    ("name", "definition", "path", "allowed"),
    [
        *((it, define("hyde"), "", "another name") for it in ("hyde", "Multi-Query", "answer")),
        ("jargon", "Say it.", ".fields", f"an object of {KINDS}"),
        ("jargon", {"fields": {"hyde": None}}, ".prompt", "a text that is not empty"),
        ("jargon", define("hyde", prompt=" "), ".prompt", "a text that is not empty"),
        ("jargon", {"prompt": PROMPT}, ".fields", f"an object of {KINDS}"),
        ("jargon", define(), ".fields", f"an object of {KINDS}"),
        ("jargon", define("answer"), ".fields.answer", KINDS),
        ("jargon", define(hyde=-0.1), ".fields.hyde", "from 0 to 100"),
        ("jargon", {**define("hyde"), "wieght": 1}, ".wieght", "prompt, fields"),
    ],
)
def test_a_definition_that_is_impossible_is_refused_with_its_place(
    name: str, definition: Any, path: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load({"transforms": {name: definition}})
    assert refused.value.path == f"transforms.{name}{path}"
    assert allowed in refused.value.allowed
    assert f"{refused.value.path} " in str(refused.value)


@pytest.mark.parametrize("field", FILLED_BY)
def test_one_field_has_the_description_and_the_rules_of_the_built_in_prompt(field: str) -> None:
    settings = load(choose(define(field)))
    (own,) = build_prompts(settings, "why?")
    (built_in,) = build_prompts(
        replace(settings, transformation_type=FILLED_BY[field]),
        "why?",
    )
    assert own.fields == built_in.fields
    assert own.system.startswith(PROMPT)
    assert all(rule in own.system for rule in PROMPTS[FILLED_BY[field]].rules)


def test_several_fields_are_asked_for_in_the_order_they_are_searched() -> None:
    settings = load(choose(define("stepBack", "hyde", "rewrite")))
    (prompt,) = build_prompts(
        settings,
        "why?",
        (Message("user", "Who founded Acme?"),),
    )
    assert [it.name for it in prompt.fields] == [
        "standalone",
        "rewrite",
        "hyde",
        "step_back",
    ]


def test_another_definition_is_another_prompt_and_another_key_of_the_cache() -> None:
    fields = ["rewrite"], ["hyde"], ["rewrite", "hyde"]
    definitions = *(define(*it) for it in fields), define("rewrite", prompt="Say it.")
    settings = [load(choose(it)) for it in (*definitions, definitions[0])]
    prompts = [build_prompts(it, "why?") for it in settings]
    keys = [
        build_cache_key("m", it, asked, "why?", (), ())
        for it, asked in zip(settings, prompts, strict=True)
    ]
    assert len(set(keys)) == len({asked[0].version for asked in prompts}) == len(definitions)
    assert keys[0] == keys[-1]


@given(
    st.sampled_from([it for it in FILLED_BY if TEXT_FIELDS[it].variant]),
    st.floats(0.01, 100),
)
def test_the_weight_of_a_definition_is_the_weight_of_its_variants(
    field: str, weight: float
) -> None:
    text = "renal failure of the kidneys"
    reply = {field: [text] if TEXT_FIELDS[field].shape == "list" else text}
    config = choose(define(**{field: weight}), fusion={"weights": {"hyde": 3.0}})
    with qtm.QueryMiddleware(config, client=ScriptedModel(reply)) as middleware:
        search = middleware.wrap(lambda query: [{"id": query, "score": 1.0, "text": query}])
        _, variant = search.retrieve("kidneys").variants
    assert (variant.kind, variant.weight) == (TEXT_FIELDS[field].variant, weight)


def test_of_names_that_differ_in_case_the_one_that_is_written_is_used() -> None:
    transforms = {"trade": define("hyde"), "TRADE": define("rewrite")}
    for name, field in (("trade", "hyde"), ("TRADE", "rewrite")):
        settings = load({"transformationType": name, "transforms": transforms})
        assert settings.transform.fields == (field,)
    with pytest.raises(ConfigError, match="did you mean trade"):
        load({"transformationType": "Trade", "transforms": transforms})


def test_a_layer_may_choose_or_define_anew_what_another_one_defines() -> None:
    below = {"transforms": {"jargon": define("hyde"), "trade": define("keywords")}}
    chosen = {"QTM_TRANSFORMATION_TYPE": "jargon"}
    assert load(below, **chosen).transform.fields == ("hyde",)
    environ = {"QTM_TRANSFORMS": json.dumps({"jargon": define("hyde")}), **chosen}
    assert load(**environ).transform.fields == ("hyde",)
    with pytest.raises(ConfigError, match=r'not "jargon" \(environment'):
        load(**chosen)
    above = Config.load(below, environ={}).overridden(choose(define("rewrite"))).settings
    assert set(above.transforms) == {"jargon", "trade"}
    assert above.transform.fields == ("rewrite",)
