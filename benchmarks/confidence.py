"""What `Retrieval.confidence` and `is_unsure` tell, without any judgement: own questions against foreign ones.

    python -m benchmarks.confidence --data ../shared/data

A foreign question is one of another set. Each question is judged beside all other questions of its
set, so that it is not among those it is compared with. The result goes to
``benchmarks/results/confidence.md``.
"""

from __future__ import annotations

import argparse
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.quality.report import RESULTS, SEED, mean, table
from benchmarks.quality.sets import prepared_with
from benchmarks.searches import build_searches
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.retrieval.signals import Standings
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Retrieval, Standing
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

SETS: Final = (
    "small/gym_faq", "small/camper_rental", "small/remote_policy", "small/runbooks", "small/acronyms",
    "small/catalogue_es", "small/policies_by_year", "small/release_notes", "nq_small", "covid_faq", "anthropic_docs",
    "hotpotqa_small", "strategyqa_dev", "seed_climate", "codebase_small", "xquad/en", "xquad/de",
)  # fmt: skip
CHOSEN_ON: Final = frozenset(SETS[::2])
"""The sets that the weights of the signals were chosen on; the others only report."""
OWN: Final = 100
"""Questions of a set, at most."""
FOREIGN: Final = 8
"""Questions of each other set."""
RESAMPLED: Final = 200

HEAD: Final = """# Confidence

Written by `python -m benchmarks.confidence`. `Retrieval.confidence` is a percentile: where a question's signals stand
among those of the function's other questions. No judgement is used to compute it. AUROC is the chance that a question
of the first kind has a higher confidence than one of the second; 0.5 is a coin toss. `is_unsure` is the share of the
questions that are flagged. A foreign question is one of another set. The signals' weights were chosen on the sets with
a star.
"""


@dataclass(frozen=True)
class Judged:
    """One question's *standing*, and whether its plain first passage answers it (``None``: nothing does)."""

    standing: Standing
    is_right: bool | None = None

    @property
    def confidence(self) -> float:
        """The confidence, which is there as soon as enough questions were seen."""
        return self.standing.confidence if self.standing.confidence is not None else 0.5


@dataclass(frozen=True)
class Measured:
    """What one function says of its *own* questions, of *foreign* ones and of *unanswerable* ones of its topic."""

    name: str
    own: Sequence[Judged]
    foreign: Sequence[Judged]
    unanswerable: Sequence[Judged]


def main() -> None:
    """Measure every kind of function over every set, and write the tables."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    data = {name: Dataset.load(options.data / name).sampled(OWN, seed=SEED) for name in SETS}
    found: dict[str, list[Measured]] = {}
    for name, own in data.items():
        others = [others for other, others in data.items() if not _is_same_text(name, other)]
        foreign = [
            question.text
            for other in others
            for question in other.sampled(FOREIGN, seed=SEED).questions
        ]
        for kind, measured in measure_set(
            name, own, foreign, _read_unanswerable(options.data / name)
        ).items():
            found.setdefault(kind, []).append(measured)
        print(name, flush=True)
    text = "\n".join([HEAD, *(_describe_kind(kind, sets) for kind, sets in found.items())])
    (RESULTS / "confidence.md").write_text(text, encoding="utf-8")
    print(text)


def _is_same_text(name: str, other: str) -> bool:
    """Whether two sets hold the same passages, in two languages or not: their questions are not foreign."""
    return name == other or (name.startswith("xquad/") and other.startswith("xquad/"))


def _read_unanswerable(folder: Path) -> list[str]:
    file = folder / "unanswerable.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [json.loads(line)["text"] for line in lines if line.strip()]


def measure_set(
    name: str, data: Dataset, foreign: Sequence[str], unanswerable: Sequence[str]
) -> dict[str, Measured]:
    """Return, by kind of function, what it says of each question beside all other questions of the set."""
    found = {}
    with prepared_with(data, name.replace("/", "-"), ScriptedModel({})) as one:
        one.vectors([*(question.text for question in data.questions), *foreign, *unanswerable])
        for kind, retrieve in build_searches(one).items():
            search: Any = QueryMiddleware().wrap(retrieve)
            own = [search.retrieve(question.text) for question in data.questions]
            plain = [retrieval.rankings[0] for retrieval in own]
            rights = [
                bool(found.keys) and data.qrels[question.id].get(found.keys[0][1], 0) > 0
                for question, found in zip(data.questions, plain, strict=True)
            ]
            judged = [
                Judged(judge_beside(own[:at] + own[at + 1 :], asked), is_right)
                for at, (asked, is_right) in enumerate(zip(own, rights, strict=True))
            ]
            rest = [
                [Judged(judge_beside(own, search.retrieve(text))) for text in texts]
                for texts in (foreign, unanswerable)
            ]
            found[kind] = Measured(name, judged, *rest)
    return found


def judge_beside(earlier: Iterable[Retrieval], asked: Retrieval) -> Standing:
    """Return the standing of *asked* after the *earlier* questions alone."""
    standings = Standings()
    for retrieval in (*earlier, asked):
        own = retrieval.rankings[0]
        last = standings.measure_confidence(
            retrieval.standing.signals, passage_count=len(own.keys), scores=own.scores
        )
    return last


def measure_auroc(higher: Sequence[Judged], lower: Sequence[Judged]) -> float:
    """Return the chance that one of *higher* has more confidence than one of *lower*, ties counting half.

    The area under the ROC curve, as the Mann-Whitney statistic divided by the number of pairs.
    """
    below = sorted(answer.confidence for answer in lower)
    wins = sum(
        (bisect_left(below, answer.confidence) + bisect_right(below, answer.confidence)) / 2
        for answer in higher
    )
    return wins / (len(higher) * len(lower))


def resample(
    measure: Callable[[Sequence[Judged], Sequence[Judged]], float], *groups: Sequence[Judged]
) -> str:
    """Return what *measure* gives for two groups, with the 95 % interval of its bootstrap over their questions."""
    random = Random(SEED)
    values = sorted(
        measure(*(random.choices(group, k=len(group)) for group in groups))
        for _ in range(RESAMPLED)
    )
    low, high = values[int(0.025 * len(values))], values[int(0.975 * len(values))]
    return f"{measure(*groups):.2f} [{low:.2f}, {high:.2f}]"


def _share_unsure(judged: Sequence[Judged]) -> float:
    return mean([answer.standing.is_unsure for answer in judged])


def _split(judged: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
    return [one for one in judged if one.is_right], [one for one in judged if not one.is_right]


def _describe_kind(kind: str, sets: Sequence[Measured]) -> str:
    rows = []
    for one in sets:
        right, wrong = _split(one.own)
        rows.append(
            [
                f"{one.name}{' *' if one.name in CHOSEN_ON else ''}",
                str(len(one.own)),
                f"{measure_auroc(one.own, one.foreign):.3f}",
                f"{measure_auroc(right, wrong):.2f}" if right and wrong else "",
                f"{_share_unsure(one.own):.1%}",
                f"{_share_unsure(one.foreign):.1%}",
                f"{_share_unsure(one.unanswerable):.1%}" if one.unanswerable else "",
            ]
        )
    head = [
        "set",
        "questions",
        "own against foreign",
        "right first against wrong",
        "own: unsure",
        "foreign: unsure",
    ]
    parts = [
        f"## {kind}\n",
        table([*head, "unanswerable: unsure"], rows),
        "",
        *(f"- {line}" for line in _summarise(sets)),
        "",
    ]
    return "\n".join(parts)


def _summarise(sets: Sequence[Measured]) -> list[str]:
    reported = [one for one in sets if one.name not in CHOSEN_ON]
    hard = [one for one in sets if one.unanswerable]
    answerable, unanswerable = (
        [answer for one in hard for answer in getattr(one, of)] for of in ("own", "unanswerable")
    )
    right, wrong = _split([answer for one in sets for answer in one.own])

    def average(some: Sequence[Measured]) -> float:
        return mean([measure_auroc(one.own, one.foreign) for one in some])

    return [
        (
            f"own against foreign, mean of the sets: AUROC {average(sets):.3f}; of those without a star"
            f" {average(reported):.3f}"
        ),
        (
            f"unanswerable questions of the same topic against answerable ones, {len(unanswerable)} and"
            f" {len(answerable)} pooled: AUROC {resample(measure_auroc, answerable, unanswerable)}"
        ),
        (
            f"right against wrong first passages, {len(right)} and {len(wrong)} pooled: AUROC"
            f" {resample(measure_auroc, right, wrong)}"
        ),
        (
            f"flagged as unsure, mean of the sets: own {mean([_share_unsure(one.own) for one in sets]):.1%}, of those"
            f" whose first passage is right {_share_unsure(right):.1%}, foreign"
            f" {mean([_share_unsure(one.foreign) for one in sets]):.1%}, unanswerable {_share_unsure(unanswerable):.1%}"
        ),
    ]


if __name__ == "__main__":
    main()
