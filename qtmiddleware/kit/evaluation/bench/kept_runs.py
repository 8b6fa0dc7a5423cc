"""Save the results of measuring your own function, so that an interrupted measurement can resume.

A measurement that finishes deletes its file, because the index may change before the next one.
After an interruption the file stays, and the next measurement with the same settings reuses its
results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from qtmiddleware.errors import StoreError
from qtmiddleware.kit.evaluation.lines import parse_json_object, read_lines
from qtmiddleware.kit.evaluation.systems import Run
from qtmiddleware.runtime.files import append_line, make_private_folders
from qtmiddleware.types import Variant

_PARTS: Final = ("ids", "variants")


class KeptRuns:
    """Saves the finished runs of one measurement in a file.

    Only the owner can read the file, because the runs contain queries. If a line is damaged, the
    question is asked again.

    Attributes:
        path: The file.
    """

    def __init__(self, folder: Path, identity: Iterable[Any]) -> None:
        """Open the measurement's file in *folder*, and load the saved runs.

        The file's name is a hash of *identity*, the values that identify the measurement. Raises
        `StoreError` if the folder cannot be used.
        """
        name = hashlib.sha256(
            json.dumps(list(identity), sort_keys=True, default=repr).encode()
        ).hexdigest()[:16]
        self.path = folder.expanduser() / f"runs-{name}.jsonl"
        self._runs: dict[tuple[str, str], Run] = {}
        try:
            make_private_folders(self.path.parent)
            if self.path.exists():
                self._load_runs()
        except OSError as error:
            raise self._build_store_error(error) from error

    def __len__(self) -> int:
        return len(self._runs)

    def load_run(self, system_key: str, question_id: str) -> Run | None:
        """Return the saved run of a system for a question, or ``None`` if there is none."""
        return self._runs.get((_hash_system_key(system_key), question_id))

    def store_run(self, system_key: str, question_id: str, run: Run) -> None:
        """Save *run*, the result of a system for a question.

        Raises `StoreError` if the file cannot be written.
        """
        # The key of a system is the JSON of its settings. The hash keeps the lines short.
        key = _hash_system_key(system_key)
        self._runs[key, question_id] = run
        record = {name: value for name, value in asdict(run).items() if name != "error"}
        line = json.dumps({"system": key, "question": question_id, "run": record}, default=dict)
        try:
            append_line(self.path, line.encode())
        except OSError as error:
            raise self._build_store_error(error) from error

    def delete_runs(self) -> None:
        """Forget all runs and delete the file, because the measurement is complete."""
        self._runs.clear()
        self.path.unlink(missing_ok=True)

    def _load_runs(self) -> None:
        """Load the runs in the file. Damaged lines are skipped."""
        for _, text in read_lines(self.path):
            try:
                record = parse_json_object(text)
                self._runs[str(record["system"]), str(record["question"])] = _parse_run(
                    record["run"]
                )
            # The process may have been killed while it wrote the last line.
            except (ValueError, TypeError, KeyError, AttributeError):
                continue

    def _build_store_error(self, error: OSError) -> StoreError:
        """Return a `StoreError` whose message names the file and *error*."""
        why = error.strerror or type(error).__name__
        return StoreError(f"{self.path} cannot be used: {why}. Name another folder with --cache")


def _parse_run(record: Mapping[str, Any]) -> Run:
    """Return the run in *record*.

    Raises `TypeError`, `KeyError` or another exception if *record* is damaged.
    """
    rest = {name: value for name, value in record.items() if name not in _PARTS}
    ids = tuple(str(id_) for id_ in record["ids"])
    return Run(ids, variants=tuple(Variant(**variant) for variant in record["variants"]), **rest)


def _hash_system_key(system_key: str) -> str:
    """Return a hash of *system_key*, as 16 hexadecimal digits."""
    return hashlib.sha256(system_key.encode()).hexdigest()[:16]
