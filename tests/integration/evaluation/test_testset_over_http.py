from __future__ import annotations

from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.testset import generate
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.providers.llms import make_language_model
from tests.support.model_server import ModelServer, Said, failure
from tests.support.testset_world import bridges, writer

SECRET = "sk-verysecret0123456789"


def written(body: dict[str, Any]) -> Said:
    """What the writer says to the prompt that *body* holds."""
    user = body["messages"][1]["content"]
    return writer(Prompt(body["response_format"]["json_schema"]["name"], "1", "", user, (), user))


@pytest.fixture
def service(model_server: ModelServer) -> ModelServer:
    model_server.reply = written
    return model_server


@pytest.fixture
def model(bare_environment: None, service: ModelServer) -> LanguageModel:
    return make_language_model(
        openai.OpenAI(base_url=service.url, api_key=SECRET, max_retries=0), Settings()
    )


def test_questions_are_asked_for_and_checked_in_two_small_calls_each(
    service: ModelServer, model: LanguageModel
) -> None:
    result = generate(bridges(6), model, count=4)
    assert len(result.dataset.questions) == 4
    assert len(service.bodies) == 8
    assert result.cost_usd == pytest.approx(8 * (100 * 0.10 + 20 * 0.50) / 1e6)
    for body in service.bodies:
        schema = body["response_format"]["json_schema"]["schema"]
        assert set(schema["required"]) in ({"question", "answer"}, {"quote", "answers"})
        assert "Bridge" not in body["messages"][0]["content"]


def test_calls_that_fail_now_and_then_cost_their_passages_alone(
    service: ModelServer, model: LanguageModel
) -> None:
    service.reply = lambda body: failure(500) if len(service.bodies) % 4 == 0 else written(body)
    result = generate(bridges(24), model, count=4)
    assert len(result.dataset.questions) == 4
    assert result.dropped == {"unavailable": result.asked - 4}


def test_a_refused_key_is_said_at_once_and_without_the_key(
    service: ModelServer, model: LanguageModel
) -> None:
    service.reply = failure(401, f"no luck with {SECRET}")
    with pytest.raises(ModelError) as caught:
        generate(bridges(24), model, count=20)
    assert caught.value.reason == "unauthorized"
    assert SECRET not in str(caught.value)
    assert len(service.bodies) == 8


def test_a_service_that_never_answers_is_given_up(
    service: ModelServer, model: LanguageModel
) -> None:
    service.reply = service.hang
    with pytest.raises(ModelError) as caught:
        generate(bridges(24), model, count=20, timeout=0.2)
    assert caught.value.reason == "timeout"
