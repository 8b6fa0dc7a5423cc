"""Every system on every set that was recorded: quality, gain over the raw query, hurt rate, calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, points, quality, table, write
from benchmarks.quality.sets import Source, prepared
from qtmiddleware.evaluation import BASELINE, PRIMARY, USUAL, Comparison, SystemScore, chosen

SYSTEMS: Final = (*USUAL, "combined, no hyde", "combined, no rules", "hybrid", "hybrid, combined")
FULL: Final = "combined"
GATED: Final = "combined, auto"
GAIN: Final = """## Gain over the raw query

Points of nDCG@10 with the 95 % interval of the paired bootstrap; a star where a randomisation test finds it significant
at 5 % after Holm's correction for all systems of the set.

"""


def run(source: Source) -> None:
    """Measure all, and write ``results/quality.md``."""
    comparisons: dict[str, Comparison] = {}
    conversations = set()
    for name in source.names:
        with prepared(source, name) as one:
            comparisons[name] = one.measured(chosen(SYSTEMS), SEED)
            if one.is_conversation:
                conversations.add(name)
        print(f"{name}: combined {100 * comparisons[name][FULL].difference.gain:+.1f} points", flush=True)
    about = circumstances(source, "systems")
    parts = [_qualities(comparisons), GAIN + _gains(comparisons), "## The gate\n\n" + _gate(comparisons, conversations)]
    write(source, "quality", about, parts, {"sets": {name: _plain(found) for name, found in comparisons.items()}})


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
        gain, hurt = mean([it.difference.gain for it in found]), mean([it.hurt_rate for it in found])
        calls = mean([it.llm_calls / len(it.runs) for it in found])
        rows.append(
            [
                name,
                *(points(it.difference, corrected=True) for it in found),
                f"{100 * gain:+.1f}",
                f"{hurt:.1%}",
                f"{calls:.2f}",
            ]
        )
    return table(["system", *comparisons, "mean", "hurt", "calls a question"], rows)


def _gate(comparisons: Mapping[str, Comparison], conversations: set[str]) -> str:
    """How much of the gain is kept where the model is asked only when it seems worth it."""
    rows = [[name, *_share({name: found})] for name, found in comparisons.items()]
    rows.append(["all", *_share(comparisons)])
    if conversations and (others := {name: it for name, it in comparisons.items() if name not in conversations}):
        rows.append(["all but conversations", *_share(others)])
    head = [
        "set",
        "questions that call the model",
        "gain of combined",
        "gain of auto",
        "share kept",
        "kept beyond rules",
    ]
    return table(head, rows)


def _share(comparisons: Mapping[str, Comparison]) -> list[str]:
    def gain(name: str) -> float:
        return 100 * mean([found[name].difference.gain for found in comparisons.values()])

    calls = mean([found[GATED].call_rate for found in comparisons.values()])
    full, kept, free = gain(FULL), gain(GATED), gain("rules")
    shares = [
        f"{over / whole:.0%}" if whole > 0.5 else "" for over, whole in ((kept, full), (kept - free, full - free))
    ]
    return [f"{calls:.0%}", f"{full:+.1f}", f"{kept:+.1f}", *shares]


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        "passages": comparison.passages,
        "questions": comparison.questions,
        "systems": {score.name: _system(score) for score in comparison.systems},
    }


def _system(score: SystemScore) -> dict[str, Any]:
    return {
        "means": {name: round(value, 4) for name, value in score.means.items()},
        "difference": {name: round(value, 4) for name, value in score.difference.to_dict().items()},
        "hurtRate": round(score.hurt_rate, 4),
        "callRate": round(score.call_rate, 4),
        "degraded": score.degraded,
    }
