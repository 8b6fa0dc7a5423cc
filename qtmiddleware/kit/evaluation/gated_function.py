"""Measure your own retrieval function and compare it with its baseline in one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qtmiddleware.kit.evaluation.compare import choose_systems, compare
from qtmiddleware.kit.evaluation.gate import Baseline, Gate, Rule, apply_gate
from qtmiddleware.kit.evaluation.judged_questions import load_judged
from qtmiddleware.runtime.files import replace_file
from qtmiddleware.wrapping.wrapped import Bound, Wrapped


def gate_function(
    fn: Callable[..., Any],
    data: str | Path,
    *,
    baseline: str | Path,
    fail_if: str = "worse",
    systems: Mapping[str, Mapping[str, Any]] | Sequence[str] = (),
    update: bool = False,
    **options: Any,
) -> Gate:
    """Measure *fn* on the judged questions in *data*, and compare the result with its baseline.

    Args:
        fn: The function, plain or wrapped. The system ``raw`` is the function without qtmiddleware;
            the system ``yours`` is a wrapped function with its own settings.
        data: The file or folder of judged questions, as for `load_judged`.
        baseline: The baseline's file: the output of ``qtm bench --json``, or of an earlier call
            with *update*.
        fail_if: The rule that decides if a system is worse, as text for `Rule.parse`.
        systems: Other systems to measure, as for `compare`.
        update: Whether to write the new measurement to the baseline's file.
        options: Other arguments of `compare`.

    Raises:
        ConfigError: The baseline has other questions or is not valid. *fn* has not been called.
        Exception: Any exception that `compare` raises.
    """
    rule = Rule.parse(fail_if)
    judged = load_judged(data)
    if update:
        measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
        plain = measured.to_dict()
        text = json.dumps(plain, ensure_ascii=False, indent=2) + "\n"
        replace_file(Path(baseline), text.encode("utf-8", "replace"))
        return apply_gate(Baseline.of(plain, str(baseline)), measured, rule)
    earlier = Baseline.read(baseline)
    earlier.check_data(judged)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    chosen_systems = choose_systems(systems, has_model="client" in options, is_wrapped=is_wrapped)
    earlier.check_systems(chosen_systems, rule, deep=bool(options.get("deep")))
    measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
    return apply_gate(earlier, measured, rule)
