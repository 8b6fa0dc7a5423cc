"""Measure your own retrieval function and compare it with its baseline in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtmiddleware.kit.evaluation.compare import choose_systems, compare
from qtmiddleware.kit.evaluation.gate import Baseline, GateResult, Rule, compare_with_baseline
from qtmiddleware.kit.evaluation.judged_questions import load_judged
from qtmiddleware.runtime.files import replace_file
from qtmiddleware.wrapping.wrapped import Bound, Wrapped


def compare_function_with_baseline(
    fn: Callable[..., Any],
    data: str | Path,
    *,
    baseline: str | Path,
    fail_if: str = "worse",
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    update: bool = False,
    **options: Any,
) -> GateResult:
    """Measure *fn* on the judged questions in *data*, and compare the result with a baseline.

    Args:
        fn: Your retrieval function, wrapped or not. The system ``raw`` is the function without
            qtmiddleware. If *fn* is wrapped, the system ``yours`` is *fn* with its own settings.
        data: The file or folder of judged questions, as for `load_judged`.
        baseline: The baseline's file. ``qtm bench --json`` prints it, and *update* writes it.
        fail_if: The rule that decides whether a system is worse, as for `Rule.parse`.
        systems: Other systems to measure, as for `compare`.
        update: Whether to write a new baseline instead of comparing with the old one.
        options: Other arguments of `compare`.

    Raises:
        ConfigError: The baseline has other questions or is not valid. This is raised before *fn* is
            called.
        Exception: Any exception that `compare` raises.
    """
    rule = Rule.parse(fail_if)
    judged = load_judged(data)
    if update:
        measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
        report = measured.to_dict()
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        replace_file(Path(baseline), text.encode("utf-8", "replace"))
        # A measurement that is compared with itself is never worse.
        return compare_with_baseline(Baseline.from_report(report, str(baseline)), measured, rule)
    earlier = Baseline.read(baseline)
    # Check first, because calls of the function may take long or cost money.
    earlier.check_dataset(judged)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    chosen_systems = choose_systems(systems, has_model="client" in options, is_wrapped=is_wrapped)
    earlier.check_systems(chosen_systems, rule, is_deep=bool(options.get("deep")))
    measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
    return compare_with_baseline(earlier, measured, rule)
