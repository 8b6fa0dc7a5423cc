"""One factor at a time, changed from the defaults of `balanced` and of the rules alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from benchmarks.quality.report import SEED, circumstances, mean, points, table, write
from benchmarks.quality.sets import Source, prepared
from qtmiddleware.kit.evaluation import SYSTEMS, Comparison, SystemScore
from qtmiddleware.kit.evaluation.measures import difference
from qtmiddleware.kit.evaluation.systems import BASELINE

Change = Mapping[str, Any]

WEIGHTS: Final = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
SHARES: Final = (0.6, 1.25, 2.0)
VOICES: Final = (0.8, 1.0, 1.5, 2.0, 3.0)
ON_BOTH: Final[Mapping[str, Change]] = {
    "keyword evidence off": {"keywordEvidence": {"enabled": False}},
    **{f"evidence weight {weight}": {"keywordEvidence": {"weight": weight}} for weight in WEIGHTS},
    "preprocessing off (evidence of the whole question)": {"preprocess": {"enabled": False}},
    **{f"{count} candidates": {"keywordEvidence": {"candidates": count}} for count in (20, 100)},
}
ON_COMBINED: Final[Mapping[str, Change]] = {
    **{f"at most {count} searches": {"limits": {"maxSearches": count}} for count in (1, 3, 4, 20)},
    "words of variants off": {"keywordEvidence": {"variants": 0.0}},
    **{f"words of variants {share}": {"keywordEvidence": {"variants": share}} for share in SHARES},
    "rewrite without a voice": {"fusion": {"weights": {"rewrite": 0.0}}},
    "sub-queries without a voice": {"fusion": {"weights": {"subQueries": 0.0}}},
    "step-back without a voice": {"fusion": {"weights": {"stepBack": 0.0}}},
    "HyDE without a voice": {"fusion": {"weights": {"hyde": 0.0}}},
    **{
        f"HyDE with a voice of {voice}": {"fusion": {"weights": {"hyde": voice}}}
        for voice in VOICES
    },
    **{
        f"own words with a voice of {voice} in conversations": {
            "fusion": {"weights": {"originalInConversation": voice}}
        }
        for voice in (0.5, 1.0)
    },
    "original excluded": {"fusion": {"weights": {"original": 0}}},
    **{
        f"fusion {method}": {"fusion": {"method": method}}
        for method in ("rrf", "weighted_rrf", "max")
    },
    "guard off": {"llm": {"guard": False}},
}
BASES: Final[Mapping[str, Mapping[str, Change]]] = {
    "balanced": {**ON_BOTH, **ON_COMBINED},
    "rules": ON_BOTH,
}


def run(source: Source) -> None:
    """Measure all changes, and write ``results/quality-ablation.md``."""
    systems: dict[str, Change] = {BASELINE: SYSTEMS[BASELINE]}
    for base, changes in BASES.items():
        systems[base] = SYSTEMS[base]
        systems |= {
            _named(base, name): {**SYSTEMS[base], **change} for name, change in changes.items()
        }
    found: dict[str, Comparison] = {}
    for name in source.names:
        with prepared(source, name) as one:
            found[name] = one.measured(systems, SEED)
        print(f"{name}: {len(systems)} systems measured", flush=True)
    parts: list[str] = []
    for base, changes in BASES.items():
        rows = [
            _row(name, base, found)
            for name in (base, *(_named(base, change) for change in changes))
        ]
        head = [
            "change",
            *found,
            "mean gain",
            "gain over the default",
            "hurt",
            "hurt over the default",
        ]
        parts.append(f"## {base}\n\n" + table(head, rows))
    write(source, "quality-ablation", circumstances(source, "ablation"), parts)


def _named(base: str, change: str) -> str:
    return f"{base}: {change}"


def _row(name: str, base: str, found: Mapping[str, Comparison]) -> list[str]:
    """The cells of one change."""
    scores = [(comparison[name], comparison[base]) for comparison in found.values()]
    gains = [100 * score.difference.gain for score, _ in scores]
    hurt, usual = (mean([pair[at].hurt_rate for pair in scores]) for at in (0, 1))
    each = [gain for pair in scores for gain in _apart(*pair)]
    apart, changes = difference(dict(enumerate(each)), seed=SEED), any(each)
    return [
        name.removeprefix(f"{base}: ") if name != base else "the default",
        *(f"{gain:+.1f}" for gain in gains),
        f"{mean(gains):+.1f}",
        points(apart) if changes else "",
        f"{hurt:.1%}",
        f"{100 * (hurt - usual):+.1f}" if changes else "",
    ]


def _apart(score: SystemScore, default: SystemScore) -> list[float]:
    """What each question has over the default."""
    usual = default.difference.gains
    return [gain - usual[question] for question, gain in score.difference.gains.items()]
