"""Compare a run with an earlier run on the same questions, and tell whether retrieval got worse."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.compare import Comparison
from qtmiddleware.kit.evaluation.dataset import Dataset, read_text
from qtmiddleware.kit.evaluation.formatting import (
    format_points,
    format_size,
    join_names,
    quote_name,
    quote_names,
    to_json,
)
from qtmiddleware.kit.evaluation.measures import FEW, PRIMARY, Difference, difference, holm
from qtmiddleware.preprocessing.text import format_count

Verdict = Literal["worse", "not worse", "inconclusive"]
# The values of nDCG@10, by system and question id.
Values = Mapping[str, Mapping[str, float]]

# So many questions that lost most are named.
_WORST: Final = 5
_HOW: Final = "write it with: qtm bench ... --json > base.json"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of an earlier run."""

    name: str
    values: Values = field(repr=False)
    fingerprints: Mapping[str, str] = field(repr=False)
    model: str | None

    @classmethod
    def read(cls, path: str | Path) -> Baseline:
        """Read the JSON file at *path*. Raises `ConfigError` if it cannot be used."""
        try:
            report = json.loads(read_text(Path(path).expanduser()))
        except ConfigError as error:
            raise _refuse(path, f"cannot be used ({error}); {_HOW}") from None
        except (ValueError, RecursionError):
            raise _refuse(path, f"is no JSON, or was cut; {_HOW}") from None
        return cls.from_report(report, str(path))

    @classmethod
    def from_report(cls, report: Any, name: str) -> Baseline:
        """Return the baseline in *report*, the parsed output of ``qtm bench --json``."""
        try:
            values = {
                str(system["name"]): {
                    id_: float(value) for id_, value in system["perQuery"][PRIMARY].items()
                }
                for system in report["systems"]
            }
            # NaN fails this check, too: no comparison with NaN finds a loss.
            if not all(0 <= value <= 1 for run in values.values() for value in run.values()):
                raise ValueError(PRIMARY)
            baseline = cls(name, values, dict(report["fingerprints"]), report.get("model"))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise _refuse(name, f"must hold what qtm bench --json prints; {_HOW}") from None
        if not any(values.values()):
            raise _refuse(name, f"must hold judged questions; {_HOW}")
        return baseline

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise `ConfigError` if the baseline was measured on other data than *dataset*."""
        now = dataset.fingerprints
        parts = [part for part in now if self.fingerprints.get(part) != now[part]]
        if parts:
            raise _refuse(
                self.name,
                f"was measured on other {join_names(parts)}, so it cannot be compared. Use"
                f" the same --function, --data, --recordings and --questions, or {_HOW}",
            )

    def check_systems(self, systems: Collection[str]) -> None:
        """Raise `ConfigError` if the baseline has none of *systems*."""
        if self.values.keys().isdisjoint(systems):
            raise _refuse(
                self.name,
                f"must hold one of the systems {join_names(systems)}, not"
                f" {join_names(self.values)}. Name the same ones with --systems or"
                " --config",
            )


def _refuse(path: str | Path, problem: str) -> ConfigError:
    return ConfigError(f"the baseline {path} {problem}", path="--baseline", value=str(path))


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one system since the baseline. The p-value is corrected after Holm."""

    name: str
    before: float
    after: float
    difference: Difference

    @property
    def verdict(self) -> Verdict:
        """``worse`` if the mean fell by more than chance."""
        if self.difference.is_significant and self.difference.gain < 0:
            return "worse"
        return "inconclusive" if len(self.difference.gains) < FEW else "not worse"

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a dict, ready for JSON."""
        worst = [{"id": id_, "gain": gain} for id_, gain in self.difference.worst(_WORST)]
        counts = {"better": self.difference.better, "worse": self.difference.worse}
        return {**to_json(self, "verdict"), **counts, "worst": worst}

    def describe(self) -> str:
        """Return the change as a few sentences."""
        change, name = self.difference, quote_name(self.name)
        total = format_count(len(change.gains), "question")
        if not change.better and not change.worse:
            return f"{name}: no change in {total}."
        return (
            f"{name}: of {total}, {change.worse:,} got worse and {change.better:,} got better."
            f" {PRIMARY} went from {self.before:.3f} to {self.after:.3f}, by"
            f" {change.format_gain()} points. This {change.describe_chance()}.{self._name_worst()}"
        )

    def _name_worst(self) -> str:
        if self.verdict != "worse":
            return ""
        worst = self.difference.worst(_WORST)
        lost = [f"{id_[:40]} ({format_points(gain)})" for id_, gain in worst]
        return f" These lost most: {', '.join(lost)}."


def measure_changes(
    before: Values,
    after: Values,
    *,
    seed: int = 0,
) -> tuple[Change, ...]:
    """Return the change of each system that is in both *before* and *after*.

    A question that is missing in one of them failed there, and counts as 0.
    """
    changes: dict[str, Change] = {}
    for name in [name for name in before if name in after]:
        old, new = before[name], after[name]
        ids = sorted(old.keys() | new.keys())
        gains = {id_: new.get(id_, 0.0) - old.get(id_, 0.0) for id_ in ids}
        old_mean, new_mean = (fsum(run.values()) / max(1, len(ids)) for run in (old, new))
        changes[name] = Change(name, old_mean, new_mean, difference(gains, seed=seed))
    # A system that did not change is not tested.
    tested = {
        name: change.difference
        for name, change in changes.items()
        if any(change.difference.gains.values())
    }
    corrected = holm(tested)
    return tuple(
        replace(change, difference=corrected.get(name, change.difference))
        for name, change in changes.items()
    )


@dataclass(frozen=True, slots=True)
class GateResult:
    """The comparison of a run with its baseline. *notes* say what else changed."""

    baseline: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``worse`` if a system is worse, otherwise ``inconclusive`` or ``not worse``."""
        verdicts = {change.verdict for change in self.changes}
        order: tuple[Verdict, ...] = ("worse", "inconclusive")
        return next((verdict for verdict in order if verdict in verdicts), "not worse")

    @property
    def question_count(self) -> int:
        """The number of compared questions."""
        return max((len(change.difference.gains) for change in self.changes), default=0)

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "worse":
            worse = [change.name for change in self.changes if change.verdict == "worse"]
            return f"Retrieval got worse with {quote_names(worse)}."
        if self.verdict == "inconclusive":
            count = format_count(self.question_count, "question is", "questions are")
            return f"{count} too few to tell whether retrieval got worse. Use at least {FEW}."
        text = "Found no loss that is more than chance."
        lowest = min(self.changes, key=lambda change: change.difference.low)
        size = format_size(min(0.0, lowest.difference.low))
        if size == "0.0":
            return text
        name = quote_name(lowest.name)
        return f"{text} A loss of up to {size} points with {name} cannot be ruled out."

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict, a sentence for each system, and what else changed."""
        head = f"{self.headline} The baseline is {self.baseline}."
        return (head, *(change.describe() for change in self.changes), *self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, ready for JSON."""
        return {
            **to_json(self, "verdict", "sentences", leave_out=("changes",)),
            "measure": PRIMARY,
            "questions": self.question_count,
            "systems": [change.to_dict() for change in self.changes],
        }


def compare_with_baseline(
    baseline: Baseline, comparison: Comparison, *, model_name: str | None = None
) -> GateResult:
    """Compare *comparison* with *baseline*, question by question.

    Raises `ConfigError` if the two cannot be compared, for example because the baseline has
    questions that were not asked.
    """
    after = {score.name: score.per_query[PRIMARY] for score in comparison.systems}
    baseline.check_systems(after)
    before = baseline.values
    if unknown := {id_ for values in before.values() for id_ in values} - comparison.asked:
        raise _refuse(
            baseline.name,
            f"has {format_count(len(unknown), 'question')} that this run does not have, such as"
            f" {min(unknown)[:60]!r}; {_HOW}",
        )
    return GateResult(
        baseline.name,
        measure_changes(before, after, seed=comparison.seed),
        tuple(_list_changed_conditions(baseline.model, model_name, before, after)),
    )


def _list_changed_conditions(
    old_model: str | None,
    model: str | None,
    before: Values,
    after: Values,
) -> Iterator[str]:
    if missing := [name for name in before if name not in after]:
        yield f"Only in the baseline: {quote_names(missing)}."
    if None not in (old_model, model) and old_model != model:
        yield f"The baseline was measured with the model {old_model}, this run with {model}."
    systems = before.keys() & after.keys()
    old, new = ({id_ for name in systems for id_ in values[name]} for values in (before, after))
    for failed, where in ((old - new, "this run"), (new - old, "the baseline")):
        if failed:
            count = format_count(len(failed), "question")
            yield f"In {where}, {count} failed. A question that failed counts as 0."
