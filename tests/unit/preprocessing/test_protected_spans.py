from __future__ import annotations

import pytest

from qtmiddleware.preprocessing import (
    Span,
    detect_language,
    find_dominant_script,
    find_protected_spans,
)

CASES = [
    ("Does Jaco have any health concerns?", [("name", "Jaco")]),
    ("What are Jaco's favorite activities?", [("name", "Jaco")]),
    ("DOES JACO HAVE ANY HEALTH CONCERNS?", []),
    ("What Is The Capital Of France?", []),
    ("Who are The Who?", [("name", "The Who")]),
    ("Who wrote The Hobbit?", [("name", "Hobbit")]),
    ("Marie Curie", [("name", "Marie Curie")]),
    ("Did Marie Curie, Niels Bohr or I win?", [("name", "Marie Curie"), ("name", "Niels Bohr")]),
    (
        "What did Will Smith say in May 2023?",
        [("name", "Will Smith"), ("name", "May"), ("number", "2023")],
    ),
    (
        "Does the IT department support C++ and .NET?",
        [("name", "IT"), ("identifier", "C++"), ("identifier", ".NET")],
    ),
    ("coûte-t-il 1 299,99 € ou 10 000 $?", [("number", "1 299,99 €"), ("number", "10 000 $")]),
    ("does it cost 1,000 € or -5°C", [("number", "1,000 €"), ("number", "-5°C")]),
    (
        "Does €100/month, € 5, 3 %, 20 °C or 5 kg of it count?",
        [
            ("number", "€100/month"),
            ("number", "€ 5"),
            ("number", "3 %"),
            ("number", "20 °C"),
            ("number", "5 kg"),
        ],
    ),
    ("What is the phone number of Dr. May Wong?", [("name", "Dr. May Wong")]),
    (
        "Who is Dr. Will Kirby of St. Will in Kent?",
        [("name", "Dr. Will Kirby"), ("name", "St. Will"), ("name", "Kent")],
    ),
    (
        "Did Prof. Dr. Mark Can meet Sgt. May Hill?",
        [("name", "Prof. Dr. Mark Can"), ("name", "Sgt. May Hill")],
    ),
    ("Which books did J. May Smith write?", [("name", "J. May Smith")]),
    ("I live in Main St. Where is the bus?", [("name", "Main St")]),
    ("Can I work w/o a license, or w/out a visa?", [("negation", "w/o"), ("negation", "w/out")]),
    (
        "how does foo::bar call snake_case?",
        [("identifier", "foo::bar"), ("identifier", "snake_case")],
    ),
    ('who said "to be or not to be"?', [("quote", "to be or not to be")]),
    ("who said “ to be ”?", [("quote", "to be")]),
    ("CCR5's effect in the V&A’s hall", [("identifier", "CCR5"), ("identifier", "V&A")]),
    ("what is not covered", [("negation", "not")]),
    ("is order no. 5 in room No. 7", [("number", "5"), ("number", "7")]),
    ("opens at 7 p.m., e.g. (~/.ssh/config)", [("number", "7"), ("identifier", "~/.ssh/config")]),
    ("Why can’t I log in without a phone?", [("negation", "can’t"), ("negation", "without")]),
    (
        "mail bob@example.com about https://a.example/b?c=1.",
        [("url", "bob@example.com"), ("url", "https://a.example/b?c=1")],
    ),
    ("ask @handle about #tags", [("identifier", "@handle"), ("identifier", "#tags")]),
    ("Welche Straße führt nach Köln?", []),
    ("Wie viele Bälle fing Josh Norman ab?", [("name", "Josh Norman")]),
    (
        "Warum wird mein Antrag von der NASA nicht bearbeitet?",
        [("name", "NASA"), ("negation", "nicht")],
    ),
    (
        "Pourquoi ne puis-je pas aller à Lyon ?",
        [("negation", "ne"), ("negation", "pas"), ("name", "Lyon")],
    ),
    ("", []),
]


@pytest.mark.parametrize(("query", "found"), CASES)
def test_what_a_rewrite_must_not_lose_is_found(query: str, found: list[tuple[str, str]]) -> None:
    assert [(span.kind, span.text) for span in find_protected_spans(query)] == found


def test_a_span_tells_its_place_but_not_its_text() -> None:
    (span,) = find_protected_spans("is 3.14 enough")
    assert span == Span("number", "3.14", 3, 7)
    assert "3.14" not in repr(span)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello", "latin"),
        ("¿Qué?", "latin"),
        ("Привет", "cyrillic"),
        ("Γειά σου", "greek"),
        ("法国的首都", "han"),
        ("日本の首都", "japanese"),
        ("カタカナ", "japanese"),
        ("서울의 인구", "hangul"),
        ("عاصمة فرنسا", "arabic"),
        ("שלום", "hebrew"),
        ("राजधानी", "devanagari"),
        ("กรุงเทพ", "thai"),
        ("What is the meaning of 你好?", "latin"),
        ("什么是这个语言的全局锁 Go", "han"),
        ("1234 ?!", ""),
        ("", ""),
    ],
)
def test_the_dominant_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert find_dominant_script(text) == script


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("what is love", "en"),
        ("is python fast", "en"),
        ("was the ship insured", "en"),
        ("Was this a success?", "en"),
        ("Wie oft finden Wahlen statt?", "de"),
        ("Wie heeft dat geschreven?", "nl"),
        ("En 1972, ¿acabó Noruega en la Unión Europea?", "es"),
        ("Was umgibt Chloroplasten?", "de"),
        ("Wer hat das Gedicht The Mask of Anarchy geschrieben?", "de"),
        ("health concerns", ""),
        ("los angeles", ""),
        ("die hard", "en"),
        ("Vad är huvudstaden i Sverige?", ""),
        ("Какая столица России?", ""),
        ("法国的首都是什么？", ""),
        ("", ""),
    ],
)
def test_a_language_is_named_only_where_it_is_clear(text: str, language: str) -> None:
    assert detect_language(text) == language


@pytest.mark.parametrize("text", ["Who plays in Will & Grace?", "Does x > 5 hold?"])
def test_a_lone_sign_may_be_put_into_words(text: str) -> None:
    assert not [span for span in find_protected_spans(text) if span.kind == "identifier"]
