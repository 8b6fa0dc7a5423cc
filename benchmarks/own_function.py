"""What `qtm bench --function` prints for a user's function: the table of `docs/measuring.md`.

A folder of its own gets an `app.py` that searches the demo's passages, and the demo's questions as
`questions.csv`. The demo's recorded replies stand for the model. Run
`python -m benchmarks.own_function`.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from qtmiddleware.kit import demo
from qtmiddleware.kit.demo import load_dataset

APP: Final = """
import numpy as np

from qtmiddleware.kit.demo import load_dataset
from qtmiddleware.kit.embedding import find_embedder

passages = load_dataset().passages
model = find_embedder("all-MiniLM-L6-v2")
vectors = np.array(model.embed([passage.text for passage in passages]))


def search(query: str, top_k: int = 4):
    scores = vectors @ np.array(model.embed([query])[0])
    best = np.argsort(-scores)[:top_k]
    return [{"id": passages[at].id, "score": float(scores[at]), "text": passages[at].text} for at in best]
"""
SYSTEMS: Final = "rules,rewrite,balanced,seed-parity"


def write_questions(path: Path) -> None:
    """Write the demo's questions and the ids of their passages to *path*, as a table."""
    data = load_dataset()
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["question", "ids"])
        for question in data.questions:
            # A table has no room for the conversation before a question.
            if not question.history:
                grades = data.qrels[question.id]
                rows.writerow(
                    [question.text, ",".join(id_ for id_, grade in grades.items() if grade > 0)]
                )


def main() -> None:
    """Write the user's files and run the command on them; leave with its exit code."""
    recordings = Path(demo.__file__).parent / "data" / "recordings.jsonl"
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(APP, encoding="utf-8")
        write_questions(folder / "questions.csv")
        command = [sys.executable, "-c", "from qtmiddleware.kit.cli import main; main()", "bench"]
        measured = ["--function", "app:search", "--data", "questions.csv", "--systems", SYSTEMS]
        replayed = ["--recordings", str(recordings)]
        sys.exit(
            subprocess.run(
                [*command, *measured, *replayed, *sys.argv[1:]], cwd=folder, check=False
            ).returncode
        )


if __name__ == "__main__":
    main()
