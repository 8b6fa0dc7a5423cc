"""What the guides show is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    exec(compile(example, guide.name, "exec"), {})


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_every_file_a_guide_names_is_there(guide: Path) -> None:
    for name in re.findall(r"\]\((?!https?:|#)([^)#]+)\)", guide.read_text("utf-8")):
        assert (guide.parent / name).exists(), name
