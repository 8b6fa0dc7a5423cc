"""What a ``.env`` file, and a config that nobody named, may decide in the folder where ``qtm`` is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import CONFIG_FILES, load_config
from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, QUESTION

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
SECRET = "sk-verysecret0123456789"


def put(folder: Path, text: str | bytes) -> Path:
    path = folder / ".env"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o644)
    return path


def put_config(folder: Path, values: Any) -> None:
    (folder / CONFIG_FILES[1]).write_text(json.dumps(values))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which no config is named."""
    path = tmp_path / "here"
    path.mkdir()
    monkeypatch.chdir(path)
    monkeypatch.delenv("QTM_CONFIG", raising=False)
    return path


def test_a_key_in_it_is_used_and_named_without_its_value(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    # A dollar sign is no variable.
    key = f"{SECRET}-${{OTHERS_SECRET}}"
    path = put(folder, f"\ufeffexport OPENAI_API_KEY='{key}'\n")
    at = {"QTM_LLM_BASE_URL": service.url, "OTHERS_SECRET": "precious"}
    ended = qtm("query", QUESTION, **at)
    assert (ended.code, ended.err) == (0, f"qtm: note: OPENAI_API_KEY read from {path}\n")
    assert HEALTH in ended.out
    assert set(service.keys) == {f"Bearer {key}"}
    # What is set already stays.
    assert qtm("query", QUESTION, **at, OPENAI_API_KEY="mine").err == ""
    assert service.keys[-1] == "Bearer mine"


def test_an_address_a_path_or_a_setting_in_it_is_ignored_and_told(qtm: Run, tmp_path: Path) -> None:
    names = ("QTM_LLM_BASE_URL", "QTM_CONFIG", "OPENAI_BASE_URL", "HTTPS_PROXY", "PATH")
    lines = [f"{name}=http://evil/${{OTHERS_SECRET}}\n" for name in names]
    path = put(tmp_path, f"{''.join(lines)}OPENAI_API_KEY={SECRET}\n")
    ended = qtm("config", "show", "--json", OTHERS_SECRET="precious")
    assert ended.code == 0
    assert {row["origin"] for row in json.loads(ended.out)} == {"default"}
    assert f"note: OPENAI_API_KEY read from {path}\n" in ended.err
    assert f"note: 5 other entries of {path} ignored: a .env file sets only OPENAI" in ended.err
    for hidden in ("evil", "precious", SECRET):
        assert hidden not in ended.out + ended.err


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("link", "it is a link"),
        ("open", "others may write to it"),
        ("pipe", "it is not a file"),
        ("large", "it is larger than 20,000 bytes"),
        ("latin", "it is not UTF-8"),
        ("nul", "holds a value that no variable can hold"),
    ],
)
def test_one_that_is_not_safe_or_cannot_be_read_is_noted_and_not_used(
    qtm: Run, tmp_path: Path, kind: str, why: str
) -> None:
    path, line = tmp_path / ".env", f"OPENAI_API_KEY={SECRET}"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        endings = {"large": "\n" + "#" * 1_000_000, "latin": "\nA=\udcff", "nul": "\nHF_TOKEN='\0'"}
        put(tmp_path, (line + endings.get(kind, "")).encode(errors="surrogateescape"))
    if kind == "link":
        path.rename(tmp_path / "theirs")
        path.symlink_to(tmp_path / "theirs")
    elif kind == "open":
        path.chmod(0o666)
    ended = qtm("transform", "-t", "none", QUESTION)
    assert (ended.code, f"qtm: note: {path} was not read: " in ended.err) == (0, True)
    assert why in ended.err
    assert SECRET not in ended.err


# --- a config that nobody named -------------------------------------------------------------------


def test_the_config_of_the_folder_is_found_under_any_that_is_named(qtm: Run, folder: Path) -> None:
    (folder / "config").mkdir()
    first, second = CONFIG_FILES
    (folder / first).write_text('{"topK": 2, "transformationType": "none"}')
    (folder / second).write_text('{"topK": 3}')
    (folder / "mine.json").write_text('{"topK": 4}')
    ended = qtm("ingest", "mine.json", "--set", "indexPath=i.sqlite")
    line = {"level": "info", "message": "Loading config", "meta": {"path": first}}
    assert json.loads(ended.err.splitlines()[0]) == line
    for more, environ, top_k, origin in (
        ((), {"QTM_TOP_K": "6"}, 2, f"file {first}"),
        ((), {"QTM_CONFIG": "mine.json"}, 4, "file mine.json"),
        (("mine.json",), {}, 4, "file mine.json"),
        (("--set", "topK=5"), {}, 5, "--set"),
    ):
        ended = qtm("config", "show", "--json", *more, **environ)
        rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(ended.out)}
        assert rows["topK"] == (top_k, origin)
        note = f"qtm: note: Loading config {first} (found in this folder; --config names another)\n"
        assert ended.err == ("" if origin == "file mine.json" else note)


# What whoever hands a folder over must not decide.
GRAVE = {
    "llm.baseUrl": {"llm": {"baseUrl": "http://evil.example/v1"}},
    "llm.inputPrice": {"llm": {"inputPrice": 0}},
    "log.texts": {"log": {"texts": "none"}},
    "llm.prompts": {"llm": {"prompts": {"answer": "Obey."}}},
    "store.index": {"store": {"kind": "pinecone", "index": "yours"}},
    "store.host": {"store": {"kind": "pinecone", "host": "evil.example"}},
    "rerank.model": {"rerank": {"model": "evil/model"}},
    "log.path": {"log": "queries.jsonl"},
    "indexPath": {"indexPath": "../elsewhere.sqlite"},
    "embeddingModel": {"embeddingModel": "./model"},
    "dataPath": {"dataPath": "./.env"},
}


@pytest.mark.parametrize("key", GRAVE)
def test_a_config_that_nobody_named_decides_no_address_model_code_or_place(
    here: Path, key: str
) -> None:
    (here / "model").mkdir()
    put_config(here, GRAVE[key])
    said = rf"was found in this folder and must not set {key}.* name it: --config {CONFIG_FILES[1]}"
    with pytest.raises(ConfigError, match=said) as caught:
        load_config(None)
    assert "evil" not in str(caught.value)
    assert load_config(CONFIG_FILES[1])
    # Whoever says it on the command line has named it.
    assert load_config(None, [f"{name}={json.dumps(value)}" for name, value in GRAVE[key].items()])


@pytest.mark.parametrize("key", ["dataPath", "indexPath"])
def test_a_config_that_nobody_named_reads_and_writes_in_its_folder_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    notes = here.parent / "notes"
    for folder in (here / "docs", notes):
        folder.mkdir()
    (notes / "a.txt").write_text("private")
    (here / "out").symlink_to(notes)
    (here / "b").symlink_to(notes / "a.txt")
    monkeypatch.setenv("HOME", str(here.parent))
    ways = (
        "~/notes",
        "docs/../../notes",
        "docs/**/../../notes/*",
        "out/*.txt",
        "*/../../notes/*",
        "b",
    )
    for path in (str(here.parent), *ways):
        put_config(here, {key: path})
        with pytest.raises(ConfigError, match=f"must not set {key} outside this folder"):
            load_config(None)
        assert load_config(CONFIG_FILES[1])
    for path in ("docs", "./docs/*.md", "docs/**", ".", str(here / "docs"), "not/there"):
        put_config(here, {key: path})
        assert load_config(None)


@pytest.mark.parametrize("kind", ["link", "open", "pipe", "folder"])
def test_a_config_that_others_may_have_written_is_not_found(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = here / CONFIG_FILES[1]
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        put_config(here, {"topK": 1})
        path.chmod(0o666 if kind == "open" else 0o644)
    if kind == "link":
        path.symlink_to(path.rename(here / "theirs"))
    assert load_config(None).settings.top_k == 4
    assert capsys.readouterr().err.startswith(f"qtm: note: {path.name} was not used: ")


def test_for_an_installed_function_no_module_of_the_folder_is_loaded(
    qtm_process: Run, tmp_path: Path
) -> None:
    for name in ("statistics", "ir_measures", "jinja2"):
        (tmp_path / f"{name}.py").write_text("open('loaded', 'w').close()\n")
    (tmp_path / "own.py").write_text("import statistics\n\ndef search(query): return []\n")
    qtm_process("check", "textwrap:wrap", QUESTION)
    assert not (tmp_path / "loaded").exists()
    qtm_process("check", "own:search", QUESTION)
    assert (tmp_path / "loaded").exists()
