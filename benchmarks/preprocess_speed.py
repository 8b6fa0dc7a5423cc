"""How fast the rules are, beside `lower().split()` and spaCy's blank English tokenizer with its stop list.

    python benchmarks/preprocess_speed.py [QUERIES.jsonl ...] [--spacy-python PATH] [--rounds 15]

Every method reads the same questions in the same run; a figure is the median over the rounds of the processor time a
question takes, in microseconds. spaCy runs in its own process, with the interpreter that is named.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from qtmiddleware.preprocessing import preprocess

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
DEFAULT = [DATA / "nq_small" / "queries.jsonl", DATA / "xquad" / "en" / "queries.jsonl"]

PLAIN = re.compile(r"(?:[A-Z]?[a-z]*[?!,;:.]?(?:\s|$))+")
"""A plain question: ASCII words, a capital at most at their start, and sentence punctuation at most at their end."""

SPACY = """
import json, statistics, sys, time
import spacy

tokenizer = spacy.blank("en").tokenizer
questions, rounds = json.load(sys.stdin)
times = []
for _ in range(rounds + 1):
    start = time.process_time_ns()
    for question in questions:
        [token.lower_ for token in tokenizer(question) if not token.is_stop and not token.is_punct]
    times.append((time.process_time_ns() - start) / len(questions) / 1000)
print(json.dumps([spacy.__version__, statistics.median(times[1:])]))
"""


def floor(question: str) -> list[str]:
    """What any method that looks at words has to do."""
    return question.lower().split()


def measure(methods: Sequence[Callable[[str], object]], questions: Sequence[str], rounds: int) -> list[float]:
    """Median microseconds a question, for each of *methods*, taken in turn so that all see the same machine."""
    times: list[list[float]] = [[] for _ in methods]
    for turn in range(rounds + 1):
        for method, taken in zip(methods, times, strict=True):
            start = time.process_time_ns()
            for question in questions:
                method(question)
            if turn:
                taken.append((time.process_time_ns() - start) / len(questions) / 1000)
    return [statistics.median(taken) for taken in times]


def sampled(questions: Sequence[str], count: int = 150) -> list[str]:
    """At most *count* of the plain ones among *questions*, the same ones every time."""
    plain = list(filter(PLAIN.fullmatch, questions))
    return random.Random(7).sample(plain, min(count, len(plain)))


def each(method: Callable[[str], object], questions: Sequence[str]) -> list[float]:
    """Microseconds for each question by itself, asked over and over: the best of three times 500 calls."""
    times = []
    for question in questions:
        best = float("inf")
        for _ in range(3):
            start = time.process_time_ns()
            for _ in range(500):
                method(question)
            best = min(best, (time.process_time_ns() - start) / 500 / 1000)
        times.append(best)
    return times


def measure_spacy(python: str | None, questions: Sequence[str], rounds: int) -> tuple[str, float] | None:
    """spaCy's version and its microseconds a question, or ``None`` where there is no spaCy to measure."""
    if not python:
        return None
    done = subprocess.run(
        [python, "-c", SPACY], input=json.dumps([list(questions), rounds]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr.strip().splitlines()[-1], file=sys.stderr)
        return None
    version, median = json.loads(done.stdout)
    return str(version), float(median)


def report(name: str, questions: Sequence[str], spacy_python: str | None, rounds: int) -> None:
    """Print the medians and ratios for one set of questions."""
    lowest, ours = measure([floor, preprocess], questions, rounds)
    spacy = measure_spacy(spacy_python, questions, rounds)
    print(f"{name}: {len(questions)} questions, {sum(map(len, questions)) / len(questions):.0f} characters each")
    print(f"  lower().split()  {lowest:7.2f} us")
    print(f"  preprocess       {ours:7.2f} us   {ours / lowest:5.2f} x lower().split()")
    if spacy is None:
        print("  spaCy            not measured")
    else:
        print(f"  spaCy {spacy[0]:<10} {spacy[1]:7.2f} us   {spacy[1] / ours:5.2f} x preprocess")


def main() -> None:
    """Measure each file's questions: the plain ones, and all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=DEFAULT, help="JSON lines with a text each")
    parser.add_argument("--spacy-python", help="interpreter of an environment with spaCy")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    for file in options.files:
        questions = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
        name = "/".join(file.parent.parts[-2:])
        report(f"{name}, plain", list(filter(PLAIN.fullmatch, questions)), options.spacy_python, options.rounds)
        report(f"{name}, all", questions, options.spacy_python, options.rounds)


if __name__ == "__main__":
    main()
