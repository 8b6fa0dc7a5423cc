"""What a ``.env`` file is to the commands: keys, out of a file of one's own in the folder where ``qtm`` is run."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qtmiddleware
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.environment import CONFIG_FILES, CREDENTIALS, load_config
from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import HEALTH, QUESTION

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
SECRET = "sk-verysecret0123456789"
KEYWORDS = f"query: {QUESTION}\npreprocessed: jaco health concerns\n"


def put(folder: Path, text: str) -> Path:
    path = folder / ".env"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
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


@pytest.mark.parametrize(
    "name", ["QTM_LLM_BASE_URL", "QTM_CONFIG", "OPENAI_BASE_URL", "HTTPS_PROXY", "PATH"]
)
def test_an_address_a_path_or_a_setting_in_it_is_ignored_and_told(
    qtm: Run, tmp_path: Path, name: str
) -> None:
    path = put(tmp_path, f"{name}=http://evil/${{OTHERS_SECRET}}\nOPENAI_API_KEY={SECRET}\n")
    ended = qtm("config", "show", "--json", OTHERS_SECRET="precious")
    assert ended.code == 0
    assert {row["origin"] for row in json.loads(ended.out)} == {"default"}
    assert f"OPENAI_API_KEY read from {path}; ignored there: {name} (" in ended.err
    for hidden in ("evil", "precious", SECRET):
        assert hidden not in ended.out + ended.err


@pytest.mark.parametrize("kind", ["link", "shared", "open", "pipe", "large"])
def test_one_that_others_may_have_written_is_not_read(qtm: Run, tmp_path: Path, kind: str) -> None:
    path, why = tmp_path / ".env", "others may write to it"
    if kind == "link":
        put(tmp_path, f"OPENAI_API_KEY={SECRET}").rename(tmp_path / "theirs")
        path.symlink_to(tmp_path / "theirs")
        why = "it is a link"
    elif kind == "pipe":
        os.mkfifo(path)
        why = "it is not a file"
    elif kind == "large":
        put(tmp_path, f"OPENAI_API_KEY={SECRET}\n" + "#" * 1_000_000)
        why = "it is larger than 1,000,000 bytes"
    else:
        put(tmp_path, f"OPENAI_API_KEY={SECRET}").chmod(0o664 if kind == "shared" else 0o666)
    ended = qtm("query", QUESTION)
    assert f"qtm: note: {path} was not read: {why}" in ended.err
    assert "No language model" in ended.err or ended.code != 0
    assert SECRET not in ended.err


def test_no_name_in_it_forges_a_line(qtm: Run, tmp_path: Path) -> None:
    put(tmp_path, "'a\nqtm: all is well\x1b[2J'=1\n" + "".join(f"N{it}=1\n" for it in range(500)))
    ended = qtm("transform", "-t", "none", QUESTION)
    assert ended.err.count("\n") == 1
    assert "\x1b" not in ended.err
    assert "N19, 481 more" in ended.err


def test_a_key_that_stands_there_as_a_name_is_not_shown(qtm: Run, tmp_path: Path) -> None:
    put(tmp_path, f"{SECRET}\nMIIEvAIBADANBgkq0w9=\nTOP_K=1\n")
    ended = qtm("transform", "-t", "none", QUESTION)
    assert f"ignored in {tmp_path / '.env'}: TOP_K, 2 more" in ended.err
    assert SECRET not in ended.err
    assert "MIIE" not in ended.err


@pytest.mark.parametrize(
    "content", [b"OPENAI_API_KEY=\xff\xfe", f"A=b\nHF_TOKEN='{SECRET}\x00'\n".encode()]
)
def test_one_that_cannot_be_read_is_noted_and_no_error(
    qtm: Run, tmp_path: Path, content: bytes
) -> None:
    put(tmp_path, "").write_bytes(content)
    ended = qtm("transform", "-t", "none", QUESTION)
    assert (ended.code, ended.out) == (0, KEYWORDS)
    assert "qtm: note: " in ended.err
    assert ".env was not read" in ended.err
    assert SECRET not in ended.err


def test_every_credential_the_package_reads_may_stand_in_it() -> None:
    read = {"HF_TOKEN"}  # by the library that fetches models
    for found in pkgutil.walk_packages(qtmiddleware.__path__, "qtmiddleware."):
        if found.name.rpartition(".")[2] in ("openai_client", "pinecone"):
            module = vars(importlib.import_module(found.name))
            read |= {module[name] for name in module if name == "KEY_VARIABLE"}
    assert read == set(CREDENTIALS)


def test_the_config_of_the_folder_is_found_under_any_that_is_named(qtm: Run, folder: Path) -> None:
    (folder / "config").mkdir()
    first, second = CONFIG_FILES
    (folder / first).write_text('{"topK": 2, "transformationType": "none"}')
    (folder / second).write_text('{"topK": 3}')
    (folder / "mine.json").write_text('{"topK": 4}')
    (folder / "below").mkdir()
    ended = qtm("ingest", "mine.json", "--set", "indexPath=i.sqlite")
    line = {"level": "info", "message": "Loading config", "meta": {"path": first}}
    assert json.loads(ended.err.splitlines()[0]) == line
    for more, environ, top_k, origin in (
        ((), {}, 2, f"file {first}"),
        ((), {"QTM_TOP_K": "6"}, 2, f"file {first}"),
        ((), {"QTM_CONFIG": "mine.json"}, 4, "file mine.json"),
        (("mine.json",), {}, 4, "file mine.json"),
        (("--set", "topK=5"), {}, 5, "--set"),
    ):
        ended = qtm("config", "show", "--json", *more, **environ)
        rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(ended.out)}
        assert rows["topK"] == (top_k, origin)
        is_found = origin == f"file {first}" or "--set" in more
        note = f"qtm: note: Loading config {first} (found in this folder; --config names another)\n"
        assert ended.err == (note if is_found else "")
    assert qtm("config", "show", folder=folder / "below").err == "the config is valid\n"
    (folder / first).unlink()
    assert f"Loading config {second} (" in qtm("transform", "-t", "none", QUESTION).err


# What whoever hands a folder over must not decide.
GRAVE = {
    "llm.baseUrl": {"llm": {"baseUrl": "http://evil.example/v1"}},
    "llm.prompts": {"llm": {"prompts": {"answer": "Obey."}}},
    "store.index": {"store": {"kind": "pinecone", "index": "yours"}},
    "store.host": {"store": {"kind": "pinecone", "host": "evil.example"}},
    "rerank.model": {"rerank": {"model": "evil/model"}},
    "rerank.trustRemoteCode": {"rerank": {"trustRemoteCode": True}},
    "log.path": {"log": "queries.jsonl"},
    "indexPath": {"indexPath": "../elsewhere.sqlite"},
    "embeddingModel": {"embeddingModel": "./model"},
    "dataPath": {"dataPath": "./.env"},
}


@pytest.mark.parametrize("key", GRAVE)
def test_a_config_that_nobody_named_decides_no_address_model_code_or_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QTM_CONFIG", raising=False)
    (tmp_path / "model").mkdir()
    (tmp_path / CONFIG_FILES[1]).write_text(json.dumps(GRAVE[key]))
    with pytest.raises(
        ConfigError,
        match=rf"was found in this folder and must not set {key}.* add --config {CONFIG_FILES[1]} ",
    ) as caught:
        load_config(None)
    assert "evil" not in str(caught.value)
    assert load_config(CONFIG_FILES[1])
    # Whoever says it on the command line has named it.
    assert load_config(None, [f"{name}={json.dumps(value)}" for name, value in GRAVE[key].items()])


@pytest.mark.parametrize("key", ["dataPath", "indexPath"])
@pytest.mark.parametrize(
    "path",
    [
        "{home}",
        "~/notes",
        "docs/../../notes",
        "out/*.txt",
        "*/../../notes/*",
        "b",
    ],
)
def test_a_config_that_nobody_named_reads_and_writes_in_its_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, path: str
) -> None:
    clone, notes = tmp_path / "clone", tmp_path / "notes"
    for folder in (clone / "docs", notes):
        folder.mkdir(parents=True)
    (notes / "a.txt").write_text("private")
    (clone / "out").symlink_to(notes)
    (clone / "b").symlink_to(notes / "a.txt")
    monkeypatch.chdir(clone)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QTM_CONFIG", raising=False)
    config = {key: path.format(home=tmp_path)}
    (clone / CONFIG_FILES[1]).write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=f"was found in this folder and must not set {key} outside this folder"
    ):
        load_config(None)
    assert load_config(CONFIG_FILES[1])
    for inside in ("docs", "./docs/*.md", "docs/../docs/**", ".", str(clone / "docs"), "not/there"):
        (clone / CONFIG_FILES[1]).write_text(json.dumps({key: inside}))
        assert load_config(None)


def test_a_config_that_nobody_named_leaves_the_budget_of_the_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QTM_CONFIG", raising=False)
    for budget in ({"maxUsd": None}, {"maxUsd": 1_000}, {"maxTokens": 10**9}):
        (tmp_path / CONFIG_FILES[1]).write_text(json.dumps({"budget": budget}))
        monkeypatch.delenv("QTM_BUDGET_MAX_USD", raising=False)
        assert load_config(None)
        monkeypatch.setenv("QTM_BUDGET_MAX_USD", "5")
        with pytest.raises(
            ConfigError,
            match=f"must not set budget.{next(iter(budget))} in addition to the environment's",
        ):
            load_config(None)
        assert load_config(CONFIG_FILES[1])


def test_a_config_that_nobody_named_sends_nothing_from_outside_of_its_folder(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    (folder.parent / "private.txt").write_text("a private text")
    config = {"dataPath": "../private.txt", "indexPath": "i.sqlite", "contextualChunks": True}
    (folder / CONFIG_FILES[1]).write_text(json.dumps(config))
    ended = qtm("ingest", OPENAI_API_KEY=SECRET, QTM_LLM_BASE_URL=service.url)
    assert (ended.code, service.bodies) == (2, [])
    assert "dataPath outside this folder" in ended.err
    assert not (folder / "i.sqlite").exists()


@pytest.mark.parametrize("kind", ["link", "shared", "pipe", "folder"])
def test_a_config_that_others_may_have_written_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QTM_CONFIG", raising=False)
    path = tmp_path / CONFIG_FILES[1]
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        theirs = path if kind == "shared" else tmp_path / "theirs"
        theirs.write_text('{"topK": 1}')
        theirs.chmod(0o666)
        if kind == "link":
            path.symlink_to(theirs)
    assert load_config(None).settings.top_k == 4
    assert capsys.readouterr().err.startswith(f"qtm: note: {path.name} was not used: ")


def test_for_an_installed_function_no_module_of_the_folder_is_loaded(
    qtm_process: Run, tmp_path: Path
) -> None:
    evil = "open('loaded', 'w').close()\n"
    for name in ("statistics", "ir_measures", "jinja2"):
        (tmp_path / f"{name}.py").write_text(evil)
    (tmp_path / "own.py").write_text("import statistics\n\ndef search(query): return []\n")
    qtm_process("check", "textwrap:wrap", QUESTION)
    assert not (tmp_path / "loaded").exists()
    qtm_process("check", "own:search", QUESTION)
    assert (tmp_path / "loaded").exists()
