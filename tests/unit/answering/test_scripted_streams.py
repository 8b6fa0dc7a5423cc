"""The double of a model that streams, for the tests of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline

PROMPT = Prompt("answer", "1", "instructions", "data", (), "Jaco?")


def heard(model: ScriptedModel, seconds: float = 30.0) -> list[Any]:
    """What the model streams; the same in both ways."""

    async def awaited() -> list[Any]:
        return [piece async for piece in model.astream(PROMPT, Deadline.after(seconds))]

    pieces = list(model.stream(PROMPT, Deadline.after(seconds)))
    assert asyncio.run(awaited()) == pieces
    return pieces


@given(st.text(max_size=40))
def test_a_text_comes_in_pieces_and_last_as_a_whole(text: str) -> None:
    *pieces, reply = list(ScriptedModel(text).stream(PROMPT, Deadline()))
    assert "".join(pieces) == text
    assert reply == Reply(text)
    assert len(pieces) >= len(text) / 8


def test_a_list_is_streamed_in_its_own_pieces_and_replied_as_one() -> None:
    model = ScriptedModel(["Jaco ", 0.001, "is", " fit."])
    assert heard(model) == ["Jaco ", "is", " fit.", Reply("Jaco is fit.")]
    assert model.complete(PROMPT, Deadline()) == Reply("Jaco is fit.")
    assert model.prompts == [PROMPT] * 3


def test_an_exception_breaks_the_stream_where_it_stands() -> None:
    stream = ScriptedModel(["Jaco", ModelError("unavailable")]).stream(PROMPT, Deadline())
    assert next(stream) == "Jaco"
    with pytest.raises(ModelError, match="unavailable"):
        next(stream)


@pytest.mark.parametrize("script", [["Jaco", 30.0], "Jaco"])
def test_a_pause_ends_at_the_deadline(script: Any) -> None:
    model = ScriptedModel(script, seconds=0.0 if isinstance(script, list) else 30.0)
    with pytest.raises(ModelError) as caught:
        heard(model, 0.02)
    assert caught.value.reason == "timeout"
