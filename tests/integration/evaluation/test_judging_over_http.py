from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import Question, rank
from qtmiddleware.protocols import LanguageModel
from qtmiddleware.providers.llms import make_language_model
from tests.support.answering_service import rank_by_words
from tests.support.model_server import ModelServer, Said, failure

SECRET = "sk-verysecret0123456789"
QUESTIONS = [
    Question(f"q{n}", f"What is number {n}?", metadata={"answer": f"It is {n}."}) for n in range(8)
]
ANSWERS = {
    "off": {it.id: "No idea." for it in QUESTIONS},
    "rules": {it.id: f"It is {it.id[1:]}, says the vet." for it in QUESTIONS},
}


def verdict(body: dict[str, Any]) -> Said:
    """What a judge says who goes by the number of words, and fails for one question."""
    user = body["messages"][1]["content"]
    return failure(503) if "number 5" in user else rank_by_words(json.loads(user))


@pytest.fixture
def model(bare_environment: None, model_server: ModelServer) -> LanguageModel:
    return make_language_model(
        openai.OpenAI(base_url=model_server.url, api_key=SECRET, max_retries=0), Settings()
    )


def test_a_real_client_judges_in_both_orders_and_says_what_it_cost(
    model_server: ModelServer, model: LanguageModel
) -> None:
    model_server.reply = verdict
    result = rank(QUESTIONS, ANSWERS, model)
    assert [(it.system, it.firsts) for it in result.standings] == [("rules", 7), ("off", 0)]
    assert (result.judge, result.failed) == ("gpt-6-luna", 1)
    assert len(model_server.bodies) == 16
    assert result.cost_usd == pytest.approx(14 * (100 * 0.10 + 20 * 0.50) / 1e6)
    for body in model_server.bodies:
        system, user = (message["content"] for message in body["messages"])
        assert "What is number" in user
        assert "What is number" not in system
        required = body["response_format"]["json_schema"]["schema"]["required"]
        assert required[-2:] == ["reason", "ranking"]


def test_a_refused_key_ends_it_and_is_said_without_the_key(
    model_server: ModelServer, model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    model_server.reply = failure(401, f"bad key {SECRET}")
    result = rank(QUESTIONS, ANSWERS, model)
    assert [it.error for it in result.questions] == ["unauthorized", *["cancelled"] * 7]
    assert len(model_server.bodies) == 2
    assert SECRET not in caplog.text + str(result.to_dict())
