"""The model that is scripted, for the tests of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline

PROMPT = Prompt("rewrite", "1", "instructions", "data", (), "Jaco?")


def heard(script: Any, seconds: float = 0.0, deadline: float = 30.0) -> list[Any]:
    """What the model streams and then replies; the same in all ways."""
    model = ScriptedModel(script, seconds=seconds)

    async def awaited() -> list[Any]:
        pieces = [piece async for piece in model.astream(PROMPT, Deadline.after(deadline))]
        return [*pieces, await model.acomplete(PROMPT, Deadline.after(deadline))]

    pieces = [*model.stream(PROMPT, Deadline.after(deadline))]
    pieces.append(model.complete(PROMPT, Deadline.after(deadline)))
    assert asyncio.run(awaited()) == pieces
    assert model.prompts == [PROMPT] * 4
    return pieces


@given(st.text(max_size=40))
def test_a_text_comes_in_pieces_and_last_as_a_whole(text: str) -> None:
    *pieces, reply, whole = heard(text)
    assert "".join(pieces) == text
    assert reply == whole == Reply(text)
    assert len(pieces) >= len(text) / 8


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (["Jaco ", 0.001, "is", " fit."], "Jaco is fit."),
        (lambda prompt: lambda prompt: prompt.query, "Jaco?"),
        (lambda prompt: {prompt.mode: "Où ?"}, '{"rewrite": "Où ?"}'),
    ],
    ids=["list", "functions", "mapping"],
)
def test_a_script_may_be_a_list_a_function_or_a_mapping(script: Any, text: str) -> None:
    assert heard(script, 0.001)[-1] == Reply(text)
    if isinstance(script, list):
        assert heard(script)[:3] == ["Jaco ", "is", " fit."]


@pytest.mark.parametrize(
    "script",
    [ModelError("empty"), lambda prompt: ["x", ModelError("empty")]],
)
def test_an_exception_is_raised_where_it_stands(script: Any) -> None:
    stream = ScriptedModel(script).stream(PROMPT, Deadline())
    if callable(script):
        assert next(stream) == "x"
    with pytest.raises(ModelError, match="empty"):
        next(stream)


@pytest.mark.parametrize(("script", "seconds"), [(["Jaco", 30.0], 0.0), ("Jaco", 30.0)])
def test_a_pause_ends_at_the_deadline(script: Any, seconds: float) -> None:
    with pytest.raises(ModelError) as caught:
        heard(script, seconds, 0.02)
    assert caught.value.reason == "timeout"


def test_a_scripted_model_stands_in_for_a_real_one() -> None:
    model = ScriptedModel({"rewrite": "Which illness does Jaco have?"}, name="mine")
    assert isinstance(model, LanguageModel)
    assert (model.name, ScriptedModel("x").name) == ("mine", "scripted")
    found = qtm.QueryMiddleware(
        {"transformationType": "rewrite"},
        client=model,
    ).transform("Jaco?")
    assert found.rewrite == "Which illness does Jaco have?"
