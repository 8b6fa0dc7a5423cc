"""What the README shows is true."""

from __future__ import annotations

import ast
import re
from operator import mul
from pathlib import Path
from typing import Any

import pytest

from qtmiddleware.kit.embedding import find_embedder
from tests.support.examples import find_examples, read_rows

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks/results"


def test_its_example_prints_what_it_shows_with_the_scores_of_the_model_it_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = find_examples(README)
    held: dict[str, Any] = {}
    exec(compile(example.code, "README.md", "exec"), held)
    assert example.output is not None
    example.check_output(capsys.readouterr().out)
    embedder = find_embedder("all-MiniLM-L6-v2")
    texts = [text for _, text in held["FOUND"]]
    question, *passages = embedder.embed([held["question"], *texts])
    scores = [sum(map(mul, question, passage)) for passage in passages]
    assert scores == pytest.approx([score for score, _ in held["FOUND"]], abs=5e-4)


def test_the_examples_that_need_a_key_are_python_too() -> None:
    for example in re.findall(r"^```python no-run\n(.*?)^```", README, re.DOTALL | re.MULTILINE):
        compile(example, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_its_figures_of_small_collections_are_those_of_the_results() -> None:
    measured = {row[0]: row for row in read_rows(RESULTS / "quality-small.md") if len(row) == 7}
    shown = re.findall(
        r"^\| `(\w+)`[^|]* \| (\d+) % \|([^|]*)\|([^|]*)\| (\d) \| (\d) \|", README, re.MULTILINE
    )
    assert [name for name, *_ in shown] == ["off", "rules", "words", "balanced"]
    for name, first, better, worse, *costs in shown:
        row = measured[name]
        rounded = [f"{float(it):.0f}" if it else "" for it in row[3:5]]
        assert [first, better.strip(), worse.strip(), *costs] == [row[2], *rounded, *row[5:7]], name


def test_its_figures_beside_other_libraries_are_those_of_the_results() -> None:
    means: dict[str, str] = {}  # by the first table that holds the system: ours are measured anew
    for name in ("quality", "quality-peers"):
        for row in read_rows(RESULTS / f"{name}.md"):
            figures = [cell for cell in row if re.fullmatch(r"\d\.\d{3} \(\d+%\)", cell)]
            if figures:
                means.setdefault(row[0], figures[-1])
    shown = re.findall(r"^\| (.+?) \| (\d\.\d{3} \(\d+%\)) \|", README, re.MULTILINE)
    assert len(shown) > 6
    for name, mean in shown:
        assert means[name.replace("**", "").removesuffix(" (the default)")] == mean, name
