"""Every system on every set that was recorded: quality, gain over plain search, hurt rate, calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from operator import mul
from random import Random
from typing import Final

from benchmarks.quality.report import SEED, circumstances, mean, points, quality, table, write
from benchmarks.quality.sets import Prepared, Source, prepared
from qtmiddleware.kit.evaluation import Comparison
from qtmiddleware.kit.evaluation.measures import PRIMARY, TOLERANCE
from qtmiddleware.kit.evaluation.systems import BASELINE, USUAL, chosen

SYSTEMS: Final = (*USUAL, "balanced, no hyde", "balanced, no rules", "hybrid", "hybrid, balanced")
FULL: Final = "balanced"
GATED: Final = "auto"
ORDERS: Final = 10
GAIN: Final = """## Gain over plain search

Points of nDCG@10 with the 95 % interval of the paired bootstrap; a star where a randomisation test finds it significant
at 5 % after Holm's correction for all systems of the set.

"""


def run(source: Source) -> None:
    """Measure all, and write ``results/quality.md``."""
    comparisons: dict[str, Comparison] = {}
    asked: dict[str, list[Set[str]]] = {}
    conversations = set()
    for name in source.names:
        with prepared(source, name) as one:
            comparisons[name] = one.measured(chosen(SYSTEMS), SEED)
            asked[name] = [_find_asked(one, order) for order in range(ORDERS)]
            if one.is_conversation:
                conversations.add(name)
        print(
            f"{name}: balanced {100 * comparisons[name][FULL].difference.gain:+.1f} points",
            flush=True,
        )
    parts = [
        _qualities(comparisons),
        GAIN + _gains(comparisons),
        "## The gate\n\n" + _gate(comparisons, asked, conversations),
    ]
    write(source, "quality", circumstances(source, "systems"), parts)


def _names(comparisons: Mapping[str, Comparison]) -> list[str]:
    return [score.name for score in next(iter(comparisons.values())).systems]


def _qualities(comparisons: Mapping[str, Comparison]) -> str:
    rows = []
    for name in _names(comparisons):
        found = [comparison[name] for comparison in comparisons.values()]
        values = [(score.means[PRIMARY], score.hurt_rate) for score in found]
        values.append((mean([ndcg for ndcg, _ in values]), mean([hurt for _, hurt in values])))
        rows.append([name, *(quality(*value) for value in values)])
    return table(["system", *comparisons, "mean"], rows)


def _gains(comparisons: Mapping[str, Comparison]) -> str:
    rows = []
    for name in _names(comparisons):
        if name == BASELINE:
            continue
        found = [comparison[name] for comparison in comparisons.values()]
        gain, hurt = (
            mean([score.difference.gain for score in found]),
            mean([score.hurt_rate for score in found]),
        )
        calls = mean([score.llm_calls / len(score.runs) for score in found])
        searches = mean([score.searches_per_question or 0.0 for score in found])
        rows.append(
            [
                name,
                *(points(score.difference, corrected=True) for score in found),
                f"{100 * gain:+.1f}",
                f"{hurt:.1%}",
                f"{calls:.2f}",
                f"{searches:.2f}",
            ]
        )
    return table(
        ["system", *comparisons, "mean", "hurt", "calls a question", "searches a question"], rows
    )


def _find_asked(one: Prepared, order: int) -> Set[str]:
    """The questions of which a gate that begins with nothing asks the model; *order* 0 is that of the file."""
    questions = list(one.data.questions)
    if order:
        Random(order).shuffle(questions)
    system = one.asking(one.model).with_settings(chosen([GATED])[GATED])
    return {question.id for question in questions if system(question).llm_calls}


def _gate(
    comparisons: Mapping[str, Comparison],
    asked: Mapping[str, Sequence[Set[str]]],
    conversations: set[str],
) -> str:
    """What the gate gains, beside as many calls made at random or with the gain known beforehand."""
    found = {
        name: _compare_policies(comparison, asked[name]) for name, comparison in comparisons.items()
    }
    rows = [[name, *_share([it])] for name, it in found.items()]
    rows.append(["all", *_share(list(found.values()))])
    if conversations and (
        others := [it for name, it in found.items() if name not in conversations]
    ):
        rows.append(["all but conversations", *_share(others)])
    head = [
        "set",
        "calls",
        "never (rules)",
        "random",
        "auto",
        "oracle",
        "always",
        "kept",
        "kept beyond rules",
    ]
    return table([*head, "oracle beyond rules"], rows)


def _compare_policies(
    found: Comparison, asked: Sequence[Set[str]]
) -> dict[str, tuple[float, float]]:
    """Gain over plain search and hurt rate by policy, *auto* as the mean of its orders; under *calls* its call rate.

    *random* is what to expect of as many calls, *oracle* spends them where they gain most.
    """
    always, never = found[FULL].difference.gains, found["rules"].difference.gains

    def spend(calls: Set[str]) -> tuple[float, float]:
        gains = [always[id_] if id_ in calls else never[id_] for id_ in always]
        return mean(gains), mean([gain < -TOLERANCE for gain in gains])

    rate = mean([len(calls) / len(always) for calls in asked])
    best_first = sorted(always, key=lambda id_: never[id_] - always[id_])
    ends = {"never": spend(set()), "always": spend(set(always))}
    orders = [spend(calls) for calls in asked]
    return {
        **ends,
        "calls": (rate, 0.0),
        "random": _mix([ends["never"], ends["always"]], [1.0 - rate, rate]),
        "auto": _mix(orders, [1.0 / len(orders)] * len(orders)),
        "oracle": spend(set(best_first[: round(rate * len(best_first))])),
    }


def _mix(pairs: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    first, second = (sum(map(mul, column, weights)) for column in zip(*pairs, strict=True))
    return first, second


def _share(found: Sequence[Mapping[str, tuple[float, float]]]) -> list[str]:
    """Call rate, gain and hurt rate of each policy, and which share of the gain gate and oracle keep."""
    whole = {
        name: _mix([mix[name] for mix in found], [1.0 / len(found)] * len(found))
        for name in found[0]
    }
    gains = {name: 100 * gain for name, (gain, _) in whole.items()}
    full, beyond = gains["always"], gains["always"] - gains["never"]
    shares = [
        (gains["auto"], full),
        *((gains[policy] - gains["never"], beyond) for policy in ("auto", "oracle")),
    ]
    return [
        f"{whole['calls'][0]:.0%}",
        *(
            f"{gains[policy]:+.1f} ({whole[policy][1]:.0%})"
            for policy in ("never", "random", "auto", "oracle", "always")
        ),
        *(f"{kept / of:.0%}" if of > 0.5 else "" for kept, of in shares),
    ]
