"""Which terms of a question a glossary knows, which passages hold them, and what is said of a broken file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.glossary import Glossary, add_glossary_terms, load_glossary


def make(*entries: list[str]) -> Glossary:
    """A glossary of entries that count in both directions."""
    return Glossary([(forms, forms) for forms in entries])


def find(glossary: Glossary, question: str) -> dict[str, tuple[str, ...]]:
    """The other forms of each term of a question."""
    return {term.written: term.others for term in glossary.find_terms(question, "en")}


@pytest.mark.parametrize(
    ("question", "written"),
    [
        ("Who approves a CR?", "CR"),
        ("Who approves a Change Request?", "Change Request"),
        ("How long are CRs kept?", "CRs"),
        ("the CR's owner", "CR"),
        ("“CR”?", "CR"),
        ("CHANGE-REQUEST", "CHANGE-REQUEST"),
        ("all change  requests", "change  requests"),
        ("what is cr 2", None),
        ("the Cr layer", None),
        ("CRM", None),
        ("CR-12", None),
        ("x/CR", None),
        ("cr.py", None),
        ("CR_old", None),
        ("#CR", None),
        ("WHO APPROVES THE CR TODAY", None),
        ("CR", "CR"),
    ],
)
def test_a_term_is_found_at_word_borders_and_an_abbreviation_in_its_case(
    question: str, written: str | None
) -> None:
    assert list(find(make(["CR", "change request"]), question)) == [written] * (written is not None)


@pytest.mark.parametrize("question", ["HOW do I grind?", "use the tab key", "How long?", "fit Tab"])
def test_an_ordinary_word_is_no_abbreviation(question: str) -> None:
    glossary = make(["FIT", "ticket"], ["TAB", "tender bench"], ["HOW", "hot works order"])
    assert find(glossary, question) == {}
    assert find(glossary, "Who signs a HOW?") == {"HOW": ("hot works order",)}


def test_the_longest_term_that_begins_first_is_used_alone() -> None:
    glossary = make(["RB", "release board"], ["DRB", "drawing release board"], ["drawing", "sheet"])
    assert find(glossary, "When does the drawing release board sit?") == {
        "drawing release board": ("DRB",)
    }


@pytest.mark.parametrize(
    ("question", "text", "written"),
    [
        ("Where is the QR?", "All query replies are kept.", "All query replies QR are kept."),
        ("Which query reply?", "The QRs are kept.", "The QRs query reply are kept."),
        ("Where is the QR?", "A Query-Reply, once.", "A Query-Reply QR, once."),
        ("Which query reply?", "a qr code, QR-7, #QR", "a qr code, QR-7, #QR"),
        ("the \\g<0> QR", "query reply", "query reply QR"),
    ],
)
def test_a_passage_with_another_form_gets_the_form_of_the_question(
    question: str, text: str, written: str
) -> None:
    terms = make(["QR", "query reply"]).find_terms(question, "en")
    assert add_glossary_terms(terms, [text, None]) == [written, None]


WORDS = st.text(alphabet="aAbBcC .-'+éßﬁ中文", max_size=12)
FORMS = WORDS.filter(lambda form: any(map(str.isalnum, form)))


@given(st.lists(st.tuples(FORMS, FORMS), max_size=6), WORDS, WORDS)
def test_any_text_is_read_and_no_word_of_a_passage_is_lost(
    entries: list[tuple[str, str]], question: str, passage: str
) -> None:
    terms = make(*(list(entry) for entry in entries)).find_terms(question)
    (written,) = add_glossary_terms(terms, [passage])
    remaining = iter(written or "")
    assert all(char in remaining for char in passage)


# --- files ----------------------------------------------------------------------------------------


def load(path: Path, content: str | bytes, **terms: str) -> Glossary:
    """The glossary in a file of this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    glossary = load_glossary(GlossarySettings(path=str(path), terms=terms))
    assert glossary is not None
    return glossary


def test_lines_with_commas_count_in_all_directions_and_those_with_arrows_in_one(
    tmp_path: Path,
) -> None:
    lines = "# ours\n\nCR, change request, form\nGBQ => Google BigQuery\na\\, b, ab => c\\=>d\n"
    glossary = load(tmp_path / "synonyms.txt", lines, SWP="walkdown pack, walkdown folder")
    explained = [
        [str(term) for term in glossary.find_terms(question)]
        for question in ("change request", "GBQ or Google BigQuery", "a, b", "SWP")
    ]
    assert explained == [
        ["change request = CR, form"],
        ["GBQ = Google BigQuery"],
        ["a, b = c=>d"],
        ["SWP = walkdown pack, walkdown folder"],
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (" \n", "is empty or has another format"),
        ('{"CR": "change request"}', "is empty or has another format"),
        (b"PK\x03\x04\0\0", "is empty or has another format"),
        ("CR, change request\nSWP\n", "line 2, must hold two forms or one =>"),
        ("a => b => c\n", "line 1, must hold two forms or one =>"),
        ("CR, change request\nSWP,\n", "line 2, must have a letter or digit in each form"),
        ("CR, change request\n=> b\n", "line 2, must have a letter or digit in each form"),
        (f"CR, {'x' * 201}\n", "line 1, must have forms of at most 200 characters, not 201"),
        ("CR, ++\n", "line 1, must have a letter or digit in each form"),
        (b"CR, change request\nSWP, \xff\xfe\n", "is not UTF-8 (line 2)"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_path_and_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "terms.txt", content)
    assert said in str(error.value)
    assert "terms.txt" in str(error.value)


@pytest.mark.parametrize("name", ["missing.txt", ""])
def test_a_file_that_is_not_there_is_told(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_glossary(GlossarySettings(path=str(tmp_path / name)))


def test_many_forms_and_many_meanings_are_no_work_for_a_question(tmp_path: Path) -> None:
    content = "\n".join(
        [
            *(f"the unit {number}, U{number}X, CR" for number in range(10_000)),
            ", ".join(f"form {number}" for number in range(5_000)),
        ]
    )
    glossary = load(tmp_path / "many.txt", content)
    (term,) = glossary.find_terms("Who approves a CR?")
    add_glossary_terms([term], ["a unit and its form " * 20] * 50)
    assert len(term.others) == 16
    assert list(find(glossary, "the unit 77 and form 4999")) == ["the unit 77", "form 4999"]
