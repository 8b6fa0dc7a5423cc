"""What `qtm tune` gains over the defaults, on questions it did not see.

    python -m benchmarks.tuning --data ../shared/data --recordings ../shared/recordings
    --max-call-rate 0.35

Every set is a folder in BEIR layout, its recordings a file of the same name; only the questions
that were recorded are asked. For each set and seed one half of them is tuned on and the other half
measured, without a budget and, where one is given, once more with it. The result is written to
`benchmarks/results/tuning.md`; indexes and vectors are kept under `.tmp/quality`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.quality.report import RESULTS, circumstances, mean, points, table, told
from benchmarks.quality.sets import Source, prepared
from qtmiddleware.kit.evaluation import PRIMARY, SystemScore, measure_difference
from qtmiddleware.kit.evaluation.tuning import Budget, Tuned, tune_settings

HEAD: Final = f"""# Tuning

What `qtm tune` finds on one half of the questions of a set, beside the library's default within the same budget.
All figures but the column *in training* are of the other half, which the search never saw: points of {PRIMARY} over the
raw query, in brackets the share of questions that do worse than with it. *Decided* is what the training half decided
for, *recommended* what is written to the config file after the held-out half has confirmed it, where it has not the
default, and nothing (a gain of 0) where tuning refuses. *In training* is how much further the decided config was ahead
of the default on the questions that decided."""


@dataclass(frozen=True)
class Line:
    """One set, tuned with one seed."""

    name: str
    seed: int
    found: Tuned

    @property
    def default(self) -> SystemScore:
        return self.found.comparison[self.found.default]

    @property
    def decided(self) -> SystemScore:
        return self.found.comparison[self.found.tuned]

    @property
    def recommended(self) -> SystemScore:
        """What a user is left with: the raw query where nothing is recommended."""
        return self.found.score if self.found.is_better else self.found.comparison["raw"]

    @property
    def scores(self) -> tuple[SystemScore, SystemScore, SystemScore]:
        return self.default, self.decided, self.recommended

    @property
    def ahead(self) -> float:
        """Of the decided config over the default, on the training questions."""
        trained = self.found.trained
        return trained[self.found.tuned].mean_ndcg - trained[self.found.default].mean_ndcg

    @property
    def verdict(self) -> str:
        if not self.found.is_better:
            return "refused"
        return "the default" if self.found.chosen == self.found.default else "the tuned"


def main() -> None:
    """Tune all, and write ``results/tuning.md``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--seeds", default="0,1", help="with commas: each divides the questions otherwise"
    )
    parser.add_argument("--max-call-rate", type=float, help="measure once more within this budget")
    parser.add_argument(
        "--sets",
        default="",
        help="names with commas, only printed; all that were recorded by default",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="sets that are tuned at once, a process each"
    )
    options = parser.parse_args()
    # Several threads of the linear algebra library only wait for one another here; it reads this
    # when it is loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    source = Source.of(options.data, options.recordings, options.sets)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rates = [None] if options.max_call_rate is None else [None, options.max_call_rate]
    parts = [HEAD, told(_about(source, seeds, options.max_call_rate))]
    lines = _tuned(source, seeds, rates, options.jobs)
    for rate in rates:
        title = (
            "Without a budget"
            if rate is None
            else f"At most {rate:.0%} of the questions call the model"
        )
        parts += [f"## {title}", _table(lines[rate]), _verdict(lines[rate]), _decided(lines[rate])]
    text = "\n\n".join(parts)
    print(text)
    if source.is_whole:
        (RESULTS / "tuning.md").write_text(f"{text}\n", encoding="utf-8")


def _about(source: Source, seeds: Sequence[int], rate: float | None) -> dict[str, object]:
    """Command, data, versions and seeds of the run."""
    budget = "" if rate is None else f" --max-call-rate {rate:g}"
    named = ",".join(map(str, seeds))
    command = f"python -m benchmarks.tuning --data {source.data} --recordings {source.recordings}"
    about = circumstances(source, "")
    return {**about, "command": f"{command} --seeds {named}{budget}", "seed": named}


def _tuned(
    source: Source, seeds: Sequence[int], rates: Sequence[float | None], jobs: int
) -> dict[float | None, list[Line]]:
    """Every set tuned with every seed, by budget."""
    asked = list(product(source.names, rates, seeds))
    found: dict[float | None, list[Line]] = defaultdict(list)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        given = zip(*((source, *each) for each in asked), strict=True)
        for (_, rate, _), line in zip(asked, pool.map(_line, *given), strict=True):
            found[rate].append(line)
            gains = ", ".join(f"{100 * score.difference.gain:+.1f}" for score in line.scores)
            where = f"{line.name}, seed {line.seed}, call rate {'any' if rate is None else rate}"
            print(f"{where}: {gains} ({line.found.seconds:.0f} s)", file=sys.stderr, flush=True)
    return found


def _line(source: Source, name: str, rate: float | None, seed: int) -> Line:
    with prepared(source, name) as one:
        return Line(
            name,
            seed,
            tune_settings(one.bench, one.data, budget=Budget(max_call_rate=rate), seed=seed),
        )


def _table(lines: Sequence[Line]) -> str:
    rows = [
        [
            line.name,
            str(line.seed),
            *map(_told, line.scores),
            f"{100 * line.ahead:+.1f}",
            line.verdict,
        ]
        for line in lines
    ]
    means = []
    for at in range(3):
        scores = [line.scores[at] for line in lines]
        gain, hurt = (
            mean([it.difference.gain for it in scores]),
            mean([it.hurt_rate for it in scores]),
        )
        means.append(_cell(gain, hurt, mean([it.call_rate for it in scores]), digits=1))
    rows.append(["mean", "", *means, f"{100 * mean([line.ahead for line in lines]):+.1f}", ""])
    return table(
        ["set", "seed", "the default", "decided", "recommended", "in training", "verdict"], rows
    )


def _told(score: SystemScore) -> str:
    return _cell(score.difference.gain, score.hurt_rate, score.call_rate)


def _cell(gain: float, hurt: float, calls: float, digits: int = 0) -> str:
    return f"{100 * gain:+.1f} ({hurt:.{digits}%}), {calls:.0%} calls"


def _verdict(lines: Sequence[Line]) -> str:
    """The decided and the recommended config beside the default, question by question."""
    said = []
    for what, at in (("decided", 1), ("recommended", 2)):
        apart: dict[tuple[str, str], list[float]] = defaultdict(list)
        for line in lines:
            for question, gain in line.default.gains.items():
                apart[line.name, question].append(line.scores[at].gains[question] - gain)
        found = measure_difference([mean(each) for each in apart.values()])
        said.append(
            f"- {what} over the default: {points(found)} points, over {len(apart)} questions"
        )
    kinds = {
        verdict: sum(line.verdict == verdict for line in lines)
        for verdict in ("the tuned", "the default", "refused")
    }
    counted = ", ".join(f"{verdict} {count}" for verdict, count in kinds.items())
    return "\n".join([*said, f"- of {len(lines)} runs: {counted}"])


def _decided(lines: Sequence[Line]) -> str:
    """What was decided where it is not the default."""
    return "\n".join(_changes(lines)) or "The training half decided for the default every time."


def _changes(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        if line.found.tuned != line.found.default:
            yield f"- {line.name}, seed {line.seed}: `{line.found.trained[line.found.tuned].name}`"


if __name__ == "__main__":
    main()
