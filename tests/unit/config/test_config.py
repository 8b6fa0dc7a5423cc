"""The config: what is accepted and refused, layers and origins, files, presets and the schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.config import Config
from qtmiddleware.config.introspection import list_all_keys, unwrap
from qtmiddleware.config.reading import PRESETS
from qtmiddleware.config.settings import (
    DEFAULT_WEIGHTS,
    PROMPT_NAMES,
    FusionSettings,
    Range,
    Settings,
    to_camel_case,
)
from qtmiddleware.errors import ConfigError, QtMiddlewareError
from qtmiddleware.kit.cli.environment import override_options
from qtmiddleware.providers.llms.replies import find_prices
from scripts import reference

ROOT = Path(__file__).parents[3]
KEYS = {key.name: key for key in list_all_keys()}
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


def origins(config: Config) -> dict[str, str]:
    return {name: origin for name, _, origin in config.rows()}


def changed(config: Config) -> dict[str, Any]:
    return {name: value for name, value, origin in config.rows() if origin != "default"}


# --- what is refused ------------------------------------------------------------------------------

NO_WEIGHTS = dict.fromkeys(DEFAULT_WEIGHTS, 0)
BAD: list[tuple[Any, str, str]] = [
    ({"topK": 0}, "topK", "topK must be a whole number from 1 to 10000, not 0 (decorator)"),
    ({"topK": "8"}, "topK", 'not "8"'),
    ({"chunkSize": 100}, "chunkOverlap", "chunkOverlap must be less than chunkSize, which is 100"),
    ({"topK": [8]}, "topK", "not a list"),
    ({"indexPath": "~nobody-here/x"}, "indexPath", "indexPath must be a path"),
    ({"transformationType": "rewrit"}, "transformationType", "did you mean rewrite?"),
    ({"chatModel": "\ud800"}, "chatModel", '"\\ud800"'),
    ({"preprocess": {"keepWords": ["a", 3]}}, "preprocess.keepWords.1", "must be a text, not 3"),
    ({"keywordEvidence": {"fields": {"txt": "a"}}}, "keywordEvidence.fields.txt", ".text?"),
    ({"fusion": {"weights": {"step_back": 101}}}, "fusion.weights.stepBack", "not 101"),
    ({"fusion": {"weights": NO_WEIGHTS}}, "fusion.weights", "above 0 for at least one"),
    ({"llm": {"baseUrl": "localhost/v1"}}, "llm.baseUrl", "begins with http:// or https://"),
    ({"llm": {"prompts": {"HyDE": "x"}}}, "llm.prompts.HyDE", "did you mean llm.prompts.hyde?"),
    (
        {"transforms": {"own": {"fields": {"hyde": None}}}},
        "transforms.own.prompt",
        "empty, not null",
    ),
    ({"store": "pinecone"}, "store.index", "the name of a Pinecone index, or store.host"),
    ({"topk": 4}, "topk", "topk is not a setting (decorator); did you mean topK?"),
    ({"fusion": {"rrk": 3}}, "fusion.rrk", "did you mean fusion.rrfK?"),
    ({"rrfK": 3}, "rrfK", "did you mean fusion.rrfK?"),
    ({"zzz": 1}, "zzz", "the names here are transformationType, transformationModel"),
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
    assert isinstance(error, ValueError)
    assert isinstance(error, QtMiddlewareError)


def test_all_wrong_values_are_told_at_once_a_line_each(tmp_path: Path) -> None:
    file = write(tmp_path, {"topK": 0, "fusion": {"rrk": 1}})
    error = refused(file, QTM_CHUNK_SIZE="many")
    lines = str(error).splitlines()
    assert [line.split()[0] for line in lines] == ["topK", "chunkSize", "fusion.rrk"]
    assert "(environment QTM_CHUNK_SIZE)" in lines[1]
    assert (error.path, error.value, error.source) == ("topK", 0, f"file {file}")
    assert error.allowed == "a whole number from 1 to 10000"


API_KEYS = [
    SECRET,
    "pcsk_2abcDE_Zq81hhTTyw0pLmN",
    "AIzaSyZq81hhTTyw0pLmNabcdefghijk",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N",
]
SECRET_NAMES = "apiKey API_KEY openaiApiKey token hf_token key password clientSecret Authorization"


def told(error: ConfigError) -> str:
    return str(error) + repr(error) + repr(vars(error))


def test_a_key_in_a_config_is_refused_and_never_repeated() -> None:
    for name in SECRET_NAMES.split():
        for values in ({name: "hunter2"}, {"llm": {name: "hunter2"}}):
            error = refused(values)
            assert "in the environment" in str(error)
            assert "hunter2" not in told(error)


@pytest.mark.parametrize(
    "hold",
    [
        lambda secret: {secret: 1},
        lambda secret: {"preprocess": {"keepWords": ["word", f"say {secret}."]}},
        lambda secret: {"llm": {"prompts": {"rewrite": f"say\n{secret}"}}},
        lambda secret: {"llm": {"baseUrl": f"https://me:{secret}@host/v1"}},
    ],
)
def test_a_value_that_holds_an_api_key_is_refused_and_never_repeated(hold: Any) -> None:
    for secret in API_KEYS:
        assert secret not in told(refused(hold(secret)))
        assert secret not in told(refused(None, QTM_TOP_K=secret))
        assert secret not in told(refused(None, **{f"QTM_{secret}": "1"}))


# --- layers and origins ---------------------------------------------------------------------------


def test_the_stronger_layer_wins(tmp_path: Path) -> None:
    file = write(tmp_path, {"topK": 12})
    assert load().settings == load({}).settings == Settings()
    assert set(origins(load()).values()) == {"default"}
    for config, top_k, origin in (
        (load(None, QTM_TOP_K="11"), 11, "environment QTM_TOP_K"),
        (load(None, QTM_TOP_K="11", QTM_CONFIG=file), 12, f"file {file}"),
        (load({"topK": 13}, QTM_TOP_K="11", QTM_CONFIG=file), 13, "decorator"),
        (load({"topK": 4}, QTM_CONFIG=""), 4, "decorator"),
        (load({"topK": 13}).overridden({"topK": 14}), 14, "call"),
    ):
        assert (config.settings.top_k, origins(config)["topK"]) == (top_k, origin)


def test_layers_are_merged_key_by_key_and_each_value_knows_where_it_came_from(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, b'\xef\xbb\xbf{"chunkSize": 900, "fusion": {"rrfK": 30}}')
    environ = {"QTM_FUSION_WEIGHTS": '{"stepBack": 0.1}', "QTM_CONFIG": file}
    config = Config.load({"fusion": {"method": "rrf"}}, environ=environ).overridden({"topK": 9})
    assert {key: origin for key, origin in origins(config).items() if origin != "default"} == {
        "topK": "call",
        "chunkSize": f"file {file}",
        "fusion.method": "config",
        "fusion.rrfK": f"file {file}",
        "fusion.weights": "environment QTM_FUSION_WEIGHTS",
    }
    weights = {**DEFAULT_WEIGHTS, "step_back": 0.1}
    assert config.settings.fusion == FusionSettings(method="rrf", rrf_k=30, weights=weights)
    assert config.to_dict(with_defaults=False)["fusion"]["rrfK"] == 30


def test_configs_and_settings_are_loaded_as_they_are() -> None:
    config = load({"topK": 9})
    assert Config.load(config, environ={"QTM_TOP_K": "3"}) is config
    complete = Config.load(Settings(top_k=9), environ={"QTM_CHUNK_SIZE": "900"})
    assert complete.settings == Settings(top_k=9)
    with pytest.raises(ConfigError, match="topK must be"):
        Config.load(Settings(top_k=0))


# --- spellings ------------------------------------------------------------------------------------

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
    "store": {"kind": "pinecone", "host": "index.host"},
    "transforms": {"my_Own": {"prompt": "Say it.", "fields": {"step_back": None, "hyde": 1}}},
    "transformationType": "my_Own",
    "glossary": {"terms": {"my_term": "ein Begriff"}},
}
FRIENDLY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"transformationType": "step_back"}, {"transformationType": "stepback"}),
    ({"fusion": "weightedRRF"}, {"fusion": {"method": "weighted_rrf"}}),
    ({"cache": False}, {"cache": {"enabled": False}}),
    ({"top_k": 8}, {"topK": 8}),
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


@pytest.mark.parametrize("values", [*PRESETS, SEED, OF_ALL_KINDS], ids=str)
def test_what_is_written_out_is_read_back(values: Any) -> None:
    config = load(values)
    written = json.loads(json.dumps(config.to_dict()))
    assert load(written).settings == config.settings
    assert Config.load(config.settings).settings == config.settings
    validator().validate(written)


NAME = st.sampled_from([to_camel_case(part) for key in KEYS.values() for part in key.path])
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JUNK = st.recursive(
    SCALAR | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=5),
    max_leaves=12,
)


@given(st.dictionaries(NAME | st.integers() | st.none() | st.text(max_size=8), JUNK, max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_junk_is_a_config_or_a_config_error(values: dict[Any, Any]) -> None:
    try:
        config = load(values)
    except ConfigError as error:
        str(error).encode("utf-8")
    else:
        assert config.settings.chunk_overlap < config.settings.chunk_size


# --- the environment and `--set` ------------------------------------------------------------------

PARSED: list[tuple[str, str, Any]] = [
    ("topK", " 8 ", 8),
    ("llm.prompts", '{"rewrite": "A"}', {"rewrite": "A"}),
    ("preprocess.keepWords", "not, who ,", ["not", "who"]),
    ("preprocess.keepWords", '["a,b", "c"]', ["a,b", "c"]),
    ("store.namespace", "7", "7"),
    ("cache.enabled", " true ", True),
]


@pytest.mark.parametrize(("name", "text", "value"), PARSED)
def test_a_text_is_read_by_the_type_of_its_key(name: str, text: str, value: Any) -> None:
    variable = KEYS[name].environment_variable
    for config, origin in (
        (load(None, **{variable: text}), f"environment {variable}"),
        (override_options(load(), [f"{name}={text}"]), "--set"),
    ):
        row = next(row for row in config.rows() if row[0] == name)
        assert row[1:] == (value, origin)
        assert type(row[1]) is type(value)


def test_an_assignment_sets_an_option_a_group_or_a_name() -> None:
    texts = ["top_k=8", "fusion=max", "llm.temperatures.stepback=0.1"]
    texts.append("keywordEvidence.fields.text=2")
    assert changed(override_options(load(), texts)) == {
        "topK": 8,
        "fusion.method": "max",
        "llm.temperatures": {"stepback": 0.1},
        "keywordEvidence.fields": {"text": "2"},
    }
    for bad in ("llm.baseUrl=http://localhost/v1?", "topK", "=8"):
        with pytest.raises(ConfigError, match="--set"):
            override_options(load(), [bad])


BAD_ENVIRONMENT = [
    ("QTM_TOP_K", "many", 'not "many"'),
    ("QTM_FUSION_WEIGHTS", '{"hyde": NaN}', "not NaN"),
    ("QTM_TOPK", "8", "did you mean QTM_TOP_K?"),
    ("QTM_FOO", "x", "QTM_ is reserved for settings"),
    ("QTM_LLM_API_KEY", "hunter2", "OPENAI_API_KEY"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_ENVIRONMENT)
def test_a_bad_environment_variable_is_refused_by_name(name: str, text: str, words: str) -> None:
    error = refused(None, **{name: text})
    assert name in str(error)
    assert words in str(error)
    assert "hunter2" not in told(error)


def test_variables_that_are_no_settings_are_left_alone() -> None:
    service = {"QTM_PORT_80_TCP_ADDR": "10.0.0.7", "QTM_SERVICE_HOST": "10.0.0.7"}
    other = {"QTM_MODEL_DIR": "/models", "OPENAI_API_KEY": SECRET, "QTMX": "1"}
    assert load(None, QTM_PORT="tcp://10.0.0.7:80", **service, **other).settings == Settings()


# --- files and presets ----------------------------------------------------------------------------


def test_the_config_of_the_seeds_loads_as_it_is(tmp_path: Path) -> None:
    shipped = json.loads((ROOT / "config/query-transform.config.json").read_text("utf-8"))
    assert changed(load(write(tmp_path, SEED))) == SEED
    for values in (SEED, shipped, load(shipped).to_dict()):
        validator().validate(json.loads(json.dumps(values)))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    missing = str(tmp_path / "nope.json")
    assert "nope.json does not exist" in str(refused(missing))
    assert "nope.json does not exist" in str(refused(None, QTM_CONFIG=missing))
    for name in (tmp_path, "a\0b", "a/" * 5000):
        assert "cannot be read" in str(refused(name))
    error = refused('{"llm": {"apiKey": "hunter2"}}')
    assert "must be a path" in str(error)
    assert "hunter2" not in told(error)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_file_whatever_way_it_is_named(name: str) -> None:
    path = ROOT / f"config/{name}.config.json"
    preset = load(name)
    assert preset.settings == load(path).settings
    assert preset.settings == load(QTM_CONFIG=name).settings == load().overridden(name).settings
    assert origins(preset)["transformationType"] == f"preset {name}"
    # A preset lies over the environment.
    assert load(name, QTM_TRANSFORMATION_TYPE="keywords").settings == preset.settings
    written = json.loads(path.read_text("utf-8"))
    validator().validate(written)
    assert written["$schema"] == "./schema.json"


def test_a_word_is_a_preset_and_a_path_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"topK": 9}, "auto")
    assert load("auto").settings.escalation.mode == "auto"
    for path in ("./auto", Path("auto")):
        assert changed(load(path)) == changed(load().overridden(path)) == {"topK": 9}
    with pytest.raises(
        ConfigError, match=r'one of off, rules, .*, not "atuo" .*; did you mean auto'
    ):
        load("atuo")
    with pytest.raises(ConfigError, match=r'or \{"transformationType": "stepback"\}'):
        load("stepback")


# --- the options, the schema and the page ---------------------------------------------------------


def test_an_option_has_one_sentence_limits_and_a_default_that_is_allowed() -> None:
    for key in KEYS.values():
        _, notes, _ = unwrap(key.hint)
        (sentence,) = (note for note in notes if isinstance(note, str))
        assert sentence.endswith("."), key.name
        # It would break the table of the reference.
        assert not {"|", "\n"} & set(sentence), key.name
        default = key.read_value(Settings())
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert any(isinstance(note, Range) for note in notes), key.name
    assert load(load().to_dict()).settings == Settings()


def test_the_defaults_are_those_of_the_seeds_and_call_no_model() -> None:
    settings = Settings()
    seeds = (settings.chunk_size, settings.chunk_overlap, settings.top_k, settings.max_sub_queries)
    assert seeds == (800, 200, 4, 4)
    assert (settings.transformation_type, settings.preprocess.apply_to) == ("none", "keywords")
    assert None not in map(find_prices, (settings.chat_model, settings.transformation_model))


def test_the_published_schema_and_page_are_those_of_the_settings() -> None:
    jsonschema.Draft202012Validator.check_schema(reference.build_schema())
    published = json.loads(reference.SCHEMA.read_text("utf-8"))
    page = reference.PAGE.read_text("utf-8")
    assert published == reference.build_schema(), "out of date; run python -m scripts.reference"
    assert page == reference.build_page(page), "out of date; run python -m scripts.reference"
    assert all(f"`{name}`" in page for name in (*KEYS, *PRESETS, *PROMPT_NAMES))


def test_the_schema_refuses_what_is_refused_and_knows_shorthands_and_spellings() -> None:
    values: dict[str, Any]
    for values in ({"topK": "8"}, {"topK": True}, {"topk": 4}, {"store": "best"}, {"cache": 3}):
        with pytest.raises(jsonschema.ValidationError):
            validator().validate(values)
    for values in (
        {"fusion": "max", "cache": False, "escalation": "auto", "log": None, "$schema": "x"},
        {
            "transforms": {
                "own": {"prompt": "Say it.", "fields": {"step_back": None, "stepBack": 1}}
            }
        },
        {"llm": {"prompts": {"multi_query": "A"}}, "transformationType": "own"},
    ):
        validator().validate(values)
