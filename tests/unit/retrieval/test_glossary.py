"""Which terms of a question a glossary knows, and what they change in a retrieval."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.glossary import Glossary, add_glossary_terms, load_glossary
from qtmiddleware.testing import ScriptedModel


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
        ("CHANGE-REQUEST", "CHANGE-REQUEST"),
        ("all change  requests", "change  requests"),
        ("the Cr layer", None),
        ("CRM", None),
        ("CR-12", None),
        ("CR_old", None),
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
    capitalised = make(["CR", "Change Request"])
    assert find(capitalised, "an urgent change request") == {"change request": ("CR",)}


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
    for question, explained in {
        "change request": "change request = CR, form",
        "GBQ or Google BigQuery": "GBQ = Google BigQuery",
        "a, b": "a, b = c=>d",
        "SWP": "SWP = walkdown pack, walkdown folder",
    }.items():
        assert list(map(str, glossary.find_terms(question))) == [explained]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"CR": "change request"}', "is empty or has another format"),
        (b"PK\x03\x04\0\0", "is empty or has another format"),
        ("CR, change request\nSWP\n", "line 2, must hold two forms or one =>"),
        ("CR, change request\nSWP,\n", "line 2, must have a letter or digit in each form"),
        (b"CR, change request\nSWP, \xff\xfe\n", "can't decode byte 0xff"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_path_and_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "terms.txt", content)
    assert said in str(error.value)
    assert "terms.txt" in str(error.value)


def test_a_file_that_is_not_there_is_told_when_the_middleware_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"glossary file .*missing.* cannot be read"):
        qtm.QueryMiddleware({"glossary": {"path": str(tmp_path / "missing.txt")}})


def test_many_forms_and_many_meanings_are_no_work_for_a_question(tmp_path: Path) -> None:
    units = [f"the unit {number}, U{number}X, CR" for number in range(10_000)]
    forms = ", ".join(f"form {number}" for number in range(5_000))
    glossary = load(tmp_path / "many.txt", "\n".join([*units, forms]))
    (term,) = glossary.find_terms("Who approves a CR?")
    add_glossary_terms([term], ["a unit and its form " * 20] * 50)
    assert len(term.others) == 16
    assert list(find(glossary, "the unit 77 and form 4999")) == ["the unit 77", "form 4999"]


# --- in a retrieval -------------------------------------------------------------------------------

TERMS: Mapping[str, str] = {"CR": "change request", "DRB": "drawing release board"}
PASSAGES = [
    {"id": "vacation", "text": "Who approves a vacation: your team lead, within two days."},
    {
        "id": "change",
        "text": "A change request needs the approval of the board, which approves it.",
    },
    {"id": "printer", "text": "The printer on floor two takes A3."},
    {"id": "lunch", "text": "Lunch is served from noon in the hall."},
]


def search(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    return [{**it, "score": 0.9 - at / 100} for at, it in enumerate(PASSAGES)][:top_k]


def retrieve(question: str, terms: Mapping[str, str] = TERMS) -> qtm.Retrieval:
    return qtm.QueryMiddleware({"glossary": {"terms": terms}}).wrap(search).retrieve(question)


def ids(retrieval: qtm.Retrieval) -> list[str | None]:
    return [match.id for match in retrieval.matches]


def notes(retrieval: qtm.Retrieval) -> list[str]:
    return [said for stage, said in retrieval.trace.notes if stage == "glossary"]


def test_a_passage_with_the_other_form_counts_as_one_with_the_question_s() -> None:
    question = "Who approves a CR?"
    assert ids(retrieve(question, {}))[0] == "vacation"
    found = retrieve(question)
    assert (ids(found)[0], notes(found)) == ("change", ["CR = change request"])
    assert [variant.text for variant in found.variants] == [question]


@pytest.mark.parametrize("broken", ["Glossary.find_terms", "add_glossary_terms"])
def test_a_glossary_that_fails_leaves_the_functions_own_result_and_it_is_said(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a defect")

    monkeypatch.setattr(f"qtmiddleware.retrieval.glossary.{broken}", fail)
    question = "How long is the CR lunch, from noon?"
    found = retrieve(question)
    assert ids(found) == [row["id"] for row in search(question)]
    assert found.degradations == (qtm.Degradation("middleware", "failed", "RuntimeError"),)


def test_the_model_is_told_the_forms_of_the_terms_in_the_question_and_of_no_others() -> None:
    model = ScriptedModel({"rewrite": "Which people approve a change request?"})
    settings = {"transformationType": "rewrite", "glossary": {"terms": TERMS}}
    middleware = qtm.QueryMiddleware(settings, client=model)
    questions = {"Who approves a CR?": {"CR": ["change request"]}, "Who approves a vacation?": None}
    for question, told in questions.items():
        middleware.transform(question)
        prompt = model.prompts[-1]
        assert json.loads(prompt.user).get("glossary") == told
        assert ('"glossary"' in prompt.system) == bool(told)


@pytest.mark.parametrize(
    ("query", "rewrite", "kept"),
    [
        ("Who approves the DRB?", "Who approves the drawing release board?", None),
        ("Who sits in the Drawing Release Board?", "Who sits in the DRB?", None),
        ("Is the DRB Lunnick open?", "Is the Lunnick drawing release board open?", None),
        ("Who approves the DRB?", "Who approves it?", "Who approves it? (DRB)"),
    ],
)
def test_a_text_that_has_a_term_in_another_form_lost_nothing(
    query: str, rewrite: str, kept: str | None
) -> None:
    settings = {"transformationType": "rewrite", "glossary": {"terms": TERMS}}
    middleware = qtm.QueryMiddleware(settings, client=ScriptedModel({"rewrite": rewrite}))
    assert middleware.transform(query).rewrite == (kept or rewrite)


def test_a_file_is_read_once_for_a_middleware_and_again_by_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "terms.txt"
    path.write_text("CR, change request")
    middleware = qtm.QueryMiddleware({"glossary": str(path)})
    wrapped = middleware.wrap(search)
    path.write_text("CR, credit rating")
    assert notes(wrapped.retrieve("Who approves a CR?")) == ["CR = change request"]
    middleware.reload({"glossary": str(path)})
    assert notes(wrapped.retrieve("Who approves a CR?")) == ["CR = credit rating"]
