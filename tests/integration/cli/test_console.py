"""What the command line writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.cli.console import as_json, show_warnings
from qtmiddleware.runtime.logs import LogSampler, get_logger


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text(st.characters(max_codepoint=0xFF)))
def test_json_holds_every_character_and_none_a_terminal_obeys(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = text.encode("utf-8", "replace").decode()
    as_json({"text": text})
    written = capsys.readouterr().out
    assert json.loads(written) == {"text": text}
    assert not any(ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 for sign in written if sign != "\n")


def test_warnings_are_noted_once_on_one_line_without_the_degradations_a_command_shows_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger, sampler = get_logger("qtmiddleware"), LogSampler()
    with show_warnings(without=["retrieval degraded"]):
        for _ in range(2):
            logger.warning("the index\n%s is damaged", "\x1b[31mi.sqlite", event="index_damaged")
            sampler.log(logger, "retrieval degraded", ["llm timeout"], said="retrieval 1 degraded")
        sampler.log(logger, "answer degraded", ["answer empty"])
        sampler.flush(logger)
        logger.info("nothing happened")
    logger.warning("nobody listens")
    noted = capsys.readouterr().err.splitlines()
    assert noted == [r"warning: the index\n[31mi.sqlite is damaged", "warning: answer degraded: answer empty"]
