"""The tables of the check, and how they are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from benchmarks.outside.measuring import Measured
from benchmarks.outside.reading import FULL, GATED, RULES, Found, figures, lost, share
from benchmarks.outside.sets import RECORDINGS, OutsideSet
from benchmarks.outside.sharing import LONG
from benchmarks.outside.sources import KEPT
from benchmarks.quality.report import RESULTS, circumstances, mean, points, table, told
from benchmarks.quality.sets import Source
from qtmiddleware.kit.evaluation import BASELINE, PRIMARY, Comparison, SystemScore

WORDS: Final = Path(__file__).resolve().parent


def report(found: Found, *, is_whole: bool) -> None:
    """Print all of it and, where every set was measured, keep it as ``results/outside.md`` and ``.json``."""
    source = Source(KEPT, RECORDINGS, tuple(one.name for one in found))
    about = {**circumstances(source, ""), "command": "python -m benchmarks.outside"}
    parts = [_words("head.md"), told(about)]
    if is_whole:
        parts.append(_words("reading.md").format_map(figures(found)))
    parts += ["## Sources", _sources(found), "## Without a model", _free(found)]
    if any(it.recorded for it in found.values()):
        parts += ["## With recorded replies", _recorded(found), "## The gate", _gate(found)]
        parts += ["## What the replies share with the passages", _shared(found)]
    text = "\n\n".join(parts)
    print(text)
    if is_whole:
        content = {**about, "sets": {one.name: _plain(one, it) for one, it in found.items()}}
        (RESULTS / "outside.md").write_text(f"{text}\n", encoding="utf-8")
        (RESULTS / "outside.json").write_text(
            f"{json.dumps(content, indent=1)}\n", encoding="utf-8"
        )


def _words(file: str) -> str:
    return (WORDS / file).read_text(encoding="utf-8").strip()


def _sources(found: Found) -> str:
    rows = [
        [
            one.name,
            one.about,
            f"[{it.name}]({it.address}/tree/{it.commit})",
            f"`{it.commit[:12]}`",
            it.licence,
        ]
        for one in found
        for it in one.repositories
    ]
    return table(["set", "what it is", "repository", "commit", "licence"], rows)


def _free(found: Found) -> str:
    rows = []
    for one, it in found.items():
        raw, rules = it.free[BASELINE], it.free[RULES]
        sizes = [f"{it.free.passages:,}", str(it.free.questions)]
        means = [f"{score.means[PRIMARY]:.3f}" for score in (raw, rules)]
        gain = [points(rules.difference, corrected=True), f"{rules.difference.p:.4f}"]
        shares = [f"{rules.hurt_rate:.0%}", f"{lost(rules):.1f}", f"{rules.helped_rate:.0%}"]
        rows.append([one.name, *sizes, *means, *gain, *shares])
    head = [
        "set",
        "passages",
        "questions",
        "raw",
        "rules",
        "gain in points",
        "p",
        "hurt",
        "loss of the hurt",
        "helped",
    ]
    return table(head, rows)


def _recorded(found: Found) -> str:
    rows = []
    for one, comparison in _with_replies(found).items():
        for score in comparison.systems:
            means = [f"{score.means[name]:.3f}" for name in (PRIMARY, "R@10")]
            cells = [
                points(score.difference, corrected=True),
                f"{score.hurt_rate:.0%}",
                f"{score.helped_rate:.0%}",
            ]
            cells = ["", "", ""] if score.name == BASELINE else cells
            rows.append([one, score.name, *means, *cells, str(score.llm_calls)])
    head = ["set", "system", PRIMARY, "R@10", "gain in points", "hurt", "helped", "calls"]
    return table(head, rows)


def _gate(found: Found) -> str:
    rows = []
    for one, it in _with_replies(found).items():
        gains = [f"{100 * it[name].difference.gain:+.1f}" for name in (FULL, GATED)]
        rows.append([one, f"{it[GATED].call_rate:.0%}", *gains, share(it), share(it, beyond=RULES)])
    return table(
        [
            "set",
            "questions that call",
            "gain of combined",
            "gain of auto",
            "share kept",
            "beyond rules",
        ],
        rows,
    )


def _shared(found: Found) -> str:
    rows = []
    for one, it in found.items():
        if it.recorded and it.shared:
            gains = it.recorded[FULL].gains
            others = [
                gain for question, gain in gains.items() if question not in it.shared.questions
            ]
            longest = str(it.shared.longest) if it.shared.longest else f"below {LONG}"
            with_and_without = (
                f"{100 * mean(some):+.1f}" for some in (list(gains.values()), others)
            )
            rows.append(
                [
                    one.name,
                    f"{len(it.shared.questions)} of {len(gains)}",
                    longest,
                    *with_and_without,
                ]
            )
    head = [
        "set",
        f"questions with {LONG} words in a row",
        "most words in a row",
        "gain of combined",
        "without them",
    ]
    return table(head, rows)


def _with_replies(found: Found) -> dict[str, Comparison]:
    return {one.name: it.recorded for one, it in found.items() if it.recorded}


def _plain(one: OutsideSet, it: Measured) -> dict[str, Any]:
    return {
        "sources": {source.name: source.commit for source in one.repositories},
        "passages": it.free.passages,
        "free": _scores(it.free),
        **({"recorded": _scores(it.recorded)} if it.recorded else {}),
        **(
            {"shared": {"questions": sorted(it.shared.questions), "longest": it.shared.longest}}
            if it.shared
            else {}
        ),
    }


def _scores(comparison: Comparison) -> dict[str, Any]:
    return {
        "questions": comparison.questions,
        "systems": {it.name: _score(it) for it in comparison.systems},
    }


def _score(score: SystemScore) -> dict[str, Any]:
    rounded = {name: round(value, 4) for name, value in score.means.items()}
    return {
        "means": rounded,
        "difference": {name: round(value, 4) for name, value in score.difference.to_dict().items()},
        "hurtRate": round(score.hurt_rate, 4),
        "helpedRate": round(score.helped_rate, 4),
        "calls": score.llm_calls,
        "degraded": score.degraded,
    }
