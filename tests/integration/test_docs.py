"""What the guides show is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import reference
from tests.support.examples import Example, find_examples

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
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


def test_the_page_of_the_command_line_is_what_the_commands_say(tmp_path: Path) -> None:
    written = tmp_path / "command-line.md"
    reference.write_command_page(written)
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    assert page == written.read_text(encoding="utf-8"), "run python -m scripts.reference"
