"""A model whose fluent replies have nothing to do with the questions, so that each reply looks good."""

import json

import pytest

from qtmiddleware import QueryMiddleware
from qtmiddleware.retrieval.learned import LEAST_REPLIES, MOST_REPLIES
from qtmiddleware.testing import ScriptedModel

PLACES = ("lakes", "dunes", "fields", "rivers", "cliffs", "woods", "bogs", "hills", "huts")
WINDS = ("mild", "dry", "wild", "wet", "cold", "loud", "calm", "dark", "slow")
TEXTS = [
    "Tents with a second skin keep warm in winter",
    "Banks in Europe were first regulated in the nineteenth century",
    "A stove needs 40 g of gas for a litre of water",
    "The ferry leaves at noon",
]
FITTING = {
    "rewrite": "Which warm tent suits a winter journey?",
    "hyde": "In winter a tent with two layers keeps travellers warm.",
}
# Fitting rewrites with few of their questions' words as they are: compounds, endings, other words.
REWRITTEN = {
    "en": {f"what is E-{n}?": f"meaning and cause of error code E-{n}" for n in range(210, 215)},
    "de": {
        "Wie lange habe ich Garantie auf den Akku?": "Garantiedauer für den Akku",
        "Wann kommt mein Paket an?": "Voraussichtlicher Liefertermin des Pakets",
        "Welche Zahlungsarten gibt es?": "Welche Zahlungsmethoden werden akzeptiert?",
        "Wie ändere ich meine Adresse?": "Änderung der Lieferadresse im Kundenkonto",
    },
    "ru": {
        "Как отменить заказ?": "Порядок отмены заказа в интернет-магазине",
        "Когда придёт моя посылка?": "Ожидаемая дата доставки посылки",
        "Сколько стоит доставка в Казань?": "Стоимость доставки в Казань",
    },
    "tr": {
        "Siparişimi nasıl iptal ederim?": "Sipariş iptal prosedürü",
        "Kargom ne zaman gelir?": "Kargonun tahmini teslim tarihi",
    },
}
FLUENT = {
    "rewrite": "What is the history of banking law in Europe?",
    "step_back": "How are banks regulated?",
    "hyde": "Banks in Europe were regulated early, and their supervisors publish yearly reports.",
}


def find_texts(query: str, top_k: int = 4) -> list[dict[str, object]]:
    """Find the same texts for every question, and the banks first for a question about banks."""
    texts = sorted(TEXTS, key=lambda text: "Bank" in text and "bank" not in query)
    return [{"id": text, "text": text, "score": 0.9 - 0.1 * n} for n, text in enumerate(texts)][
        :top_k
    ]


def ask(number: int) -> str:
    return f"Which tent keeps warm in a {WINDS[number % 9]} winter near {PLACES[number // 9]}?"


def wrap(reply: dict[str, str], config: str = "balanced"):
    middleware = QueryMiddleware(config, client=ScriptedModel(json.dumps(reply)))
    return middleware, middleware.wrap(find_texts)


@pytest.mark.parametrize("config", ["balanced", {"transformationType": "rewrite"}])
def test_a_model_off_topic_is_not_used_after_twenty_replies(config):
    middleware, search = wrap(FLUENT, config)
    for number in range(LEAST_REPLIES):
        search.retrieve(ask(number))
    free = QueryMiddleware("rules").wrap(find_texts).retrieve(ask(80))
    retrieval = search.retrieve(ask(80))
    assert [match.key for match in retrieval.matches] == [match.key for match in free.matches]
    assert ("transform", "off_topic") in {(it.stage, it.reason) for it in retrieval.degradations}
    assert retrieval.status == "degraded"
    assert middleware.health()["model"]["kept"] < 0.5
    finding = {it.subject: it for it in search.check(ask(80)).findings}["model"]
    assert "not used" in finding.text
    assert finding.fix


def test_a_model_is_used_again_once_its_replies_fit():
    replies = iter([FLUENT] * LEAST_REPLIES + [FITTING] * MOST_REPLIES)
    model = ScriptedModel(lambda prompt: next(replies))
    search = QueryMiddleware("balanced", client=model).wrap(find_texts)
    reasons = [
        {it.reason for it in search.retrieve(ask(number)).degradations}
        for number in range(LEAST_REPLIES + MOST_REPLIES)
    ]
    assert "off_topic" in reasons[LEAST_REPLIES]
    assert "off_topic" not in reasons[-1]


@pytest.mark.parametrize("rewrites", REWRITTEN.values(), ids=REWRITTEN)
def test_a_model_that_fits_is_used_in_every_language(rewrites):
    model = ScriptedModel(lambda prompt: json.dumps({"rewrite": rewrites[prompt.query]}))
    config = {"transformationType": "rewrite", "cache": {"enabled": False}}
    search = QueryMiddleware(config, client=model).wrap(find_texts)
    for question in [*rewrites] * LEAST_REPLIES:
        retrieval = search.retrieve(question)
        assert (retrieval.transformation.rewrite, retrieval.degradations) == (
            rewrites[question],
            (),
        )
