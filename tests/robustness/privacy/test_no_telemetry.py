"""Nothing is sent to anybody the caller did not name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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
SEARCH: Final = """
def search(query, top_k=3):
    return [{"id": "a", "score": 1.0, "metadata": {"text": "Jaco is healthy"}}, {"id": "b", "score": 0.5}][:top_k]
"""
USES: Final = {
    "the rules, the config and clients that are not used": SEARCH
    + (
        "import importlib, pkgutil, openai, pinecone, qtmiddleware as qtm\n"
        "for found in pkgutil.walk_packages(qtm.__path__, 'qtmiddleware.'):\n"
        "    importlib.import_module(found.name)\n"
        "assert qtm.preprocess('Does Jaco have any health concerns?')\n"
        "qtm.Config.load({'transformationType': 'combined'}).to_dict()\n"
        "found = qtm.middleware(search).retrieve('Does Jaco have any health concerns?')\n"
        "assert found.status == 'full' and found.matches\n"
        "from qtmiddleware.kit.embedding import OpenAIEmbedder\n"
        "from qtmiddleware.providers.rerankers.pinecone import PineconeReranker\n"
        "made = qtm.QueryMiddleware({'transformationType': 'combined'}, client=openai.OpenAI(api_key='k'))\n"
        "repr((made.engine.model, OpenAIEmbedder('text-embedding-3-small'), PineconeReranker('bge-reranker-v2-m3')))\n"
        "made.close()"
    ),
    "an index of one's own": (
        "import qtmiddleware as qtm\n"
        "from qtmiddleware.protocols import Passage\n"
        "from qtmiddleware.kit.stores import SQLiteStore\n"
        "with SQLiteStore('index', embedding_model='m', dimension=2) as store:\n"
        "    store.write(zip([Passage('a', 'apple')], [[1.0, 0.0]], strict=True))\n"
        "    assert store.search([1.0, 0.0], 1) and store.keyword_search('apple', 1)"
    ),
    "the command line": (
        "from qtmiddleware.kit.cli import main\n"
        "for arguments in (['--help'], ['config', 'show'], ['transform', '-t', 'none', 'Is Jaco ill?']):\n"
        "    sys.argv = ['qtm', *arguments]\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as left:\n"
        "        assert not left.code"
    ),
}


def after(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OPENAI_", "QTM_", "PINECONE_"))
    }
    return subprocess.run(
        [sys.executable, "-c", WATCH + code],
        capture_output=True,
        text=True,
        cwd=folder,
        env=kept,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize("use", USES)
def test_nothing_is_sent_that_nobody_asked_for(use: str, tmp_path: Path) -> None:
    done = after(USES[use], tmp_path)
    assert (
        done.returncode,
        [line for line in done.stderr.splitlines() if line.startswith("sent:")],
    ) == (0, [])


def test_the_watch_sees_what_is_sent(tmp_path: Path) -> None:
    done = after(
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))",
        tmp_path,
    )
    assert "sent: socket.connect" in done.stderr
