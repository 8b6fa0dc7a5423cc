"""What the model is asked about a question, in which rounds, and what is made of its replies."""

from __future__ import annotations

from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import REASONS, ModelError
from tests.support.retrieval_world import Searched, Way, reasons, transforming

QUERY = "What did Acme pay for order A-113 in 2023?"
HISTORY = [("user", "Tell me about Acme."), ("assistant", "Acme is a customer.")]


def wrap(reply: Any, kind: str = "rewrite") -> Searched:
    return Way("sync").wrap(config=transforming(kind), script=reply)


def transform(reply: Any, query: str = QUERY, history: Any = ()) -> qtm.Retrieval:
    return wrap(reply).retrieve(query, history=history)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_call_that_failed_has_cost_nothing_where_it_is_free_and_nobody_knows_what_elsewhere(
    reason: str,
) -> None:
    error = ModelError(reason)
    trace = transform(error).trace
    assert (trace.llm_calls, trace.input_tokens) == (int(error.was_asked), 0)
    assert trace.cost_usd == (0.0 if error.is_free else None)


SPANISH = "¿Cuándo se publicó el informe sobre la calidad del agua?"


@pytest.mark.parametrize(
    ("query", "history", "rewrite", "trouble"),
    [
        (SPANISH, (), "fecha de publicación del informe anual sobre la calidad del agua", []),
        (
            SPANISH,
            (),
            "When was the report about the quality of the water published?",
            [("transform", "language_mismatch")],
        ),
        (QUERY, HISTORY, "What do customers pay for orders?", [("transform", "dropped")]),
    ],
    ids=["kept", "another language", "lost too much"],
)
def test_a_rewrite_in_another_language_or_that_lost_too_much_is_not_searched(
    query: str, history: Any, rewrite: str, trouble: list[tuple[str, str]]
) -> None:
    found = transform({"rewrite": rewrite}, query, history)
    assert reasons(found) == trouble
    assert (rewrite in [variant.text for variant in found.variants]) == (not trouble)
