"""What a ``.env`` file is to the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.answering_service import AnsweringService
from tests.cli.conftest import Ended
from tests.cli.conversing import HEALTH, QUESTION

Run = Callable[..., Ended]
SECRET = "sk-verysecret0123456789"


def test_a_file_above_sets_what_is_not_set_yet(qtm: Run, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        f'\ufeffQTM_TOP_K=7\nexport QTM_CHUNK_SIZE="900"\nOPENAI_API_KEY={SECRET}\n', "utf-8"
    )
    below = tmp_path / "some" / "where"
    below.mkdir(parents=True)
    ended = qtm("config", "show", "--json", folder=below, QTM_CHUNK_SIZE="1000")
    rows = {row["key"]: (row["value"], row["origin"]) for row in json.loads(ended.out)}
    assert rows["topK"] == (7, "environment QTM_TOP_K")
    assert rows["chunkSize"] == (1000, "environment QTM_CHUNK_SIZE")
    assert SECRET not in ended.out + ended.err


def test_the_model_may_be_named_in_it(qtm: Run, folder: Path, service: AnsweringService) -> None:
    (folder / ".env").write_text(f"QTM_LLM_BASE_URL={service.url}\nOPENAI_API_KEY={SECRET}\n", encoding="utf-8")
    ended = qtm("ask", QUESTION)
    assert (ended.code, ended.err) == (0, "")
    assert HEALTH in ended.out
    assert service.keys == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("content", [b"OPENAI_API_KEY=\xff\xfe", f"A=b\nQTM_TOP_K='{SECRET}\x00'\n".encode()])
def test_one_that_cannot_be_read_is_noted_and_no_error(qtm: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".env").write_bytes(content)
    ended = qtm("preprocess", QUESTION)
    assert (ended.code, ended.out) == (0, "jaco health concerns\n")
    assert "qtm: note: " in ended.err
    assert ".env was not read" in ended.err
    assert SECRET not in ended.err
