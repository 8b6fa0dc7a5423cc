"""Keywords in texts: they are marked by whose they are, and no text loses a letter."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.kit.playground.words import Keywords

words = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(words, words, words)
def test_marking_words_changes_no_letter(text: str, question: str, model: str) -> None:
    assert "".join(piece for piece, _ in Keywords(question, model).mark(text)) == text


def test_words_are_marked_by_whose_they_are_and_a_code_as_a_whole() -> None:
    pieces = Keywords("jaco dog l-15", "vet dog").mark("Jaco's dogs saw the vet 15 times: L-15.")
    assert [piece for piece in pieces if piece[1]] == [
        ("Jaco", "question"),
        ("dogs", "question"),
        ("vet", "model"),
        ("L-15", "question"),
    ]


def test_an_excerpt_shows_where_most_of_the_words_are() -> None:
    text = "nothing of it here " * 20 + "but Jaco has a heart " + "and nothing there " * 40
    excerpt = Keywords("jaco heart").cut(text)
    assert "Jaco has a heart" in excerpt
    assert (excerpt[:2], excerpt[-2:]) == ("… ", " …")
