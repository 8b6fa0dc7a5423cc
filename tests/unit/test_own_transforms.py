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
from qtmiddleware.config.settings import to_camel_case
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.question import Question
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Message

PROMPT = "Say it as the trade says it."
KINDS = ", ".join(map(to_camel_case, FILLED_BY))
HISTORY = (Message("user", "Who founded Acme?"), Message("assistant", "Jane Roe."))


def load(definition: Any, *, name: str = "jargon", **more: Any) -> Config:
    return Config.load(
        {"transformationType": name, "transforms": {name: definition}, **more}, environ={}
    )


def define(*fields: str, prompt: str = PROMPT) -> dict[str, Any]:
    return {"prompt": prompt, "fields": list(fields)}


def weighed(**fields: Any) -> dict[str, Any]:
    return {"prompt": PROMPT, "fields": fields}


def passages(query: str, top_k: int = 3) -> list[dict[str, Any]]:
    return [{"id": f"{query}-{n}", "score": 1.0 / (n + 1), "text": query} for n in range(top_k)]


@pytest.mark.parametrize(
    ("name", "definition", "path", "allowed"),
    [
        *((it, define("hyde"), "", "another name") for it in ("hyde", "Multi-Query", "answer")),
        ("standalone", define("hyde"), "", "another name"),
        ("my own", define("hyde"), "", "letters, digits, - and _"),
        ("jargon", "Say it.", "", "an object of prompt, fields"),
        ("jargon", {"fields": ["hyde"]}, ".prompt", "a text that is not empty"),
        ("jargon", define("hyde", prompt=" "), ".prompt", "a text that is not empty"),
        ("jargon", {"prompt": PROMPT}, ".fields", f"an object of {KINDS}"),
        ("jargon", define(), ".fields", f"an object of {KINDS}"),
        ("jargon", define("answer"), ".fields.answer", KINDS),
        ("jargon", define("standalone"), ".fields.standalone", KINDS),
        ("jargon", weighed(hyde=-0.1), ".fields.hyde", "from 0 to 100"),
        ("jargon", weighed(hyde=True), ".fields.hyde", "from 0 to 100"),
        ("jargon", weighed(keywords=1), ".fields.keywords", "null"),
        ("jargon", {**define("hyde"), "wieght": 1}, ".wieght", "prompt, fields"),
    ],
)
def test_a_definition_that_is_impossible_is_refused_with_its_place(
    name: str, definition: Any, path: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        Config.load({"transforms": {name: definition}}, environ={})
    assert refused.value.path == f"transforms.{name}{path}"
    assert allowed in refused.value.allowed
    assert f"{refused.value.path} " in str(refused.value)


NAMES = st.sampled_from([*FILLED_BY, "stepBack", "x"])
FIELDS = (
    st.text(max_size=5)
    | st.lists(NAMES | st.integers(), max_size=3)
    | st.dictionaries(NAMES, st.none() | st.floats(), max_size=3)
)
DEFINITIONS = st.dictionaries(st.sampled_from(["prompt", "fields", "weight"]), FIELDS)
TRANSFORM_NAMES = st.text(max_size=6) | st.sampled_from(["jargon", "rewrite", "x" * 70])


@given(st.dictionaries(TRANSFORM_NAMES, st.none() | st.text(max_size=5) | DEFINITIONS, max_size=3))
def test_any_definition_is_a_config_that_can_be_asked_for_or_a_config_error(
    transforms: dict[str, Any],
) -> None:
    config, refused = Config.load(environ={}), None
    try:
        config = Config.load({"transforms": transforms}, environ={})
    except ConfigError as error:
        refused = error.path
    assert refused is None or refused.startswith("transforms.")
    for name in config.settings.transforms:
        settings = config.overridden({"transformationType": name}).settings
        (prompt,) = build_prompts(settings, "why?")
        assert tuple(it.name for it in prompt.fields) == settings.transform.fields != ()
        assert (
            Config.load(json.loads(json.dumps(config.to_dict())), environ={}).settings
            == config.settings
        )


@pytest.mark.parametrize("field", FILLED_BY)
def test_one_field_has_the_description_and_the_rules_of_the_built_in_prompt(field: str) -> None:
    settings = load(define(field)).settings
    (own,) = build_prompts(settings, "why?")
    (built_in,) = build_prompts(replace(settings, transformation_type=FILLED_BY[field]), "why?")
    assert own.fields == built_in.fields
    assert own.system.startswith(PROMPT)
    assert all(rule in own.system for rule in PROMPTS[FILLED_BY[field]].rules)


def test_several_fields_are_asked_for_in_the_order_they_are_searched() -> None:
    (prompt,) = build_prompts(load(define("stepBack", "hyde", "rewrite")).settings, "why?", HISTORY)
    assert [it.name for it in prompt.fields] == ["standalone", "rewrite", "hyde", "step_back"]
    assert [it for it in TEXT_FIELDS if it in {field.name for field in prompt.fields}] == [
        it.name for it in prompt.fields
    ]


def test_another_definition_is_another_prompt_and_another_key_of_the_cache() -> None:
    definitions = (
        define("rewrite"),
        define("hyde"),
        define("rewrite", "hyde"),
        define("rewrite", prompt="Say it."),
    )
    questions = [Question("why?", (), load(it).settings) for it in definitions]
    assert len({it.build_cache_key("m") for it in questions}) == len(definitions)
    assert len({it.prompts[0].version for it in questions}) == len(definitions)
    again = Question("why?", (), load(define("rewrite")).settings)
    assert again.build_cache_key("m") == questions[0].build_cache_key("m")


@given(st.sampled_from([it for it in FILLED_BY if TEXT_FIELDS[it].variant]), st.floats(0.01, 100))
def test_the_weight_of_a_definition_is_the_weight_of_its_variants(
    field: str, weight: float
) -> None:
    text = "renal failure of the kidneys"
    reply = {field: [text] if TEXT_FIELDS[field].shape == "list" else text}
    config = load({"prompt": PROMPT, "fields": {field: weight}}, fusion={"weights": {"hyde": 3.0}})
    with qtm.QueryMiddleware(config, client=ScriptedModel(reply)) as middleware:
        _, variant = middleware.wrap(passages).retrieve("kidneys").variants
    assert (variant.kind, variant.weight) == (TEXT_FIELDS[field].variant, weight)


def test_of_names_that_differ_in_case_the_one_that_is_written_is_used() -> None:
    transforms = {"trade": define("hyde"), "TRADE": define("rewrite")}
    for name, field in (("trade", "hyde"), ("TRADE", "rewrite")):
        config = Config.load({"transformationType": name, "transforms": transforms}, environ={})
        assert config.settings.transform.fields == (field,)
    with pytest.raises(ConfigError, match="did you mean trade"):
        Config.load({"transformationType": "Trade", "transforms": transforms}, environ={})


def test_a_layer_defines_a_transformation_anew_and_keeps_the_others() -> None:
    below = {"jargon": {"prompt": PROMPT, "fields": {"hyde": 1.0}}, "trade": define("keywords")}
    config = Config.load({"transforms": below}, environ={}).overridden(
        {"transforms": {"jargon": define("rewrite")}}
    )
    assert set(config.settings.transforms) == {"jargon", "trade"}
    jargon = config.overridden({"transformationType": "jargon"}).settings.transform
    assert jargon.fields == ("rewrite",)


def test_a_layer_may_choose_what_another_one_defines() -> None:
    environ = {"QTM_TRANSFORMATION_TYPE": "jargon"}
    assert Config.load(
        {"transforms": {"jargon": define("hyde")}}, environ=environ
    ).settings.transform.fields == ("hyde",)
    written = {"QTM_TRANSFORMS": json.dumps({"jargon": define("hyde")}), **environ}
    assert Config.load(None, environ=written).settings.transform.fields == ("hyde",)
    with pytest.raises(ConfigError, match=r'not "jargon" \(environment'):
        Config.load(None, environ=environ)
