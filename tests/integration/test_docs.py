"""What the guides show is true."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from qtmiddleware.retrieval import responses
from qtmiddleware.retrieval.responses import items
from qtmiddleware.wrapping import signatures
from scripts.api_reference import write_reference

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = [
    (guide, number, example)
    for guide in GUIDES
    for number, example in enumerate(
        re.findall(r"^```python\n(.*?)^```", guide.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(
    ("guide", "example"),
    [(guide, example) for guide, _, example in EXAMPLES],
    ids=[f"{guide.stem}-{number}" for guide, number, _ in EXAMPLES],
)
def test_an_example_runs(guide: Path, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The examples ingest this project's own guides; what they write goes where it does not stay.
    (tmp_path / "docs").symlink_to(ROOT / "docs", target_is_directory=True)
    (tmp_path / "config").symlink_to(ROOT / "config", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    # A handler that an example adds is none of the other tests' business.
    monkeypatch.setattr(logging.getLogger("qtmiddleware"), "handlers", [])
    exec(compile(example, guide.name, "exec"), {})


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_file_a_guide_names_is_there(guide: Path) -> None:
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", guide.read_text("utf-8")):
        assert (guide.parent / name).exists(), name


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ("| query | ", signatures.QUERIES),
        ("| number of passages | ", signatures.TOP_KS),
        ("| vector, with `embed=` | ", signatures.VECTORS),
        ("| an object or dict with ", responses._ENVELOPES),
        ("| id | ", (*items._IDS, *items._DOCUMENT_IDS)),
        ("| text | ", items._TEXTS),
        ("| score | ", items.SCORES),
        ("| metadata | ", items._METADATA),
    ],
)
def test_the_names_that_are_understood_are_all_listed(row: str, names: tuple[str, ...]) -> None:
    page = (ROOT / "docs/your-function.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"^{re.escape(row)}.*$", page, re.MULTILINE)
    assert tuple(re.findall(r"`([\w.]+)`", line))[: len(names)] == names


def test_the_reference_says_what_the_docstrings_say() -> None:
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert page == write_reference(), "run scripts/generate"
