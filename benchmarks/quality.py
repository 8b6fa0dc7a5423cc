"""How well each system retrieves on data sets with judgements and recorded replies.

    python -m benchmarks.quality --data ../shared/data --recordings ../shared/recordings [--sets covid_faq,nq_small]

Every set is a folder in BEIR layout, its recordings a file of the same name. Passages are embedded once and kept
under ``.tmp/quality``; only the questions that were recorded are asked. The result goes to stdout and, as JSON, to
``--json``.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

from qtmiddleware.bench import Bench, build_index
from qtmiddleware.embedders import embedder_named
from qtmiddleware.evaluation import BASELINE, USUAL, Comparison, Dataset, chosen
from qtmiddleware.llms.recorded import RecordedModel
from qtmiddleware.ports import Embedder
from qtmiddleware.stores import SQLiteStore

KEPT = Path(".tmp/quality")


def recorded_part(data: Dataset, records: list[dict[str, object]]) -> Dataset:
    """The questions of *data* that were recorded, with all its passages."""
    wanted = {record["_id"] for record in records}
    questions = tuple(question for question in data.questions if question.id in wanted)
    return replace(data, questions=questions, qrels={it.id: data.qrels[it.id] for it in questions})


def index_of(data: Dataset, name: str, embedder: Embedder) -> SQLiteStore:
    """The index of *data*, built where it is not there yet."""
    path = KEPT / f"{name}.sqlite"
    store = SQLiteStore(path, embedding_model=embedder.name, dimension=embedder.dimension)
    if store.count() == len(data.passages):
        return store
    store.close()
    return build_index(data, path, embedder)


def measured(name: str, data_root: Path, recordings: Path, embedder: Embedder) -> Comparison:
    """Every system on one data set."""
    lines = (recordings / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    data = recorded_part(Dataset.load(data_root / name), records)
    asked = [question.to_record() for question in data.questions]
    with index_of(data, name, embedder) as store:
        return Bench(store, embedder, RecordedModel.from_records(records, asked)).measure(data, chosen(USUAL))


def table(comparisons: dict[str, Comparison]) -> str:
    """A row a system: nDCG@10 and, in brackets, the hurt rate on each set, and the mean over the sets."""
    first = next(iter(comparisons.values()))
    lines = ["| system | " + " | ".join(comparisons) + " | mean |", "|---" * (len(comparisons) + 2) + "|"]
    for score in first.systems:
        found = [comparison[score.name] for comparison in comparisons.values()]
        values = [(one.means["nDCG@10"], one.hurt_rate) for one in found]
        values.append((sum(it for it, _ in values) / len(values), sum(it for _, it in values) / len(values)))
        lines.append(f"| {score.name} | " + " | ".join(f"{ndcg:.3f} ({hurt:.0%})" for ndcg, hurt in values) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument("--sets", default="", help="names with commas; all that were recorded by default")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Several threads of the linear algebra library only wait for one another here; it reads this when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    names = options.sets.split(",") if options.sets else sorted(it.stem for it in options.recordings.glob("*.jsonl"))
    embedder = embedder_named("all-MiniLM-L6-v2")
    comparisons: dict[str, Comparison] = {}
    for name in names:
        comparisons[name] = measured(name, options.data, options.recordings, embedder)
        gain = comparisons[name]["combined"].means["nDCG@10"] - comparisons[name][BASELINE].means["nDCG@10"]
        print(f"{name}: combined {100 * gain:+.1f} points", flush=True)
    print(table(comparisons))
    if options.json is not None:
        found = {name: comparison.to_dict() for name, comparison in comparisons.items()}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
