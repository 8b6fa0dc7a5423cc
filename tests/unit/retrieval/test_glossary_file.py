"""Reading a glossary out of a file or a mapping, and what is said of one that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.glossary import Glossary
from qtmiddleware.retrieval.glossary_file import LONGEST_FORM, load_glossary


def load(path: Path, content: str | bytes) -> Glossary:
    """The glossary in a file of this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    glossary = load_glossary(GlossarySettings(path=str(path)))
    assert glossary is not None
    return glossary


def explain(glossary: Glossary, question: str) -> list[str]:
    return [str(term) for term in glossary.find_terms(question)]


def test_no_glossary_is_read_if_none_is_named() -> None:
    assert load_glossary(GlossarySettings()) is None


def test_a_json_file_has_a_text_or_a_list_for_each_term(tmp_path: Path) -> None:
    content = json.dumps({"CR": "change request", "SWP": ["site walkdown pack", "walkdown folder"]})
    glossary = load(tmp_path / "terms.json", content)
    assert explain(glossary, "a CR in the walkdown folder") == [
        "CR = change request",
        "walkdown folder = SWP, site walkdown pack",
    ]


def test_lines_with_commas_count_in_all_directions_and_those_with_arrows_in_one(
    tmp_path: Path,
) -> None:
    lines = (
        "# ours\n\nCR, change request, change form\nGBQ => Google BigQuery\na\\, b, ab => c\\=>d\n"
    )
    glossary = load(tmp_path / "synonyms.txt", lines)
    assert explain(glossary, "change form") == ["change form = CR, change request"]
    assert explain(glossary, "GBQ or Google BigQuery") == ["GBQ = Google BigQuery"]
    assert explain(glossary, "a, b") == ["a, b = c=>d"]


def test_a_mapping_of_the_config_is_used_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "terms.json"
    path.write_text('{"CR": "change request"}')
    glossary = load_glossary(
        GlossarySettings(path=str(path), terms={"SWP": "site walkdown pack, walkdown folder"})
    )
    assert glossary is not None
    assert explain(glossary, "CR SWP") == [
        "CR = change request",
        "SWP = site walkdown pack, walkdown folder",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (
            '{"CR": "change request",\n "SWP": "site',
            "is not JSON: Unterminated string starting at line 2",
        ),
        (
            '{"CR": "change request",\n "SWP": ["a"',
            "is not JSON: Expecting ',' delimiter at line 2",
        ),
        ('{"CR": "change request",\n "SWP": ""}', "line 2, must not have an empty side"),
        ('{"CR": "change request",\n "": "site"}', "line 2, must not have an empty side"),
        ('{"CR": "change request",\n "SWP": []}', 'line 2, must give another form for "SWP"'),
        (
            '{"CR": "change request",\n "SWP": 4}',
            'line 2, must be a text or a list of texts for "SWP"',
        ),
        (
            '{"CR": {"long": "change request"}}',
            'line 1, must be a text or a list of texts for "CR"',
        ),
        ('["CR", "change request"]', "must hold one JSON object, not a list"),
        ("[" * 100_000, "is not JSON"),
        ("CR, change request\nSWP\n", 'line 2, must hold at least two forms, not "SWP" alone'),
        ("CR, change request\nSWP,\n", "line 2, must not have an empty side"),
        ("CR, change request\n=> b\n", "line 2, must not have an empty side"),
        ("CR, change request\na => \n", "line 2, must not have an empty side"),
        ("a => b => c\n", "line 1, must hold one => at most"),
        ("CR, ++\n", "line 1, must have a letter or digit in each form"),
        (
            f"CR, {'x' * (LONGEST_FORM + 1)}\n",
            "line 1, must have forms of at most 200 characters, not 201",
        ),
        (b"CR, change request\nSWP, \xff\xfe\n", "is not UTF-8 (line 2)"),
        (b"PK\x03\x04\0\0", "is not a text file"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_path_and_line(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path / "terms.txt", content)
    assert said in str(error.value)
    assert "terms.txt" in str(error.value)


@pytest.mark.parametrize(
    ("name", "said"), [("missing.json", "does not exist"), ("", "is a folder")]
)
def test_a_file_that_is_not_there_is_told(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_glossary(GlossarySettings(path=str(tmp_path / name)))


def test_a_mapping_with_an_empty_side_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"glossary\.terms\.\"CR\" must not have an empty side"):
        load_glossary(GlossarySettings(terms={"CR": ""}))


def test_many_entries_that_begin_alike_are_no_work_for_a_question(tmp_path: Path) -> None:
    content = "\n".join(f"the unit {number}, U{number}X" for number in range(20_000))
    glossary = load(tmp_path / "many.txt", content)
    assert explain(glossary, "the unit 17 of the unit " + "the " * 1_000) == ["the unit 17 = U17X"]
