"""A retrieval function of the user's own, measured and compared with its baseline in one call."""

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
    """Measure *fn* on the judged questions in *data*, and compare it with its baseline.

    Args:
        fn: The function, plain or wrapped. It is measured as it is: as ``raw``, and if it is
            wrapped, as ``yours`` too.
        data: What `load_judged` reads.
        baseline: A file that an earlier call with *update* or ``qtm bench --json`` wrote.
        fail_if: The rule that `Rule.parse` reads.
        systems: Other systems to measure, as for `compare`.
        update: Write the baseline instead of comparing with the one that is there.
        options: Other arguments of `compare`.

    Raises what `compare` raises, and `ConfigError` for a baseline of other questions or of another
    format, before *fn* is called.
    """
    rule = Rule.parse(fail_if)
    judged = load_judged(data)
    if update:
        measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
        plain = measured.to_dict()
        written = json.dumps(plain, ensure_ascii=False, indent=2) + "\n"
        replace_file(Path(baseline), written.encode("utf-8", "replace"))
        return apply_gate(Baseline.of(plain, str(baseline)), measured, rule)
    before = Baseline.read(baseline)
    before.check_data(judged)
    is_wrapped = isinstance(fn, Wrapped | Bound)
    named = choose_systems(systems, has_model="client" in options, is_wrapped=is_wrapped)
    before.check_systems(named, rule, deep=bool(options.get("deep")))
    measured = compare(fn, judged.questions, judged.qrels, systems, name=judged.name, **options)
    return apply_gate(before, measured, rule)
