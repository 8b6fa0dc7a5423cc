"""What a measurement of one's own function has found so far, on disk until it is complete.

An index may change between two measurements, so nothing is kept beyond the end of one. Only one
that was interrupted leaves its file, and the same measurement takes it up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.evaluation.lines import parse_object, read_lines
from qtmiddleware.kit.evaluation.systems import Run
from qtmiddleware.runtime.files import append_line, make_private_folders
from qtmiddleware.types import Variant

_PARTS: Final = ("ids", "variants")


class KeptRuns:
    """The finished runs of one measurement, in a file of *folder* that is named by what *identity* says it measures.

    The file is readable by its owner alone, as it holds what was searched. A damaged line is left
    out, so that its question is asked again. Raises `StoreError` if the folder cannot be used.
    """

    def __init__(self, folder: Path, identity: Iterable[Any]) -> None:
        name = hashlib.sha256(
            json.dumps(list(identity), sort_keys=True, default=repr).encode()
        ).hexdigest()[:16]
        self.path = folder.expanduser() / f"runs-{name}.jsonl"
        self._runs: dict[tuple[str, str], Run] = {}
        try:
            make_private_folders(self.path.parent)
            if self.path.exists():
                self._load()
        except OSError as error:
            raise self._explain(error) from error

    def __len__(self) -> int:
        return len(self._runs)

    def recall(self, system: str, question: str) -> Run | None:
        """Return what *system* found for the question of this id, ``None`` if that is not known."""
        return self._runs.get((_hash_name(system), question))

    def remember(self, system: str, question: str, run: Run) -> None:
        """Keep what *system* found for it; raises `StoreError`."""
        key = _hash_name(system)
        self._runs[key, question] = run
        found = {name: value for name, value in asdict(run).items() if name != "error"}
        line = json.dumps({"system": key, "question": question, "run": found}, default=dict)
        try:
            append_line(self.path, line.encode())
        except OSError as error:
            raise self._explain(error) from error

    def finish(self) -> None:
        """Forget all of it: the measurement is complete."""
        self._runs.clear()
        self.path.unlink(missing_ok=True)

    def _load(self) -> None:
        for _, text in read_lines(self.path):
            try:
                record = parse_object(text)
                self._runs[str(record["system"]), str(record["question"])] = _read_run(
                    record["run"]
                )
            except (ValueError, TypeError, KeyError, AttributeError):
                continue

    def _explain(self, error: OSError) -> StoreError:
        why = error.strerror or type(error).__name__
        return StoreError(f"{self.path} cannot be used: {why}. Name another folder with --cache")


def _read_run(kept: Mapping[str, Any]) -> Run:
    """Return the run that was kept; raises what a damaged one raises."""
    rest = {name: value for name, value in kept.items() if name not in _PARTS}
    ids = tuple(str(id_) for id_ in kept["ids"])
    return Run(ids, variants=tuple(Variant(**it) for it in kept["variants"]), **rest)


def _hash_name(system: str) -> str:
    return hashlib.sha256(system.encode()).hexdigest()[:16]
