"""Detect that retrieval got worse, by comparing a new measurement with a baseline.

A baseline is an earlier `Comparison` as JSON: the output of ``qtm bench --json``, and the file
report.json of ``--report``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from math import fsum
from pathlib import Path
from typing import Any, Final, Literal

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation.dataset import Dataset
from qtmiddleware.kit.evaluation.measures import (
    DEEP,
    FEW,
    MEASURES,
    PRIMARY,
    SIGNIFICANT,
    TOLERANCE,
    Comparison,
    Difference,
    compute_sign_test_p_value,
    difference,
    holm,
)
from qtmiddleware.preprocessing.text import format_count

Verdict = Literal["worse", "not worse", "inconclusive"]
_Scores = Mapping[str, float]
Values = Mapping[str, _Scores]
"""The values of one measure, by system and question id."""

OPTION: Final = "--baseline"
_RULE: Final = "--fail-if"
_HOW: Final = "write it with: qtm bench ... --json > base.json"
_EXAMPLE: Final = f'such as "{PRIMARY} -0.01"'
_PARTS: Final = ("questions", "judgements", "passages")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that decides whether a new measurement is worse than its baseline.

    Attributes:
        text: The rule as text, such as ``ndcg@10 -0.01``.
        measure: The measure to compare.
        bound: The lowest allowed change of the mean, such as -0.01. If ``None``, only a significant
            loss counts as worse.
    """

    text: str = "worse"
    measure: str = PRIMARY
    bound: float | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Return the rule in *text*, such as ``worse`` or ``ndcg@10 -0.01``.

        ``worse`` allows no significant loss. A measure and a number set the largest allowed loss.

        Raises `ConfigError` if *text* is not a rule.
        """
        name, _, number = " ".join(text.split()).partition(" ")
        if (name.casefold(), number) == ("worse", ""):
            return cls()
        measures = {measure.casefold(): measure for measure in (*MEASURES, *DEEP)}
        if name.casefold() not in measures:
            raise ConfigError(
                f"{_RULE} must be worse, or a measure and a change, {_EXAMPLE}, not {text!r}. The "
                f"measures are {', '.join(measures.values())}",
                path=_RULE,
                value=text,
            )
        measure, bound = measures[name.casefold()], _parse_bound(number)
        if bound is None:
            raise ConfigError(
                f"{_RULE} must have a change from -1 to 0 after the measure, {_EXAMPLE}, not "
                f"{text!r}. A loss of 0.01 is one point",
                path=_RULE,
                value=text,
            )
        return cls(f"{measure} {number}", measure, bound)


def _parse_bound(bound_text: str) -> float | None:
    """Return the number in *bound_text*; ``None`` if it is not a number from -1 to 0."""
    try:
        bound = float(bound_text)
    except ValueError:
        return None
    return bound if -1.0 <= bound <= 0.0 else None


@dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier measurement to compare with.

    Attributes:
        name: The name of the baseline in messages: the path of its file.
        values: The value of each measure, by measure, system and question id.
        fingerprints: One sha256 each for ``questions``, ``judgements`` and ``passages``.
        settings: The sha256 of each system's settings, if known.
        version: The version of qtmiddleware that made the measurement.
        model: The name of the language model, if known.
    """

    name: str
    values: Mapping[str, Values] = field(repr=False)
    fingerprints: Mapping[str, str] = field(repr=False)
    settings: Mapping[str, str] = field(repr=False)
    version: str
    model: str | None

    @classmethod
    def read(cls, path: str | Path) -> Baseline:
        """Read the baseline at *path*; raises `ConfigError` if the file is not a baseline."""
        try:
            data = Path(path).expanduser().read_bytes()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise _build_baseline_error(
                path, f"the baseline {path} cannot be read: {why}; {_HOW}"
            ) from error
        if not data.strip():
            raise _build_baseline_error(
                path, f"the baseline {path} is empty; {_HOW}, and compare in a later run"
            )
        try:
            # Parse bytes, because some shells redirect a command's output as UTF-16.
            report = json.loads(data)
        except (ValueError, RecursionError):
            raise _build_baseline_error(
                path, f"the baseline {path} is no JSON, or was cut; {_HOW}"
            ) from None
        return cls.from_report(report, str(path))

    @classmethod
    def from_report(cls, report: Any, baseline_name: str) -> Baseline:
        """Create a baseline from *report*, the result of `Comparison.to_dict`.

        Messages call the baseline *baseline_name*. Raises `ConfigError` if *report* is not valid.
        """
        try:
            values = _read_values(report["systems"])
            fingerprints = _require_text_values(report["fingerprints"])
            settings = _require_text_values(report["settingsHash"])
            version = str(report["version"])
        except (KeyError, TypeError, AttributeError, ValueError):
            message = f"the baseline {baseline_name} must hold what qtm bench --json prints; {_HOW}"
            raise _build_baseline_error(baseline_name, message) from None
        if not any(values.get(PRIMARY, {}).values()):
            why = f"{_HOW}, with judgements in --data"
            raise _build_baseline_error(
                baseline_name, f"the baseline {baseline_name} must hold judged questions; {why}"
            )
        model = report.get("model")
        return cls(
            baseline_name,
            values,
            fingerprints,
            settings,
            version,
            model if isinstance(model, str) else None,
        )

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise `ConfigError` if the baseline was measured on data other than *dataset*."""
        then, now = self.fingerprints, dataset.fingerprints
        parts = [part for part in _PARTS if then.get(part) != now[part]]
        if not parts:
            return
        raise _build_baseline_error(
            self.name,
            f"the baseline {self.name} was measured on other {join_names(parts)}, so it cannot be "
            "compared. Use the same --function, --data, --split, --recordings, --questions and "
            f"--seed, or {_HOW}",
        )

    def check_systems(self, systems: Collection[str], rule: Rule, *, is_deep: bool) -> None:
        """Raise `ConfigError` if the baseline has none of *systems*, or lacks the rule's measure.

        The rule's measure may be R@100 only if *is_deep* is true: only then are the systems asked
        for a hundred passages.
        """
        if rule.measure in DEEP and not is_deep:
            raise ConfigError(f"{_RULE} {rule.measure} needs --deep", path=_RULE, value=rule.text)
        values_by_system = self.values.get(rule.measure)
        if not values_by_system:
            flag = " and --deep" if rule.measure in DEEP else ""
            message = f"the baseline {self.name} has no {rule.measure}; {_HOW}{flag}"
            raise _build_baseline_error(self.name, message)
        if values_by_system.keys().isdisjoint(systems):
            raise _build_baseline_error(
                self.name,
                f"the baseline {self.name} must hold one of the systems {join_names(systems)}, not "
                f"{join_names(values_by_system)}. Name the same ones with --systems or --config",
            )


def _build_baseline_error(path: str | Path, message: str) -> ConfigError:
    """Return a `ConfigError` with *message* for the baseline at *path*."""
    return ConfigError(message, path=OPTION, value=str(path))


def _read_values(system_reports: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return the values in the *system_reports* of a report, by measure, system and question id.

    Raises `KeyError`, `TypeError`, `AttributeError` or `ValueError` if a value is not valid.
    """
    values: dict[str, dict[str, dict[str, float]]] = {}
    for system in system_reports:
        (name,) = _require_text_values({"name": system["name"]}).values()
        for measure, by_question in system["perQuery"].items():
            by_system = values.setdefault(measure, {})
            # Two systems with the same name cannot be told apart.
            if name in by_system:
                raise ValueError(name)
            by_system[name] = {id_: _parse_value(value) for id_, value in by_question.items()}
    return values


def _parse_value(value: Any) -> float:
    # A JSON true would count as 1. NaN fails the comparison, so it is not valid either.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(value)
    return float(value)


def _require_text_values(mapping: Any) -> dict[str, str]:
    if not all(isinstance(text, str) for text in mapping.values()):
        raise TypeError
    return dict(mapping)


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one system between the baseline and the new measurement.

    Attributes:
        name: The system's name.
        before: The mean of the measure in the baseline.
        after: The mean of the measure in the new measurement.
        difference: *after* minus *before*, with its interval and corrected p-value.
        gains: The gain of each question, by question id. A negative gain is a loss.
        sign_p: The sign test's p-value for the counts of better and worse questions, corrected for
            the number of tests.
        verdict: ``worse``, ``not worse`` or ``inconclusive``.
    """

    name: str
    before: float
    after: float
    difference: Difference
    gains: Mapping[str, float] = field(repr=False)
    sign_p: float = 1.0
    verdict: Verdict = "not worse"

    @property
    def worse_count(self) -> int:
        """The number of questions that got worse."""
        return sum(gain < 0 for gain in self.gains.values())

    @property
    def better_count(self) -> int:
        """The number of questions that got better."""
        return sum(gain > 0 for gain in self.gains.values())

    @property
    def has_significant_loss(self) -> bool:
        """``True`` if the measure's mean fell significantly."""
        return self.difference.is_significant and self.difference.gain < 0

    @property
    def has_mostly_losses(self) -> bool:
        """``True`` if significantly more questions got worse than got better."""
        return self.sign_p < SIGNIFICANT and self.worse_count > self.better_count

    def worst(self, count: int = 5) -> list[tuple[str, float]]:
        """Return the ids and gains of the *count* questions that lost most, worst first."""
        lost = sorted((gain, id_) for id_, gain in self.gains.items() if gain < 0)
        return [(id_, gain) for gain, id_ in lost[:count]]

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a dict, ready for JSON."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "before": self.before,
            "after": self.after,
            "difference": self.difference.to_dict(),
            "better": self.better_count,
            "worse": self.worse_count,
            "signPHolm": self.sign_p,
            "worst": [{"id": id_, "gain": gain} for id_, gain in self.worst()],
        }


def measure_changes(
    baseline_values: Values,
    new_values: Values,
    rule: Rule | None = None,
    *,
    seed: int = 0,
) -> tuple[Change, ...]:
    """Return the change and the verdict of each system that is in both measurements.

    If *rule* has no bound, a system is worse in two cases:

    - The mean fell significantly (paired randomisation test).
    - Significantly more questions got worse than got better (sign test).

    The p-values are corrected for the number of tests (Holm). A system is not tested if none of its
    questions changed. With fewer than `FEW` questions, the verdict is ``inconclusive`` instead of
    ``not worse``. A question that failed in one measurement counts as 0 there.

    Raises `MissingExtra` if scipy is not installed.
    """
    changes = [
        _measure_change(name, baseline_values[name], new_values[name], seed)
        for name in new_values
        if name in baseline_values
    ]
    tests: dict[str, float] = {}
    # Either test can make a system worse, so the correction counts both.
    for change in changes:
        if change.worse_count or change.better_count:
            tests[f"mean {change.name}"] = change.difference.p
            tests[f"sign {change.name}"] = change.sign_p
    corrected = holm(tests)
    return tuple(_add_verdict(change, corrected, rule or Rule()) for change in changes)


def _measure_change(
    system_name: str, baseline_scores: _Scores, new_scores: _Scores, seed: int
) -> Change:
    """Return the change of one system, with p-values that are not yet corrected."""
    gains: dict[str, float] = {}
    # Sorted, because the result of resampling depends on the order of the gains.
    for id_ in sorted(baseline_scores.keys() | new_scores.keys()):
        gain = new_scores.get(id_, 0.0) - baseline_scores.get(id_, 0.0)
        gains[id_] = gain if abs(gain) > TOLERANCE else 0.0
    then, now = (
        fsum(values.values()) / max(1, len(gains)) for values in (baseline_scores, new_scores)
    )
    change = Change(system_name, then, now, difference(list(gains.values()), seed=seed), gains)
    return replace(
        change, sign_p=compute_sign_test_p_value(change.better_count, change.worse_count)
    )


def _add_verdict(change: Change, p_values: Mapping[str, float], rule: Rule) -> Change:
    """Return *change* with its verdict by *rule*, and with corrected p-values.

    *p_values* has the corrected p-values. Their keys name the test and the system, such as
    ``mean raw``.
    """
    p_mean, p_sign = (p_values.get(f"{test} {change.name}", 1.0) for test in ("mean", "sign"))
    change = replace(change, difference=replace(change.difference, p_holm=p_mean), sign_p=p_sign)
    if rule.bound is not None:
        is_worse = change.difference.gain < rule.bound - TOLERANCE
        return replace(change, verdict="worse" if is_worse else "not worse")
    if change.has_significant_loss or change.has_mostly_losses:
        return replace(change, verdict="worse")
    return replace(change, verdict="inconclusive") if len(change.gains) < FEW else change


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of comparing a measurement with its baseline.

    Attributes:
        baseline: The baseline's name.
        rule: The rule that decides whether a system is worse.
        changes: The change of each system that is in both measurements.
        missing: The names of the systems that are only in the baseline.
        new: The names of the systems that are only in the new measurement.
        notes: Sentences on other changes: version, model, settings, and failed questions.
    """

    baseline: str
    rule: Rule
    changes: tuple[Change, ...]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``worse`` if any system is worse, else ``inconclusive`` if any is, else ``not worse``."""
        verdicts = {change.verdict for change in self.changes}
        order: tuple[Verdict, ...] = ("worse", "inconclusive")
        return next((verdict for verdict in order if verdict in verdicts), "not worse")

    @property
    def question_count(self) -> int:
        """The number of compared questions."""
        return max((len(change.gains) for change in self.changes), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, ready for JSON."""
        return {
            "verdict": self.verdict,
            "baseline": self.baseline,
            "failIf": self.rule.text,
            "measure": self.rule.measure,
            "questions": self.question_count,
            "systems": [change.to_dict() for change in self.changes],
            "missing": list(self.missing),
            "new": list(self.new),
            "notes": list(self.notes),
        }


def compare_with_baseline(
    baseline: Baseline,
    comparison: Comparison,
    rule: Rule | None = None,
    *,
    model_name: str | None = None,
) -> GateResult:
    """Compare the systems of *comparison* with *baseline*, and return the verdict by *rule*.

    Args:
        baseline: The earlier measurement.
        comparison: The new measurement.
        rule: The rule that decides whether a system is worse. Default: a significant loss.
        model_name: The name of the language model of the new measurement, if known.

    Raises:
        ConfigError: No system is in both measurements.
        MissingExtra: scipy is not installed.
    """
    rule = rule or Rule()
    values_by_system = {system.name: system.per_query.values for system in comparison.systems}
    after = {
        name: values[rule.measure]
        for name, values in values_by_system.items()
        if rule.measure in values
    }
    baseline.check_systems(values_by_system, rule, is_deep=bool(after))
    before = baseline.values[rule.measure]
    conditions = _describe_changed_conditions(baseline, comparison, model_name)
    return GateResult(
        baseline.name,
        rule,
        measure_changes(before, after, rule, seed=comparison.seed),
        missing=tuple(name for name in before if name not in after),
        new=tuple(name for name in after if name not in before),
        notes=(*conditions, *_describe_failures(before, after)),
    )


def _describe_changed_conditions(
    baseline: Baseline, comparison: Comparison, model_name: str | None
) -> Iterator[str]:
    """Yield a sentence for each change of the version, the language model or the settings."""
    current = version("qtmiddleware")
    if baseline.version != current:
        yield f"The baseline is from qtmiddleware {baseline.version}, this run from {current}."
    if model_name is not None and baseline.model not in (None, model_name):
        yield (
            f"The baseline was measured with the model {baseline.model}, this run with"
            f" {model_name}."
        )
    then, now = baseline.settings, comparison.settings
    if changed := [name for name in now if then.get(name, now[name]) != now[name]]:
        yield f"The settings of {join_names(changed)} changed."


def _describe_failures(baseline_values: Values, new_values: Values) -> Iterator[str]:
    """Yield sentences on the questions that failed in one measurement, but not in the other."""
    # A question that failed has no value.
    systems = baseline_values.keys() & new_values.keys()
    then, now = (
        {id_ for name in systems for id_ in values[name]}
        for values in (baseline_values, new_values)
    )
    for failed, where in ((then - now, "this run"), (now - then, "the baseline")):
        if failed:
            count = format_count(len(failed), "question")
            yield f"In {where}, {count} failed. A question that failed counts as 0."


def join_names(names: Collection[str]) -> str:
    """Return *names* as an English list, such as ``raw, rules and hyde``."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
