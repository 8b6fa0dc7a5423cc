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
from tests.support.conversing import HEALTH, INDEX, QUESTION

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
    path = put(folder, f"\ufeffexport OPENAI_API_KEY='{SECRET}'\n")
    ended = qtm("query", QUESTION, QTM_LLM_BASE_URL=service.url)
    used = f"qtm: note: used by default: index {folder / INDEX}\n"
    assert (ended.code, ended.err) == (0, f"qtm: note: OPENAI_API_KEY read from {path}\n{used}")
    assert HEALTH in ended.out
    assert set(service.keys) == {f"Bearer {SECRET}"}


def test_what_is_set_already_stays(qtm: Run, folder: Path, service: AnsweringService) -> None:
    put(folder, f"OPENAI_API_KEY={SECRET}\n")
    ended = qtm("query", QUESTION, QTM_LLM_BASE_URL=service.url, OPENAI_API_KEY="mine")
    assert (ended.code, "read from" in ended.err, set(service.keys)) == (0, False, {"Bearer mine"})


def test_a_dollar_sign_in_a_key_is_no_variable(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    put(folder, "OPENAI_API_KEY=a-${OTHERS_SECRET}-b\n")
    assert qtm("query", QUESTION, QTM_LLM_BASE_URL=service.url, OTHERS_SECRET=SECRET).code == 0
    assert set(service.keys) == {"Bearer a-${OTHERS_SECRET}-b"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "QTM_LLM_BASE_URL",
            "QTM_STORE_HOST",
            "QTM_CONFIG",
            "QTM_RERANK_TRUST_REMOTE_CODE",
        ),
        *(
            "QTM_MODEL_DIR",
            "OPENAI_BASE_URL",
            "HF_ENDPOINT",
            "HTTPS_PROXY",
            "SSL_CERT_FILE",
            "XDG_STATE_HOME",
            "PATH",
        ),
    ],
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


def test_no_address_of_it_is_ever_sent_a_key(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    put(folder, f"QTM_LLM_BASE_URL={service.url}\nOPENAI_BASE_URL={service.url}\n")
    ended = qtm("query", QUESTION, OPENAI_API_KEY=SECRET, QTM_LLM_BASE_URL="http://127.0.0.1:9/v1")
    assert (ended.code, service.keys) == (1, [])


def test_one_in_a_folder_above_is_not_looked_at(qtm: Run, tmp_path: Path) -> None:
    put(tmp_path, f"OPENAI_API_KEY={SECRET}\nQTM_TOP_K=7\n")
    below = tmp_path / "some" / "where"
    below.mkdir(parents=True)
    ended = qtm("transform", "-t", "none", QUESTION, folder=below)
    assert (ended.code, ended.err) == (0, "")


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


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away"
)
def test_one_of_another_account_is_not_read(qtm: Run, tmp_path: Path) -> None:
    os.chown(put(tmp_path, f"OPENAI_API_KEY={SECRET}"), 65534, 65534)
    assert (
        ".env was not read: it belongs to another account"
        in qtm("transform", "-t", "none", QUESTION).err
    )


def test_a_folder_of_that_name_is_nothing_to_speak_of(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    ended = qtm("transform", "-t", "none", QUESTION)
    assert (ended.code, ended.err) == (0, "")


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


def test_a_file_that_nobody_named_is_named_on_stderr_and_nowhere_else(
    qtm: Run, folder: Path
) -> None:
    (folder / "mine.json").write_text('{"topK": 2}')
    index, mine = folder / INDEX, folder / "mine.json"
    ended = qtm(
        "query",
        "--no-answer",
        "--json",
        QUESTION,
        QTM_CONFIG="mine.json",
        QTM_LOG_PATH="queries.jsonl",
    )
    first = f"qtm: note: used by default: settings (QTM_CONFIG) {mine}; index {index}"
    assert ended.err.splitlines()[0] == first
    assert len(json.loads(ended.out)["passages"]) == 2
    ended = qtm(
        "query", "--no-answer", QUESTION, "--config", "mine.json", QTM_LOG_PATH="queries.jsonl"
    )
    assert ended.err.splitlines()[0] == (
        f"qtm: note: used by default: index {index}; query log {folder / 'queries.jsonl'}"
    )
    for arguments in (
        ["config", "show", "--json"],
        ["transform", "--json", "-t", "none", QUESTION],
    ):
        ended = qtm(*arguments, QTM_CONFIG="mine.json")
        assert (ended.code, ended.err) == (
            0,
            f"qtm: note: used by default: settings (QTM_CONFIG) {mine}\n",
        )
        assert json.loads(ended.out)


def test_an_ingest_names_what_it_adds_to_and_reads_unless_that_was_named(
    qtm: Run, folder: Path
) -> None:
    (folder / "docs").mkdir()
    (folder / "docs" / "a.txt").write_text("Jaco is healthy.")
    (folder / "own.json").write_text('{"dataPath": "docs"}')
    index, ledger = folder / INDEX, folder / f"{INDEX}.ingest"
    ended = qtm("ingest", "docs")
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert lines[0] == {"level": "info", "message": f"used by default: index {index}"}
    ended = qtm("ingest", "--config", "own.json")
    assert (
        f'used by default: index {index}; ledger {ledger}; documents {folder / "docs"}"'
        in ended.err
    )
    assert "used by default" not in qtm("ingest", "docs", "--set", f"indexPath={INDEX}").err


def test_the_config_of_the_folder_is_found_and_named_under_any_that_is_named(
    qtm: Run, folder: Path
) -> None:
    (folder / "config").mkdir()
    first, second = "config/query-transform.config.json", "query-transform.config.json"
    (folder / first).write_text('{"topK": 2, "transformationType": "none"}')
    (folder / second).write_text('{"topK": 3}')
    (folder / "mine.json").write_text('{"topK": 4}')
    ended = qtm("query", "--no-answer", "--json", QUESTION)
    told = ended.err.splitlines()
    assert told[0] == f"qtm: note: {second} exists too and was not used"
    assert (
        told[1]
        == f"qtm: note: Loading config {first} (found in this folder; --config names another)"
    )
    assert len(json.loads(ended.out)["passages"]) == 2
    assert qtm("transform", QUESTION).out == KEYWORDS
    lines = [
        json.loads(line)
        for line in qtm("ingest", "mine.json", "--set", "indexPath=i.sqlite").err.splitlines()[1:2]
    ]
    assert lines == [{"level": "info", "message": "Loading config", "meta": {"path": first}}]
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
        assert ("Loading config" in ended.err) is (
            rows["topK"][1] == f"file {first}" or "--set" in more
        )
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
        "../notes",
        "~/notes",
        "docs/../../notes",
        "out",
        "out/*.txt",
        "../*/*.txt",
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


def test_one_that_names_a_service_is_refused_before_it_is_asked(
    qtm: Run, folder: Path, service: AnsweringService
) -> None:
    (folder / CONFIG_FILES[1]).write_text(json.dumps({"llm": {"baseUrl": service.url}}))
    ended = qtm("query", QUESTION, OPENAI_API_KEY=SECRET)
    assert (ended.code, ended.out, service.bodies) == (2, "", [])


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


def test_no_other_config_is_found_that_nobody_named(qtm: Run, tmp_path: Path) -> None:
    for name in (
        "config/c.json",
        "rules.config.json",
        "qtm.json",
        "qtm.toml",
        "config.json",
        "pyproject.toml",
        ".qtm.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"topK": 1}' if name.endswith("json") else "topK = 1\n")
    ended = qtm("config", "show", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert {row["origin"] for row in json.loads(ended.out)} == {"default"}


def test_what_is_shown_of_a_config_is_what_was_written(qtm: Run, tmp_path: Path) -> None:
    written = {"indexPath": "~/${OTHERS_SECRET}/$OTHERS_SECRET/%OTHERS_SECRET%", "dataPath": "~"}
    (tmp_path / "c.json").write_text(json.dumps(written))
    hidden = {
        "OTHERS_SECRET": "precious",
        "HTTPS_PROXY": "http://me:precious@proxy.example:3128",
        "OPENAI_BASE_URL": "https://me:precious@model.example/v1?key=precious",
        "OPENAI_API_KEY": "precious",
    }
    for arguments in (
        ["config", "show", "c.json", "--json"],
        ["config", "show", "c.json"],
        ["config", "show", "c.json"],
    ):
        ended = qtm(*arguments, **hidden)
        assert ended.code == 0
        assert "precious" not in ended.out + ended.err
        assert "check" in arguments or written["indexPath"] in ended.out
    for variable in ("QTM_LLM_BASE_URL", "QTM_STORE_HOST"):
        for address in (
            "https://me:precious@model.example/v1",
            "https://model.example/v1?key=precious",
        ):
            ended = qtm("config", "show", **{variable: address})
            assert "precious" not in ended.out + ended.err
