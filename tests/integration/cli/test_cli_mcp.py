"""What ``qtm mcp`` says of wrong options, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Ended


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("app:search --nmae x", 2, "--nmae"),
        ("function", 2, "MODULE:FUNCTION"),
        ("nothing:search --http", 2, "nothing"),
        # A client that says nothing ends the server.
        ("", 0, ""),
    ],
)
def test_what_is_wrong_is_said_and_stdout_stays_empty(
    qtm_process: Callable[..., Ended], folder: Path, arguments: str, code: int, words: str
) -> None:
    ended = qtm_process("mcp", *arguments.split(), folder=folder)
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.err
    assert "Traceback" not in ended.err
