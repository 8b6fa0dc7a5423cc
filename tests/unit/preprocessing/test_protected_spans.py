from __future__ import annotations

import pytest

from qtmiddleware.preprocessing import (
    detect_language,
    find_dominant_script,
    find_protected_spans,
)

CASES = [
    ("Does Jaco have any health concerns?", [("name", "Jaco")]),
    ("What are Jaco's favorite activities?", [("name", "Jaco")]),
    ("What Is The Capital Of France?", []),
    ("Who wrote The Hobbit?", [("name", "Hobbit")]),
    ("Did Marie Curie, Niels Bohr or I win?", [("name", "Marie Curie"), ("name", "Niels Bohr")]),
    (
        "Does the IT department support C++ and .NET?",
        [("name", "IT"), ("identifier", "C++"), ("identifier", ".NET")],
    ),
    ("coûte-t-il 1 299,99 € ou 10 000 $?", [("number", "1 299,99 €"), ("number", "10 000 $")]),
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
    (
        "Who is Dr. Will Kirby of St. Will in Kent?",
        [("name", "Dr. Will Kirby"), ("name", "St. Will"), ("name", "Kent")],
    ),
    ("Can I work w/o a license, or w/out a visa?", [("negation", "w/o"), ("negation", "w/out")]),
    ("What does Dr. Wong do?", [("name", "Dr. Wong")]),
    ("Ask the Dr. What does J. Mason need?", [("name", "Dr"), ("name", "J. Mason")]),
    ('who said "to be or not to be"?', [("quote", "to be or not to be")]),
    (
        """Is "2 for 1" from the '90s or the '80s?""",
        [("quote", "2 for 1"), ("number", "90s"), ("number", "80s")],
    ),
    ("CCR5's effect in the V&A’s hall", [("identifier", "CCR5"), ("identifier", "V&A")]),
    ("opens at 7 p.m., e.g. (~/.ssh/config)", [("number", "7"), ("identifier", "~/.ssh/config")]),
    ("Why can’t I log in without a phone?", [("negation", "can’t"), ("negation", "without")]),
    (
        "mail bob@example.com about https://a.example/b?c=1.",
        [("url", "bob@example.com"), ("url", "https://a.example/b?c=1")],
    ),
    (
        "Warum wird mein Antrag von der NASA nicht bearbeitet?",
        [("name", "NASA"), ("negation", "nicht")],
    ),
    (
        "Pourquoi ne puis-je pas aller à Lyon ?",
        [("negation", "ne"), ("negation", "pas"), ("name", "Lyon")],
    ),
    ("保険が適用されない治療は何ですか", [("negation", "ない")]),
    ("ما العلاجات التي لا يغطيها التأمين؟", [("negation", "لا")]),
    ("是不是可以退款", []),
    # Too short to tell the language.
    ("Tarife ohne Zahnersatz", [("negation", "ohne"), ("name", "Zahnersatz")]),
    ("Forfaits sans soins dentaires", [("negation", "sans")]),
    ("Planes sin cobertura dental", [("negation", "sin")]),
    ("Piani senza cure dentali", [("negation", "senza")]),
    ("Planos sem tratamento", [("negation", "sem")]),
    ("Polissen zonder tandarts", [("negation", "zonder")]),
    ("POLISSEN ZONDER TANDARTS", [("negation", "ZONDER")]),
    ("SEM images", [("name", "SEM")]),
    ("", []),
]


@pytest.mark.parametrize(("query", "found"), CASES)
def test_what_a_rewrite_must_not_lose_is_found(query: str, found: list[tuple[str, str]]) -> None:
    assert [(span.kind, span.text) for span in find_protected_spans(query)] == found


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello", "latin"),
        ("法国的首都", "han"),
        ("日本の首都", "japanese"),
        ("서울의 인구", "hangul"),
        ("What is the meaning of 你好?", "latin"),
        ("", ""),
    ],
)
def test_the_dominant_script_is_that_of_most_letters(text: str, script: str) -> None:
    assert find_dominant_script(text) == script


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Was this a success?", "en"),
        ("Wie oft finden Wahlen statt?", "de"),
        ("En 1972, ¿acabó Noruega en la Unión Europea?", "es"),
        ("Wer hat das Gedicht The Mask of Anarchy geschrieben?", "de"),
        ("los angeles", ""),
        ("", ""),
    ],
)
def test_a_language_is_named_only_where_it_is_clear(text: str, language: str) -> None:
    assert detect_language(text) == language
