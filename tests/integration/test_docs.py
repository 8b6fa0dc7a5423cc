"""What the guides show is true."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import mcp  # noqa: F401 - keeps the stderr it finds, which must have a descriptor: not that of `capsys`
import pytest

import qtmiddleware as qtm
from qtmiddleware.retrieval import responses
from qtmiddleware.wrapping import binding
from tests.support.examples import Example, find_examples

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs").glob("*.md"))
ROOMS = ("evaluation",)
EXAMPLES = [
    (guide, number, example)
    for guide in GUIDES
    for number, example in enumerate(find_examples(guide.read_text("utf-8")))
]


@pytest.mark.parametrize(
    ("guide", "example"),
    [(guide, example) for guide, _, example in EXAMPLES],
    ids=[f"{guide.stem}-{number}" for guide, number, _ in EXAMPLES],
)
def test_an_example_prints_what_it_shows(
    guide: Path,
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The examples ingest this project's own guides; what they write goes where it does not stay.
    (tmp_path / "docs").symlink_to(ROOT / "docs", target_is_directory=True)
    (tmp_path / "config").symlink_to(ROOT / "config", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    # An example may start `qtm` as a reader does, whose environment is active.
    monkeypatch.setenv(
        "PATH", os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    # A handler that an example adds is none of the other tests' business.
    monkeypatch.setattr(logging.getLogger("qtmiddleware"), "handlers", [])
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
    module = [
        "qtmiddleware.kit.cli.app",
        "utils",
        "docs",
        "--name",
        "qtm",
        "--title",
        "The command line",
    ]
    command = [sys.executable, "-m", "typer", *module, "--output", str(written)]
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    assert page == written.read_text(encoding="utf-8"), "run scripts/generate"


def test_what_the_tiers_gain_is_what_was_measured() -> None:
    page, _, _ = (ROOT / "docs/choose-a-tier.md").read_text(encoding="utf-8").partition("\n## ")
    gains = {
        row[0]: row
        for row in _rows(ROOT / "benchmarks/results/quality.md")
        if row[1].startswith("+")
    }
    budgets = {row[0]: row for row in _rows(ROOT / "benchmarks/results/quality-ablation.md")}
    measured = {
        "rules": (gains["rules"][8], gains["rules"][9]),
        "balanced": (gains["balanced"][8], gains["balanced"][9]),
        "auto": (gains["auto"][8], gains["auto"][9]),
        "words": (budgets["at most 1 searches"][8], budgets["at most 1 searches"][10]),
        "thorough": (budgets["at most 20 searches"][8], budgets["at most 20 searches"][10]),
    }
    for tier, figures in measured.items():
        (row,) = re.findall(rf"^\| `{tier}`.*$", page, re.MULTILINE)
        assert [it.strip().replace(" ", "") for it in row.split("|")[3:5]] == list(figures), tier


def _rows(page: Path) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ]
    return [row for row in rows if len(row) > 9]
