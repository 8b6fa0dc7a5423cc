from __future__ import annotations

from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.judging import judge
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.providers.llms import make_language_model
from tests.support.judging_world import QUESTIONS, by_length, long, short
from tests.support.model_server import ModelServer, Said, failure

SECRET = "sk-verysecret0123456789"


def verdict(body: dict[str, Any]) -> Said:
    """What a judge says who goes by the length of answers, and fails for one question."""
    user = body["messages"][1]["content"]
    if "number 5" in user:
        return failure(503)
    # In the strict schema every value is a string.
    return {
        key: str(value) for key, value in by_length(Prompt("rank", "1", "", user, (), user)).items()
    }


@pytest.fixture
def model(bare_environment: None, model_server: ModelServer) -> LanguageModel:
    return make_language_model(
        openai.OpenAI(base_url=model_server.url, api_key=SECRET, max_retries=0), Settings()
    )


def test_a_real_client_judges_in_both_orders_and_says_what_it_cost(
    model_server: ModelServer, model: LanguageModel
) -> None:
    model_server.reply = verdict
    result = judge(short, long, QUESTIONS, model, baseline_name="raw", challenger_name="combined")
    assert (result.wins, result.losses, result.ties, result.failed) == (7, 0, 0, 1)
    assert result.judge == "gpt-6-luna"
    assert len(model_server.bodies) == 16
    assert result.cost_usd == pytest.approx(14 * (100 * 0.10 + 20 * 0.50) / 1e6)
    for body in model_server.bodies:
        system, user = (message["content"] for message in body["messages"])
        assert "What is number" in user
        assert "What is number" not in system
        required = body["response_format"]["json_schema"]["schema"]["required"]
        assert required[-2:] == ["reason", "ranking"]


def test_a_refused_key_is_said_without_the_key(
    model_server: ModelServer, model: LanguageModel
) -> None:
    model_server.reply = failure(401, f"bad key {SECRET}")
    with pytest.raises(ModelError) as caught:
        judge(short, long, QUESTIONS, model, baseline_name="raw", challenger_name="combined")
    assert caught.value.reason == "unauthorized"
    assert SECRET not in str(caught.value)
