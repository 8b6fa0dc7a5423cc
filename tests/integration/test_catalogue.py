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

PROMPT_FILE = """
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM = Transform(
    mode="jargon",
    version="jargon/1",
    instruction="Say it in the jargon of the field.",
    fields=(ReplyField("trade_name", "line", "the query in the words of the trade"),),
)
"""
EDITS = {
    "    keywords: tuple[str, ...] = _make_text_field(": """\
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
""",
    '    TransformRow("none"': '    TransformRow("jargon", "Jargon", ("trade_name",)),\n',
}
"""What is put into the catalogue, by the line that it stands before."""
JARGON = """
import json
import qtmiddleware as qtm
from qtmiddleware.config.checking import build_adapter
from qtmiddleware.kit.cli.app import app
from qtmiddleware.kit.evaluation import SYSTEMS
from qtmiddleware.testing import ScriptedModel
from typer.testing import CliRunner

config = {"transformationType": "jargon", "fusion": {"weights": {"tradeName": 0.7}}}
model = ScriptedModel('{"Trade name": "renal failure"}')
search = qtm.QueryMiddleware(config, client=model).wrap(lambda query: [{"id": "a", "text": query}])
found = [search.retrieve("kidneys that stop") for _ in range(2)][1]
print(json.dumps({
    "variants": [[it.kind, it.text, it.weight] for it in found.variants],
    "cached": found.trace.cache_hits,
    "choices": build_adapter().json_schema()["properties"]["transformationType"]["anyOf"][0]["enum"],
    "help": CliRunner().invoke(app, ["transform", "--help"], env={"COLUMNS": "200"}).output,
    "compared": SYSTEMS["jargon"],
}))
"""
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
from qtmiddleware.testing import ScriptedModel

def ask(reply, question):
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=ScriptedModel(reply))
    found = qm.wrap(lambda query: [{"id": "a", "text": query}]).retrieve(question)
    return [found.variants[-1].text, *(it.reason for it in found.degradations)]

print(json.dumps({
    "set": qtm.Config.load({"preprocess": {"language": "zz"}}).settings.preprocess.language,
    "stripped": qtm.preprocess("Zsag zmir zwat zist zder Umsatz von Acme, zbitte?"),
    "refused": ask("Zich zkann znicht zhelfen.", "zwat zist zder Umsatz?"),
    "denied": ask("zwat zist zder Umsatz?", "zwat zist znie zder Umsatz?"),
}))
"""


def run_with(tmp_path: Path, script: str, name: str, content: str, edits: dict[str, str]) -> Any:
    """What *script* prints as JSON with a copy of the package that has a further file and edits in its catalogue."""
    copy = tmp_path / "qtmiddleware"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    # A checkout reads its presets from beside the package.
    shutil.copytree(PACKAGE.parent / "config", tmp_path / "config")
    text = (copy / "catalogue.py").read_text(encoding="utf-8")
    for before, new in edits.items():
        assert text.count(before) == 1
        text = text.replace(before, new + before)
    (copy / "catalogue.py").write_text(text, encoding="utf-8")
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


def test_a_transform_is_a_row_beside_a_prompt_file(tmp_path: Path) -> None:
    found = run_with(tmp_path, JARGON, "transforms/prompts/jargon.py", PROMPT_FILE, EDITS)
    variants = [["original", "kidneys that stop", 1.0], ["trade_name", "renal failure", 0.7]]
    assert (found["variants"], found["cached"]) == (variants, 1)
    assert "jargon" in found["choices"]
    assert "jargon" in found["help"]
    assert found["compared"] == {"transformationType": "jargon", "escalation": {"mode": "always"}}


def test_a_language_is_one_file(tmp_path: Path) -> None:
    written = json.dumps(LANGUAGE)
    found = run_with(tmp_path, SPOKEN, "preprocessing/lexicons/zz.json", written, {})
    assert (found["set"], found["stripped"]) == ("zz", "umsatz von acme")
    assert found["refused"] == ["zwat zist zder Umsatz?", "refused"]
    # The negation is put back or the rewrite is dropped.
    assert "znie" in found["denied"][0]


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
