"""The config: layers, origins, spellings, errors, schema, ready files and reference."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, asdict
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.catalogue import FILLED_BY, TRANSFORMS
from qtmiddleware.config import Config, build_json_schema, build_markdown_reference, list_key_names
from qtmiddleware.config.keys import Key, build_settings, list_all_keys, to_camel_case
from qtmiddleware.config.reading import PRESETS
from qtmiddleware.config.settings import (
    DEFAULT_WEIGHTS,
    PROMPT_NAMES,
    FusionSettings,
    LlmSettings,
    Settings,
)
from qtmiddleware.errors import ConfigError, QtMiddlewareError

ROOT = Path(__file__).parents[3]
READY = sorted((ROOT / "config").glob("*.config.json"))
SECRET = "sk-proj-Zq81hhTTyw0pLmN"

SEED = """{
  "chunkSize": 800,
  "chunkOverlap": 200,
  "topK": 4,
  "embeddingModel": "text-embedding-3-small",
  "chatModel": "gpt-4o-mini",
  "dataPath": "../../shared/assets/data",
  "indexPath": ".tmp/index/query-transform.index.json",
  "transformationType": "all",
  "transformationModel": "gpt-4o-mini",
  "maxSubQueries": 4
}"""


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(build_json_schema())


def load(values: Any = None, **environ: str) -> Config:
    return Config.load(values, environ=environ, origin="decorator")


def write(folder: Path, text: str | bytes, name: str = "x.json") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refused(values: Any, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(values, **environ)
    return caught.value


# What is refused, and in which words

NO_WEIGHTS = dict.fromkeys(DEFAULT_WEIGHTS, 0)
BAD: list[tuple[Any, str, str]] = [
    ({"topK": 0}, "topK", "topK must be a whole number from 1 to 10000, not 0 (decorator)"),
    ({"top_k": 0}, "topK", "not 0"),
    ({"topK": -3}, "topK", "not -3"),
    ({"topK": 10_001}, "topK", "from 1 to 10000"),
    ({"topK": True}, "topK", "not true"),
    ({"topK": "8"}, "topK", 'not "8"'),
    ({"topK": None}, "topK", "not null"),
    ({"topK": 4.5}, "topK", "not 4.5"),
    ({"topK": math.nan}, "topK", "not a finite number"),
    ({"topK": math.inf}, "topK", "not a finite number"),
    ({"topK": 10**400}, "topK", "a very large number"),
    ({"topK": [4]}, "topK", "not a list"),
    ({"topK": {"value": 4}}, "topK", "not an object"),
    ({"topK": object()}, "topK", "not a Python object"),
    ({"maxSubQueries": 1}, "maxSubQueries", "from 2 to 6"),
    ({"maxSubQueries": 7}, "maxSubQueries", "from 2 to 6"),
    ({"chunkSize": 0}, "chunkSize", "not 0"),
    ({"chunkOverlap": -1}, "chunkOverlap", "from 0 to 1000000"),
    (
        {"chunkSize": 200, "chunkOverlap": 200},
        "chunkOverlap",
        "less than chunkSize, which is 200 (decorator)",
    ),
    ({"chunkSize": 100}, "chunkOverlap", "chunkOverlap must be less than chunkSize, which is 100"),
    (
        {"transformationType": "rephrase"},
        "transformationType",
        "one of rewrite, stepback, decompose",
    ),
    ({"transformationType": ""}, "transformationType", 'not ""'),
    ({"transformationType": None}, "transformationType", "not null"),
    ({"transformationType": 3}, "transformationType", "not 3"),
    ({"transformationModel": ""}, "transformationModel", "a text that is not empty"),
    ({"chatModel": 4}, "chatModel", "a text that is not empty"),
    ({"chatModel": "\ud800"}, "chatModel", '"\\ud800"'),
    ({"chatModel": b"gpt"}, "chatModel", "a Python bytes"),
    ({"indexPath": None}, "indexPath", "not null"),
    ({"preprocess": {"enabled": "yes"}}, "preprocess.enabled", "true or false"),
    ({"preprocess": {"enabled": 1}}, "preprocess.enabled", "true or false"),
    ({"preprocess": {"keepWords": "not"}}, "preprocess.keepWords", "a list of texts"),
    ({"preprocess": {"keepWords": ["not", 3]}}, "preprocess.keepWords.1", "must be a text, not 3"),
    (
        {"preprocess": "off"},
        "preprocess",
        "an object (or true or false, which sets preprocess.enabled)",
    ),
    ({"keywordEvidence": {"weight": 1.5}}, "keywordEvidence.weight", "a number from 0 to 1"),
    ({"keywordEvidence": {"weight": "0.5"}}, "keywordEvidence.weight", '"0.5"'),
    ({"keywordEvidence": {"weight": False}}, "keywordEvidence.weight", "not false"),
    ({"keywordEvidence": 3}, "keywordEvidence", "not 3"),
    ({"keywordEvidence": {"fields": {"text": 3}}}, "keywordEvidence.fields.text", "a text"),
    ({"escalation": "sometimes"}, "escalation.mode", "one of always, never, auto"),
    ({"escalation": {"targetCallRate": 35}}, "escalation.targetCallRate", "a number from 0 to 1"),
    ({"fusion": "best"}, "fusion.method", "one of anchored, rrf, weighted_rrf, max, concat"),
    ({"fusion": ["max"]}, "fusion", "not a list"),
    ({"fusion": None}, "fusion", "not null"),
    ({"fusion": {"weights": 1}}, "fusion.weights", "an object of numbers from 0 to 100"),
    ({"fusion": {"weights": {"rewrit": 1}}}, "fusion.weights.rewrit", "did you mean rewrite?"),
    (
        {"fusion": {"weights": {"stepBack": 1, "step_back": 1}}},
        "fusion.weights.stepBack",
        "set twice, as stepBack and step_back",
    ),
    ({"llm": {"temperatures": {"hyde": 3}}}, "llm.temperatures.hyde", "a number from 0 to 2"),
    (
        {"llm": {"temperatures": {"multyQuery": 1}}},
        "llm.temperatures.multyQuery",
        "did you mean multiQuery?",
    ),
    ({"keywordEvidence": {"fields": {"txt": "a"}}}, "keywordEvidence.fields.txt", "mean text?"),
    ({"fusion": {"weights": {"hyde": math.nan}}}, "fusion.weights.hyde", "not a finite number"),
    ({"fusion": {"weights": {"hyde": -math.inf}}}, "fusion.weights.hyde", "a number from 0 to 100"),
    ({"fusion": {"weights": {"stepBack": -0.1}}}, "fusion.weights.stepBack", "not -0.1"),
    ({"fusion": {"weights": {"step_back": 101}}}, "fusion.weights.stepBack", "not 101"),
    ({"fusion": {"weights": NO_WEIGHTS}}, "fusion.weights", "at least one of fusion.weights"),
    ({"limits": 5}, "limits", "must be an object"),
    ({"limits": {"deadlineMs": 0}}, "limits.deadlineMs", "from 1 to 600000"),
    (
        {"llm": {"inputPrice": -1}},
        "llm.inputPrice",
        "must be a number of at least 0, or null, not -1",
    ),
    ({"llm": {"temperature": 3}}, "llm.temperature", "from 0 to 2, or null"),
    ({"llm": {"baseUrl": "localhost:11434/v1"}}, "llm.baseUrl", "begins with http:// or https://"),
    ({"llm": {"prompts": ["x"]}}, "llm.prompts", "an object of texts"),
    ({"llm": {"prompts": {"rewrite": 3}}}, "llm.prompts.rewrite", "must be a text"),
    ({"llm": {"prompts": {"rewite": "x"}}}, "llm.prompts.rewite", "did you mean rewrite?"),
    ({"cache": "no"}, "cache", "or true or false, which sets cache.enabled"),
    ({"log": False}, "log", "not false"),
    # Unknown keys
    ({"topk": 4}, "topk", "did you mean topK?"),
    ({"TOP_K": 4}, "TOP_K", "did you mean topK?"),
    ({"chunk-size": 4}, "chunk-size", "did you mean chunkSize?"),
    ({"transformType": "all"}, "transformType", "did you mean transformationType?"),
    ({"fusion": {"rrk": 3}}, "fusion.rrk", "did you mean rrfK?"),
    ({"fusion": {"candidates": 3}}, "fusion.candidates", "candidates belongs to keywordEvidence"),
    ({"rrfK": 3}, "rrfK", "rrfK belongs to fusion"),
    (
        {"hybrid": {"enabled": True, "vectorWeight": 0, "bm25Weight": 0}},
        "hybrid.vectorWeight",
        "above 0 if hybrid.bm25Weight is 0",
    ),
    ({"store": "pinecone"}, "store.index", "the name of a Pinecone index, or store.host"),
    (
        {"enabled": True},
        "enabled",
        "enabled belongs to preprocess, keywordEvidence, hybrid, rerank, cache",
    ),
    ({"fusion": {"topK": 3}}, "fusion.topK", "topK belongs to the top level"),
    ({"fusion.rrfK": 3}, "fusion.rrfK", 'write rrfK inside the object "fusion"'),
    ({"fusion": {"$schema": "x"}}, "fusion.$schema", "the names here are method, weights, rrfK"),
    ({"zzz": 1}, "zzz", "the names here are transformationType, transformationModel"),
    ({"": 1}, "", "is not a setting"),
    ({1: 2}, "<1>", "must be text"),
    ({"fusion": {None: 2}}, "fusion.<null>", "must be text"),
    ({"topK": 4, "top_k": 4}, "topK", "set twice, as topK and top_k"),
    (7, "config", "a path, the name of a preset, a mapping, a Config, Settings or None"),
    (b"config.json", "config", "a Python bytes"),
    (["topK"], "config", "not a list"),
]


@pytest.mark.parametrize(
    ("values", "path", "words"), BAD, ids=[f"{row[1]}-{i}" for i, row in enumerate(BAD)]
)
def test_a_bad_config_is_refused_by_name_and_with_what_is_allowed(
    values: Any, path: str, words: str
) -> None:
    error = refused(values)
    assert error.path == path
    assert words in str(error)
    assert "\n" not in str(error)
    assert error.source in ("decorator", "default")
    assert isinstance(error, ValueError)
    assert isinstance(error, QtMiddlewareError)


def test_an_error_holds_its_parts() -> None:
    error = refused({"topK": 0})
    assert (error.path, error.value, error.source) == ("topK", 0, "decorator")
    assert error.allowed == "a whole number from 1 to 10000"


def test_everything_that_is_wrong_is_told_at_once_a_line_each(tmp_path: Path) -> None:
    file = write(tmp_path, '{"topK": 0, "fusion": {"rrk": 1}}')
    with pytest.raises(ConfigError) as caught:
        Config.load(file, environ={"QTM_CHUNK_SIZE": "many"})
    assert str(caught.value).splitlines() == [
        'chunkSize must be a whole number from 1 to 1000000, not "many" (environment QTM_CHUNK_SIZE)',
        f"fusion.rrk is not a setting (file {file}); did you mean rrfK?",
        f"topK must be a whole number from 1 to 10000, not 0 (file {file})",
    ]
    assert caught.value.path == "chunkSize"


def test_a_long_value_is_cut_and_stays_on_one_line() -> None:
    message = str(refused({"transformationType": "line\n" * 1000}))
    assert len(message) < 300
    assert "\n" not in message


# Secrets

SECRET_KEYS = [
    "apiKey",
    "api_key",
    "API_KEY",
    "openaiApiKey",
    "OPENAI_API_KEY",
    "token",
    "authToken",
    "hf_token",
    "key",
]
SECRET_KEYS += [
    "key",
    "pineconeKey",
    "password",
    "clientSecret",
    "credentials",
    "Authorization",
    "apikey",
    "api-key",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("group", [None, "llm", "fusion"])
def test_a_key_in_a_config_is_refused_and_never_repeated(key: str, group: str | None) -> None:
    inner = {key: "hunter2"}
    error = refused({group: inner} if group else inner)
    assert "in the environment" in str(error)
    assert "hunter2" not in str(error) + repr(error) + repr(vars(error))


@pytest.mark.parametrize(
    "values",
    [
        {"transformationType": SECRET},
        {"topK": SECRET},
        {"topK": [SECRET]},
        {"topK": {"x": SECRET}},
        {SECRET: 1},
        {"fusion": SECRET},
        {"preprocess": {"language": 3, "keepWords": [SECRET, 3]}},
        {"llm": {"baseUrl": f"https://me:{SECRET}@host/v1"}},
        {"llm": {"baseUrl": SECRET}},
        {"topK": "Bearer abc"},
        {"topK": "0123456789abcdef0123456789abcdef"},
        {"topK": "2f1c1f0e-1111-4222-8333-0123456789ab"},
    ],
)
def test_a_value_that_looks_like_a_key_is_never_repeated(values: Any) -> None:
    error = refused(values)
    told = str(error) + repr(error) + repr(vars(error))
    assert all(part not in told for part in (SECRET, "Bearer abc", "0123456789ab"))


KEYS = [
    SECRET,
    "sk-ant-api03-Zq81hhTTyw0pLmNabc",
    "sk_live_Zq81hhTTyw0pLmN",
    "pcsk_2abcDE_Zq81hhTTyw0pLmN",
    "hf_ZqAhhTTywOpLmNabcdef",
    "ghp_Zq81hhTTyw0pLmNabcdef",
    "github_pat_Zq81hhTTyw0pLmNabcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyZq81hhTTyw0pLmNabcdefghijk",
    "xoxb-1234567890-abcdefghij",
    "gsk_Zq81hhTTyw0pLmNabcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
]
TEXTS = [key for key in list_all_keys() if key.kind in ("str", "list", "object")]


@pytest.mark.parametrize("key", TEXTS, ids=lambda key: key.name)
def test_a_key_is_refused_in_every_text_setting_and_not_repeated(key: Key) -> None:
    for secret in KEYS:
        for text in (secret, f"https://host/{secret}/v1", f"say {secret}."):
            name = key.names[0] if key.names else "CR"
            value: Any = {"str": text, "list": ["word", text], "object": {name: text}}[key.kind]
            for part in reversed(key.path):
                value = {part: value}
            error = refused(value)
            assert error.path == key.name
            assert secret not in str(error) + repr(error) + repr(vars(error))


@pytest.mark.parametrize(
    "text",
    [
        "gpt-6-luna",
        "hf-internal-testing/tiny-random-bert",
        "jinaai/jina-reranker-v2-base-multilingual",
        "/data/sk-learn-experiments-2026/log.jsonl",
        "risk-2026-assessment1234",
        "2f1c1f0e-1111-4222-8333-0123456789ab",
        "0123456789abcdef0123456789abcdef",
        "C:\\Users\\me\\task-1234567890ab\\log",
    ],
)
def test_names_of_models_files_and_tenants_are_no_keys(text: str) -> None:
    for key in TEXTS:
        if key.name in ("transformationModel", "log.path", "cache.tenant", "store.namespace"):
            value: Any = text
            for part in reversed(key.path):
                value = {part: value}
            Config.load(value, environ={})


@pytest.mark.parametrize("piece", ["sk-", "sk-a", "eyJ", "eyJaaaaaaaa.", "sk-a1a1a1a1a-", "a", "-"])
def test_a_long_text_is_looked_through_for_keys_to_its_end(piece: str) -> None:
    text = piece * 100_000
    with contextlib.suppress(ConfigError):
        Config.load({"prompts": {"rewrite": text}}, environ={})


def test_a_name_that_only_resembles_a_secret_is_treated_as_a_typing_error() -> None:
    assert "did you mean maxTokens?" in str(refused({"llm": {"maxToken": 10}}))


@pytest.mark.parametrize("name", ["QTM_API_KEY", "QTM_LLM_API_KEY", "QTM_TOKEN", "QTM_SECRET"])
def test_a_secret_under_a_setting_like_name_is_told_where_it_belongs(name: str) -> None:
    error = refused(None, **{name: "hunter2"})
    assert "OPENAI_API_KEY" in str(error)
    assert "hunter2" not in str(error) + repr(vars(error))


@pytest.mark.parametrize("secret", [*KEYS, "0123456789abcdef0123456789abcdef"])
def test_a_key_in_the_name_of_a_variable_is_not_repeated(secret: str) -> None:
    error = refused(None, **{f"QTM_{secret}": "1"})
    assert secret not in str(error) + repr(error) + repr(vars(error))


def test_an_environment_value_that_looks_like_a_key_is_never_repeated() -> None:
    assert SECRET not in str(refused(None, QTM_TOP_K=SECRET))


# Layers and origins


def stacked(tmp_path: Path, *layers: str) -> Config:
    """A config in which each of *layers* sets topK: environment 11, file 12, decorator 13, call 14."""
    environ = {"QTM_TOP_K": "11"} if "environment" in layers else {}
    if "file" in layers:
        environ["QTM_CONFIG"] = write(tmp_path, '{"topK": 12}')
    config = Config.load(
        {"topK": 13} if "decorator" in layers else None, environ=environ, origin="decorator"
    )
    return config.overridden({"topK": 14}) if "call" in layers else config


ORDER = ["default", "environment", "file", "decorator", "call"]
VALUES = {"default": 4, "environment": 11, "file": 12, "decorator": 13, "call": 14}
PAIRS = [(low, high) for i, low in enumerate(ORDER) for high in ORDER[i + 1 :]]


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_the_stronger_of_two_layers_wins(low: str, high: str, tmp_path: Path) -> None:
    config = stacked(tmp_path, low, high)
    assert config.settings.top_k == VALUES[high]
    assert config.origins["topK"].startswith(high)


def test_every_value_knows_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path, '{"chunkSize": 900, "fusion": {"rrfK": 30}}')
    environ = {
        "QTM_FUSION_WEIGHTS": '{"stepBack": 0.1}',
        "QTM_CONFIG": file,
        "QTM_CHUNK_SIZE": "700",
    }
    config = Config.load({"fusion": {"method": "rrf"}}, environ=environ).overridden({"topK": 9})
    assert {key: origin for key, origin in config.origins.items() if origin != "default"} == {
        "topK": "call",
        "chunkSize": f"file {file}",
        "fusion.method": "config",
        "fusion.rrfK": f"file {file}",
        "fusion.weights": "environment QTM_FUSION_WEIGHTS",
    }
    assert config.settings.fusion == FusionSettings(
        method="rrf", rrf_k=30, weights={**DEFAULT_WEIGHTS, "step_back": 0.1}
    )
    assert tuple(config.origins) == list_key_names()


def test_a_value_that_equals_the_default_still_counts_as_set() -> None:
    assert load({"topK": 4}).origins["topK"] == "decorator"


def test_nothing_set_means_the_defaults() -> None:
    config = load()
    assert config.settings == Settings()
    assert set(config.origins.values()) == {"default"}
    assert load({}) == config


def test_a_named_file_takes_the_place_of_the_one_in_the_environment(tmp_path: Path) -> None:
    other, named = (
        write(tmp_path, '{"topK": 7}', "a.json"),
        write(tmp_path, '{"chunkSize": 900}', "b.json"),
    )
    for config in (
        Config.load(named, environ={"QTM_CONFIG": other}),
        Config.from_file(named, environ={}),
    ):
        assert (config.settings.top_k, config.settings.chunk_size) == (4, 900)


def test_an_empty_qtm_config_names_no_file() -> None:
    assert load(None, QTM_CONFIG="").settings == Settings()


def test_a_config_is_loaded_as_itself() -> None:
    config = load({"topK": 9})
    assert Config.load(config, environ={"QTM_TOP_K": "3"}) is config


def test_settings_are_complete_and_checked() -> None:
    config = Config.load(Settings(top_k=9), environ={"QTM_CHUNK_SIZE": "900"})
    assert config.settings == Settings(top_k=9)
    assert set(config.origins.values()) == {"settings"}
    with pytest.raises(ConfigError, match="topK must be"):
        Config.load(Settings(top_k=0))


def test_the_process_environment_is_read_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QTM_TOP_K", "17")
    assert Config.load().settings.top_k == 17
    assert Config.from_file(write(tmp_path, "{}")).settings.top_k == 17


def test_values_that_agree_only_across_layers_are_accepted() -> None:
    assert load({"chunkOverlap": 10}, QTM_CHUNK_SIZE="100").settings.chunk_size == 100


# Overriding


def test_an_override_merges_deeply_and_leaves_the_config_as_it_was() -> None:
    config = load({"fusion": {"rrfK": 30}, "llm": {"prompts": {"rewrite": "A"}}})
    changed = config.overridden(
        {"fusion": {"weights": {"hyde": 0}}, "llm": {"prompts": {"hyde": "B"}}}
    )
    assert (changed.settings.fusion.rrf_k, changed.settings.fusion.weights["hyde"]) == (30, 0.0)
    assert changed.settings.llm.prompts == {"rewrite": "A", "hyde": "B"}
    assert (config.settings.fusion.weights["hyde"], config.settings.llm.prompts) == (
        0.8,
        {"rewrite": "A"},
    )
    assert changed.origins["fusion.rrfK"] == "decorator"
    assert changed.origins["fusion.weights"] == "call"


def test_an_override_names_its_own_origin() -> None:
    assert load().overridden({"topK": 5}, origin="override").origins["topK"] == "override"


def test_a_bad_override_is_refused_with_its_origin() -> None:
    with pytest.raises(ConfigError, match=r"topK must be .*, not 0 \(call\)"):
        load().overridden({"topK": 0})
    with pytest.raises(ConfigError, match="a mapping"):
        load().overridden("topK=3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dataPath": Path("docs")}, "not a Python"),
        ({"log": Path("a.jsonl")}, "a text, or null, which sets log.path"),
        ({"preprocess": {"keepWords": {"a", "b"}}}, "must be a list of texts"),
        ({"topK": Fraction(8)}, "must be a whole number"),
        ({"llm": {"prompts": {"HyDE": "x"}}}, "did you mean hyde?"),
    ],
)
def test_what_json_does_not_have_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load().overridden(values)


def test_a_config_cannot_be_changed() -> None:
    mine = {"llm": {"prompts": {"rewrite": "A"}}, "preprocess": {"keepWords": ["a"]}}
    config = load(mine)
    with pytest.raises(FrozenInstanceError):
        config.settings = Settings()  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.origins["topK"] = "me"  # type: ignore[index]
    before = copy.deepcopy(config)
    mine["llm"]["prompts"]["rewrite"] = "B"  # type: ignore[index]
    config.to_dict()["preprocess"]["keepWords"].append("b")
    config.to_dict()["llm"]["prompts"]["hyde"] = "C"
    assert config == before


def test_a_config_survives_pickling() -> None:
    config = load({"topK": 9})
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.origins["topK"] == "decorator"


# Spellings

FRIENDLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"transformationType": "step_back"}, {"transformationType": "stepback"}),
    ({"transformationType": "StepBack"}, {"transformationType": "stepback"}),
    ({"transformationType": "Rewrite"}, {"transformationType": "rewrite"}),
    ({"transformationType": "multiQuery"}, {"transformationType": "multi_query"}),
    ({"transformationType": "multi-query"}, {"transformationType": "multi_query"}),
    ({"transformationType": "HyDE"}, {"transformationType": "hyde"}),
    ({"fusion": "max"}, {"fusion": {"method": "max"}}),
    ({"fusion": "weightedRRF"}, {"fusion": {"method": "weighted_rrf"}}),
    ({"llm": {"structuredOutput": "jsonSchema"}}, {"llm": {"structuredOutput": "json_schema"}}),
    ({"cache": False}, {"cache": {"enabled": False}}),
    ({"preprocess": False}, {"preprocess": {"enabled": False}}),
    ({"keywordEvidence": False}, {"keywordEvidence": {"enabled": False}}),
    ({"keyword_evidence": True}, {"keywordEvidence": {"enabled": True}}),
    ({"escalation": "auto"}, {"escalation": {"mode": "auto"}}),
    ({"log": "a.jsonl"}, {"log": {"path": "a.jsonl"}}),
    ({"log": None}, {"log": {"path": None}}),
    ({"topK": 8.0}, {"topK": 8}),
    ({"fusion": {"weights": {"hyde": 1}}}, {"fusion": {"weights": {"hyde": 1.0}}}),
    ({"preprocess": {"keepWords": ("a", "b")}}, {"preprocess": {"keepWords": ["a", "b"]}}),
    (
        {"llm": {"prompts": {"multiQuery": "A", "hyde": "B"}}},
        {"llm": {"prompts": {"multi_query": "A", "hyde": "B"}}},
    ),
    ({"$schema": "./schema.json", "$comment": "For the handbook.", "topK": 8}, {"topK": 8}),
]


@pytest.mark.parametrize(("written", "plain"), FRIENDLY)
def test_a_friendly_spelling_means_the_plain_one(
    written: dict[str, Any], plain: dict[str, Any]
) -> None:
    assert load(written) == load(plain)


def snake_cased(values: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        to_camel_case(part): part for key in list_all_keys() for part in (*key.path, *key.names)
    }
    return {
        names.get(key, key): snake_cased(v) if isinstance(v, Mapping) else v
        for key, v in values.items()
    }


def test_snake_case_means_the_same_as_camel_case() -> None:
    values = load({"topK": 9, "fusion": {"weights": {"stepBack": 0.5}}}).to_dict()
    written = snake_cased(values)
    assert written["fusion"]["weights"]["step_back"] == 0.5
    assert load(written) == load(values)


# Any settings, any junk


ADDRESSES = {
    "llm.baseUrl": "https://host/v1",
    "store.host": "index.host",
}


WEIGHTS = st.dictionaries(st.sampled_from([*FILLED_BY]), st.none() | st.floats(0, 100), min_size=1)
DEFINITIONS = st.fixed_dictionaries(
    {
        "prompt": st.text(min_size=1, max_size=20).map(str.strip).filter(bool),
        "fields": WEIGHTS.map(
            lambda weights: weights | {"keywords": None} if "keywords" in weights else weights
        ),
    }
)


def value_of(key: Key) -> st.SearchStrategy[Any]:
    low, high = key.limits.get("ge"), key.limits.get("le")
    text = st.text(min_size=key.limits.get("min_length", 0), max_size=20)
    names = st.sampled_from(key.names or ("CR", "rewrite"))
    by_kind: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(low, high),
        "float": st.floats(low, high, allow_nan=False, allow_infinity=False),
        "str": text,
        "choice": st.sampled_from(key.choices or ("",)),
        "list": st.lists(text, max_size=3).map(tuple),
        "object": st.dictionaries(names, text, max_size=3),
        "numbers": st.dictionaries(names, st.floats(low, high), max_size=3),
        "objects": st.dictionaries(st.sampled_from(("jargon", "trade")), DEFINITIONS, max_size=2),
    }
    strategy = st.just(ADDRESSES[key.name]) if key.name in ADDRESSES else by_kind[key.kind]
    return st.none() | strategy if key.is_nullable else strategy


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    values = asdict(Settings())
    for key in draw(
        st.lists(st.sampled_from(list_all_keys()), max_size=12, unique_by=lambda key: key.name)
    ):
        holder = values
        for part in key.path[:-1]:
            holder = holder[part]
        holder[key.path[-1]] = draw(value_of(key))
    values["chunk_overlap"] = min(values["chunk_overlap"], values["chunk_size"] - 1)
    values["fusion"]["weights"] = {**DEFAULT_WEIGHTS, **values["fusion"]["weights"]}
    values["fusion"]["weights"]["original"] = values["fusion"]["weights"]["original"] or 1.0
    values["hybrid"]["vector_weight"] = values["hybrid"]["vector_weight"] or 1.0
    values["store"]["index"] = values["store"]["index"] or "passages"
    return build_settings(Settings, values)  # type: ignore[no-any-return]


@given(any_settings())
@settings(max_examples=60, deadline=None)
def test_what_is_written_out_is_read_back(chosen: Settings) -> None:
    written = Config.load(chosen).to_dict()
    assert load(written).settings == chosen
    assert load(json.loads(json.dumps(written))).settings == chosen
    assert load(snake_cased(written)).settings == chosen
    validator().validate(written)


KEY = st.sampled_from(
    [to_camel_case(part) for key in list_all_keys() for part in key.path]
) | st.text(max_size=8)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=3)
)
JUNK = st.recursive(
    SCALAR | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(KEY | st.integers() | st.none(), JUNK, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_junk_is_a_config_or_a_config_error(values: dict[Any, Any]) -> None:
    try:
        config = load(values)
    except ConfigError as error:
        str(error).encode("utf-8")
    else:
        assert config.settings.chunk_overlap < config.settings.chunk_size


@given(st.sampled_from(list_all_keys()), st.text(max_size=12))
@settings(deadline=None)
def test_junk_in_the_environment_is_a_config_or_a_config_error(key: Key, text: str) -> None:
    try:
        config = load(None, **{key.environment_variable: text})
    except ConfigError:
        return
    else:
        assert config.origins[key.name] == f"environment {key.environment_variable}"


@given(st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_junk_in_a_file_is_a_config_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "junk"
    for name in (file.with_suffix(".json"), file.with_suffix(".toml")):
        name.write_bytes(junk)
        with contextlib.suppress(ConfigError):
            Config.from_file(name, environ={})


# Assignments

ASSIGNED = [
    ("topK=8", "topK", 8),
    ("top_k = 8", "topK", 8),
    ("fusion.rrf_k=10", "fusion.rrfK", 10),
    ("fusion=max", "fusion.method", "max"),
    ("transformationType=Step-Back", "transformationType", "stepback"),
    ("llm.baseUrl=null", "llm.baseUrl", None),
    ("llm.baseUrl=http://localhost/v1?", "llm.baseUrl", ConfigError),
    ("store.namespace=7", "store.namespace", "7"),
    ('store.namespace="a b"', "store.namespace", "a b"),
    ("store.namespace=null", "store.namespace", "null"),
    ("chatModel=a=b", "chatModel", "a=b"),
    ("llm.temperatures.stepback=0.1", "llm.temperatures", {"stepback": 0.1}),
    ("keywordEvidence.fields.text=2", "keywordEvidence.fields", {"text": "2"}),
    ("preprocess.keepWords=not,who", "preprocess.keepWords", ["not", "who"]),
    ("rerank=true", "rerank.enabled", True),
    ("rerank.enabled=on", "rerank.enabled", True),
    ('llm={"temperatures": {"multiQuery": 1}}', "llm.temperatures", {"multiQuery": 1.0}),
    ("llm.prompts.rewrite=Do it: well.", "llm.prompts", {"rewrite": "Do it: well."}),
    ("topK", "", ConfigError),
    ("=8", "", ConfigError),
    ("topK.x=8", "", ConfigError),
]


@pytest.mark.parametrize(("text", "key", "value"), ASSIGNED)
def test_an_assignment_is_read_by_the_type_of_its_key(text: str, key: str, value: Any) -> None:
    config = load({"topK": 3})
    if value is ConfigError:
        with pytest.raises(ConfigError, match="--set"):
            config.assigned([text])
        return
    rows = {row[0]: row[1:] for row in config.assigned([text]).rows()}
    assert rows[key] == (value, "--set")
    assert type(rows[key][0]) is type(value)


def test_assignments_count_together_and_the_last_of_a_key() -> None:
    made = load(None).assigned(["chunkSize=100", "chunkOverlap=50", "topK=1", "topK=2"]).settings
    assert (made.chunk_size, made.chunk_overlap, made.top_k) == (100, 50, 2)


@given(
    st.lists(
        st.text() | st.builds("{}={}".format, st.sampled_from(list_key_names()), st.text()),
        max_size=3,
    )
)
def test_any_assignment_is_a_config_or_a_config_error(texts: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        load(None).assigned(texts)


# Environment

PARSED: list[tuple[str, str, str, Any]] = [
    ("QTM_TOP_K", "8", "topK", 8),
    ("QTM_TOP_K", " 8 ", "topK", 8),
    ("QTM_TOP_K", "8.0", "topK", 8),
    ("QTM_LLM_BASE_URL", "http://localhost:11434/v1", "llm.baseUrl", "http://localhost:11434/v1"),
    ("QTM_LLM_BASE_URL", "", "llm.baseUrl", None),
    ("QTM_LLM_TEMPERATURE", "0.5", "llm.temperature", 0.5),
    ("QTM_LLM_TEMPERATURE", "1", "llm.temperature", 1.0),
    ("QTM_LLM_TEMPERATURE", "", "llm.temperature", None),
    ("QTM_LLM_TEMPERATURE", "null", "llm.temperature", None),
    ("QTM_LLM_PROMPTS", '{"rewrite": "A"}', "llm.prompts", {"rewrite": "A"}),
    ("QTM_LLM_TEMPERATURES", '{"hyde": 1}', "llm.temperatures", {"hyde": 1.0}),
    ("QTM_FUSION_METHOD", "Weighted-RRF", "fusion.method", "weighted_rrf"),
    ("QTM_TRANSFORMATION_TYPE", "step_back", "transformationType", "stepback"),
    ("QTM_PREPROCESS_KEEP_WORDS", "not, who ,", "preprocess.keepWords", ["not", "who"]),
    ("QTM_PREPROCESS_KEEP_WORDS", '["a,b", "c"]', "preprocess.keepWords", ["a,b", "c"]),
    ("QTM_PREPROCESS_KEEP_WORDS", "", "preprocess.keepWords", []),
    ("QTM_CHAT_MODEL", "123", "chatModel", "123"),
    ("QTM_CACHE_TENANT", "", "cache.tenant", ""),
    *[
        ("QTM_CACHE_ENABLED", text, "cache.enabled", True)
        for text in ("true", "1", "yes", "on", "TRUE", " Yes ")
    ],
    *[
        ("QTM_CACHE_ENABLED", text, "cache.enabled", False)
        for text in ("false", "0", "no", "off", "OFF")
    ],
]


@pytest.mark.parametrize(("name", "text", "key", "value"), PARSED)
def test_an_environment_variable_is_read_by_the_type_of_its_key(
    name: str, text: str, key: str, value: Any
) -> None:
    rows = {row[0]: row[1:] for row in load(None, **{name: text}).rows()}
    assert rows[key] == (value, f"environment {name}")
    assert type(rows[key][0]) is type(value)


BAD_ENVIRONMENT = [
    ("QTM_TOP_K", "many", 'not "many"'),
    ("QTM_TOP_K", "", 'not ""'),
    ("QTM_TOP_K", "true", "not true"),
    ("QTM_TOP_K", "[8]", "not a list"),
    ("QTM_TOP_K", '"8"', 'not "8"'),
    ("QTM_FUSION_WEIGHTS", '{"hyde": NaN}', "not a finite number"),
    ("QTM_FUSION_WEIGHTS", "2", "an object of numbers from 0 to 100"),
    ("QTM_CACHE_ENABLED", "maybe", "true or false"),
    ("QTM_LLM_PROMPTS", "rewrite", "an object of texts"),
    ("QTM_LLM_PROMPTS", '{"rewrite": "A", "rewrite": "B"}', "must be set once"),
    ("QTM_TOPK", "8", "did you mean QTM_TOP_K?"),
    ("QTM_MIN_SUCCESSES", "8", "did you mean QTM_FUSION_MIN_SUCCESSES?"),
    ("QTM_FUSION", "max", "did you mean QTM_FUSION_METHOD?"),
    ("QTM_CONFIG_FILE", "x", "did you mean QTM_CONFIG?"),
    ("QTM_FOO", "x", "names that begin with QTM_ are reserved for settings"),
    ("QTM_", "x", "is not a setting"),
]


def test_what_kubernetes_sets_beside_a_service_of_that_name_is_passed_over() -> None:
    environ = {
        "QTM_PORT": "tcp://10.0.0.7:80",
        "QTM_PORT_80_TCP_ADDR": "10.0.0.7",
        "QTM_SERVICE_HOST": "10.0.0.7",
    }
    environ |= {"QTM_SERVICE_PORT": "80", "QTM_SERVICE_PORT_HTTP": "80"}
    assert Config.load(None, environ=environ) == Config.load(None, environ={})


@pytest.mark.parametrize(("name", "text", "words"), BAD_ENVIRONMENT)
def test_a_bad_environment_variable_is_refused_by_name(name: str, text: str, words: str) -> None:
    error = refused(None, **{name: text})
    assert name in str(error)
    assert words in str(error)
    assert error.source == f"environment {name}"


def test_variables_that_are_no_settings_are_left_alone() -> None:
    assert (
        load(None, QTM_MODEL_DIR="/models", PATH="/bin", OPENAI_API_KEY=SECRET, QTMX="1").settings
        == Settings()
    )


def test_every_key_has_a_variable_of_its_own() -> None:
    names = {key.environment_variable: key.name for key in list_all_keys()}
    assert names["QTM_FUSION_RRF_K"] == "fusion.rrfK"
    assert sorted(names.values()) == sorted(list_key_names())
    assert len(names) == len(list_key_names()) == len(set(list_key_names()))


# Files


def test_the_config_of_the_seeds_loads_as_it_is(tmp_path: Path) -> None:
    config = Config.from_file(write(tmp_path, SEED), environ={})
    written = json.loads(SEED)
    assert {key: config.to_dict()[key] for key in written} == written
    validator().validate(written)


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    assert (
        Config.from_file(write(tmp_path, b'\xef\xbb\xbf{"topK": 9}'), environ={}).settings.top_k
        == 9
    )


def test_toml_is_read_by_its_suffix(tmp_path: Path) -> None:
    file = write(
        tmp_path, 'topK = 9\nfusion = "max"\n[llm]\nbase_url = "http://localhost/v1"\n', "x.toml"
    )
    chosen = Config.load(Path(file), environ={}).settings
    assert (chosen.top_k, chosen.fusion.method, chosen.llm.base_url) == (
        9,
        "max",
        "http://localhost/v1",
    )


BAD_FILES: list[tuple[str | bytes, str, str]] = [
    ("", "x.json", "is not JSON: Expecting value at line 1, column 1"),
    ('{\n  "topK": 4,\n  "x"\n}', "x.json", "at line 4, column 1"),
    ('{"topK": 4} {}', "x.json", "Extra data at line 1, column 13"),
    ("[1]", "x.json", "must hold one JSON object"),
    ("null", "x.json", "must hold one JSON object"),
    ('{"topK": 4, "topK": 5}', "x.json", "topK must be set once"),
    ('{"fusion": {"rrfK": 4, "rrfK": 4}}', "x.json", "fusion.rrfK must be set once"),
    ('{"fusion": {}, "fusion": {}}', "x.json", "fusion must be set once"),
    ('{"topK": NaN}', "x.json", "not a finite number"),
    ('{"topK": 1' + "0" * 5000 + "}", "x.json", "a number that is too long"),
    ("[" * 100_000, "x.json", "nested too deeply"),
    ('{"topK": 4}'.encode("utf-16"), "x.json", "is not UTF-8"),
    (
        "topK: 4",
        "x.yaml",
        "must be JSON or TOML, not YAML; write the same keys as JSON, or as TOML",
    ),
    ("topK = ", "x.toml", "is not TOML: Invalid value (at"),
    ("topK = 1\ntopK = 2", "x.toml", "is not TOML"),
    ("topK = 2024-01-01", "x.toml", "not a Python date"),
]


@pytest.mark.parametrize(("text", "name", "words"), BAD_FILES, ids=[row[2] for row in BAD_FILES])
def test_a_bad_file_is_refused_by_name(
    text: str | bytes, name: str, words: str, tmp_path: Path
) -> None:
    file = write(tmp_path, text, name)
    error = refused(file)
    assert words in str(error)
    assert f"file {file}" in str(error)
    assert error.source == f"file {file}"


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    error = refused(str(tmp_path / "nope.json"))
    assert "nope.json does not exist" in str(error)
    assert "nope.json does not exist" in str(refused(None, QTM_CONFIG=str(tmp_path / "nope.json")))


def test_a_folder_is_no_config(tmp_path: Path) -> None:
    assert "is a folder" in str(refused(tmp_path))
    assert "is a folder" in str(refused(""))


def test_a_name_that_can_be_no_file_is_refused() -> None:
    assert "cannot be read" in str(refused("a\0b"))
    assert "cannot be read" in str(refused("a" * 5000))


def test_the_text_of_a_config_is_not_mistaken_for_a_path() -> None:
    error = refused('{"llm": {"apiKey": "hunter2"}}')
    assert "must be a path" in str(error)
    assert "hunter2" not in str(error)


# Schema, ready files, reference


def test_the_schema_is_a_valid_one_and_the_published_one() -> None:
    jsonschema.Draft202012Validator.check_schema(build_json_schema())
    published = json.loads((ROOT / "config/schema.json").read_text("utf-8"))
    assert published == build_json_schema(), (
        "out of date; run: qtm config schema > config/schema.json"
    )


def test_the_schema_says_what_the_settings_say() -> None:
    schema = build_json_schema()
    definitions = schema["$defs"]
    assert schema["properties"]["topK"] == {
        "default": 4,
        "description": "Passages that a search of the built-in store returns.",
        "maximum": 10_000,
        "minimum": 1,
        "type": "integer",
    }
    assert definitions["EscalationSettings"]["properties"]["mode"]["enum"] == [
        "always",
        "never",
        "auto",
    ]
    assert all(node["additionalProperties"] is False for node in (schema, *definitions.values()))
    described = [
        entry for node in (schema, *definitions.values()) for entry in node["properties"].values()
    ]
    assert all(entry["description"] for entry in described)


@pytest.mark.parametrize(
    "values",
    [
        {"topK": 0},
        {"topK": "8"},
        {"topK": True},
        {"topk": 4},
        {"store": "best"},
        {"cache": 3},
        {"fusion": {"rrk": 1}},
    ],
)
def test_the_schema_refuses_what_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"fusion": "max"},
        {"cache": False},
        {"escalation": "auto"},
        {"log": "x"},
        {"log": None},
        {"$schema": "x"},
    ],
)
def test_the_schema_knows_the_shorthands(values: dict[str, Any]) -> None:
    validator().validate(values)


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_every_ready_file_loads_and_follows_the_schema(path: Path) -> None:
    written = json.loads(path.read_text("utf-8"))
    validator().validate(written)
    assert written["$schema"] == "./schema.json"
    assert "transformationType" in written
    Config.from_file(path, environ={})


# Presets


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_file_whatever_way_it_is_named(name: str) -> None:
    assert (
        load(name).settings
        == Config.preset(name, environ={}).settings
        == load(QTM_CONFIG=name).settings
        == ready(name)
    )
    assert Config.preset(name, environ={}).origins["transformationType"] == f"preset {name}"


def test_a_preset_lies_over_the_environment_and_a_mapping_over_the_preset() -> None:
    assert load("Seed_Parity", QTM_TRANSFORMATION_TYPE="hyde", QTM_TOP_K="9").settings.top_k == 9
    assert load("auto", QTM_TRANSFORMATION_TYPE="hyde").settings.transformation_type == "combined"
    assert (
        load({"transformationType": "rewrite"}, QTM_CONFIG="auto").settings.transformation_type
        == "rewrite"
    )


def test_a_file_goes_before_the_preset_of_its_name_unless_the_preset_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "off").mkdir()
    assert not load("off").settings.keyword_evidence.enabled
    write(tmp_path, '{"topK": 9}', "auto")
    assert (load("auto").settings.top_k, load("auto").origins["topK"]) == (9, "file auto")
    assert Config.preset("auto", environ={}).settings.escalation.mode == "auto"


def test_a_preset_that_is_none_is_refused_with_the_nearest_and_all_names() -> None:
    with pytest.raises(
        ConfigError,
        match=r'no preset "atuo"; did you mean auto\? the presets are off, rules, .*, strip-as-text',
    ):
        Config.preset("atuo")
    assert "no preset has this name; did you mean auto? `qtm config presets` lists them" in str(
        refused("atuo")
    )
    assert "preset" not in str(refused("nope.json"))
    # What takes a path alone says so.
    with pytest.raises(ConfigError, match="file auto does not exist"):
        Config.from_file("auto")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("combined", "combined"), ("step-back", "stepback"), ("ALL", "all"), ("rewrit", "rewrite")],
)
def test_the_name_of_a_transformation_in_place_of_a_preset_leads_to_the_key(
    name: str, meant: str
) -> None:
    hint = f'for this transformation set {{"transformationType": "{meant}"}}'
    with pytest.raises(ConfigError, match=re.escape(hint)):
        Config.preset(name)
    assert hint in str(refused(name))


def ready(name: str) -> Settings:
    return Config.from_file(ROOT / f"config/{name}.config.json", environ={}).settings


def test_the_ready_files_are_these() -> None:
    assert sorted(path.name for path in READY) == sorted(
        f"{name}.config.json" for name in (*PRESETS, "query-transform")
    )


def test_the_ready_files_do_what_they_are_named_for() -> None:
    assert ready("rules") == Settings()
    off = ready("off")
    assert (off.transformation_type, off.preprocess.enabled, off.keyword_evidence.enabled) == (
        "none",
        False,
        False,
    )
    strip = ready("strip-as-text")
    assert (strip.preprocess.apply_to, strip.keyword_evidence.enabled) == ("text", False)
    seed = ready("seed-parity")
    assert (seed.fusion.method, seed.fusion.weights["original"], seed.keyword_evidence.enabled) == (
        "max",
        0.0,
        False,
    )
    research = ready("research")
    assert (research.max_sub_queries, research.llm.sub_query_style) == (5, "research")
    assert (research.fusion.method, research.fusion.min_successes) == ("concat", 2)
    budgets = [ready(name).limits.max_searches for name in ("words", "balanced", "thorough")]
    assert budgets == [1, TRANSFORMS["combined"].max_searches, 20]
    for name in ("auto", "query-transform"):
        assert (ready(name).transformation_type, ready(name).escalation.mode) == (
            "combined",
            "auto",
        )


def test_the_reference_is_up_to_date() -> None:
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    _, _, reference = text.partition("## All keys\n\n")
    assert reference == build_markdown_reference(), (
        "replace what follows '## All keys' by qtmiddleware.config.build_markdown_reference()"
    )
    assert all(f"| `{key}` |" in reference for key in list_key_names())


def test_the_reference_names_every_preset_and_prompt() -> None:
    text = (ROOT / "docs/configuration.md").read_text("utf-8")
    comments = {
        name: json.loads((ROOT / f"config/{name}.config.json").read_text("utf-8"))["$comment"]
        for name in PRESETS
    }
    assert all(f"\n| `{name}` | {said} |\n" in text for name, said in comments.items())
    assert all(f"`{name}`" in text for name in PROMPT_NAMES)


def test_rows_are_ready_for_json() -> None:
    rows = list(
        load({"preprocess": {"keepWords": ["a"]}, "llm": {"prompts": {"hyde": "x"}}}).rows()
    )
    assert tuple(row[0] for row in rows) == list_key_names()
    assert json.loads(json.dumps(rows)) == [list(row) for row in rows]
    assert ("preprocess.keepWords", ["a"], "decorator") in rows


def test_the_defaults_need_no_validation_library() -> None:
    code = (
        "import sys; from qtmiddleware.config import Config; Config.load(environ={}); "
        "sys.exit(any(name in sys.modules for name in ('pydantic', 'openai', 'pinecone', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_own_instructions_are_for_prompts_that_exist() -> None:
    config = load({"llm": {"prompts": dict.fromkeys(PROMPT_NAMES, "x")}})
    assert config.settings.llm == LlmSettings(prompts=dict.fromkeys(PROMPT_NAMES, "x"))
