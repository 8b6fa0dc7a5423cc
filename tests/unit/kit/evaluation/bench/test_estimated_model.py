from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.bench import EstimatedModel
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline

PROMPT = Prompt("rewrite", "1", "s" * 30, "u" * 11, (), "q")


def test_tokens_are_a_quarter_of_the_characters_and_cost_what_the_model_costs() -> None:
    model = EstimatedModel(ScriptedModel("r" * 9), "gpt-4o-mini", 0.75)
    found = model.complete(PROMPT, Deadline())
    assert found == asyncio.run(model.acomplete(PROMPT, Deadline()))
    assert (found.input_tokens, found.output_tokens, found.seconds) == (11, 3, 0.75)
    assert found.cost_usd == pytest.approx((11 * 0.15 + 3 * 0.6) / 1e6)
    assert model.name == "scripted"


def test_a_model_without_a_known_price_costs_nobody_knows_what_and_says_so() -> None:
    model = EstimatedModel(ScriptedModel("r"), "house-model")
    assert model.complete(PROMPT, Deadline()).cost_usd is None
    assert (
        model.note
        == "Tokens are estimated, 4 characters each; the prices of house-model are not known."
    )
    priced = EstimatedModel(
        ScriptedModel("r" * 4), "house-model", input_price=1.0, output_price=2.0
    )
    assert priced.complete(PROMPT, Deadline()).cost_usd == pytest.approx(13e-6)


def test_what_a_reply_says_itself_is_left_alone() -> None:
    class Counting(ScriptedModel):
        def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
            return replace(
                super().complete(prompt, deadline), input_tokens=2, cost_usd=None, seconds=0.1
            )

    found = EstimatedModel(Counting("r"), "gpt-4o-mini", 5.0).complete(PROMPT, Deadline())
    assert (found.input_tokens, found.output_tokens, found.cost_usd, found.seconds) == (
        2,
        0,
        None,
        0.1,
    )


def test_failures_pass_through() -> None:
    with pytest.raises(ModelError, match="empty"):
        EstimatedModel(ScriptedModel(ModelError("empty")), "gpt-4o-mini").complete(
            PROMPT, Deadline()
        )
