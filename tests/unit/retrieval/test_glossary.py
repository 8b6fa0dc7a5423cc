"""Which terms of a question a glossary knows, and which passages hold them in another form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.retrieval.glossary import (
    Glossary,
    add_glossary_terms,
    choose_term_meanings_and_notes,
    find_form_ends,
)


def make(*entries: list[str]) -> Glossary:
    """A glossary of entries that count in both directions."""
    return Glossary([(forms, forms) for forms in entries])


def find(glossary: Glossary, question: str) -> dict[str, Any]:
    """The other forms of each term of a question."""
    return {term.written: term.meanings for term in glossary.find_terms(question, "en")}


def test_an_abbreviation_means_its_long_form_and_the_reverse() -> None:
    glossary = make(["CR", "change request"])
    assert find(glossary, "Who approves a CR?") == {"CR": (("change request",),)}
    assert find(glossary, "Who approves a Change Request?") == {"Change Request": (("CR",),)}


@pytest.mark.parametrize(
    "question", ["what is cr 2", "the Cr layer", "CRM", "CR-12", "x/CR", "cr.py", "CR_old", "#CR"]
)
def test_an_abbreviation_in_another_case_or_inside_a_code_is_no_term(question: str) -> None:
    assert find(make(["CR", "change request"]), question) == {}


@pytest.mark.parametrize(
    "question", ["How long are CRs kept?", "the CR's owner", "(CR)", "“CR”?", "CR: who?", "CR."]
)
def test_an_abbreviation_is_found_in_the_plural_and_beside_punctuation(question: str) -> None:
    assert list(find(make(["CR", "change request"]), question).values()) == [(("change request",),)]


@pytest.mark.parametrize("question", ["change requests?", "CHANGE-REQUEST", "a change  request"])
def test_a_long_form_is_found_in_the_plural_in_any_case_and_with_a_hyphen(question: str) -> None:
    assert list(find(make(["CR", "change request"]), question).values()) == [(("CR",),)]


def test_a_plural_that_changes_its_last_letter_is_found_in_questions_and_passages() -> None:
    assert list(find(make(["QR", "query reply"]), "Where are query replies kept?")) == [
        "query replies"
    ]
    assert find_form_ends("query reply", "All query replies are kept.") == [17]
    assert find_form_ends("query replies", "The query reply is kept.") == [15]
    assert find_form_ends("replies", "The reply is kept.") == [9]
    assert find_form_ends("++", "C++") == []


def test_the_longest_term_that_begins_first_is_used_alone() -> None:
    glossary = make(["RB", "release board"], ["DRB", "drawing release board"], ["drawing", "sheet"])
    assert find(glossary, "When does the drawing release board sit?") == {
        "drawing release board": (("DRB",),)
    }


@pytest.mark.parametrize(
    "question", ["Where do I fit it?", "use the tab key", "How long?", "fit Tab how"]
)
def test_an_ordinary_word_is_no_abbreviation(question: str) -> None:
    glossary = make(
        ["FIT", "final inspection ticket"],
        ["TAB", "tender appraisal bench"],
        ["HOW", "hot works order"],
    )
    assert find(glossary, question) == {}


def test_a_question_in_capitals_does_not_tell_abbreviations_from_words() -> None:
    glossary = make(["FIT", "final inspection ticket"])
    assert find(glossary, "WHERE DO I FIT THE SENSORS") == {}
    assert list(find(glossary, "FIT")) == ["FIT"]


def test_a_word_in_capitals_that_is_a_term_too_needs_a_passage_to_decide() -> None:
    glossary = make(["HOW", "hot works order"])
    terms = glossary.find_terms("Break, HOW long?", "en")
    texts = ["A hot works order is valid for one shift.", "The break takes half an hour."]
    assert choose_term_meanings_and_notes(terms, texts, "long break", "en") == (
        [],
        ["HOW not used: nothing beside it decides what it means"],
    )


def test_an_abbreviation_of_two_things_is_used_only_if_passages_decide() -> None:
    glossary = make(["CIP", "concrete inspection plan", "client interface person"])
    texts = [
        "Under the concrete inspection plan slump is measured.",
        "Each job has one client interface person.",
    ]
    terms = glossary.find_terms("How often is slump measured in the CIP?", "en")
    settled, _ = choose_term_meanings_and_notes(terms, texts, "often slump measured CIP", "en")
    assert [str(term) for term in settled] == ["CIP = concrete inspection plan"]
    assert (
        choose_term_meanings_and_notes(
            glossary.find_terms("Where is the CIP?", "en"), texts, "CIP", "en"
        )[0]
        == []
    )


def test_an_abbreviation_of_a_great_many_things_is_not_searched_and_that_is_said() -> None:
    glossary = make(*(["CR", f"cat rat{n}"] for n in range(40)))
    terms = glossary.find_terms("Who approves a CR?", "en")
    texts = [f"A cat rat{n} approves." for n in range(2)]
    assert choose_term_meanings_and_notes(terms, texts, "approves CR", "en") == (
        [],
        ["CR not used: nothing beside it decides what it means"],
    )


def test_an_entry_of_many_forms_keeps_apart_what_each_of_its_abbreviations_means() -> None:
    words = [f"{chr(97 + n)}ale {chr(97 + n)}oat" for n in range(20)]
    shorts = [f"{chr(65 + n)}{chr(65 + n)}" for n in range(20)]
    glossary = make([*shorts, *words, "cane core"])
    assert find(glossary, "The CC?") == {"CC": (("cale coat",), ("cane core",))}
    assert find(glossary, "The cane core?") == {"cane core": (("CC",),)}


def test_a_word_of_a_meaning_that_is_not_its_last_one_decides_nothing() -> None:
    glossary = make(["PM", "project manager", "preventive maintenance"])
    assert not glossary.find_terms("Who manages PM projects?", "en")[0].is_certain


def test_a_word_in_capitals_is_no_term_if_passages_use_it_as_a_word_of_the_question() -> None:
    glossary = make(["TAB", "tender appraisal bench"])
    texts = ["Bids go before the TAB.", "Use the tab key to jump between days."]
    said = ["TAB not used: nothing beside it decides what it means"]
    assert choose_term_meanings_and_notes(
        glossary.find_terms("Use the TAB key?", "en"), texts, "Use TAB key", "en"
    ) == ([], said)
    terms = glossary.find_terms("Which bids go before the TAB?", "en")
    assert (
        choose_term_meanings_and_notes(
            terms, [*texts, "The tender appraisal bench scores bids."], "bids go TAB", "en"
        )[1]
        == []
    )


def test_a_question_word_that_begins_a_question_in_capitals_is_no_term() -> None:
    glossary = make(["HOW", "hot works order"])
    assert find(glossary, "HOW do I grind outside the shop?") == {}
    assert list(find(glossary, "Who signs a HOW?")) == ["HOW"]


def test_words_of_one_meaning_in_the_question_decide() -> None:
    glossary = make(["CIP", "concrete inspection plan", "client interface person"])
    (term,) = glossary.find_terms("Which person is the CIP?", "en")
    assert term.is_certain
    assert term.meanings == (("client interface person",),)


def test_one_meaning_of_an_abbreviation_is_no_form_of_the_other() -> None:
    glossary = make(["SRT", "seal replacement team", "slack rope test"])
    assert find(glossary, "How soon does the seal replacement team arrive?") == {
        "seal replacement team": (("SRT",),)
    }


def test_a_passage_with_an_abbreviation_of_two_things_counts_only_if_it_holds_more_of_the_question() -> (
    None
):
    glossary = make(["SRT", "seal replacement team", "slack rope test"])
    terms = glossary.find_terms("How soon does the seal replacement team arrive?", "en")
    texts: list[str | None] = ["The SRT will arrive at noon.", "For the SRT, pay out gently.", None]
    written = add_glossary_terms(terms, texts, glossary, "soon seal replacement team arrive", "en")
    assert written == ["The SRT seal replacement team will arrive at noon.", texts[1], None]


def test_forms_with_other_characters_are_found_as_they_are_written() -> None:
    glossary = make(
        ["C++", "cpp"], ["R&D", "research and development"], [".NET", "dotnet"], ["a.*b", "pattern"]
    )
    assert list(find(glossary, "Is C++ or C used in R&D for .NET?")) == ["C++", "R&D", ".NET"]
    assert find(glossary, "Is C# used by R D, or net, or a--b?") == {}
    assert find_form_ends("C++", "C, C# and C++ here")
    assert not find_form_ends("C++", "C and C# here")
    assert not find_form_ends("a.*b", "a--b")


def test_loops_and_repeats_are_harmless() -> None:
    glossary = Glossary(
        [
            (["a1"], ["b1"]),
            (["b1"], ["a1"]),
            (["b1"], ["c1"]),
            (["c1"], ["a1", "c1"]),
            (["d1"], ["d1"]),
        ]
    )
    assert find(glossary, "a1 b1 c1 d1 a1") == {
        "a1": (("b1",),),
        "b1": (("a1", "c1"),),
        "c1": (("a1",),),
    }


WORDS = st.text(alphabet="aAbBcC .-'+éßﬁ中文", max_size=12)


@given(st.lists(st.tuples(WORDS, WORDS), max_size=6), WORDS, WORDS)
def test_any_text_and_any_entries_are_read_and_no_word_of_a_passage_is_lost(
    entries: list[tuple[str, str]], question: str, passage: str
) -> None:
    glossary = make(*(list(entry) for entry in entries))
    terms = glossary.find_terms(question)
    settled, _ = choose_term_meanings_and_notes(terms, [passage], question, "en")
    (written,) = add_glossary_terms(settled, [passage], glossary, question, "en")
    remaining = iter(written or "")
    assert all(char in remaining for char in passage)
