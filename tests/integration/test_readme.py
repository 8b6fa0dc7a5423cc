"""What the README shows is true."""

from __future__ import annotations

import ast
import re
from operator import mul
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.embedding import find_embedder
from tests.support.examples import Example, find_examples, remove_code

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = find_examples(README)
MOST_WORDS = 700


@pytest.mark.parametrize("example", EXAMPLES, ids=[str(number) for number in range(len(EXAMPLES))])
def test_an_example_prints_what_it_shows(
    example: Example, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(example.code, "README.md", "exec"), {})
    assert example.output is not None
    example.check_output(capsys.readouterr().out)


def test_the_scores_of_its_example_are_those_of_the_model_it_names() -> None:
    held: dict[str, Any] = {}
    exec(compile(EXAMPLES[0].code, "README.md", "exec"), held)
    embedder = find_embedder("all-MiniLM-L6-v2")
    texts = [text for _, text in held["FOUND"]]
    question, *passages = embedder.embed([held["question"], *texts])
    scores = [sum(map(mul, question, passage)) for passage in passages]
    assert scores == pytest.approx([score for score, _ in held["FOUND"]], abs=5e-4)


def test_the_examples_that_need_a_key_are_python_too() -> None:
    for example in re.findall(r"^```python no-run\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        compile(example, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_it_can_be_read_in_one_go() -> None:
    assert len(EXAMPLES) == 1
    words = [
        word
        for line in remove_code(README).splitlines()
        if not line.startswith("|")
        for word in line.split()
    ]
    assert len(words) <= MOST_WORDS


def test_its_figures_of_small_collections_are_those_of_the_results() -> None:
    page = (ROOT / "benchmarks/results/quality-small.md").read_text(encoding="utf-8")
    measured = {
        cells[0]: cells
        for line in page.splitlines()
        if len(cells := [it.strip() for it in line.strip("|").split("|")]) == 7
    }
    shown = re.findall(
        r"^\| `(\w+)`[^|]* \| (\d+) % \|([^|]*)\|([^|]*)\| (\d) \| (\d) \|", README, re.MULTILINE
    )
    assert [name for name, *_ in shown] == ["off", "rules", "words", "balanced"]
    for name, first, better, worse, calls, searches in shown:
        row = measured[name]
        rounded = [f"{float(it):.0f}" if it else "" for it in row[3:5]]
        assert [first, better.strip(), worse.strip(), calls, searches] == [
            row[2],
            *rounded,
            *row[5:7],
        ], name


def test_every_file_it_names_is_there() -> None:
    named = re.findall(r"\]\((?!https?:)([^)#]+)\)|(?<=\n)(\./scripts/\w+)", README)
    assert named
    for pair in named:
        path = next(filter(None, pair))
        assert (ROOT / path).exists(), path


def test_its_figures_are_those_of_the_results() -> None:
    means: dict[
        str, str
    ] = {}  # of each system by the first table that holds it: ours are measured again more often
    for name in ("quality", "quality-peers"):
        for line in (
            (ROOT / f"benchmarks/results/{name}.md").read_text(encoding="utf-8").splitlines()
        ):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            qualities = [cell for cell in cells if re.fullmatch(r"\d\.\d{3} \(\d+%\)", cell)]
            if qualities:
                means.setdefault(cells[0], qualities[-1])
    shown = re.findall(r"^\| (.+?) \| (\d\.\d{3} \(\d+%\)) \|", README, re.MULTILINE)
    assert len(shown) > 6
    for name, mean in shown:
        assert means[name.replace("**", "").removesuffix(" (the default)")] == mean, name
