from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.testsets.filtering import (
    extract_content_words,
    find_fault,
    has_reference_to_passage,
    has_too_many_copied_words,
    is_in_other_language,
    is_valid_quote,
    normalize_words,
)
from qtmiddleware.kit.evaluation.testsets.passages import is_prose
from tests.support.shared_data import SHARED, needs_shared_data

CLIMATE = (
    "The Intergovernmental Panel on Climate Change found in 2021 that greenhouse gases such as carbon dioxide and "
    "methane trap heat in the lower atmosphere, which raises the mean temperature of the oceans."
)
GERMAN = "Die Brücke wurde nach langer Verzögerung im Jahr 1850 für den Verkehr freigegeben und ist seitdem offen."


@pytest.mark.parametrize(
    "question",
    [
        "Why do greenhouse gases such as carbon dioxide and methane trap heat in the lower atmosphere?",
        "What do carbon dioxide and methane trap heat in the lower atmosphere for?",
        "WHICH RAISES THE MEAN TEMPERATURE OF THE OCEANS?",
        "Is it true that greenhouse gases, such as carbon-dioxide and methane, trap heat?",
    ],
)
def test_a_question_in_the_passages_own_words_is_copied(question: str) -> None:
    assert has_too_many_copied_words(question, CLIMATE)


@pytest.mark.parametrize(
    "question",
    [
        "What did the Intergovernmental Panel on Climate Change find out in 2021?",
        "What is the Intergovernmental Panel on Climate Change?",
        "Why are the seas getting warmer?",
        "How does carbon dioxide warm the oceans?",
        "Methane?",
        "",
    ],
)
def test_names_and_terms_alone_are_not_copied(question: str) -> None:
    assert not has_too_many_copied_words(question, CLIMATE)


def test_copying_is_seen_where_words_have_no_spaces_between_them() -> None:
    text = "気候変動に関する政府間パネルは二酸化炭素などの温室効果ガスが大気の下層に熱を閉じ込めると報告した。"
    assert has_too_many_copied_words(
        "温室効果ガスが大気の下層に熱を閉じ込めると誰が報告した?", text
    )
    assert not has_too_many_copied_words("地球が暑くなるのはなぜですか?", text)
    assert not has_too_many_copied_words("気候変動に関する政府間パネルとは何ですか?", text)


@settings(deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_what_is_copied_is_copied_wherever_it_stands(question: str, around: str) -> None:
    assert has_too_many_copied_words(
        question, f"{around} {question} {around}"
    ) >= has_too_many_copied_words(question, question)


@pytest.mark.parametrize(
    "question",
    [
        "What does the passage say about heat?",
        "According to this document, who came first?",
        "Who is the author and what does he want?",
        "Which gases are mentioned above?",
        "What is shown in the table?",
        "What can be learned from the given text?",
        "Was steht laut Text über die Brücke?",
        "Was sagt der Autor über die Brücke?",
        "Worum geht es in diesem Abschnitt?",
        "Que dit le texte sur le pont ?",
        "Que pense l'auteur ?",
        "Que pense l’auteur de ce passage ?",
        "¿Qué dice el texto sobre el puente?",
        "Che cosa dice l'autore nel brano?",
        "O que diz o texto sobre a ponte?",
        "Wat zegt de tekst over de brug?",
    ],
)
def test_a_question_that_speaks_of_its_text_is_known(question: str) -> None:
    assert has_reference_to_passage(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who is the author of Emma?",
        "What does article 5 of the treaty say?",
        "How is the Text API called?",
        "Where can I find a document scanner?",
        "How many pages may a passage have?",
        "What is context in linguistics?",
        "Wer ist der Autor von Emma?",
        "Was steht im Artikel 5 der Verfassung?",
        "Que dit l'article 5 du traité ?",
        "",
    ],
)
def test_texts_in_the_world_may_be_asked_for(question: str) -> None:
    assert not has_reference_to_passage(question)


@pytest.mark.parametrize(
    ("question", "text", "other"),
    [
        ("Wann wurde die Brücke freigegeben?", CLIMATE, True),
        ("When was the bridge opened to the public?", GERMAN, True),
        ("Wann wurde die Brücke freigegeben?", GERMAN, False),
        ("Why do the oceans get warmer?", CLIMATE, False),
        ("Was Amy Winehouse a fan of bridges?", CLIMATE, False),
        ("Почему теплеют океаны?", CLIMATE, True),
        ("Methan?", CLIMATE, False),
    ],
)
def test_a_question_in_another_language_is_known_where_it_is_clear(
    question: str, text: str, other: bool
) -> None:
    assert is_in_other_language(question, text) is other


@pytest.mark.parametrize(
    "quote",
    [
        "greenhouse gases such as carbon dioxide",
        "GREENHOUSE\n  gases, such as: carbon-dioxide",
        "“The Intergovernmental Panel … found in 2021”",
        "greenhouse gases [...] trap heat",
    ],
)
def test_a_quote_is_found_whatever_its_spaces_case_and_marks(quote: str) -> None:
    assert is_valid_quote(quote, normalize_words(CLIMATE))


@pytest.mark.parametrize(
    "quote",
    ["", "...", "heat", "carbon dioxide", "gases such as carbon monoxide", "reenhouse gases such"],
)
def test_words_that_do_not_stand_there_or_prove_nothing_are_no_quote(quote: str) -> None:
    assert not is_valid_quote(quote, normalize_words(CLIMATE))


def test_wordings_of_one_question_have_one_key() -> None:
    assert extract_content_words("What is the cause of heat?") == extract_content_words(
        "Heat: what are the a? cause"
    )
    assert extract_content_words("When was Arlo Bridge opened?") != extract_content_words(
        "When was Benta Bridge opened?"
    )
    assert extract_content_words("Who is it?") != extract_content_words("Where is it?")


@settings(deadline=None)
@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=300))
def test_any_question_has_a_fault_or_none_and_nothing_raises(
    question: str, answer: str, text: str
) -> None:
    fault = find_fault(question, answer, text)
    assert fault == "" or fault.replace("_", "").isalpha()
    extract_content_words(question)
    is_valid_quote(question, normalize_words(text))
    is_prose(text)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=200), st.text(max_size=100), st.text(max_size=100))
def test_what_stands_in_a_text_as_words_is_quoted(quote: str, before: str, after: str) -> None:
    # Dots at an edge, of the quote or of what is around it, are marks of an omission.
    there = normalize_words(f"{before}\n{quote}\n{after}")
    if "." not in quote and "…" not in quote and len(normalize_words(quote).split()) >= 3:
        assert is_valid_quote(quote, there)


@pytest.mark.parametrize(
    "text",
    [
        CLIMATE,
        CLIMATE.replace(" ", "\n"),
        "\n".join(CLIMATE[at : at + 40] for at in range(0, len(CLIMATE), 40)),
        CLIMATE.replace(" ", "\n    "),
        "and so we went on down the road until the lights of the village came into view and nobody said a word to us",
        "気候変動に関する政府間パネルは二酸化炭素などの温室効果ガスが大気の下層に熱を閉じ込めると報告した。",
    ],
    ids=["plain", "a word a line", "short lines", "indented", "a transcript", "no spaces"],
)
def test_prose_is_known_however_it_is_broken(text: str) -> None:
    assert is_prose(text)


@pytest.mark.parametrize("fill", [" ", "\n", "\n ", ". ", "...", "… ", "[ ", "a\n", "\t"])
def test_enormous_texts_are_read_in_no_time(fill: str) -> None:
    """Not timed: what were quadratic would not end within the time a test has."""
    text = f"{CLIMATE}{fill * 50_000}x"
    assert is_prose(text)
    is_valid_quote(text[:65_536], normalize_words(CLIMATE))
    find_fault(text, text, text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 Introduction .... 3\n2 The causes of climate change in the last century .... 17\n3 What to do .... 40",
        "Introduction 1\nThe causes of climate change in the last century 17\nWhat can be done about it 40\nIndex 99",
        "# Overview\n\n## Causes\n\n## Effects of Heat\n\n## What to Do\n\n## Further Reading\n\n## Index\n\n## Thanks",
        "Too few words to ask for anything.",
        "|||| ---- ||||\n" * 20,
    ],
    ids=["empty", "dots", "pages", "headings", "short", "marks"],
)
def test_headings_and_tables_of_contents_are_no_prose(text: str) -> None:
    assert not is_prose(text)


@needs_shared_data
@pytest.mark.parametrize("name", ["anthropic_docs", "codebase_small", "strategyqa_dev"])
def test_hardly_a_question_of_people_is_taken_for_a_bad_one(name: str) -> None:
    data = Dataset.load(SHARED / "data" / name)
    texts = {passage.id: passage.text for passage in data.passages}
    faults = [
        find_fault(it.text, "An answer.", texts[next(iter(data.qrels[it.id]))])
        for it in data.questions
    ]
    assert sum(map(bool, faults)) <= 0.05 * len(faults)
