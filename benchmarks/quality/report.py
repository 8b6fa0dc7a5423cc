"""How results are written, and what one must know to repeat the run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import qtmiddleware
from benchmarks.quality.sets import MODEL, Source
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import Difference

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"
HEADS: Final = Path(__file__).resolve().parent / "heads"
SEED: Final = 7


def circumstances(source: Source, part: str) -> dict[str, Any]:
    """Command, data, versions and seed of a run."""
    command = f"python -m benchmarks.quality --data {source.data} --recordings {source.recordings} --{part}"
    libraries = {name: version(name) for name in ("numpy", "scipy", "ir-measures")}
    return {
        "command": command,
        "seed": SEED,
        "embedding model": MODEL,
        "versions": {
            "qtmiddleware": qtmiddleware.__version__,
            "python": platform.python_version(),
            **libraries,
        },
        "defaults": _defaults(),
        "data": source.hashes(),
    }


def _defaults() -> dict[str, Any]:
    """What the figures depend on most and may be chosen anew."""
    settings = Settings()
    evidence = {
        f"evidence {name}": value for name, value in asdict(settings.keyword_evidence).items()
    }
    voices = {f"voice of {name}": value for name, value in settings.fusion.weights.items()}
    numbers = {**evidence, **voices, "target call rate": settings.escalation.target_call_rate}
    known = {name: value for name, value in numbers.items() if type(value) in (int, float)}
    return {"fusion": settings.fusion.method, **known}


def told(about: Mapping[str, Any]) -> str:
    """`circumstances` as a list in Markdown."""
    lines = []
    for name, value in about.items():
        what = (
            ", ".join(f"{key} {one}" for key, one in value.items())
            if isinstance(value, Mapping)
            else value
        )
        what = f"`{value}`" if name == "command" else what
        lines.append(f"- {name}{' (sha256)' if name == 'data' else ''}: {what}")
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def quality(ndcg: float, hurt: float) -> str:
    """nDCG@10 and, in brackets, the hurt rate."""
    return f"{ndcg:.3f} ({hurt:.0%})"


def points(found: Difference, *, corrected: bool = False) -> str:
    """A difference in points of nDCG@10 with its 95 % interval.

    A star says that the interval does not contain 0 or, if *corrected*, that it is significant
    among all systems.
    """
    star = " *" if (found.is_significant if corrected else found.low > 0 or found.high < 0) else ""
    return f"{100 * found.gain:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]{star}"


def mean(values: Sequence[float]) -> float:
    """Each counting the same."""
    return sum(values) / len(values)


def write(
    source: Source,
    name: str,
    about: Mapping[str, Any],
    parts: Sequence[str],
) -> None:
    """Print a result and keep it as ``results/<name>.md``, which begins as ``heads/<name>.md``.

    A part of the sets is only printed.
    """
    head = (HEADS / f"{name}.md").read_text(encoding="utf-8").strip()
    text = "\n\n".join([head, told(about), *(part.strip() for part in parts)])
    print(text)
    if source.is_whole:
        (RESULTS / f"{name}.md").write_text(f"{text}\n", encoding="utf-8")
