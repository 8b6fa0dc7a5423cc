"""What the command line writes."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtmiddleware.cli.console import as_json


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text() | st.text(st.characters(max_codepoint=0xFF)))
def test_json_holds_every_character_and_none_a_terminal_obeys(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = text.encode("utf-8", "replace").decode()
    as_json({"text": text})
    written = capsys.readouterr().out
    assert json.loads(written) == {"text": text}
    assert not any(ord(sign) < 0x20 or 0x7F <= ord(sign) < 0xA0 for sign in written if sign != "\n")
