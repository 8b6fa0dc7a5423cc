"""The doubles that are for the tests of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline

PROMPT = Prompt("rewrite", "1", "instructions", "data", (), "Jaco?")


@pytest.fixture(params=["complete", "acomplete"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Reply]:
    def asked(
        model: ScriptedModel, prompt: Prompt = PROMPT, deadline: Deadline | None = None
    ) -> Reply:
        deadline = deadline or Deadline()
        if request.param == "complete":
            return model.complete(prompt, deadline)
        return asyncio.run(model.acomplete(prompt, deadline))

    return asked


def test_a_scripted_model_is_a_language_model() -> None:
    model = ScriptedModel("x", name="mine")
    assert isinstance(model, LanguageModel)
    assert model.name == "mine"
    assert ScriptedModel("x").name == "scripted"


def test_a_text_is_replied_as_it_is(ask: Callable[..., Reply]) -> None:
    assert ask(ScriptedModel("any { text")) == Reply("any { text")


def test_a_mapping_is_replied_as_json(ask: Callable[..., Reply]) -> None:
    reply = ask(ScriptedModel({"rewrite": "Où est Jaco ?"}))
    assert json.loads(reply.text) == {"rewrite": "Où est Jaco ?"}
    assert "Où" in reply.text


def test_an_exception_is_raised(ask: Callable[..., Reply]) -> None:
    error = ModelError("refused")
    with pytest.raises(ModelError) as caught:
        ask(ScriptedModel(error))
    assert caught.value is error


def test_a_function_sees_the_prompt(ask: Callable[..., Reply]) -> None:
    def script(prompt: Prompt) -> Any:
        return {prompt.mode: prompt.query}

    assert json.loads(ask(ScriptedModel(script)).text) == {"rewrite": "Jaco?"}


def test_a_function_may_return_an_exception_or_another_function(ask: Callable[..., Reply]) -> None:
    with pytest.raises(ModelError, match="empty"):
        ask(ScriptedModel(lambda _: ModelError("empty")))
    assert ask(ScriptedModel(lambda _: lambda prompt: prompt.query)).text == "Jaco?"


def test_what_was_asked_is_kept(ask: Callable[..., Reply]) -> None:
    model = ScriptedModel("x")
    ask(model)
    ask(model)
    assert model.prompts == [PROMPT, PROMPT]


def test_a_reply_that_takes_longer_than_there_is_time_is_a_timeout(
    ask: Callable[..., Reply],
) -> None:
    with pytest.raises(ModelError) as caught:
        ask(ScriptedModel("x", seconds=30.0), deadline=Deadline.after(0.01))
    assert caught.value.reason == "timeout"


def test_a_reply_in_time_is_given(ask: Callable[..., Reply]) -> None:
    assert ask(ScriptedModel("x", seconds=0.001), deadline=Deadline.after(30.0)).text == "x"


def test_a_scripted_model_stands_in_for_a_real_one() -> None:
    model = ScriptedModel({"rewrite": "Which illness does Jaco have?"})
    qm = qtm.QueryMiddleware({"transformationType": "rewrite"}, client=model)
    assert (
        qm.transform("Does Jaco have any health concerns?").rewrite
        == "Which illness does Jaco have?"
    )
