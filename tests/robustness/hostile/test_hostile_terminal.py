"""Nothing that others wrote is obeyed by a terminal, whichever command shows it and wherever it goes."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Table

from qtmiddleware.kit.cli.output import PlainConsole
from qtmiddleware.kit.stores import SQLiteStore
from qtmiddleware.preprocessing.hidden_characters import escape_hidden
from qtmiddleware.protocols import Passage
from tests.support.answering_service import AnsweringService
from tests.support.command_line import Ended
from tests.support.conversing import INDEX, environ
from tests.support.hostile_corpus import LONG, SHORT
from tests.support.hostile_world import ACTS
from tests.support.terminal import Terminal

pytestmark = pytest.mark.thorough

Run = Callable[..., Ended]
# One line each, as they come in a pipe; what UTF-8 cannot hold does not come.
LINES = [
    text
    for hostile in SHORT
    if len((text := hostile.text.encode("utf-8", "replace").decode()).splitlines()) == 1
    and not text.isspace()
]
WORST = "".join(
    hostile.text
    for hostile in SHORT
    if hostile.category in ("terminal", "control", "bidi", "invisible")
)
WORST = WORST.encode("utf-8", "replace").decode().replace("\x00", "")
# What our own console writes: colours, and moves of the cursor around its spinner and its table.
OURS = re.compile(r"\x1b\[[0-9;]*[mAK]|\x1b\[\?25[hl]|\r")


def nothing_acts(ended: Ended) -> None:
    assert not ACTS.search(ended.out), ascii(ACTS.search(ended.out))
    assert not ACTS.search(ended.err), ascii(ended.err)
    assert "Traceback" not in ended.err


def test_a_console_shows_any_text_as_it_is_but_for_what_a_terminal_obeys() -> None:
    for hostile in (*SHORT, LONG[-5]):
        text = hostile.text.encode("utf-8", "replace").decode()
        file = io.StringIO()
        console = PlainConsole(file=file, soft_wrap=True)
        console.print(text)
        assert not ACTS.search(file.getvalue())
        if escape_hidden(text) == text and "\t" not in text:
            assert file.getvalue().rstrip("\n") == text.rstrip("\n")
        # Names in a table may be anybody's too: neither markup nor a reason to fail.
        table = Table(title=text[:50], caption=text[:50])
        table.add_column(text[:20])
        table.add_row(text[:50])
        console.print(table)
        assert not ACTS.search(file.getvalue())


@pytest.fixture
def hostile_folder(folder: Path) -> Path:
    with SQLiteStore(folder / INDEX, embedding_model="all-MiniLM-L6-v2", dimension=384) as store:
        made = [
            Passage(f"p{at}{text}"[:200], f"vet {text}", {"source": f"{text}.pdf", "title": text})
            for at, text in enumerate((WORST, "[/red] :warning: [bold]x", "a\x1b]0;title\x07b"))
        ]
        store.write(zip(made, [[1.0] + [0.01 * at] * 383 for at in range(len(made))], strict=True))
    return folder


def test_answers_passages_and_the_account_of_them_are_shown_harmlessly(
    qtm: Run, hostile_folder: Path, service: AnsweringService
) -> None:
    service.text = f"{WORST} [1]"
    for more in ((), ("--json",)):
        asked = ["--type", "rewrite", "--top-k", "9", "--filter", "{}"]
        ended = qtm(
            "query",
            "Where is the vet?",
            *asked,
            *more,
            folder=hostile_folder,
            QTM_LLM_BASE_URL=service.url,
        )
        assert ended.code == 0, ended.err
        assert "[1]" in ended.out
        nothing_acts(ended)


def test_a_streamed_answer_at_a_terminal_holds_no_sequence_but_our_own(
    hostile_folder: Path, service: AnsweringService
) -> None:
    service.text = f"so it is: {WORST} [1]"
    at = environ(hostile_folder, QTM_LLM_BASE_URL=service.url)
    with Terminal(
        "query", "Where is the vet?", "--type", "rewrite", folder=hostile_folder, environ=at
    ) as terminal:
        terminal.wait_for("so it is", "Sources:")
        assert terminal.ended() == 0
        shown = OURS.sub("", terminal.raw.decode("utf-8", "replace"))
    assert not ACTS.search(shown), ascii(shown)


def test_a_config_and_what_is_wrong_with_it_are_shown_harmlessly(qtm: Run, tmp_path: Path) -> None:
    given = {
        "llm": {"prompts": {"rewrite": f"Rewrite. {WORST}"}},
        "preprocess": {"extraWords": LINES[:40]},
    }
    (tmp_path / "c.json").write_text(json.dumps(given), encoding="utf-8")
    ended = qtm("config", "show", "c.json")
    assert ended.code == 0, ended.err
    nothing_acts(ended)
    (tmp_path / "c.json").write_text(
        json.dumps({"preprocess": {"language": WORST}, WORST: 1}), encoding="utf-8"
    )
    ended = qtm("config", "show", "c.json")
    assert ended.code == 2
    nothing_acts(ended)
    nothing_acts(
        qtm("query", "--config", "no\x1b]0;x\x07.json", "--type", "\x1b]0;x\x07\u202e", "Where?")
    )


FORGED = "2 documents in 2 chunks: 2 added"
BREAKS = ["\n", "\r", "\r\n", "\t", "\v", "\x1b[2K\x1b[1G", "\x85", "\u2028", "\u2029"]


def test_no_name_of_a_file_forges_a_line(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    names = [
        name for made in BREAKS for name in (f"a{made}{FORGED}{made}.txt", f"b{made}{FORGED}.pdf")
    ]
    for name in names:
        (tmp_path / "docs" / name).write_bytes(b"")
    for arguments in (
        ("ingest", "docs"),
        ("testset", "docs", "--out", "set", "--count", "3"),
    ):
        ended = qtm(*arguments, OPENAI_API_KEY="none")
        nothing_acts(ended)
        lines = (ended.out + "\n" + ended.err).splitlines()
        assert not [line for line in lines if line.strip().startswith(FORGED)]
    skipped = [line for line in qtm("ingest", "docs").err.splitlines() if "skipped: " in line]
    assert len(skipped) == len(names)
