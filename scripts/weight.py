"""Prints how heavy the project is, row by row: `python -m scripts.weight`.

A code line holds a token that is neither a comment nor part of a docstring.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from typer.main import get_command

import qtmiddleware
from qtmiddleware.config.introspection import list_all_keys
from qtmiddleware.config.reading import PRESETS
from qtmiddleware.kit.cli.app import COMMANDS, app

ROOT: Final = Path(__file__).parents[1]
CHARACTERS_PER_LINE: Final = {"core": 36.0, "kit": 35.3, "tests": 39.5, "benchmarks": 37.6}
"""The mean code line of each part in November 2026."""
GROWTH: Final = 1.05
"""How much longer the mean code line may become."""
COMPLEXITY: Final = 10
GENERATED: Final = ("command-line.md", "api.md")
"""Pages of docs/ that a program writes; the table of all keys in configuration.md is a third."""
_NO_CODE: Final = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


class Weight(NamedTuple):
    """The counts of one part of the repository."""

    files: int
    code_lines: int
    statements: int
    characters: int
    docstring_lines: int
    noqa: int

    @property
    def characters_per_line(self) -> float:
        """The mean length of a code line without its indentation."""
        return self.characters / max(self.code_lines, 1)


def weigh_file(path: Path) -> Weight:
    """Count one Python file."""
    source = path.read_text("utf-8")
    lines, tree = source.splitlines(), ast.parse(source)
    docstrings: set[int] = set()
    statements = 0
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        statements += isinstance(node, ast.stmt) and not is_text
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node) is not None:
                docstrings.update(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    noqa = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            noqa += token.string.startswith("# noqa")
        elif token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstrings
    characters = sum(len(lines[number - 1].strip()) for number in code)
    return Weight(1, len(code), statements, characters, len(docstrings), noqa)


def add_up(files: Iterable[Path]) -> Weight:
    """Return the sums over *files*."""
    return Weight(*map(sum, zip(Weight(0, 0, 0, 0, 0, 0), *map(weigh_file, files), strict=True)))


def list_parts() -> dict[str, list[Path]]:
    """Return the Python files of each part of the repository."""
    package = ROOT / "qtmiddleware"
    files = sorted(package.rglob("*.py"))
    kit = [file for file in files if package / "kit" in file.parents]
    return {
        "core": [file for file in files if file not in kit],
        "kit": kit,
        "tests": sorted((ROOT / "tests").rglob("*.py")),
        "benchmarks": sorted((ROOT / "benchmarks").rglob("*.py")),
    }


def count_complex_functions(parts: Mapping[str, list[Path]]) -> Counter[str]:
    """Return how many functions of each part ruff finds more complex than `COMPLEXITY`."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--ignore-noqa", "--exit-zero"]
    limit = f"lint.mccabe.max-complexity={COMPLEXITY}"
    output = subprocess.run(
        [*command, "--select=C901", "--config", limit, "--output-format=json", "."],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = Counter(Path(row["filename"]) for row in json.loads(output))
    return Counter({part: sum(found[file] for file in files) for part, files in parts.items()})


def list_options(command: Any) -> Iterator[object]:
    """Yield every option of *command* and of the commands below it."""
    for subcommand in getattr(command, "commands", {}).values():
        yield from list_options(subcommand)
    yield from (param for param in command.params if param.param_type_name == "option")


def count_words(text: str) -> int:
    """Return the number of words of *text*, with those of its examples."""
    return len(text.split())


def count_written_words() -> int:
    """Return the words of docs/ that are written by hand."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name not in GENERATED]
    written = (page.read_text("utf-8").partition("\n## All keys\n")[0] for page in pages)
    return sum(map(count_words, written))


def measure_install() -> tuple[int, float]:
    """Return how many packages `pip install .` puts into an empty folder, and their size in MB."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-progress"]
        where = ["--python", sys.executable, "--target", folder]
        what = ["--constraints", str(ROOT / "constraints.txt"), str(ROOT)]
        subprocess.run([*command, *where, *what], check=True)
        place = Path(folder)
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        return len(list(place.glob("*.dist-info"))), size / 1e6


def main() -> int:
    """Print the weight. Return 1 if code lines have been squeezed."""
    parts = list_parts()
    weights = {part: add_up(files) for part, files in parts.items()}
    is_complex = count_complex_functions(parts)
    titles = ("files", "code lines", "statements", "chars/line", "docstrings", "complex", "noqa")
    print(f"{'':<12}" + "".join(f"{title:>12}" for title in titles))
    for part, weight in weights.items():
        print(
            f"{part:<12}{weight.files:>12,}{weight.code_lines:>12,}{weight.statements:>12,}"
            f"{weight.characters_per_line:>12.1f}{weight.docstring_lines:>12,}{is_complex[part]:>12,}{weight.noqa:>12,}"
        )
    page = [
        file
        for file in (ROOT / "qtmiddleware").rglob("*")
        if file.suffix in {".html", ".css", ".js", ".svg", ".jinja"}
    ]
    packages, size = measure_install()
    options = list(list_options(get_command(app)))
    counts = {
        "templates, CSS and scripts": f"{sum(file.stat().st_size for file in page):,} bytes",
        "config keys": f"{len(list_all_keys()):,}",
        "presets": f"{len(PRESETS):,}",
        "commands": f"{len(COMMANDS):,}",
        "options": f"{len(options):,}",
        "public names": f"{len(qtmiddleware.__all__):,}",
        "words of README": f"{count_words((ROOT / 'README.md').read_text('utf-8')):,}",
        "hand-written words of docs": f"{count_written_words():,}",
        "pip install .": f"{packages} packages, {size:.1f} MB",
    }
    print()
    for what, count in counts.items():
        print(f"{what:<28}{count}")
    squeezed = [
        f"weight: a code line of {part} must have at most {limit:.1f} characters on average, "
        f"not {weights[part].characters_per_line:.1f}. Squeezed lines are no lighter."
        for part, before in CHARACTERS_PER_LINE.items()
        if weights[part].characters_per_line > (limit := GROWTH * before)
    ]
    print(*squeezed, sep="\n", file=sys.stderr, end="\n" if squeezed else "")
    return bool(squeezed)


if __name__ == "__main__":
    sys.exit(main())
