"""What ``qtm mcp`` says of wrong options, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended

Run = Callable[..., Ended]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("app:search", "--nmae", "x"), "--nmae"),
        (("nothing:search",), "nothing"),
        (("no function",), "MODULE:FUNCTION"),
        (("nothing:search", "--http"), "nothing"),
        (("--folder", "missing"), "missing"),
    ],
)
def test_what_is_wrong_is_said_and_stdout_stays_empty(
    qtm_process: Run, arguments: tuple[str, ...], words: str
) -> None:
    ended = qtm_process("mcp", *arguments)
    assert ended.code == 2
    assert words in ended.err
    assert ended.out == ""
    assert "Traceback" not in ended.err


def test_a_client_that_says_nothing_ends_the_server(qtm_process: Run, folder: Path) -> None:
    ended = qtm_process("mcp", folder=folder)
    assert (ended.code, ended.out) == (0, "")
