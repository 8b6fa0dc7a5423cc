"""Check with ``--baseline`` whether retrieval got worse since an earlier run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.cli.reports import check_file_writable, name_option_in_errors
from qtmiddleware.kit.cli.terminal import write_note
from qtmiddleware.kit.evaluation import Comparison, Dataset
from qtmiddleware.kit.evaluation.gate import Baseline, GateResult, Rule, compare_with_baseline
from qtmiddleware.kit.files import replace_file

Against = Annotated[
    Path | None,
    typer.Option("--baseline", help="Compare with this JSON file, written by --json or --report."),
]
FailIf = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="Exit with code 3 if the run is 'worse' than the baseline by more than chance,"
        " or by a fixed bound: 'ndcg@10 -0.01'.",
    ),
]
Comment = Annotated[
    Path | None,
    typer.Option(help="Write the comparison with the baseline to this Markdown file."),
]


@dataclass(frozen=True, slots=True)
class Gating:
    """The options for comparing a benchmark run with an earlier run, the baseline.

    Attributes:
        baseline: The earlier run; ``None`` to compare nothing.
        rule: The condition in ``--fail-if``, under which the run counts as worse; ``None`` if the
            option is not set.
        comment: The Markdown file for the comparison, or ``None`` to write no file.
    """

    baseline: Baseline | None = None
    rule: Rule | None = None
    comment: Path | None = None

    @classmethod
    def from_options(
        cls, baseline_file: Path | None, rule_text: str | None, comment_file: Path | None
    ) -> Gating:
        """Return the options, after reading the baseline from *baseline_file*.

        Raises `ConfigError` if an option or the file is not valid, or if an option needs a
        baseline and there is none.
        """
        if baseline_file is None:
            dependent = {"--fail-if": rule_text, "--comment": comment_file}
            if needless := [option for option, value in dependent.items() if value is not None]:
                raise ConfigError(f"{needless[0]} needs --baseline", path=needless[0])
            return cls()
        rule = None if rule_text is None else Rule.parse(rule_text)
        # Checked now: the comment is written only after the measurement, which may take hours.
        if comment_file is not None:
            check_file_writable(comment_file, "--comment")
        return cls(Baseline.read(baseline_file), rule, comment_file)

    def check_dataset(self, dataset: Dataset) -> None:
        """Raise `ConfigError` if the baseline was measured on another data set."""
        if self.baseline is not None:
            self.baseline.check_dataset(dataset)

    def check_systems(self, system_names: Collection[str], *, is_deep: bool) -> None:
        """Raise `ConfigError` if the baseline lacks the rule's metric, or all systems of this run.

        Args:
            system_names: The names of the systems in this run.
            is_deep: Whether this run also measures R@100.
        """
        if self.baseline is not None:
            self.baseline.check_systems(system_names, self.rule or Rule(), is_deep=is_deep)

    def judge_comparison(self, comparison: Comparison, model_name: str | None) -> GateResult | None:
        """Compare *comparison* with the baseline, write the comment file, and return the verdict.

        Returns ``None`` if there is no baseline.
        """
        from qtmiddleware.kit.evaluation.reporting import write_comment

        if self.baseline is None:
            return None
        gate_result = compare_with_baseline(
            self.baseline, comparison, self.rule, model_name=model_name
        )
        if self.comment is not None:
            with name_option_in_errors(self.comment, "--comment"):
                replace_file(self.comment, write_comment(gate_result).encode("utf-8", "replace"))
            write_note(f"The comment is in {self.comment}.")
        return gate_result

    def is_rule_violated(self, gate_result: GateResult | None) -> bool:
        """Return whether retrieval got worse than the condition in ``--fail-if`` allows.

        Returns ``False`` if there is no rule, or if *gate_result* is ``None``.
        """
        return self.rule is not None and gate_result is not None and gate_result.verdict == "worse"
