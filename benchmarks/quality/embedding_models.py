"""What the presets gain and harm with three embedding models, on the same passages and replies."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, table, write
from benchmarks.quality.sets import MODEL, Prepared, Source, prepared_with, records
from benchmarks.quality.small import ALWAYS, FOLDER
from qtmiddleware.config.reading import read_preset
from qtmiddleware.kit.evaluation import Comparison, Dataset
from qtmiddleware.kit.evaluation.measures import PRIMARY
from qtmiddleware.kit.evaluation.recorded import RecordedModel
from qtmiddleware.kit.evaluation.systems import BASELINE

FOLDERS: Final = {MODEL: "", "multilingual-e5-small": "e5", "WordLlama": "wordllama"}
"""Where the vectors of a model lie, by its name; the first one embeds the texts itself."""
FREE: Final = {BASELINE: read_preset("off")[1], "rules": read_preset("rules")[1]}
# `balanced` searches a text that joins others, of which no vector is kept.
SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    **FREE,
    **{name: {**read_preset(name)[1], **ALWAYS} for name in ("words", "thorough")},
}
_REPAIR: Final = re.compile(r" \([^()]*\)$")


@dataclass(frozen=True)
class KeptVectors:
    """An embedding model whose vectors of one set were kept in a file."""

    name: str
    dimension: int
    by_text: Mapping[bytes, list[float]]

    @classmethod
    def load(cls, name: str, file: Path, passages: Sequence[str]) -> KeptVectors:
        """Those of *file*, of which *passages* are the passages."""
        import numpy as np

        kept = np.load(file)
        rows = [(_hash(text), row) for text, row in zip(passages, kept["passages"], strict=True)]
        for keys, vectors in (("hyde_keys", "hyde_vectors"), ("keys", "vectors")):
            rows += zip([bytes(key) for key in kept[keys]], kept[vectors], strict=True)
        by_text = {key: row.astype(float).tolist() for key, row in rows}
        return cls(name, kept["passages"].shape[1], by_text)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        # What the guard has appended to a reply's text has no vector.
        return [
            self.by_text.get(_hash(text)) or self.by_text[_hash(_REPAIR.sub("", text))]
            for text in texts
        ]


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def run(source: Source) -> None:
    """Measure all sets that have vectors, and write ``results/quality-embedding-models.md``."""
    vectors = source.data.parent / "vectors"
    pools = json.loads((vectors / "pools.json").read_text(encoding="utf-8"))
    small = Source.of(source.data / FOLDER, source.recordings / FOLDER)
    if source.is_whole:
        unrecorded = [
            path.stem
            for path in sorted((vectors / "wordllama").glob("*.npz"))
            if (small.data / path.stem).is_dir() and path.stem not in small.names
        ]
        small = replace(small, names=(*small.names, *unrecorded))
    else:
        small = replace(small, names=tuple(set(source.names) & set(small.names)))
        source = replace(source, names=tuple(set(source.names) - set(small.names)))
    parts = []
    for title, sets in (("Small collections", small), ("Large collections", source)):
        found: dict[str, dict[str, Comparison]] = {}
        for name in sets.names:
            for model, folder in FOLDERS.items():
                file = vectors / folder / f"{name}.npz" if folder else None
                with _prepare(sets, name, model, file, pools.get(name)) as one:
                    systems = SYSTEMS if sets.recording(name).is_file() else FREE
                    found.setdefault(name, {})[model] = one.measured(systems, SEED)
            print(f"{name}: measured with {len(FOLDERS)} models", flush=True)
        if found:
            parts += [f"## {title}", _summary(found), _by_set(found)]
    about = circumstances(source, "embedding-models")
    about["embedding model"] = ", ".join(FOLDERS)
    write(source, "quality-embedding-models", about, parts)


@contextmanager
def _prepare(
    source: Source, name: str, model: str, file: Path | None, pool: Sequence[str] | None
) -> Iterator[Prepared]:
    """One set, of whose passages only those in the *pool* take part; ``None`` means all."""
    data = Dataset.load(source.data / name)
    if pool is not None:
        chosen = set(pool)
        near = (passage for passage in data.passages if passage.id in chosen)
        data = replace(data, passages=tuple(near))
    replies: dict[str, dict[str, Any]] = {}
    if source.recording(name).is_file():
        replies = records(source.recording(name))
        data = data.only(replies)
    llm = RecordedModel(replies.values(), [question.to_record() for question in data.questions])
    embedder = file and KeptVectors.load(model, file, [passage.text for passage in data.passages])
    with prepared_with(data, name, llm, embedder) as one:
        yield one


def _summary(found: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Means of the sets: nDCG@10, gain and share that got worse, by model and preset."""
    rows = []
    for model in FOLDERS:
        for name in SYSTEMS:
            scores = [by_model[model] for by_model in found.values()]
            measured = [one[name] for one in scores if name in [row.name for row in one.systems]]
            row = [model, name, f"{mean([score.means[PRIMARY] for score in measured]):.3f}"]
            if name != BASELINE:
                row += [
                    f"{100 * mean([score.difference.gain for score in measured]):+.1f}",
                    f"{mean([score.hurt_rate for score in measured]):.1%}",
                    f"{100 * min(score.difference.gain for score in measured):+.1f}",
                ]
            rows.append([*[*row, "", "", ""][:6], str(len(measured))])
    return table(
        ["embedding model", "preset", "nDCG@10", "gain", "worse", "lowest set", "sets"], rows
    )


def _by_set(found: Mapping[str, Mapping[str, Comparison]]) -> str:
    head = ["set"]
    head += [f"{model}: {name}" for model in FOLDERS for name in SYSTEMS]
    rows = []
    for set_name, by_model in found.items():
        row = [set_name]
        for comparison in by_model.values():
            known = {score.name: score for score in comparison.systems}
            row += [
                f"{known[name].means[PRIMARY]:.3f} ({known[name].hurt_rate:.0%})"
                if name in known
                else ""
                for name in SYSTEMS
            ]
        rows.append(row)
    return table(head, rows)
