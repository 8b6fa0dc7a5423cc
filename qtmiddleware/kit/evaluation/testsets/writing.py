"""Write a data set to a folder in BEIR's layout, with a README that states its limits."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.testsets.passages import is_storable_id
from qtmiddleware.kit.files import make_private_folders, open_privately

_README: Final = """\
# {name}: a synthetic test set

{questions} questions about {passages} passages. **No user asked them**: {synthetic} of them were \
written by a language
model ({models}), each from one passage, and kept if the model found them answered there, in \
words that do stand there.

Trust it to tell a system that is clearly better on these documents from one that is clearly \
worse. Do not trust it

- as the quality users will see: these questions are clear, fit one passage and have an answer, \
theirs need not,
- to judge differences of a few points, or rankings that are not significant,
- for questions that need several passages, follow up on a conversation, or have no answer here,
- for systems that use the same model: it may understand its own questions better than those of \
people,
- as complete: a passage that answers a question in other words than its own is not marked as \
relevant.

Replace it by real questions, judged by people, as soon as there are some.

The layout is that of BEIR: `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`. In a question's \
metadata, `passage`
is the one it was made of and `answer` what it says there.
"""


def write(dataset: Dataset, folder: Path) -> None:
    """Write *dataset* to the new folder *folder*. `Dataset.load` can read the folder.

    If writing fails, the files are deleted. Only the owner can read the folder, because it contains
    the documents. To share the folder, change the permissions.

    Raises `ConfigError` if the folder is not empty or cannot be written, or if an id or metadata
    cannot be stored.
    """
    target = Path(os.path.realpath(folder.expanduser()))
    _check_ids(dataset)
    # The files are written next to the target and renamed, so that nobody sees half a data set.
    draft = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        check_free(folder)
        make_private_folders(target.parent)
        try:
            _write_files(draft, dataset)
            if target.is_dir():
                target.rmdir()
            # If another program has written to the target meanwhile, rmdir or rename fails.
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise ConfigError(
            f"the test set cannot be written to {folder}: {error.strerror or type(error).__name__}",
            path=str(folder),
        ) from error


def check_free(folder: Path) -> None:
    """Raise `ConfigError` if *folder* exists, unless it is an empty folder."""
    target = folder.expanduser()
    # A broken link does not exist by its target, but a folder cannot take its name.
    if target.is_symlink() and not target.exists():
        message = f"{target} is a broken link; name {os.path.realpath(target)} itself"
        raise ConfigError(message, path=str(target))
    if any(target.iterdir()) if target.is_dir() else target.exists():
        raise ConfigError(
            f"{target} already exists, and test sets are never overwritten; name a new folder",
            path=str(target),
        )


def _check_ids(dataset: Dataset) -> None:
    """Raise `ConfigError` if an id is missing, occurs twice, or cannot be stored in the files."""
    for kind, ids in (
        ("passages", [passage.id for passage in dataset.passages]),
        ("questions", [question.id for question in dataset.questions]),
    ):
        if len(set(ids)) < len(ids) or "" in ids:
            raise ConfigError(
                f"two {kind} of {dataset.name} have the same id, or one has none", path=kind
            )
    for id_ in (
        *dataset.qrels,
        *(passage for grades in dataset.qrels.values() for passage in grades),
    ):
        if not is_storable_id(id_):
            raise ConfigError(
                f"the id {id_!r} has white space that a file of judgements cannot hold",
                path="qrels",
            )


def _write_files(folder: Path, dataset: Dataset) -> None:
    """Write the data set's files to the new *folder*."""
    make_private_folders(folder / "qrels")
    # A passage's text already begins with its title, if it has one.
    corpus = (
        {"_id": passage.id, "title": "", "text": passage.text, "metadata": passage.metadata}
        for passage in dataset.passages
    )
    _write_lines(folder / "corpus.jsonl", map(_format_json, corpus))
    _write_lines(
        folder / "queries.jsonl",
        (_format_json(question.to_record()) for question in dataset.questions),
    )
    judged = (
        (question, *row) for question, grades in dataset.qrels.items() for row in grades.items()
    )
    rows = (f"{question}\t{passage}\t{grade}" for question, passage, grade in judged)
    _write_lines(folder / "qrels" / "test.tsv", ("query-id\tcorpus-id\tscore", *rows))
    _write_lines(folder / "README.md", _build_readme(dataset).splitlines())


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write *lines* to the new file *path*. Only the owner can read the file."""
    # UTF-8 has no lone surrogates, so backslashreplace writes them as their JSON escapes.
    with open(
        path, "x", encoding="utf-8", errors="backslashreplace", newline="\n", opener=open_privately
    ) as file:
        file.writelines(f"{line}\n" for line in lines)


def _format_json(record: Mapping[str, Any]) -> str:
    """Return *record* as JSON. Raises `ConfigError` if the metadata cannot become JSON."""
    try:
        return json.dumps(record, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the metadata of {record['_id']!r} must be JSON", path="metadata"
        ) from error


def _build_readme(dataset: Dataset) -> str:
    """Return the text of the README for *dataset*."""
    synthetic = [
        question.metadata
        for question in dataset.questions
        if question.metadata.get("synthetic") is True
    ]
    models = sorted({str(metadata["model"]) for metadata in synthetic if "model" in metadata})
    return _README.format(
        name=dataset.name,
        questions=f"{len(dataset.questions):,}",
        passages=f"{len(dataset.passages):,}",
        synthetic="all" if len(synthetic) == len(dataset.questions) else f"{len(synthetic):,}",
        models=", ".join(f"`{model}`" for model in models) or "its name is not known",
    )
