"""What the guides show is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qtmiddleware as qtm
from qtmiddleware.retrieval import responses
from qtmiddleware.wrapping import binding
from scripts import reference
from tests.support.examples import Example, find_examples

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
ROOMS = ("evaluation",)
EXAMPLES = [
    pytest.param(guide, example, id=f"{guide.stem}-{number}")
    for guide in GUIDES
    for number, example in enumerate(find_examples(guide.read_text("utf-8")))
]


@pytest.mark.parametrize(("guide", "example"), EXAMPLES)
def test_an_example_prints_what_it_shows(
    guide: Path,
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(example.code, guide.name, "exec"), {})
    example.check_output(capsys.readouterr().out)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_file_a_guide_names_is_there(guide: Path) -> None:
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", guide.read_text("utf-8")):
        assert (guide.parent / name).exists(), name


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("| query | ", binding.QUERIES),
        ("| number of passages | ", binding.TOP_KS),
        ("| vector, with `embed=` | ", binding.VECTORS),
        ("| an object or dict with a list under ", responses.ENVELOPES),
        ("| id | ", (*responses.IDS, *responses.DOCUMENT_IDS)),
        ("| text | ", responses.TEXTS),
        ("| score | ", responses.SCORES),
        ("| metadata | ", responses.METADATA),
    ],
)
def test_the_names_that_are_understood_are_all_listed(row: str, names: tuple[str, ...]) -> None:
    page = (ROOT / "docs/wrapping.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{re.escape(row)}.*$", page, re.MULTILINE)
    assert tuple(re.findall(r"`([\w.@]+)`", line))[: len(names)] == names


def test_the_api_page_names_every_public_name() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: qtmiddleware\.([\w.]+)$", page, re.MULTILINE)
    assert len(named) == len(set(named))
    assert {*qtm.__all__, *ROOMS, "testing", "protocols"} - set(named) == set()


def test_the_page_of_the_command_line_is_what_the_commands_say(tmp_path: Path) -> None:
    written = tmp_path / "command-line.md"
    reference.write_command_page(written)
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    assert page == written.read_text(encoding="utf-8"), "run python -m scripts.reference"
