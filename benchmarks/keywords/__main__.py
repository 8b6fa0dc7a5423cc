"""How many of 300 questions get the keywords that two readers wrote down.

``python -m benchmarks.keywords --data ../shared/data``. The readers worked apart, by GUIDE.md,
before the rules were changed. A question is right where its keywords are those of one reader or of
both; a word is *lost* where both kept it, *left over* where neither did.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import qtmiddleware as qtm
from benchmarks.keywords.sample import draw

HERE: Final = Path(__file__).parent
RESULT: Final = HERE.parent / "results" / "keywords.md"
EDGES: Final = "?!.,;:\"'“”‘’«»¿¡()[]…"


def split(keywords: str) -> list[str]:
    """The words of *keywords* as they are compared: without case and the punctuation at their edges."""
    words = (word.casefold().replace("’", "'") for word in keywords.split())
    return [stripped for word in words if (stripped := word.strip(EDGES))]


class Judged:
    """One system's keywords for all questions beside those of the readers."""

    def __init__(self, keywords: Mapping[str, str], readers: tuple[Mapping[str, str], ...]) -> None:
        self.right: list[str] = []
        self.agreed_and_right: list[str] = []
        self.lost: dict[str, Counter[str]] = {}
        self.left_over: dict[str, Counter[str]] = {}
        for name, text in keywords.items():
            mine, theirs = split(text), [split(reader[name]) for reader in readers]
            if mine in theirs:
                self.right.append(name)
                self.agreed_and_right += [name] if theirs[0] == theirs[1] else []
            counts = [Counter(words) for words in theirs]
            if lost := (counts[0] & counts[1]) - Counter(mine):
                self.lost[name] = lost
            if left := Counter(mine) - (counts[0] | counts[1]):
                self.left_over[name] = left


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument(
        "--wrong", action="store_true", help="list every question that is not right"
    )
    given = parser.parse_args()
    questions = draw(given.data)
    readers = tuple(
        json.loads((HERE / f"reader_{letter}.json").read_text(encoding="utf-8")) for letter in "ab"
    )
    keywords = {name: qtm.preprocess(text) for name, text in questions.items()}
    judged = Judged(keywords, readers)
    if given.wrong:
        for name in questions:
            if name not in judged.right:
                print(
                    questions[name],
                    keywords[name],
                    *(reader[name] for reader in readers),
                    sep="\n    ",
                )
    RESULT.write_text(report(judged, readers), encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


def report(judged: Judged, readers: tuple[Mapping[str, str], ...]) -> str:
    """What was found, in Markdown."""
    agreed = [name for name in readers[0] if split(readers[0][name]) == split(readers[1][name])]
    total, both = len(readers[0]), len(judged.agreed_and_right)
    lost, left_over = len(judged.lost), len(judged.left_over)
    lines = [
        "# Keywords of 300 questions",
        "",
        "`python -m benchmarks.keywords --data ../shared/data`: questions of the public sets, drawn by a fixed",
        "seed; two readers wrote down the keywords by",
        "[GUIDE.md](../keywords/GUIDE.md), apart from each other and before the rules were changed.",
        f"They wrote the same for {len(agreed)} of {total}.",
        "",
        f"| as one reader or both | as both, of {len(agreed)} | with a word lost | with one left over |",
        "|---|---|---|---|",
        f"| {len(judged.right)} ({len(judged.right) / total:.0%}) | {both} | {lost} | {left_over} |",
        "",
        "*Lost*: both readers kept it. *Left over*: neither did.",
    ]
    for title, words in (("Lost", judged.lost), ("Left over", judged.left_over)):
        counts = sum(words.values(), Counter[str]())
        shown = ", ".join(f"{word} {count}" for word, count in counts.most_common(25))
        lines += ["", f"{title} by the rules: {shown or 'none'}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
