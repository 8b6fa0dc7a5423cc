"""Every set measured, and the tables of the results.

The free systems are asked many questions, those with a model the questions that were recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.outside.sets import RECORDINGS, OutsideSet
from benchmarks.outside.sources import KEPT
from benchmarks.quality.report import RESULTS, SEED, circumstances, mean, points, table, told
from benchmarks.quality.sets import MODEL, Source, records
from qtmiddleware.config.settings import Settings
from qtmiddleware.kit.evaluation import Comparison, Dataset, SystemScore
from qtmiddleware.kit.evaluation.bench import open_bench
from qtmiddleware.kit.evaluation.measures import PRIMARY
from qtmiddleware.kit.evaluation.systems import BASELINE, chosen

QUESTIONS: Final = 400
"""At most so many of a set are asked where they cost nothing."""
FREE: Final = ("rules",)
RECORDED: Final = ("rules", "rewrite", "hyde", "balanced", "auto", "balanced, no hyde")


@dataclass(frozen=True)
class Measured:
    """How the systems did on one set; *recorded* only where there are recorded replies."""

    free: Comparison
    recorded: Comparison | None = None


def measured(one: OutsideSet) -> Measured:
    """Both parts of one converted set."""
    data = Dataset.load(one.folder)
    free = _compared(data, FREE, questions=QUESTIONS)
    if one.recording is None:
        return Measured(free)
    replies = records(one.recording)
    recorded = _compared(data, RECORDED, recording=one.recording)
    if recorded.questions < len(replies):
        raise SystemExit(
            f"{one.name}: {len(replies)} replies, but only {recorded.questions} of their questions exist"
        )
    return Measured(free, recorded)


def _compared(
    data: Dataset,
    systems: Sequence[str],
    *,
    questions: int | None = None,
    recording: Path | None = None,
) -> Comparison:
    opened = open_bench(
        data,
        Settings(embedding_model=MODEL),
        recordings=recording,
        cache=KEPT,
        questions=questions,
        seed=SEED,
    )
    with opened as bench:
        return bench.measure(chosen(systems), seed=SEED)


HEAD: Final = Path(__file__).resolve().parent / "head.md"
FULL: Final = "balanced"
GATED: Final = "auto"
RULES: Final = "rules"
Found = Mapping[OutsideSet, Measured]


def report(found: Found, *, is_whole: bool) -> None:
    """Print all of it and, where every set was measured, keep it as ``results/outside.md``."""
    source = Source(KEPT, RECORDINGS, tuple(one.name for one in found))
    about = {**circumstances(source, ""), "command": "python -m benchmarks.outside"}
    parts = [HEAD.read_text(encoding="utf-8").strip(), told(about)]
    parts += ["## Sources", _sources(found), "## Without a model", _free(found)]
    if any(one.recorded for one in found.values()):
        parts += ["## With recorded replies", _recorded(found), "## The gate", _gate(found)]
    text = "\n\n".join(parts)
    print(text)
    if is_whole:
        (RESULTS / "outside.md").write_text(f"{text}\n", encoding="utf-8")


def _sources(found: Found) -> str:
    rows = [
        [
            one.name,
            one.about,
            f"[{source.name}]({source.address}/tree/{source.commit})",
            f"`{source.commit[:12]}`",
            source.licence,
        ]
        for one in found
        for source in one.repositories
    ]
    return table(["set", "what it is", "repository", "commit", "licence"], rows)


def _free(found: Found) -> str:
    rows = []
    for one, scores in found.items():
        raw, rules = scores.free[BASELINE], scores.free[RULES]
        sizes = [f"{scores.free.passages:,}", str(scores.free.questions)]
        means = [f"{score.means[PRIMARY]:.3f}" for score in (raw, rules)]
        gain = [points(rules.difference, corrected=True), f"{rules.difference.p:.4f}"]
        shares = [f"{rules.hurt_rate:.0%}", f"{_mean_loss(rules):.1f}", f"{rules.helped_rate:.0%}"]
        rows.append([one.name, *sizes, *means, *gain, *shares])
    head = [
        "set",
        "passages",
        "questions",
        "off",
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
    for one, scores in _with_replies(found).items():
        gains = [f"{100 * scores[name].difference.gain:+.1f}" for name in (FULL, GATED)]
        shares = [_share(scores), _share(scores, beyond=RULES)]
        rows.append([one, f"{scores[GATED].call_rate:.0%}", *gains, *shares])
    return table(
        [
            "set",
            "questions that call",
            "gain of balanced",
            "gain of auto",
            "share kept",
            "beyond rules",
        ],
        rows,
    )


def _share(comparison: Comparison, *, beyond: str = BASELINE) -> str:
    """How much the gate keeps of what the model gains over the system *beyond*; empty where that is next to nothing."""
    full, kept, known = (comparison[name].difference.gain for name in (FULL, GATED, beyond))
    return f"{(kept - known) / (full - known):.0%}" if full - known > 0.01 else ""


def _mean_loss(score: SystemScore) -> float:
    """The mean loss of the questions that do worse, in points; 0 where none does."""
    losses = [100 * loss for _, loss in score.difference.worst(len(score.runs))]
    return mean(losses) if losses else 0.0


def _with_replies(found: Found) -> dict[str, Comparison]:
    return {one.name: scores.recorded for one, scores in found.items() if scores.recorded}
