"""Nothing is sent to anybody the caller did not name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.conversing import read_plain_environment

pytestmark = pytest.mark.thorough

WATCH: Final = """
import sys

def watch(event, arguments):
    # Looking up a name is a message to somebody too.
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        sys.stderr.write(f"sent: {event} {arguments[1:]}\\n")
        sys.stderr.flush()

sys.addaudithook(watch)
"""
USES: Final = {
    "every module, the rules and clients that are not used": """
import importlib, pkgutil, openai, qtmiddleware as qtm
for found in pkgutil.walk_packages(qtm.__path__, 'qtmiddleware.'):
    importlib.import_module(found.name)
search = lambda query, top_k=3: [{"id": "a", "score": 1.0, "text": "Jaco is healthy"}][:top_k]
assert qtm.middleware(search).retrieve('Does Jaco have any health concerns?').status == 'full'
qm = qtm.QueryMiddleware({'transformationType': 'combined'}, client=openai.OpenAI(api_key='k'))
repr(qm.engine.model)
qm.close()
""",
    "an index of one's own": """
from qtmiddleware.protocols import Passage
from qtmiddleware.kit.stores import SQLiteStore
with SQLiteStore('index', embedding_model='m', dimension=2) as store:
    store.write(zip([Passage('a', 'apple')], [[1.0, 0.0]], strict=True))
    assert store.search([1.0, 0.0], 1) and store.keyword_search('apple', 1)
""",
    "the command line": """
from qtmiddleware.kit.cli import main
for arguments in (['--help'], ['config', 'show'], ['transform', '-t', 'none', 'Is Jaco ill?']):
    sys.argv = ['qtm', *arguments]
    try:
        main()
    except SystemExit as left:
        assert not left.code
""",
}


def list_sent(code: str, folder: Path) -> list[str]:
    """What *code* sends in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=read_plain_environment(),
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith("sent:")]


@pytest.mark.parametrize("use", USES)
def test_nothing_is_sent_that_nobody_asked_for(use: str, tmp_path: Path) -> None:
    assert list_sent(USES[use], tmp_path) == []
