"""What the processes that are started here know of the environment."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.kit.documents import Converter, read_document
from qtmiddleware.kit.evaluation.bench import caches
from qtmiddleware.kit.index.ingestion.embedding import HUB_SECRETS, build_batch_embedder
from qtmiddleware.runtime.environment import copy_environment, copy_worker_environment

SECRETS = {
    "OPENAI_API_KEY": "a",
    "MY_SERVICE": "sk-verysecret0123456789",
    "DATABASE_URL": "postgres://me:precious@host/db",
    "PGPASSWORD": "b",
    "MYSQL_PWD": "c",
    "HF_TOKEN": "d",
    "HTTPS_PROXY": "http://me:precious@proxy:3128",
}
PLAIN = {
    "PWD": "/tmp",
    "LANG": "C.UTF-8",
    "QTM_TOP_K": "4",
    "HF_HOME": "/tmp/hub",
    "NO_PROXY": "host",
}


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **PLAIN}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environ")
def test_secrets_are_left_out_by_their_name_or_their_value() -> None:
    found = copy_environment()
    assert not SECRETS.keys() & found.keys()
    assert found.items() >= PLAIN.items()
    assert found["PATH"] == os.environ["PATH"]
    assert SECRETS.keys() & copy_environment(["HF_TOKEN"]).keys() == {"HF_TOKEN"}


@pytest.mark.usefixtures("environ")
def test_what_embeds_gets_the_secrets_of_the_hub_and_other_work_gets_all() -> None:
    for build in (build_batch_embedder, caches._build_timed_embedder):
        found = copy_worker_environment(partial(build, None, ""))
        assert (
            SECRETS.keys() & found.keys()
            == SECRETS.keys() & set(HUB_SECRETS)
            == {"HF_TOKEN", "HTTPS_PROXY"}
        )
    assert copy_worker_environment(copy_environment) == dict(os.environ)


@given(
    st.dictionaries(
        st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_", min_size=1),
        st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    )
)
def test_no_variable_is_changed(variables: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(f"SOME_{name}", value)
        assert copy_environment().items() <= os.environ.items()


@pytest.mark.usefixtures("environ")
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process's environment cannot be looked into"
)
def test_the_reader_of_documents_is_started_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Item,Price\nPump,7\n")
    with Converter() as converter:
        assert len(list(read_document(tmp_path / "a.csv", converter=converter))) == 2
        assert converter._process is not None
        found = Path(f"/proc/{converter._process.pid}/environ").read_bytes().decode().split("\0")
    names = {line.partition("=")[0] for line in found}
    assert names >= PLAIN.keys()
    assert not names & SECRETS.keys()
