"""What the README shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_an_example_runs(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})


def test_the_examples_that_need_a_key_are_python_too() -> None:
    for example in re.findall(r"^```python no-run\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        compile(example, "README.md", "exec")


def test_it_can_be_read_in_one_go() -> None:
    assert len(README.splitlines()) < 150
    assert len(EXAMPLES) == 2


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"\]\((?!https?:)([^)#]+)\)|(?<=\n)(\./scripts/\w+)", README)
    assert named
    for pair in named:
        path = next(filter(None, pair))
        assert (ROOT / path).exists(), path


def test_its_figures_are_those_of_the_results() -> None:
    means: dict[str, str] = {}  # of each system by the first table that holds it: ours are measured again more often
    for name in ("quality", "quality-peers"):
        for line in (ROOT / f"benchmarks/results/{name}.md").read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            qualities = [cell for cell in cells if re.fullmatch(r"\d\.\d{3} \(\d+%\)", cell)]
            if qualities:
                means.setdefault(cells[0], qualities[-1])
    shown = re.findall(r"^\| (.+?) \| (\d\.\d{3} \(\d+%\)) \|", README, re.MULTILINE)
    assert len(shown) > 10
    for name, mean in shown:
        assert means[name.replace("**", "").removesuffix(" (the default)")] == mean, name
