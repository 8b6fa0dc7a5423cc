"""What the command line writes."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.cli.output import PlainConsole, show_warnings, write_json
from qtmiddleware.runtime.logs import LogSampler, get_logger


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text(st.characters(max_codepoint=0xFF)))
def test_json_holds_every_character_and_none_a_terminal_obeys(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text.encode("utf-8", "replace").decode()
    write_json({"text": text})
    written = capsys.readouterr().out
    assert json.loads(written) == {"text": text}
    assert not any(ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 for sign in written if sign != "\n")


def test_warnings_are_noted_once_on_one_line_without_the_degradations_a_command_shows_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger, sampler = get_logger("qtmiddleware"), LogSampler()
    with show_warnings(hidden_events=["retrieval_degraded"]):
        for _ in range(2):
            logger.warning("the index\n%s is damaged", "\x1b[31mi.sqlite", event="index_damaged")
            reasons = {"llm timeout": "late"}
            sampler.log(logger, "retrieval_degraded", reasons, message="retrieval degraded")
        logger.info("nothing happened")
    logger.warning("nobody listens")
    noted = capsys.readouterr().err.splitlines()
    assert noted == [r"warning: the index\n\u001b[31mi.sqlite is damaged"]


@given(
    st.lists(st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=130), max_size=60)
)
def test_no_word_is_broken_on_a_terminal_and_no_line_in_a_pipe(words: list[str]) -> None:
    text = " ".join(words)
    for is_terminal in (True, False):
        file = io.StringIO()
        console = PlainConsole(file=file, width=80, force_terminal=is_terminal, color_system=None)
        console.write(text)
        assert file.getvalue().split() == words
        assert is_terminal or file.getvalue() == f"{text}\n"
