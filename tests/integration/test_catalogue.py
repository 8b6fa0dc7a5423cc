"""A row of the catalogue is all it takes: what is added there is found wherever there is something to choose."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import qtmiddleware
from qtmiddleware.catalogue import (
    FUSION_METHODS,
    LANGUAGES,
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
from qtmiddleware.providers.llms.openai_requests import build_request
from qtmiddleware.retrieval.question import Question
from qtmiddleware.transforms import PROMPTS, build_prompts
from qtmiddleware.types import Message

PACKAGE = Path(qtmiddleware.__file__).parent

PROMPT_FILE = '''
"""What the answer would be called in another field."""

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM = Transform(
    mode="jargon",
    version="jargon/1",
    instruction="Say it in the jargon of the field.",
    fields=(ReplyField("trade_name", "line", "the query in the words of the trade"),),
)
'''

NEW_TEXT = """\
    trade_name: str | None = _make_text_field(
        None,
        shape="line",
        label="name in the trade",
        variant="trade_name",
        weight=0.4,
        meaning="The question in the words of the trade.",
        is_evidence=True,
        guard="each",
        aliases="tradename",
    )
"""
NEW_TRANSFORM = """\
    TransformRow("jargon", "Jargon (says it as the trade does)", ("trade_name",)),
"""

ASKED = """
import json
import qtmiddleware as qtm
from qtmiddleware.config.checking import build_adapter
from qtmiddleware.kit.cli.app import app
from qtmiddleware.kit.evaluation import SYSTEMS
from qtmiddleware.retrieval.fusion import fuse_rankings
from qtmiddleware.retrieval.question import Question
from qtmiddleware.runtime.cache import decode_transformation, encode_transformation
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Ranking, Transformation, Variant
from typer.testing import CliRunner

def passages(query, top_k=3):
    return [{"id": f"{query[:9]}-{n}", "score": 1.0 / (n + 1), "text": query} for n in range(top_k)]

def ranking(text, *ids):
    scores = [1.0 / n for n in range(1, len(ids) + 1)]
    return Ranking(Variant("original", text), [("", it) for it in ids], scores, ids)

config = {"transformationType": "jargon", "fusion": {"weights": {"tradeName": 0.7}}}
middleware = qtm.QueryMiddleware(config, client=ScriptedModel('{"Trade name": "renal failure"}'))
found = middleware.wrap(passages).retrieve("kidneys that stop")
made = Transformation(trade_name="renal failure")
schema = build_adapter().json_schema()
questions = [Question("q", (), qtm.Config.load({"transformationType": it}).settings)
             for it in ("jargon", "rewrite")]
print(json.dumps({
    "variants": [[it.kind, it.text, it.weight] for it in found.variants],
    "fused": [key for _, key in
              fuse_rankings([ranking("a", "x", "y"), ranking("b", "z")], "first_only").keys],
    "choices": schema["properties"]["transformationType"]["anyOf"][0]["enum"],
    "methods": schema["$defs"]["FusionSettings"]["properties"]["method"]["enum"],
    "help": CliRunner().invoke(app, ["transform", "--help"], env={"COLUMNS": "200"}).output,
    "compared": SYSTEMS["jargon"],
    "cached": decode_transformation(encode_transformation(made, "k"), "k") == made,
    "keys": len({question.build_cache_key("m") for question in questions}),
}))
"""


def run_with(
    tmp_path: Path, script: str, edits: dict[str, list[tuple[str, str]]], files: dict[str, str]
) -> Any:
    """What *script* prints as JSON with a copy of the package in which *edits* put a text before another."""
    copy = tmp_path / "qtmiddleware"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # A checkout reads its presets from beside the package.
    shutil.copytree(PACKAGE.parent / "config", tmp_path / "config")
    for name, inserted in edits.items():
        text = (copy / name).read_text(encoding="utf-8")
        for before, new in inserted:
            assert text.count(before) == 1
            text = text.replace(before, new + before)
        (copy / name).write_text(text, encoding="utf-8")
    for name, content in files.items():
        (copy / name).write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FIRST_ONLY = '''\
def merge_first_only(rankings: Sequence[Ranking], sign: int, rrf_k: int) -> FusedList:
    """The first list."""
    return _convert_single_ranking(rankings[0], "first_only", sign)


'''


def test_a_transform_and_a_fusion_method_are_rows_beside_a_prompt_file_and_a_function(
    tmp_path: Path,
) -> None:
    edits = {
        "catalogue.py": [
            ("    keywords: tuple[str, ...] = _make_text_field(", NEW_TEXT),
            ('    TransformRow("none"', NEW_TRANSFORM),
            ('    FusionMethod(name="concat"', '    FusionMethod(name="first_only"),\n'),
        ],
        "retrieval/fusion.py": [("def merge_max(", FIRST_ONLY)],
    }
    found = run_with(tmp_path, ASKED, edits, {"transforms/prompts/jargon.py": PROMPT_FILE})
    assert found["variants"] == [
        ["original", "kidneys that stop", 1.0],
        ["trade_name", "renal failure", 0.7],
    ]
    assert found["fused"] == ["x", "y"]
    assert "jargon" in found["choices"]
    assert "jargon" in found["help"]
    assert found["methods"] == [*list(FUSION_METHODS)[:-1], "first_only", "concat"]
    assert found["compared"] == {"transformationType": "jargon", "escalation": {"mode": "always"}}
    assert found["cached"]
    assert found["keys"] == 2


LANGUAGE = {
    "stop_words": {"interrogatives": ["zwat"], "auxiliaries": ["zist"], "articles": ["zder"]},
    "negations": ["znie"],
    "lead_ins": ["zsag zmir"],
    "closings": ["zbitte"],
    "hints": {"starters": ["zwat"], "strong": ["zist", "zder"]},
    "chatter": ["zich zwerde zsuchen", "zhier zkommt\\b"],
    "denials": ["znie"],
    "refusals": ["zich zkann znicht"],
    "abbreviations": ["Zbsp"],
    "no_answer": "Zda zist znichts.",
}
SPOKEN = """
import json
import qtmiddleware as qtm
from qtmiddleware.config.checking import build_adapter
from qtmiddleware.preprocessing import detect_language, extract_keywords, find_protected_spans
from qtmiddleware.protocols import Reply
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.kit.documents.chunking import cut_into_chunks as chunks
from qtmiddleware.transforms import build_prompts, guard_transformation, parse_transformation
from qtmiddleware.types import Transformation

question = "Zsag zmir zwat zist zder Umsatz von Acme, zbitte?"
settings = qtm.Config.load({"transformationType": "rewrite", "preprocess": {"language": "zz"}}).settings
(prompt,) = build_prompts(settings, question)

def reason(text):
    try:
        return parse_transformation(prompt, Reply(text)).rewrite
    except qtm.ModelError as error:
        return error.reason

denied = "zwat zist znie zder Umsatz?"
kept = guard_transformation(Transformation(rewrite="zwat zist zder Umsatz?"), query=denied, required_spans=[("negation", "znie")])
said = guard_transformation(Transformation(rewrite="zder Umsatz zist znie"), query=denied, required_spans=[("negation", "znie")])
text = "Zum Umsatz, Zbsp. Acme und Nike, zist viel bekannt. " * 3
print(json.dumps({
    "choices": build_adapter().json_schema()["$defs"]["PreprocessSettings"]["properties"]["language"]["enum"],
    "set": settings.preprocess.language,
    "detected": [detect_language("zist zder Umsatz hoch"), extract_keywords(question).language],
    "stripped": extract_keywords(question).keywords,
    "negation": [[span.kind, span.text] for span in find_protected_spans(denied)],
    "replies": [reason(text) for text in ("Zich zkann znicht zhelfen.", "Zhier zkommt es:",
                "Zich zwerde zsuchen nach mehr.", "Zich zwerde zsuchen: Umsatz von Acme 2024?")],
    "guarded": [kept.rewrite, said.rewrite],
    "ends": [any(it.text.rstrip().endswith("sp.") for it in chunks([said], size=40, overlap=0))
             for said in (text, text.replace("Zbsp", "Zzsp"))],
    "nothing": load_lexicon(detect_language(question) or "en").no_answer,
}))
"""


def test_a_language_is_one_file(tmp_path: Path) -> None:
    found = run_with(tmp_path, SPOKEN, {}, {"preprocessing/lexicons/zz.json": json.dumps(LANGUAGE)})
    assert found == {
        "choices": ["auto", *LANGUAGES, "zz"],
        "set": "zz",
        "detected": ["zz", "zz"],
        "stripped": "umsatz von acme",
        "negation": [["negation", "znie"], ["name", "Umsatz"]],
        "replies": ["refused", "empty", "empty", "Umsatz von Acme 2024?"],
        "guarded": [None, "zder Umsatz zist znie"],
        "ends": [False, True],
        "nothing": "Zda zist znichts.",
    }


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
    names, default = list_names(key.hint), key.default
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


def make_cache_key(settings: Settings) -> str:
    question = Question("And when?", HISTORY, settings)
    return question.build_cache_key(settings.transformation_model)


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
