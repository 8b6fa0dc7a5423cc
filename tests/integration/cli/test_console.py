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
            sampler.log(
                logger, "retrieval degraded", ["llm timeout"], message="retrieval 1 degraded"
            )
        sampler.log(logger, "answer degraded", ["answer empty"])
        sampler.flush(logger)
        logger.info("nothing happened")
    logger.warning("nobody listens")
    noted = capsys.readouterr().err.splitlines()
    assert noted == [
        r"warning: the index\n\u001b[31mi.sqlite is damaged",
        "warning: answer degraded: answer empty",
    ]


# --- on a terminal --------------------------------------------------------------------------------


def on_terminal(width: int = 80) -> tuple[PlainConsole, io.StringIO]:
    file = io.StringIO()
    return PlainConsole(file=file, force_terminal=True, width=width, color_system=None), file


@given(
    st.lists(st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=30), max_size=60)
)
def test_on_a_terminal_no_word_or_number_is_broken(words: list[str]) -> None:
    console, file = on_terminal()
    console.write(" ".join(words))
    assert file.getvalue().split() == words


@given(st.text(st.characters(categories=["L", "Nd"]), min_size=81, max_size=300))
def test_a_word_longer_than_a_line_can_be_copied_whole(word: str) -> None:
    console, file = on_terminal()
    console.write(word)
    assert word in file.getvalue()


def test_in_a_pipe_a_sentence_stays_on_one_line() -> None:
    file = io.StringIO()
    PlainConsole(file=file, width=80).write("word " * 100)
    assert len(file.getvalue().splitlines()) == 1
