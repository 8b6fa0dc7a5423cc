"""Compare a run with an earlier run on the same questions, and tell whether retrieval got worse."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.compare import Comparison
from qtmiddleware.kit.evaluation.dataset import Dataset, read_text
from qtmiddleware.kit.evaluation.measures import (
    FEW,
    PRIMARY,
    TOLERANCE,
    Difference,
    difference,
    holm,
)
from qtmiddleware.preprocessing.text import format_count

Verdict = Literal["worse", "not worse", "inconclusive"]
# The values of nDCG@10, by system and question id.
Values = Mapping[str, Mapping[str, float]]

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
                    id_: _read_value(value) for id_, value in system["perQuery"][PRIMARY].items()
                }
                for system in report["systems"]
            }
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
                f"was measured on other {figures.join_names(parts)}, so it cannot be compared. Use"
                f" the same --function, --data, --recordings and --questions, or {_HOW}",
            )

    def check_systems(self, systems: Collection[str]) -> None:
        """Raise `ConfigError` if the baseline has none of *systems*."""
        if self.values.keys().isdisjoint(systems):
            raise _refuse(
                self.name,
                f"must hold one of the systems {figures.join_names(systems)}, not"
                f" {figures.join_names(self.values)}. Name the same ones with --systems or"
                " --config",
            )


def _refuse(path: str | Path, problem: str) -> ConfigError:
    return ConfigError(f"the baseline {path} {problem}", path="--baseline", value=str(path))


def _read_value(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(value)
    return float(value)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one system since the baseline. The p-value is corrected after Holm."""

    name: str
    before: float
    after: float
    difference: Difference
    gains: Mapping[str, float] = field(repr=False)

    @property
    def verdict(self) -> Verdict:
        """``worse`` if the mean fell by more than chance."""
        if self.difference.is_significant and self.difference.gain < 0:
            return "worse"
        return "inconclusive" if len(self.gains) < FEW else "not worse"

    @property
    def worse_count(self) -> int:
        """The number of questions that got worse."""
        return sum(gain < 0 for gain in self.gains.values())

    @property
    def better_count(self) -> int:
        """The number of questions that got better."""
        return sum(gain > 0 for gain in self.gains.values())

    def worst(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the ids and the (negative) changes of the questions that lost most."""
        lost = sorted((gain, id_) for id_, gain in self.gains.items() if gain < 0)
        return [(id_, gain) for gain, id_ in lost[:count]]

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a dict, ready for JSON."""
        return {
            **figures.to_json(self, "verdict", leave_out=("gains",)),
            "better": self.better_count,
            "worse": self.worse_count,
            "worst": [{"id": id_, "gain": gain} for id_, gain in self.worst()],
        }


def measure_changes(before: Values, after: Values, *, seed: int = 0) -> tuple[Change, ...]:
    """Return the change of each system that is in both *before* and *after*.

    A question that is missing in one of them failed there, and counts as 0.
    """
    changes: list[Change] = []
    for name, old in before.items():
        if name not in after:
            continue
        new = after[name]
        gains: dict[str, float] = {}
        for id_ in sorted(old.keys() | new.keys()):
            gain = new.get(id_, 0.0) - old.get(id_, 0.0)
            gains[id_] = gain if abs(gain) > TOLERANCE else 0.0
        old_mean = fsum(old.values()) / max(1, len(gains))
        new_mean = fsum(new.values()) / max(1, len(gains))
        test = difference(list(gains.values()), seed=seed)
        changes.append(Change(name, old_mean, new_mean, test, gains))
    # A system that did not change is not tested.
    corrected = holm(
        {change.name: change.difference.p for change in changes if any(change.gains.values())}
    )
    return tuple(
        replace(
            change,
            difference=replace(
                change.difference,
                p_holm=corrected.get(change.name, 1.0),
                tests=len(corrected),
            ),
        )
        for change in changes
    )


@dataclass(frozen=True, slots=True)
class GateResult:
    """The comparison of a run with its baseline. *missing* are the systems only in the baseline."""

    baseline: str
    changes: tuple[Change, ...]
    missing: tuple[str, ...] = ()
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
        return max((len(change.gains) for change in self.changes), default=0)

    @property
    def headline(self) -> str:
        """The verdict as a sentence."""
        if self.verdict == "worse":
            worse = [change.name for change in self.changes if change.verdict == "worse"]
            return f"Retrieval got worse with {figures.quote_names(worse)}."
        if self.verdict == "inconclusive":
            count = format_count(self.question_count, "question is", "questions are")
            return f"{count} too few to tell whether retrieval got worse. Use at least {FEW}."
        text = "Found no loss that is more than chance."
        lowest = min(self.changes, key=lambda change: change.difference.low)
        size = figures.format_size(min(0.0, lowest.difference.low))
        if size == "0.0":
            return text
        name = figures.quote_name(lowest.name)
        return f"{text} A loss of up to {size} points with {name} cannot be ruled out."

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict, a sentence for each system, and what else changed."""
        sentences = [f"{self.headline} The baseline is {self.baseline}."]
        sentences += map(_describe_change, self.changes)
        if self.missing:
            sentences.append(f"Only in the baseline: {figures.quote_names(self.missing)}.")
        return (*sentences, *self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, ready for JSON."""
        return {
            **figures.to_json(self, "verdict", "sentences", leave_out=("changes",)),
            "measure": PRIMARY,
            "questions": self.question_count,
            "systems": [change.to_dict() for change in self.changes],
        }


def _describe_change(change: Change) -> str:
    name, total = figures.quote_name(change.name), format_count(len(change.gains), "question")
    if not any(change.gains.values()):
        return f"{name}: no change in {total}."
    chance = figures.describe_chance(change.difference)
    return (
        f"{name}: of {total}, {change.worse_count:,} got worse and"
        f" {change.better_count:,} got better. {PRIMARY} went from"
        f" {change.before:.3f} to {change.after:.3f}, by"
        f" {figures.format_gain(change.difference)} points. This {chance}."
    )


def compare_with_baseline(
    baseline: Baseline, comparison: Comparison, *, model_name: str | None = None
) -> GateResult:
    """Compare *comparison* with *baseline*, question by question.

    Raises `ConfigError` if the two cannot be compared, for example because the baseline has
    questions that were not asked.
    """
    after = {score.name: score.per_query.values[PRIMARY] for score in comparison.systems}
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
        missing=tuple(name for name in before if name not in after),
        notes=tuple(_list_changed_conditions(baseline.model, model_name, before, after)),
    )


def _list_changed_conditions(
    old_model: str | None, model: str | None, before: Values, after: Values
) -> Iterator[str]:
    if None not in (old_model, model) and old_model != model:
        yield f"The baseline was measured with the model {old_model}, this run with {model}."
    systems = before.keys() & after.keys()
    old, new = ({id_ for name in systems for id_ in values[name]} for values in (before, after))
    for failed, where in ((old - new, "this run"), (new - old, "the baseline")):
        if failed:
            count = format_count(len(failed), "question")
            yield f"In {where}, {count} failed. A question that failed counts as 0."
