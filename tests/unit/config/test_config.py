"""The config: what is accepted and refused, layers and origins, files, environment, presets, schema."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config import Config
from qtmiddleware.config.keys import Key, list_all_keys, unwrap
from qtmiddleware.config.reading import PRESETS
from qtmiddleware.config.settings import (
    DEFAULT_WEIGHTS,
    PROMPT_NAMES,
    FusionSettings,
    LlmSettings,
    Range,
    Settings,
    SettingsGroup,
    to_camel_case,
)
from qtmiddleware.errors import ConfigError, QtMiddlewareError
from qtmiddleware.kit.cli.environment import override_options
from qtmiddleware.providers.llms.prices import find_prices
from scripts import reference

ROOT = Path(__file__).parents[3]
KEYS = list_all_keys()
NAMES = tuple(key.name for key in KEYS)
SECRET = "sk-proj-Zq81hhTTyw0pLmN"
SEED = {
    "chunkSize": 800,
    "chunkOverlap": 200,
    "topK": 4,
    "embeddingModel": "text-embedding-3-small",
    "chatModel": "gpt-4o-mini",
    "dataPath": "../../shared/assets/data",
    "indexPath": ".tmp/index/query-transform.index.json",
    "transformationType": "all",
    "transformationModel": "gpt-4o-mini",
    "maxSubQueries": 4,
}


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(reference.build_schema())


def load(values: Any = None, **environ: str) -> Config:
    return Config.load(values, environ=environ, origin="decorator")


def write(folder: Path, content: Any, name: str = "x.json") -> str:
    path = folder / name
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def refused(values: Any, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(values, **environ)
    return caught.value


def nest(key: Key, value: Any) -> Any:
    for part in reversed(key.path):
        value = {part: value}
    return value


def changed(config: Config) -> dict[str, Any]:
    return {name: value for name, value, origin in config.rows() if origin != "default"}


# What is refused, with its path, and in which words

NO_WEIGHTS = dict.fromkeys(DEFAULT_WEIGHTS, 0)
BAD: list[tuple[Any, str, str]] = [
    ({"topK": 0}, "topK", "topK must be a whole number from 1 to 10000, not 0 (decorator)"),
    ({"top_k": 0}, "topK", "not 0"),
    ({"topK": True}, "topK", "not true"),
    ({"topK": "8"}, "topK", 'not "8"'),
    ({"topK": None}, "topK", "not null"),
    ({"topK": 10**400}, "topK", "a very large number"),
    ({"topK": object()}, "topK", "not a Python object"),
    ({"chunkSize": 100}, "chunkOverlap", "chunkOverlap must be less than chunkSize, which is 100"),
    ({"transformationType": "rewrit"}, "transformationType", "did you mean rewrite?"),
    ({"transformationType": "line\n" * 1000}, "transformationType", "one of rewrite, stepback"),
    ({"transformationModel": ""}, "transformationModel", "a text that is not empty"),
    ({"chatModel": "\ud800"}, "chatModel", '"\\ud800"'),
    ({"preprocess": {"keepWords": "not"}}, "preprocess.keepWords", "a list of texts"),
    ({"preprocess": {"keepWords": ["a", 3]}}, "preprocess.keepWords.1", "must be a text, not 3"),
    ({"preprocess": "off"}, "preprocess.enabled", 'true or false, not "off"'),
    ({"keywordEvidence": {"fields": {"txt": "a"}}}, "keywordEvidence.fields.txt", ".text?"),
    ({"fusion": "best"}, "fusion.method", "one of anchored, rrf, weighted_rrf, max, concat"),
    ({"fusion": {"weights": 1}}, "fusion.weights", "each a number from 0 to 100, not 1"),
    ({"fusion": {"weights": {"rewrit": 1}}}, "fusion.weights.rewrit", "mean fusion.weights.rew"),
    ({"fusion": {"weights": {"step_back": 101}}}, "fusion.weights.stepBack", "not 101"),
    ({"fusion": {"weights": NO_WEIGHTS}}, "fusion.weights", "above 0 for at least one"),
    ({"limits": 5}, "limits", "must be an object of llmTimeoutMs, deadlineMs"),
    ({"llm": {"baseUrl": "localhost/v1"}}, "llm.baseUrl", "begins with http:// or https://"),
    ({"llm": {"baseUrl": "http://me@host"}}, "llm.baseUrl", "without a user name"),
    ({"llm": {"prompts": {"HyDE": "x"}}}, "llm.prompts.HyDE", "did you mean llm.prompts.hyde?"),
    ({"hybrid": {"enabled": True, "vectorWeight": 0, "bm25Weight": 0}}, "hybrid.vectorWeight", "0"),
    ({"transforms": {"own": {"fields": ["hyde"]}}}, "transforms.own.prompt", "empty, not null"),
    ({"chatModel": SECRET}, "chatModel", "a value without a key (set keys only in the environ"),
    ({"store": "pinecone"}, "store.index", "the name of a Pinecone index, or store.host"),
    # Unknown keys
    ({"topk": 4}, "topk", "topk is not a setting (decorator); did you mean topK?"),
    ({"fusion": {"rrk": 3}}, "fusion.rrk", "did you mean fusion.rrfK?"),
    ({"fusion": {"candidates": 3}}, "fusion.candidates", "did you mean keywordEvidence.candid"),
    ({"rrfK": 3}, "rrfK", "did you mean fusion.rrfK?"),
    ({"fusion": {"$schema": "x"}}, "fusion.$schema", "the names here are method, weights, rrfK"),
    ({"zzz": 1}, "zzz", "the names here are transformationType, transformationModel"),
    ({"": 1}, "", "is not a setting"),
    (7, "config", "a preset's name, or a mapping of settings"),
]


@pytest.mark.parametrize(("values", "path", "words"), BAD)
def test_a_bad_config_is_refused_by_name_and_with_what_is_allowed(
    values: Any, path: str, words: str
) -> None:
    error = refused(values)
    assert error.path == path
    assert words in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 800
    assert error.source in ("decorator", "default")
    assert isinstance(error, ValueError)
    assert isinstance(error, QtMiddlewareError)


def test_all_wrong_values_are_told_at_once_a_line_each(tmp_path: Path) -> None:
    file = write(tmp_path, {"topK": 0, "fusion": {"rrk": 1}})
    error = refused(file, QTM_CHUNK_SIZE="many")
    assert str(error).splitlines() == [
        f"topK must be a whole number from 1 to 10000, not 0 (file {file})",
        'chunkSize must be a whole number from 1 to 1000000, not "many" (environment QTM_CHUNK_SIZE)',
        f"fusion.rrk is not a setting (file {file}); did you mean fusion.rrfK?",
    ]
    assert (error.path, error.value, error.source) == ("topK", 0, f"file {file}")
    assert error.allowed == "a whole number from 1 to 10000"


# Secrets

API_KEYS = [
    SECRET,
    "pcsk_2abcDE_Zq81hhTTyw0pLmN",
    "hf_ZqAhhTTywOpLmNabcdef",
    "github_pat_Zq81hhTTyw0pLmNabcdef",
    "AIzaSyZq81hhTTyw0pLmNabcdefghijk",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
]
SECRET_NAMES = "apiKey API_KEY openaiApiKey token hf_token key pineconeKey password api-key"
SECRET_NAMES += " clientSecret credentials Authorization apikey"


def told(error: ConfigError) -> str:
    return str(error) + repr(error) + repr(vars(error))


@pytest.mark.parametrize("group", [None, "llm", "fusion"])
def test_a_key_in_a_config_is_refused_and_never_repeated(group: str | None) -> None:
    for name in SECRET_NAMES.split():
        error = refused({group: {name: "hunter2"}} if group else {name: "hunter2"})
        assert "in the environment" in str(error)
        assert "hunter2" not in told(error)


@pytest.mark.parametrize(
    "hold",
    [
        lambda secret: {"chatModel": f"https://host/{secret}/v1"},
        lambda secret: {"topK": secret},
        lambda secret: {"topK": [{"x": secret}]},
        lambda secret: {secret: 1},
        lambda secret: {"fusion": secret},
        lambda secret: {"preprocess": {"keepWords": ["word", f"say {secret}."]}},
        lambda secret: {"llm": {"prompts": {"rewrite": f"say\n{secret}"}}},
        lambda secret: {"glossary": {"terms": {secret: "x"}}},
        lambda secret: {"llm": {"baseUrl": f"https://me:{secret}@host/v1"}},
    ],
)
def test_a_value_that_holds_an_api_key_is_refused_and_never_repeated(hold: Any) -> None:
    for secret in API_KEYS:
        assert secret not in told(refused(hold(secret)))


def test_a_variable_that_holds_an_api_key_is_refused_and_never_repeated() -> None:
    for secret in API_KEYS:
        assert secret not in told(refused(None, QTM_TOP_K=secret))
        assert secret not in told(refused(None, **{f"QTM_{secret}": "1"}))


# Layers and origins

LAYERS = ["default", "environment", "file", "decorator", "call"]
PAIRS = [(low, high) for i, low in enumerate(LAYERS) for high in LAYERS[i + 1 :]]


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_the_stronger_of_two_layers_wins(low: str, high: str, tmp_path: Path) -> None:
    chosen = {low, high}
    environ = {"QTM_TOP_K": "11"} if "environment" in chosen else {}
    if "file" in chosen:
        environ["QTM_CONFIG"] = write(tmp_path, {"topK": 12})
    config = load({"topK": 13} if "decorator" in chosen else None, **environ)
    config = config.overridden({"topK": 14}) if "call" in chosen else config
    values = {"environment": 11, "file": 12, "decorator": 13, "call": 14}
    assert config.settings.top_k == values[high]
    assert config.origins["topK"].startswith(high)


def test_layers_are_merged_key_by_key_and_each_value_knows_where_it_came_from(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, b'\xef\xbb\xbf{"chunkSize": 900, "fusion": {"rrfK": 30}}')
    environ = {"QTM_FUSION_WEIGHTS": '{"stepBack": 0.1}', "QTM_CONFIG": file, "QTM_TOP_K": "7"}
    config = Config.load({"fusion": {"method": "rrf"}}, environ=environ).overridden({"topK": 9})
    assert {key: origin for key, origin in config.origins.items() if origin != "default"} == {
        "topK": "call",
        "chunkSize": f"file {file}",
        "fusion.method": "config",
        "fusion.rrfK": f"file {file}",
        "fusion.weights": "environment QTM_FUSION_WEIGHTS",
    }
    weights = {**DEFAULT_WEIGHTS, "step_back": 0.1}
    assert config.settings.fusion == FusionSettings(method="rrf", rrf_k=30, weights=weights)
    assert tuple(config.origins) == NAMES
    assert config.to_dict(with_defaults=False)["fusion"]["rrfK"] == 30


def test_nothing_set_means_the_defaults() -> None:
    assert load().settings == load({}).settings == load(QTM_CONFIG="").settings == Settings()
    assert set(load().origins.values()) == {"default"}
    assert load({"topK": 4}).origins["topK"] == "decorator"


def test_configs_and_settings_are_loaded_as_they_are() -> None:
    config = load({"topK": 9})
    assert Config.load(config, environ={"QTM_TOP_K": "3"}) is config
    complete = Config.load(Settings(top_k=9), environ={"QTM_CHUNK_SIZE": "900"})
    assert complete.settings == Settings(top_k=9)
    assert set(complete.origins.values()) == {"settings"}
    with pytest.raises(ConfigError, match="topK must be"):
        Config.load(Settings(top_k=0))


def test_values_that_agree_only_across_layers_are_accepted() -> None:
    assert load({"chunkOverlap": 10}, QTM_CHUNK_SIZE="100").settings.chunk_size == 100


def test_an_override_leaves_the_config_as_it_was() -> None:
    config = load({"fusion": {"rrfK": 30}, "llm": {"prompts": {"rewrite": "A"}}})
    override = {"fusion": {"weights": {"hyde": 0}}, "llm": {"prompts": {"hyde": "B"}}}
    other = config.overridden(override, origin="override")
    assert (other.settings.fusion.rrf_k, other.settings.fusion.weights["hyde"]) == (30, 0.0)
    assert other.settings.llm.prompts == {"rewrite": "A", "hyde": "B"}
    assert other.origins["fusion.weights"] == "override"
    assert config.settings.fusion.weights["hyde"] == 0.8
    assert config.settings.llm.prompts == {"rewrite": "A"}


def test_neither_a_config_nor_its_settings_can_be_changed() -> None:
    mine = {"llm": {"prompts": {"rewrite": "A"}}, "preprocess": {"keepWords": ["a"]}}
    config = load(mine)
    for holder, name in ((config, "settings"), (config.settings, "top_k")):
        with pytest.raises(FrozenInstanceError):
            setattr(holder, name, None)
    before = copy.deepcopy(config)
    mine["llm"]["prompts"]["rewrite"] = "B"  # type: ignore[index]
    config.to_dict()["preprocess"]["keepWords"].append("b")
    config.to_dict()["llm"]["prompts"]["hyde"] = "C"
    config.origins["topK"] = "me"
    assert config == before
    assert config.settings == before.settings != replace(before.settings, top_k=5)
    assert pickle.loads(pickle.dumps(config)) == config


# Spellings

FRIENDLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"transformationType": "step_back"}, {"transformationType": "stepback"}),
    ({"transformationType": "multi-query"}, {"transformationType": "multi_query"}),
    ({"fusion": "weightedRRF"}, {"fusion": {"method": "weighted_rrf"}}),
    ({"llm": {"structuredOutput": "jsonSchema"}}, {"llm": {"structuredOutput": "json_schema"}}),
    ({"cache": False}, {"cache": {"enabled": False}}),
    ({"log": "a.jsonl"}, {"log": {"path": "a.jsonl"}}),
    ({"topK": 8.0}, {"topK": 8}),
    ({"llm": {"prompts": {"multiQuery": "A"}}}, {"llm": {"prompts": {"multi_query": "A"}}}),
    ({"$schema": "./schema.json", "$comment": "For the handbook.", "topK": 8}, {"topK": 8}),
]


@pytest.mark.parametrize(("written", "plain"), FRIENDLY)
def test_a_friendly_spelling_means_the_plain_one(
    written: dict[str, Any], plain: dict[str, Any]
) -> None:
    assert changed(load(written)) == changed(load(plain))
    assert load(written).settings == load(plain).settings
    assert type(load(written).settings.top_k) is int


# Written out and read back, and any junk

OF_ALL_KINDS = {
    "preprocess": {"keepWords": ["not", "who"]},
    "keywordEvidence": {"fields": {"text": "body"}, "weight": None, "variants": 0.5},
    "fusion": {"method": "rrf", "weights": {"stepBack": 0.5, "originalInConversation": 1}},
    "llm": {
        "baseUrl": "HTTPS://host/v1",
        "prompts": {"multi_query": "A\nB"},
        "temperatures": {"hyde": 2},
        "maxTokens": None,
    },
    "store": {"kind": "pinecone", "host": "index.host", "readPrice": 16.0},
    "transforms": {"my_Own": {"prompt": "Say it.", "fields": {"step_back": None, "hyde": 1}}},
    "transformationType": "my_Own",
    "glossary": {"terms": {"my_term": "ein Begriff"}},
}


@pytest.mark.parametrize("values", [*PRESETS, SEED, OF_ALL_KINDS], ids=str)
def test_what_is_written_out_is_read_back(values: Any) -> None:
    config = load(values)
    written = config.to_dict()
    assert load(written).settings == config.settings
    assert load(json.loads(json.dumps(written))).settings == config.settings
    assert Config.load(config.settings).settings == config.settings
    validator().validate(json.loads(json.dumps(written)))


TEXT = st.text(max_size=20)
NAME = st.sampled_from([to_camel_case(part) for key in KEYS for part in key.path]) | st.text(
    max_size=8
)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=3)
JUNK = st.recursive(
    SCALAR | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(NAME | st.integers() | st.none(), JUNK, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_junk_is_a_config_or_a_config_error(values: dict[Any, Any]) -> None:
    try:
        config = load(values)
    except ConfigError as error:
        str(error).encode("utf-8")
    else:
        assert config.settings.chunk_overlap < config.settings.chunk_size


@given(st.sampled_from(KEYS), st.text(max_size=12))
@settings(deadline=None)
def test_junk_in_a_text_is_a_config_or_a_config_error(key: Key, text: str) -> None:
    for read in (
        lambda: load(None, **{key.environment_variable: text}),
        lambda: override_options(load(), [f"{key.name}={text}", text]),
    ):
        with contextlib.suppress(ConfigError):
            assert read().origins[key.name] != "default"


# Environment and assignments

PARSED: list[tuple[str, str, Any]] = [
    ("topK", " 8 ", 8),
    ("llm.baseUrl", "", None),
    ("llm.baseUrl", "null", None),
    ("llm.temperature", ".5", 0.5),
    ("llm.temperature", "1", 1.0),
    ("llm.prompts", '{"rewrite": "A"}', {"rewrite": "A"}),
    ("fusion.method", "Weighted-RRF", "weighted_rrf"),
    ("preprocess.keepWords", "not, who ,", ["not", "who"]),
    ("preprocess.keepWords", '["a,b", "c"]', ["a,b", "c"]),
    ("store.namespace", "7", "7"),
    ("store.namespace", '"a b"', "a b"),
    *[("cache.enabled", text, True) for text in ("true", "1", "yes", "on", " Yes ")],
    *[("cache.enabled", text, False) for text in ("false", "0", "no", "OFF")],
]


@pytest.mark.parametrize(("name", "text", "value"), PARSED)
def test_a_text_is_read_by_the_type_of_its_key(name: str, text: str, value: Any) -> None:
    variable = next(key.environment_variable for key in KEYS if key.name == name)
    for config, origin in (
        (load(None, **{variable: text}), f"environment {variable}"),
        (override_options(load(), [f"{name}={text}"]), "--set"),
    ):
        row = next(row for row in config.rows() if row[0] == name)
        assert row[1:] == (value, origin)
        assert type(row[1]) is type(value)


ASSIGNED: list[tuple[str, dict[str, Any] | None]] = [
    ("top_k=8", {"topK": 8}),
    ("fusion=max", {"fusion.method": "max"}),
    ("llm.temperatures.stepback=0.1", {"llm.temperatures": {"stepback": 0.1}}),
    ("keywordEvidence.fields.text=2", {"keywordEvidence.fields": {"text": "2"}}),
    ("llm.prompts.rewrite=Do it: well.", {"llm.prompts": {"rewrite": "Do it: well."}}),
    ("llm.baseUrl=http://localhost/v1?", None),
    ("topK", None),
    ("=8", None),
]


@pytest.mark.parametrize(("text", "values"), ASSIGNED)
def test_an_assignment_sets_an_option_a_group_or_a_name(
    text: str, values: dict[str, Any] | None
) -> None:
    if values is not None:
        assert changed(override_options(load(), [text])) == values
        return
    with pytest.raises(ConfigError, match="--set"):
        override_options(load(), [text])


BAD_ENVIRONMENT = [
    ("QTM_TOP_K", "many", 'not "many"'),
    ("QTM_FUSION_WEIGHTS", '{"hyde": NaN}', "not nan"),
    ("QTM_FUSION_WEIGHTS", "2", "each a number from 0 to 100"),
    ("QTM_CACHE_ENABLED", "maybe", "true or false"),
    ("QTM_TOPK", "8", "did you mean QTM_TOP_K?"),
    ("QTM_CONFIG_FILE", "x", "did you mean QTM_CONFIG?"),
    ("QTM_FOO", "x", "QTM_ is reserved for settings"),
    ("QTM_LLM_API_KEY", "hunter2", "OPENAI_API_KEY"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_ENVIRONMENT)
def test_a_bad_environment_variable_is_refused_by_name(name: str, text: str, words: str) -> None:
    error = refused(None, **{name: text})
    assert name in str(error)
    assert words in str(error)
    assert error.source.startswith("environment")
    assert "hunter2" not in told(error)


def test_variables_that_are_no_settings_are_left_alone() -> None:
    service = {"QTM_PORT_80_TCP_ADDR": "10.0.0.7", "QTM_SERVICE_HOST": "10.0.0.7"}
    other = {"QTM_MODEL_DIR": "/models", "OPENAI_API_KEY": SECRET, "QTMX": "1"}
    assert load(None, QTM_PORT="tcp://10.0.0.7:80", **service, **other).settings == Settings()


# Files and presets


def test_the_config_of_the_seeds_loads_as_it_is(tmp_path: Path) -> None:
    assert changed(load(write(tmp_path, SEED))) == SEED
    validator().validate(SEED)


BAD_FILES: list[tuple[str | bytes, str]] = [
    ("", "cannot be read as JSON: Expecting value: line 1 column 1"),
    ("[1]", "must hold one JSON object"),
    ('{"topK": 1' + "0" * 5000 + "}", "cannot be read as JSON"),
    ("[" * 100_000, "cannot be read as JSON"),
    ('{"topK": 4}'.encode("utf-16"), "cannot be read as JSON"),
]


@pytest.mark.parametrize(("text", "words"), BAD_FILES, ids=[row[1] for row in BAD_FILES])
def test_a_bad_file_is_refused_by_name(text: str | bytes, words: str, tmp_path: Path) -> None:
    file = write(tmp_path, text)
    error = refused(file)
    assert words in str(error)
    assert f"file {file}" in str(error)
    assert error.source == f"file {file}"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope.json")
    assert "nope.json does not exist" in str(refused(missing))
    assert "nope.json does not exist" in str(refused(None, QTM_CONFIG=missing))
    assert "Is a directory" in str(refused(tmp_path))
    for name in ("a\0b", "a/" * 5000):
        assert "cannot be read" in str(refused(name))
    error = refused('{"llm": {"apiKey": "hunter2"}}')
    assert "must be a path" in str(error)
    assert "hunter2" not in told(error)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_file_whatever_way_it_is_named(name: str) -> None:
    file = ROOT / f"config/{name}.config.json"
    preset = load(name)
    assert preset.settings == load(file).settings
    assert preset.settings == load(QTM_CONFIG=name).settings == load().overridden(name).settings
    assert preset.origins["transformationType"] == f"preset {name}"


def test_a_preset_lies_over_the_environment_and_a_mapping_over_the_preset() -> None:
    environ = {"QTM_TRANSFORMATION_TYPE": "hyde", "QTM_TRANSFORMATION_MODEL": "own"}
    auto = load("auto", **environ).settings
    assert (auto.transformation_type, auto.transformation_model) == ("combined", "own")
    assert load({"transformationType": "all"}, QTM_CONFIG="Seed_Parity").settings.fusion.method == (
        "max"
    )


def test_a_word_is_a_preset_and_a_path_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"topK": 9}, "auto")
    for config in (load("auto"), load(QTM_CONFIG="auto")):
        assert config.settings.escalation.mode == "auto"
    for path in ("./auto", Path("auto")):
        assert changed(load(path)) == changed(load().overridden(path)) == {"topK": 9}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("atuo", 'one of off, rules, .*, strip-as-text, not "atuo" .*; did you mean auto'),
        ("step-back", 'or {"transformationType": "stepback"}'),
        ("HyDE", 'or {"transformationType": "hyde"}'),
    ],
)
def test_a_preset_that_is_none_is_refused_with_all_names(name: str, words: str) -> None:
    for read in (load, load().overridden):
        with pytest.raises(ConfigError, match=words):
            read(name)


def test_the_presets_do_what_they_are_named_for() -> None:
    chosen = {name: load(name).settings for name in PRESETS}
    assert chosen["rules"] == Settings()
    assert not chosen["off"].keyword_evidence.enabled
    assert chosen["strip-as-text"].preprocess.apply_to == "text"
    seed = chosen["seed-parity"]
    assert (seed.fusion.method, seed.fusion.weights["original"]) == ("max", 0.0)
    research = chosen["research"]
    assert (research.max_sub_queries, research.llm.sub_query_style) == (5, "research")
    budgets = [chosen[name].limits.max_searches for name in ("words", "balanced", "thorough")]
    assert budgets == [1, TRANSFORMS["combined"].max_searches, 20]
    assert chosen["auto"].escalation.mode == "auto"


# The options themselves, the schema and the documentation


def test_an_option_has_one_sentence_limits_and_a_default_that_is_allowed() -> None:
    for key in KEYS:
        _, notes, _ = unwrap(key.hint)
        (sentence,) = (note for note in notes if isinstance(note, str))
        assert sentence.endswith("."), key.name
        # It would break the table of the reference.
        assert not {"|", "\n"} & set(sentence), key.name
        if isinstance(key.default, int | float) and not isinstance(key.default, bool):
            assert any(isinstance(note, Range) for note in notes), key.name
        assert load(nest(key, key.default)).settings == Settings()


def test_the_defaults_are_those_of_the_seeds_and_call_no_model() -> None:
    settings = Settings()
    seeds = (settings.chunk_size, settings.chunk_overlap, settings.top_k, settings.max_sub_queries)
    assert seeds == (800, 200, 4, 4)
    assert (settings.transformation_type, settings.preprocess.apply_to) == ("none", "keywords")
    assert settings.llm == LlmSettings()
    assert isinstance(settings.llm, SettingsGroup)


def test_the_default_models_have_a_price() -> None:
    assert find_prices(Settings().chat_model) is not None
    assert find_prices(Settings().transformation_model) is not None


def test_the_published_schema_and_page_are_those_of_the_settings() -> None:
    jsonschema.Draft202012Validator.check_schema(reference.build_schema())
    published = json.loads(reference.SCHEMA.read_text("utf-8"))
    page = reference.PAGE.read_text("utf-8")
    assert published == reference.build_schema(), "out of date; run scripts/generate"
    assert page == reference.build_page(page), "out of date; run scripts/generate"
    assert all(f"`{name}`" in page for name in (*NAMES, *PRESETS, *PROMPT_NAMES))


@pytest.mark.parametrize(
    "values",
    [{"topK": 0}, {"topK": "8"}, {"topK": True}, {"topk": 4}, {"store": "best"}, {"cache": 3}],
)
def test_the_schema_refuses_what_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"fusion": "max", "cache": False, "escalation": "auto", "log": None, "$schema": "x"},
        {"transforms": {"own": {"prompt": "Say it.", "fields": ["step_back", "stepBack"]}}},
        {"llm": {"prompts": {"multi_query": "A"}}, "transformationType": "own"},
    ],
)
def test_the_schema_knows_shorthands_spellings_and_own_transforms(values: dict[str, Any]) -> None:
    validator().validate(values)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "config").glob("*.config.json")), ids=lambda path: path.name
)
def test_every_ready_file_loads_and_follows_the_schema(path: Path) -> None:
    written = json.loads(path.read_text("utf-8"))
    validator().validate(written)
    assert written["$schema"] == "./schema.json"
    assert changed(load(path)).keys() >= {"transformationType"}
    assert path.name.removesuffix(".config.json") in (*PRESETS, "query-transform")


def test_the_defaults_need_no_validation_library() -> None:
    code = (
        "import sys; from qtmiddleware.config import Config; Config.load(environ={}); "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'annotated_types', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
