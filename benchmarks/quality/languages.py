"""The rules in other languages and scripts: never significantly below the raw query."""

from __future__ import annotations

from typing import Final

from benchmarks.quality.report import SEED, circumstances, mean, points, quality, table, write
from benchmarks.quality.sets import Source, prepared_with
from qtmiddleware.kit.evaluation import BASELINE, PRIMARY, Comparison, Dataset, chosen
from qtmiddleware.testing import ScriptedModel

LANGUAGES: Final = ("en", "es", "de", "ar", "zh")
QUESTIONS: Final = 300
RULES: Final = "rules"


def run(source: Source) -> None:
    """Measure each language, and write ``results/quality-languages.md``."""
    source = Source(
        source.data, source.recordings, tuple(f"xquad/{language}" for language in LANGUAGES)
    )
    found: dict[str, Comparison] = {}
    for name in source.names:
        data = Dataset.load(source.data / name).sampled(QUESTIONS, seed=SEED)
        with prepared_with(data, name, ScriptedModel({})) as one:
            found[name] = one.measured(chosen([RULES]), SEED)
        print(f"{name}: rules {100 * found[name][RULES].difference.gain:+.1f} points", flush=True)
    rows = []
    for name, comparison in found.items():
        raw, rules = (comparison[system] for system in (BASELINE, RULES))
        cells = [
            quality(rules.means[PRIMARY], rules.hurt_rate),
            points(rules.difference),
            f"{rules.helped_rate:.0%}",
        ]
        rows.append([name, str(comparison.questions), f"{raw.means[PRIMARY]:.3f}", *cells])
    lost = [name for name, comparison in found.items() if comparison[RULES].difference.high < 0]
    said = f"Significantly below the raw query on: {', '.join(lost) or 'no language'}."
    parts = [
        table(["set", "questions", "raw", "rules", "difference in points", "helped"], rows),
        said,
    ]
    plain = {
        name: {
            BASELINE: round(comparison[BASELINE].means[PRIMARY], 4),
            RULES: round(comparison[RULES].means[PRIMARY], 4),
            "difference": {
                key: round(value, 4)
                for key, value in comparison[RULES].difference.to_dict().items()
            },
            "hurtRate": round(comparison[RULES].hurt_rate, 4),
        }
        for name, comparison in found.items()
    }
    write(source, "quality-languages", circumstances(source, "languages"), parts, {"sets": plain})
    print(f"mean {100 * mean([it[RULES].difference.gain for it in found.values()]):+.1f} points")
