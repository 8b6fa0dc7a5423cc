"""What a glossary gains on questions that use one form of a term where the answer has the other.

    python -m benchmarks.glossary --data ../shared/data [--recordings ../shared/recordings]

Vector search over the set ``small/acronyms``, alone and under several settings; the ceiling is the
rules over passages into which both forms of each term are written. The table goes to stdout and to
``results/glossary.md``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.quality.report import mean, table
from benchmarks.quality.sets import MODEL, records
from qtmiddleware.config.reading import read_preset
from qtmiddleware.kit.embedding import find_embedder
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.measures import evaluate
from qtmiddleware.kit.evaluation.recorded import RecordedModel
from qtmiddleware.retrieval.glossary import Glossary, add_glossary_terms
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

FOLDER: Final = Path("small/acronyms")
RESULT: Final = Path(__file__).parent / "results" / "glossary.md"
TOP_K: Final = 10
RULES, CEILING = "rules", "rules, both forms in each passage"
WITH_GLOSSARY: Final = "rules with glossary"
HEAD: Final = """# Glossary

Written by `python -m benchmarks.glossary --data ../shared/data`: 30 invented questions over 50 passages that use one
form of a term where the answer has the other; vector search by the built-in model. *Better* and *worse* count questions
beside the rules without a glossary. The ceiling is the rules over passages into which both forms of each term are
written, which also changes their vectors. The recorded replies are
those of a model that saw no glossary, so what the model gains by it is not in the figures."""
ABOUT_TERMS: Final = (
    "What the glossary was taken to say of each question, to be read for wrong substitutions."
)
ALWAYS: Final = {"escalation": {"mode": "always"}}


@dataclass(frozen=True)
class Scored:
    """What one system found: nDCG@10 and the terms used by question, and searches per question."""

    ndcg: Mapping[str, float]
    notes: Mapping[str, tuple[str, ...]]
    searches: float


class Search:
    """The passages that are nearest to a text by the built-in model."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        self._embedder = find_embedder(MODEL)
        self._ids, self._texts = ids, texts
        self._matrix = np.asarray(self._embedder.embed(list(texts)), dtype=np.float32)

    def __call__(self, query: str, top_k: int = TOP_K) -> list[dict[str, Any]]:
        scores = self._matrix @ np.asarray(self._embedder.embed([query])[0], dtype=np.float32)
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [
            {"id": self._ids[at], "score": float(scores[at]), "text": self._texts[at]}
            for at in best
        ]


def measure(
    search: Search, data: Dataset, settings: Mapping[str, Any], model: Any = None
) -> Scored:
    """Ask every question of *data* under *settings*."""
    wrapped = QueryMiddleware(settings, client=model).wrap(search)
    found = {one.id: wrapped.retrieve(one.text, top_k=TOP_K) for one in data.questions}
    run = {id_: [match.id for match in retrieval.matches] for id_, retrieval in found.items()}
    notes = {
        id_: tuple(said for stage, said in retrieval.trace.notes if stage == "glossary")
        for id_, retrieval in found.items()
    }
    return Scored(
        evaluate(data.qrels, run)["nDCG@10"],
        notes,
        mean([retrieval.trace.searches for retrieval in found.values()]),
    )


def write_both_forms(texts: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    """Return *texts* with the other forms of each term behind every form."""
    written: list[str | None] = list(texts)
    for term, forms in entries.items():
        for form in (term, *_as_list(forms)):
            others = [other for other in (term, *_as_list(forms)) if other != form]
            found = Glossary([([form], others)]).find_terms(form)
            written = add_glossary_terms(found, written)
    return [text or "" for text in written]


def _as_list(forms: str | list[str]) -> list[str]:
    return [forms] if isinstance(forms, str) else forms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path)
    args = parser.parse_args()
    folder = args.data / FOLDER
    data = Dataset.load(folder)
    path = folder / "glossary.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    ids, texts = [one.id for one in data.passages], [one.text for one in data.passages]
    search, both = Search(ids, texts), Search(ids, write_both_forms(texts, entries))
    recordings = (args.recordings or args.data.parent / "recordings") / f"{FOLDER}.jsonl"
    replies = records(recordings).values()
    model = RecordedModel(replies, [one.to_record() for one in data.questions])
    off, rules = read_preset("off")[1], read_preset("rules")[1]
    balanced = {**read_preset("balanced")[1], **ALWAYS}
    terms = {term: ", ".join(_as_list(forms)) for term, forms in entries.items()}
    with_glossary = {"glossary": {"terms": terms}}
    found = {
        "plain search": measure(search, data, off),
        RULES: measure(search, data, rules),
        WITH_GLOSSARY: measure(search, data, {**rules, **with_glossary}),
        CEILING: measure(both, data, rules),
        "balanced": measure(search, data, balanced, model),
        "balanced with glossary": measure(search, data, {**balanced, **with_glossary}, model),
    }
    text = report(found)
    print(text)
    RESULT.write_text(text, encoding="utf-8")


def report(found: Mapping[str, Scored]) -> str:
    """Return the page with the figures, the terms that were used, and the questions that got worse."""
    base, top = mean([*found[RULES].ndcg.values()]), mean([*found[CEILING].ndcg.values()])
    rows = []
    for name, scored in found.items():
        average = mean([*scored.ndcg.values()])
        gains = {id_: value - found[RULES].ndcg[id_] for id_, value in scored.ndcg.items()}
        worse = [id_ for id_, gain in gains.items() if gain < -1e-9]
        better = sum(gain > 1e-9 for gain in gains.values())
        share = f"{(average - base) / (top - base):.0%}"
        rows.append(
            [
                name,
                f"{average:.3f}",
                share,
                str(better),
                ", ".join(worse) or "none",
                f"{scored.searches:.1f}",
            ]
        )
    head = [
        "system",
        "nDCG@10",
        "share of the ceiling's gain",
        "better",
        "worse",
        "searches per question",
    ]
    terms = [[id_, "; ".join(said) or "none"] for id_, said in found[WITH_GLOSSARY].notes.items()]
    parts = [
        HEAD,
        table(head, rows),
        "## Terms used\n\n" + ABOUT_TERMS,
        table(["question", "terms"], terms),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
