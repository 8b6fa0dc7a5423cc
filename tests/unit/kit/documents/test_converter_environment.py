"""What the processes that are started here know of the environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from qtmiddleware.kit.documents import Converter, read_document

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
@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process's environment cannot be looked into"
)
def test_the_reader_of_documents_is_started_without_secrets(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>Pump")
    with Converter() as converter:
        assert len(read_document(tmp_path / "a.html", converter=converter)) == 1
        assert converter._process is not None
        found = Path(f"/proc/{converter._process.pid}/environ").read_bytes().decode().split("\0")
    names = {line.partition("=")[0] for line in found}
    assert names >= PLAIN.keys()
    assert not names & SECRETS.keys()
