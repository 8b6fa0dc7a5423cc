"""What ``qtm`` writes to stderr, and where it shows the config: no key, no question and no passage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

import qtmiddleware as qtm
from tests.support.command_line import run_here
from tests.support.echoing import EchoingService
from tests.support.emitted import (
    KEYS,
    METADATA,
    OPENAI_KEY,
    PASSAGE,
    PINECONE_KEY,
    QUERY,
    TEXTS,
)

pytestmark = pytest.mark.thorough

CONFIG: Final = {
    "indexPath": "index.sqlite",
    "embeddingModel": "text-embedding-3-small",
    "embeddingDimensions": 3,
    "transformationType": "combined",
    "contextualChunks": False,
}
ASKING: Final = ("query", QUERY, "-c", "c.json")

RUNS: Final = (
    ASKING,
    (*ASKING, "--json"),
    ("query", "-c", "c.json"),
    ("transform", QUERY, "-c", "c.json"),
    ("ingest", "docs", "-c", "contextual.json"),
    ("config", "show", "c.json"),
    ("config", "show", "c.json", "--json"),
    ("config", "show", "wrong.json"),
    ("config", "show", "address.json"),
    ("config", "show", "broken.json"),
)


@pytest.fixture
def folder(tmp_path: Path, service: EchoingService, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with configs and an index, and a ``.env`` with keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", OPENAI_KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", service.url)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text(f"# {METADATA}\n\n{PASSAGE}.")
    (tmp_path / "c.json").write_text(json.dumps(CONFIG))
    (tmp_path / "contextual.json").write_text(json.dumps({**CONFIG, "contextualChunks": True}))
    (tmp_path / "wrong.json").write_text(json.dumps({"apiKey": OPENAI_KEY, "topK": PINECONE_KEY}))
    (tmp_path / "address.json").write_text(
        json.dumps({"llm": {"baseUrl": f"https://me:{OPENAI_KEY}@example.org"}})
    )
    (tmp_path / "broken.json").write_text(f'{{"topK": 4, "apiKey": "{OPENAI_KEY}}}')
    (tmp_path / ".env").write_text(
        f"OPENAI_API_KEY={OPENAI_KEY}\nPINECONE_API_KEY={PINECONE_KEY}\nbroken line\n"
    )
    (tmp_path / ".env").chmod(0o600)
    qtm.ingest("docs", config=CONFIG)
    return tmp_path


@pytest.mark.parametrize(("fault", "embeds"), [("400", True), ("401", False)])
def test_the_command_line_brings_nothing_out(
    folder: Path, service: EchoingService, fault: str, embeds: bool
) -> None:
    service.fault, service.embeds = fault, embeds
    environ = {"OPENAI_API_KEY": OPENAI_KEY, "OPENAI_BASE_URL": service.url}
    for arguments in RUNS:
        ended = run_here(arguments, f"{QUERY}\nexit\n".encode(), folder, environ)
        assert "Traceback" not in ended.err
        for mark in (*TEXTS, *KEYS):
            assert mark.lower() not in ended.err.lower()
        # What was found and what was said are the results themselves.
        for key in KEYS:
            assert key not in ended.out
