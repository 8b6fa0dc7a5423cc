"""What the gate keeps of the gain of `balanced`, beside random calls and an oracle.

    python -m benchmarks.evidence.gate --data ../shared/data --recordings ../shared/recordings

Only questions without a history are asked, for the gate decides nothing about follow-ups. *Kept* is
the gain over plain search divided by that of a call for every question; *beyond rules* counts only
what the rules do not gain by themselves. *Static* calls for the share of a whole set whose doubt is
highest, as if all percentiles were known; *in order* is `Gate.decide_model_call` on ten orders of the
questions, each from nothing, and stands with the calls it really made. Indexes and vectors are kept
under `.tmp/quality`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

RATE: Final = 0.35
ORDERS: Final = 10

Signals = Mapping[str, float]


@dataclass(frozen=True)
class Place:
    """Where one set and its recorded replies lie; *is_large* says that it is one of many topics."""

    name: str
    folder: Path
    recording: Path
    is_large: bool = False


def find_places(data: Path, recordings: Path) -> list[Place]:
    """Every set with recorded replies: those of *data*, the demo and the invented documents."""
    own = {
        "demo": Path("qtmiddleware/kit/demo/data"),
        "orrisdale": Path("benchmarks/data/orrisdale"),
    }
    return [
        *(
            Place(file.stem, data / "small" / file.stem, file)
            for file in sorted((recordings / "small").glob("*.jsonl"))
        ),
        *(Place(name, folder, folder / "recordings.jsonl") for name, folder in own.items()),
        *(
            Place(file.stem, data / file.stem, file, is_large=True)
            for file in sorted(recordings.glob("*.jsonl"))
        ),
    ]


@dataclass(frozen=True)
class Asked:
    """One question: what *rules* and a call (*full*) gain over plain search, and the gate's signals."""

    rules: float
    full: float
    signals: Signals


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from benchmarks.quality.report import table
    from qtmiddleware.retrieval.gate import _EXPECTED

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--sets", default="", help="names with commas; all that have recorded replies by default"
    )
    parser.add_argument("--rate", type=float, default=RATE, help="the share of calls")
    options = parser.parse_args()
    names = options.sets.split(",") if options.sets else []
    places = find_places(options.data, options.recordings)
    sets = {it.name: ask(it) for it in places if not names or it.name in names}
    sets = {name: asked for name, asked in sets.items() if asked}
    head = ["set", "questions", "rules", "always", "random", "oracle", "static"]
    measured = {name: measure(asked, options.rate, list(_EXPECTED)) for name, asked in sets.items()}
    rows = [[name, str(len(sets[name])), *format_row(found)] for name, found in measured.items()]
    large = {it.name for it in places if it.is_large}
    for title, some in (
        ("mean of large sets", measured.keys() & large),
        ("mean of the others", measured.keys() - large),
        ("mean", measured.keys()),
    ):
        if some:
            found = [
                sum(column) / len(some)
                for column in zip(*(measured[name] for name in some), strict=True)
            ]
            rows.append([title, str(sum(len(sets[name]) for name in some)), *format_row(found)])
    print(
        f"\nPoints of nDCG@10; kept and, in brackets, beyond rules, at {options.rate:.0%} calls\n"
    )
    print(table([*head, "in order"], rows))
    print("\nWith one signal left out, and with one alone, static, beyond rules\n")
    whole = share_of(sets, options.rate, list(_EXPECTED))
    rows = [["all", f"{whole:.1%}", ""]]
    for name in _EXPECTED:
        others = [it for it in _EXPECTED if it != name]
        rows.append(
            [name, *(f"{share_of(sets, options.rate, some):.1%}" for some in (others, [name]))]
        )
    print(table(["signal", "without it", "alone"], rows))
    if len(sets) > 1:
        share = choose_on_others(sets, options.rate, list(_EXPECTED))
        print(
            f"\nEach set by those of the signals that keep most on the other sets, static, beyond rules: {share:.1%}"
        )


def ask(place: Place) -> list[Asked]:
    """Returns the questions of one set on which the gate decides."""
    from benchmarks.quality.report import SEED
    from benchmarks.quality.sets import prepared_with, records
    from qtmiddleware.kit.evaluation import SYSTEMS, Dataset, chosen
    from qtmiddleware.kit.evaluation.recorded import RecordedModel
    from qtmiddleware.retrieval.gate import LOOKED_AT, Gate, measure_signals

    replies = records(place.recording)
    data = Dataset.load(place.folder).only(replies)
    data = data.only({question.id for question in data.questions if not question.history})
    if not data.questions:
        return []
    given: list[tuple[Any, list[Any], str, str]] = []
    decide = Gate.decide_model_call

    def listen(
        gate: Gate,
        scores: Any,
        texts: Any,
        keywords: str,
        *,
        target_call_rate: float,
        language: str,
    ) -> Any:
        given.append((scores, list(texts)[:LOOKED_AT], keywords, language))
        return decide(gate, *given[-1][:3], target_call_rate=target_call_rate, language=language)

    asked = []
    model = RecordedModel(replies.values(), [question.to_record() for question in data.questions])
    with (
        prepared_with(data, place.name, model) as one,
        patch.object(Gate, "decide_model_call", listen),
    ):
        compared = one.measured(chosen(["rules", "balanced"]), SEED)
        gated = one.asking(model).with_settings(SYSTEMS["auto"])
        for question in data.questions:
            given.clear()
            gated(question)
            if given and (signals := measure_signals(*given[0])):
                rules, full = (compared[name].gains[question.id] for name in ("rules", "balanced"))
                asked.append(Asked(rules, full, signals))
    return asked


def measure(asked: Sequence[Asked], rate: float, names: Sequence[str]) -> list[float]:
    """Return the mean gains of each policy, rules and a call first, and the call rate of the one in order."""
    rules, full = (
        sum(getattr(it, name) for it in asked) / len(asked) for name in ("rules", "full")
    )
    policies = [
        spend(asked, [it.full - it.rules for it in asked], rate),
        spend(asked, find_doubts([it.signals for it in asked], names), rate),
    ]
    gain, calls = decide_in_order(asked, rate)
    return [
        rules,
        full,
        rules + rate * (full - rules),
        *(rules + it for it in policies),
        rules + gain,
        calls,
    ]


def format_row(found: Sequence[float]) -> list[str]:
    """The gains of `measure` as cells: points, and which share of that of a call for each question."""
    rules, full, *gains = found

    def share(gain: float, calls: float | None = None) -> str:
        if full < 0.005 or full - rules < 0.005:
            return "" if calls is None else f"at {calls:.1%}"
        return f"{gain / full:.1%} ({(gain - rules) / (full - rules):.1%})" + (
            f" at {calls:.1%}" if calls else ""
        )

    return [
        f"{100 * rules:+.1f}",
        f"{100 * full:+.1f}",
        *(share(gain) for gain in gains[:3]),
        share(gains[3], gains[4]),
    ]


def share_of(sets: Mapping[str, Sequence[Asked]], rate: float, names: Sequence[str]) -> float:
    """Which share of what a call gains beyond the rules the signals of these *names* keep, in the mean of *sets*."""
    kept = sum(
        spend(asked, find_doubts([it.signals for it in asked], names), rate)
        for asked in sets.values()
    )
    return kept / sum(measure_room(asked) for asked in sets.values())


def measure_room(asked: Sequence[Asked]) -> float:
    """What a call for each question gains beyond the rules, in the mean."""
    return sum(it.full - it.rules for it in asked) / len(asked)


def choose_on_others(
    sets: Mapping[str, Sequence[Asked]], rate: float, names: Sequence[str]
) -> float:
    """Which share the gate keeps if each set is left out of the choice among all selections of *names*."""
    selections = [some for count in range(1, len(names) + 1) for some in combinations(names, count)]
    gains = {
        name: [
            spend(asked, find_doubts([it.signals for it in asked], some), rate)
            for some in selections
        ]
        for name, asked in sets.items()
    }
    kept = 0.0
    for name in sets:
        sums = [
            sum(gains[other][at] for other in sets if other != name)
            for at in range(len(selections))
        ]
        kept += gains[name][sums.index(max(sums))]
    return kept / sum(map(measure_room, sets.values()))


def find_doubts(signals: Sequence[Signals], names: Sequence[str]) -> list[float]:
    """How low the percentiles of each question's signals are, in the mean."""
    columns = {name: sorted(it[name] for it in signals if name in it) for name in names}
    return [1.0 - sum(_find_percentile(it[name], columns[name]) for name in names if name in it) / len(names)
            for it in signals]  # fmt: skip


def _find_percentile(number: float, ordered: Sequence[float]) -> float:
    lower, equal = sum(it < number for it in ordered), sum(it == number for it in ordered)
    return (lower + equal / 2) / len(ordered)


def spend(asked: Sequence[Asked], doubts: Sequence[float], rate: float) -> float:
    """The gain beyond the rules of calls for the share of questions of the highest doubt; equal ones share theirs."""
    left, gain = rate * len(asked), 0.0
    rounded = [round(doubt, 9) for doubt in doubts]
    for doubt in sorted(set(rounded), reverse=True):
        gains = [it.full - it.rules for it, own in zip(asked, rounded, strict=True) if own == doubt]
        gain += sum(gains) * min(1.0, left / len(gains))
        left -= min(left, len(gains))
    return gain / len(asked)


def decide_in_order(asked: Sequence[Asked], rate: float) -> tuple[float, float]:
    """The gain beyond the rules and the call rate of a real gate."""
    from qtmiddleware.retrieval import gate

    gain = calls = 0.0
    for order in range(ORDERS):
        places = list(range(len(asked)))
        if order:
            Random(order).shuffle(places)
        real = gate.Gate()
        for place in places:
            with patch.object(
                gate, "measure_signals", lambda *_, place=place: dict(asked[place].signals)
            ):
                if real.decide_model_call([], target_call_rate=rate).call:
                    gain += asked[place].full - asked[place].rules
                    calls += 1
    return gain / len(asked) / ORDERS, calls / len(asked) / ORDERS


if __name__ == "__main__":
    main()
