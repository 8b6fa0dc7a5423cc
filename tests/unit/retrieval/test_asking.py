"""What the model is asked about a question, in which rounds, and what is made of its replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qtmiddleware.config.settings import LlmSettings, Settings
from qtmiddleware.errors import REASONS, ModelError
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.protocols import Reply
from qtmiddleware.retrieval.question import Question
from qtmiddleware.runtime.io import Outcome
from qtmiddleware.types import Degradation, Message, Trace, Transformation

QUERY = "What did Acme pay for order A-113 in 2023?"
HISTORY = (Message("user", "Tell me about Acme."), Message("assistant", "Acme is a customer."))


def settings(kind: Any = "rewrite", **llm: Any) -> Settings:
    return Settings(transformation_type=kind, llm=LlmSettings(**llm))


def modes(question: Question) -> list[str]:
    return [prompt.mode for prompt in question.prompts]


def came(*replies: Any) -> list[Outcome]:
    """What came of the questions: texts and mappings are replies, errors were raised, ``None`` is late."""
    outcomes = []
    for reply in replies:
        if reply is None:
            outcomes.append(Outcome(late=True))
        elif isinstance(reply, Exception):
            outcomes.append(Outcome(error=reply))
        else:
            text = reply if isinstance(reply, str) else json.dumps(reply)
            outcomes.append(Outcome(Reply(text, 10, 5, cost_usd=0.25)))
    return outcomes


def understood(question: Question, query: str = QUERY) -> Transformation:
    return question.repair_or_drop_texts(query, find_protected_spans(query, language="en"), "en")


# --- what is asked --------------------------------------------------------------------------------


def test_in_a_conversation_all_asks_for_the_standalone_form_first() -> None:
    question = Question("And in 2024?", HISTORY, settings("all"))
    assert modes(question) == ["standalone"]
    assert question.read_replies(came({"standalone": "What did Acme pay in 2024?"}), Trace())
    assert modes(question) == ["rewrite", "stepback", "decompose"]
    assert {prompt.query for prompt in question.prompts} == {"What did Acme pay in 2024?"}
    assert not question.read_replies(
        came({"rewrite": "How much did Acme pay in 2024?"}, "", None), Trace()
    )


@pytest.mark.parametrize("reply", [None, ModelError("refused"), {"standalone": "And in 2024?"}])
def test_without_a_standalone_form_the_question_itself_is_asked_about(reply: Any) -> None:
    question = Question("And in 2024?", HISTORY, settings("all"))
    assert question.read_replies(came(reply), Trace())
    assert {prompt.query for prompt in question.prompts} == {"And in 2024?"}


# --- what is made of the replies ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (None, "timeout", ""),
        (ModelError("rate_limited", "too many"), "rate_limited", "too many"),
        (RuntimeError("secret"), "failed", "RuntimeError"),
        (
            "I'm sorry, I can't help with that.",
            "refused",
            "the model refused to transform the query",
        ),
    ],
)
def test_what_went_wrong_is_told_by_its_reason(reply: Any, reason: str, detail: str) -> None:
    question, trace = Question(QUERY, (), settings()), Trace()
    question.read_replies(came(reply), trace)
    assert question.reply_degradations == [Degradation("transform.rewrite", reason, detail)]
    assert understood(question).is_empty
    assert trace.llm_calls == 1
    (stage,) = trace.stages
    assert (stage.name, stage.status, stage.detail) == ("transform.rewrite", "degraded", reason)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_call_that_failed_has_cost_nothing_where_it_is_free_and_nobody_knows_what_elsewhere(
    reason: str,
) -> None:
    error, trace = ModelError(reason), Trace()
    Question(QUERY, (), settings()).read_replies(came(error), trace)
    assert (trace.llm_calls, trace.input_tokens, trace.output_tokens) == (
        int(error.was_asked),
        0,
        0,
    )
    assert trace.cost_usd == (0.0 if error.is_free else None)


def test_in_a_conversation_a_rewrite_is_held_against_the_standalone_form() -> None:
    question = Question("And for A-114?", HISTORY, settings())
    reply = {
        "standalone": "What did Acme pay for order A-114?",
        "rewrite": "How much money was spent on order A-114?",
    }
    question.read_replies(came(reply), Trace())
    made = understood(question, "And for A-114?")
    assert made.standalone == "What did Acme pay for order A-114?"
    assert made.rewrite is not None
    assert "Acme" in made.rewrite


def test_a_standalone_form_that_lost_what_the_user_wrote_gets_it_back() -> None:
    question = Question("And for A-114?", HISTORY, settings())
    question.read_replies(came({"standalone": "What did Acme pay for its orders?"}), Trace())
    assert (
        understood(question, "And for A-114?").standalone
        == "What did Acme pay for its orders? (A-114)"
    )


SPANISH = "¿Cuándo se publicó el informe sobre la calidad del agua?"


def in_spanish(rewrite: str) -> tuple[Transformation, list[Degradation]]:
    question = Question(SPANISH, (), settings())
    question.read_replies(came({"rewrite": rewrite}), Trace())
    return question.repair_or_drop_texts(
        SPANISH, find_protected_spans(SPANISH, language="es"), "es"
    ), question.reply_degradations


def test_a_model_that_falls_into_english_is_not_searched_for() -> None:
    made, trouble = in_spanish("When was the report about the quality of the water published?")
    assert made.is_empty
    assert [(it.stage, it.reason) for it in trouble] == [("transform", "language_mismatch")]


def test_a_rewrite_that_lost_too_much_is_no_mismatch_though_another_text_is_missing() -> None:
    question = Question(QUERY, HISTORY, settings())
    question.read_replies(came({"rewrite": "What do customers pay for their orders?"}), Trace())
    made = understood(question)
    assert made.is_empty
    assert ("standalone", "missing") in made.notes
    assert [(it.stage, it.reason) for it in question.reply_degradations] == [
        ("transform", "dropped")
    ]


def test_a_rewrite_in_the_language_of_the_question_stays() -> None:
    rewrite = "fecha de publicación del informe anual sobre la calidad del agua potable"
    made, trouble = in_spanish(rewrite)
    assert (made.rewrite, trouble) == (rewrite, [])
