"""What ``qtm`` writes to stderr, and where it shows the config: no key, no question and no passage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import qtmiddleware as qtm
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
# One process for all of them, as most of the time goes into starting one.
SCRIPT: Final = """
import io, json, sys
from qtmiddleware.kit.cli import main

runs, question = json.loads(sys.argv[1]), sys.argv[2]
for arguments in runs:
    sys.argv, sys.stdin = ["qtm", *arguments], io.StringIO(f"{question}\\nexit\\n")
    try:
        main()
        code = 0
    except SystemExit as left:
        code = left.code
    print("ended", arguments[0], code, file=sys.__stderr__, flush=True)
"""


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
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(RUNS), QUERY],
        capture_output=True,
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        timeout=200,
        check=False,
    )
    out, err = ended.stdout.decode(), ended.stderr.decode()
    assert ended.returncode == 0
    assert "Traceback" not in err
    assert err.count("ended ") == len(RUNS)
    for mark in (*TEXTS, *KEYS):
        assert mark.lower() not in err.lower()
    # What was found and what was said are the results themselves.
    for key in KEYS:
        assert key not in out
