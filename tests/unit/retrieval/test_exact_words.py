"""Codes, versions, scripts and sources in a whole retrieval: exact beats partial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import qtmiddleware as qtm

FILLER = [f"Notes on garden {'abcdefghij'[number % 10]}" for number in range(60)]


def wrap(
    texts: Sequence[str], metadata: Sequence[dict[str, Any]] = (), client: Any = None, **config: Any
) -> Any:
    """A search that returns *texts* and sixty others in this order, whatever is asked."""
    rows = [
        {
            "id": str(place),
            "score": 0.9 - place / 100,
            "text": text,
            "metadata": metadata[place] if place < len(metadata) else {},
        }
        for place, text in enumerate((*texts, *FILLER))
    ]
    middleware = qtm.QueryMiddleware(config, client=client)
    return middleware.wrap(lambda query, top_k=4: rows[:top_k])


@pytest.mark.parametrize(
    ("question", "wrong", "right"),
    [
        ("Upgrade to 2.10", "Upgrade to 10.2: new database.", "Upgrade to 2.10: new login."),
        ("10.0.0.12 is down", "Host 12.0.0.10 is the printer.", "Host 10.0.0.12 is the database."),
        ("screw 3.5 x 30", "Screw 3 x 30, 5 pieces", "Screw 3.5 x 30"),
        ("error E-210", "Error E-230 after 210 hours", "Error E210"),
        ("meeting of 2025-03-01", "Meeting of 2025-01-03", "Meeting of 2025-03-01"),
        ("CVE-2023-51177 fixed?", "CVE-2023-51771 is fixed", "CVE-2023-51177 is fixed"),
        ("Wie lange ist die Kündigungsfrist?", "Etwas", "Die Kündi\u00adgungs\u200bfrist"),
        ("ما هي احكام الايجار؟", "نص آخر", "أحكام الإيجار في القانون"),
        ("휴가는 며칠인가요?", "급여일은 언제", "휴가 일수는 25일"),
        ("健康診断はいつですか", "給与はいつですか", "2026年の健康診断"),
        ("order ፩፪፫፬", "Order ፬፫፪፩", "Order ፩፪፫፬"),
        (f"order {'1' * 5000}", "Order 11", f"Order {'1' * 5000}"),
        ("order 1234567", "Order 1234568", "Order 1.234.567"),
    ],
)
def test_the_passage_with_the_words_as_asked_is_first(
    question: str, wrong: str, right: str
) -> None:
    assert wrap([wrong, right])(question)[0]["text"] == right


def test_in_a_whole_collection_words_decide_between_close_passages_alone() -> None:
    def find_first(score: float) -> str:
        rows = [
            {"id": "a", "score": 0.9, "text": "Jaco health"},
            {"id": "b", "score": score, "text": "Jaco health concerns"},
            {"id": "c", "score": 0.2, "text": "The fee"},
        ]
        search = qtm.middleware(lambda query, top_k=2: rows[:top_k])
        return search("Does Jaco have health concerns?")[0]["id"]

    assert [find_first(0.89), find_first(0.6)] == ["b", "a"]


def test_the_beginning_of_a_long_text_is_read() -> None:
    found = wrap(["Notes. " * 200_000, f"The invoice. {'Notes. ' * 200_000}"]).retrieve("invoice?")
    assert (found.matches[0].id, found.status) == ("1", "full")


def test_a_version_in_the_metadata_outweighs_a_word_and_the_explanation_says_so() -> None:
    texts = ["We changed the login.", "Rounding, in 3 or 4 steps.", "New export."]
    versions = [{"version": number} for number in ("2.0.1", "4.3.1", "3.4.1")]
    r = wrap(texts, versions).retrieve("What changed in v3.4.1?")
    assert r.matches[0].id == "2"
    assert "version = 3.4.1" in qtm.evaluation.explain_movement(r).passages[0].why


def test_a_passage_with_function_words_alone_gets_no_evidence() -> None:
    texts = ["Apples and pears", "Loss of profit, cost of goods, cases of wine", "Hosted software"]
    evidence = wrap(texts).retrieve("sued because of the software").evidence
    shares = dict(zip(evidence.keys, evidence.shares, strict=True))
    assert shares["__default__", "2"] > 0 == shares["__default__", "1"]


@pytest.mark.parametrize(
    "question",
    [
        "2026年の健康診断はいつですか",
        "ChatGPTとは何ですか",
        "发票金额超过5000元怎么报销？",
        "PDF파일은 어떻게 올리나요?",
        "การเปลี่ยนรหัสในWindows11ทำอย่างไร",
    ],
)
def test_a_question_without_spaces_is_asked_though_it_holds_a_number_or_a_name(
    question: str,
) -> None:
    asked = []

    def model(messages: Any) -> str:
        asked.append(messages)
        return json.dumps({"rewrite": question})

    wrap(["x"], client=model, transformationType="rewrite").retrieve(question)
    assert len(asked) == 1


def test_one_text_from_two_sources_is_two_passages_beside_each_other() -> None:
    rows = [
        {"text": "Refunds take 14 days.", "score": 0.9, "metadata": {"source": "policy-0"}},
        {"text": "Refunds take 14 days.", "score": 0.8, "metadata": {"source": "policy-1"}},
        {"text": "Cats sleep.", "score": 0.2, "metadata": {"source": "cats"}},
    ]
    found = qtm.middleware(lambda query, top_k=2: rows[:top_k])("When are refunds paid?")
    assert [row["metadata"]["source"] for row in found] == ["policy-0", "policy-1"]


def test_check_says_that_a_code_may_lie_beyond_the_candidates() -> None:
    search = wrap(["Item 1"])
    assert "keywordEvidence.candidates above" not in str(search.check("Where is item 42?"))
    check = search.check("Where is item 4289?")
    (finding,) = [finding for finding in check.findings if finding.subject == "passages"]
    assert "none has `4289`" in finding.text
    assert "keywordEvidence.candidates above 50" in finding.fix
