"""How often the gate of `qtm bench --baseline` calls a harmless change a loss, and how often it finds a real one.

    python -m benchmarks.regression_gate --data ../shared/data --recordings ../shared/recordings

Sets with recorded replies are put together into one, so that 300 questions can be drawn. A harmless
change is as likely to make a question better as worse: both runs draw what the change is about by
seeds of their own. Everything is measured once per seed; each comparison then draws its questions.
The result is written to `benchmarks/results/regression_gate.md`, and vectors are kept under
`.tmp/quality`. It takes some fifteen minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from benchmarks.quality.report import RESULTS, circumstances, table, told
from benchmarks.quality.sets import Prepared, Source, prepared
from qtmiddleware.kit.evaluation import PRIMARY, SYSTEMS, Question, Run, evaluate
from qtmiddleware.kit.evaluation.gate import GateResult, Rule, measure_changes
from qtmiddleware.kit.evaluation.own_function import OwnFunction
from qtmiddleware.kit.evaluation.reporting import write_comment
from qtmiddleware.protocols import LanguageModel, Prompt, Reply
from qtmiddleware.types import Deadline
from qtmiddleware.wrapping.query_middleware import QueryMiddleware

SETS: Final = ("anthropic_docs", "covid_faq")
SMALL: Final = ("acronyms", "camper_rental", "catalogue_es", "gym_faq", "remote_policy", "runbooks")
SIZES: Final = (30, 100, 300)
SEEDS: Final = 10
DRAWS: Final = 100
"""Comparisons of each real change and size."""
LOST: Final = 0.1
"""The share of the passages that an index lost."""
MISSED: Final = 0.02
"""The chance of an approximate index to miss a passage."""
NOISE: Final = 0.005
"""The deviation of a score after all passages were embedded anew."""
DROPPED: Final = 0.15
"""The chance of a model to leave out one of its texts, so that the next reply differs."""

Values = dict[str, float]
Search = Callable[..., list[dict[str, Any]]]
RULES: Final = SYSTEMS["rules"]
COMBINED: Final = SYSTEMS["combined"]
OFF: Final[Mapping[str, Any]] = {"keywordEvidence": {"enabled": False}}

HEAD: Final = """# The gate for CI

`qtm bench --baseline base.json --fail-if worse` fails if nDCG@10 fell, or if more questions got worse than better, by
more than chance. This page counts how often it fails after changes that are harmless, and how often after real ones."""
HARMLESS: Final = """## Harmless changes

Both runs draw by seeds of their own, so no question is more likely to get worse than better. The aim is at most 5 % of
false alarms. *Changed* is the mean share of the questions whose nDCG@10 differs between the two runs. The
comparisons of one change share runs and, with 300 questions, most of the questions, so they are not independent."""
REAL: Final = """## Real changes

*Change* is that of nDCG@10 over all questions, in points, and how many of 100 questions got worse and better. The other
columns are the share of the comparisons in which the gate failed. Each comparison draws its questions anew."""


class CarelessModel:
    """The recorded model, but it leaves texts out by chance, as a live model never writes the same reply twice."""

    can_async = True

    def __init__(self, inner: LanguageModel, seed: int) -> None:
        self._inner, self._seed = inner, seed
        self.name = inner.name

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self._vary(prompt, self._inner.complete(prompt, deadline))

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self._vary(prompt, await self._inner.acomplete(prompt, deadline))

    def _vary(self, prompt: Prompt, reply: Reply) -> Reply:
        chance = Random(f"{self._seed} {prompt.query}")
        kept: dict[str, Any] = {}
        for name, said in json.loads(reply.text).items():
            if isinstance(said, list):
                kept[name] = [text for text in said if chance.random() >= DROPPED]
                chance.shuffle(kept[name])
            elif name == "standalone" or chance.random() >= DROPPED:
                kept[name] = said
        return replace(reply, text=json.dumps(kept))


@dataclass
class Collection:
    """One set, searched by its vectors."""

    one: Prepared

    def __post_init__(self) -> None:
        self.passages = self.one.data.passages
        self.matrix = self.one.vectors([passage.text for passage in self.passages])
        self._known: dict[str, Any] = {}

    def score(self, query: str) -> Any:
        if query not in self._known:
            self._known[query] = self.matrix @ self.one.vectors([query])[0]
        return self._known[query]

    def search(self, adjust: Callable[[str, Any], Any] | None = None) -> Search:
        """A plain function over the set; *adjust* changes the scores of a query, and -1 hides a passage."""
        import numpy as np

        def run(query: str, top_k: int = 10) -> list[dict[str, Any]]:
            scores = self.score(query) if adjust is None else adjust(query, self.score(query))
            best = [at for at in np.argsort(-scores, kind="stable")[:top_k] if scores[at] > -1]
            return [
                {
                    "id": self.passages[at].id,
                    "score": float(scores[at]),
                    "text": self.passages[at].text,
                }
                for at in best
            ]

        return run

    def measure(
        self,
        settings: Mapping[str, Any],
        search: Search | None = None,
        model: LanguageModel | None = None,
        order: int | None = None,
    ) -> Values:
        """nDCG@10 of each question; *order* is the seed of their order."""
        base = QueryMiddleware({}, client=model or self.one.bench.model).wrap(
            search or self.search()
        )
        system = OwnFunction(cast(Any, base), top_k=10).build_system(settings)
        questions: list[Question] = list(self.one.data.questions)
        if order is not None:
            Random(order).shuffle(questions)
        runs = {question.id: cast(Run, system(question)) for question in questions}
        for run in runs.values():
            if run.error is not None:
                raise run.error
        found = evaluate(
            self.one.data.qrels, {id_: run.ids for id_, run in runs.items()}, (PRIMARY,)
        ).values[PRIMARY]
        return {f"{self.one.name}/{id_}": value for id_, value in found.items()}

    # --- what a seed changes ----------------------------------------------------------------------

    def draw(self, seed: int, query: str = "") -> Any:
        """Random numbers, one a passage."""
        import numpy as np

        number = Random(f"{seed} {query}").getrandbits(64)
        return np.random.default_rng(number)

    def reorder_ties(self, seed: int) -> Values:
        def adjust(query: str, scores: Any) -> Any:
            # Too little to change what two digits say.
            return scores.round(2) + 1e-6 * self.draw(seed, query).random(len(scores))

        return self.measure(RULES, self._coarsen(adjust))

    def _coarsen(self, adjust: Callable[[str, Any], Any]) -> Search:
        search = self.search(adjust)

        def run(query: str, top_k: int = 10) -> list[dict[str, Any]]:
            return [{**row, "score": round(row["score"], 2)} for row in search(query, top_k)]

        return run

    def miss(self, seed: int) -> Values:
        import numpy as np

        def adjust(query: str, scores: Any) -> Any:
            return np.where(self.draw(seed, query).random(len(scores)) < MISSED, -1, scores)

        return self.measure(RULES, self.search(adjust))

    def embed_anew(self, seed: int) -> Values:
        noise = NOISE * self.draw(seed).standard_normal(len(self.passages))
        return self.measure(RULES, self.search(lambda _, scores: scores + noise))

    def reply_anew(self, seed: int) -> Values:
        return self.measure(COMBINED, model=CarelessModel(self.one.bench.model, seed))

    def ask_in_order(self, seed: int) -> Values:
        return self.measure(SYSTEMS["combined, auto"], order=seed)

    def lose(self) -> Search:
        import numpy as np

        lost = self.draw(0).random(len(self.passages)) < LOST
        return self.search(lambda _, scores: np.where(lost, -1, scores))


CHANGES: Final[Mapping[str, Callable[[Collection, int], Values]]] = {
    "rules: exact ties in another order": Collection.reorder_ties,
    f"rules: an approximate index that misses {MISSED:.0%} of the passages": Collection.miss,
    "rules: passages embedded anew with rounding errors": Collection.embed_anew,
    "combined: a model that writes other replies": Collection.reply_anew,
    "combined, auto: questions in another order": Collection.ask_in_order,
}
WORSE: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "rules: keyword evidence off": ("rules", OFF),
    "rules: keyword evidence with weight 1 instead of a computed one": (
        "rules",
        {"keywordEvidence": {"weight": 1.0}},
    ),
    "combined: keyword evidence off": ("combined", OFF),
    "combined: fusion by rrf instead of anchored": ("combined", {"fusion": {"method": "rrf"}}),
    "combined: fusion by concat instead of anchored": (
        "combined",
        {"fusion": {"method": "concat"}},
    ),
    "combined: no model, as if its key had expired": ("rules", {}),
}


def main() -> None:
    """Measure all, and write ``results/regression_gate.md``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--recordings", type=Path, default=Path("../shared/recordings"))
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        help="runs of each harmless change; all pairs are compared",
    )
    parser.add_argument("--sets", default="", help="names with commas, only printed")
    options = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    names = [
        name for name in (options.sets.split(",") if options.sets else (*SETS, *SMALL)) if name
    ]
    sources = [
        Source.of(
            options.data, options.recordings, ",".join(name for name in names if name in SETS)
        ),
        Source.of(
            options.data / "small",
            options.recordings / "small",
            ",".join(n for n in names if n in SMALL),
        ),
    ]
    with ExitStack() as stack:
        collections = [
            Collection(stack.enter_context(prepared(source, name)))
            for source, known in zip(sources, (SETS, SMALL), strict=True)
            for name in source.names
            if name in known and name in names
        ]
        harmless = dict(_measure_harmless(collections, options.seeds))
        before, after = _measure_real(collections)
    questions = len(before["rules"])
    text = "\n\n".join(
        [
            HEAD,
            told(_about(sources, options, questions)),
            HARMLESS,
            _count_false_alarms(harmless),
            REAL,
            _count_found(before, after),
            *_show_comments(harmless, before, after),
        ]
    )
    print(text)
    if not options.sets:
        (RESULTS / "regression_gate.md").write_text(f"{text}\n", encoding="utf-8")


def _about(
    sources: Sequence[Source], options: argparse.Namespace, questions: int
) -> dict[str, Any]:
    about = circumstances(sources[0], "")
    command = f"python -m benchmarks.regression_gate --data {options.data} --recordings {options.recordings}"
    data = {
        name: digest
        for source in sources
        for name, digest in source.hashes().items()
        if name in (*SETS, *SMALL)
    }
    return {
        **about,
        "command": command,
        "seed": f"0 to {options.seeds - 1}",
        "data": data,
        "questions": questions,
    }


def _measure_harmless(
    collections: Sequence[Collection], seeds: int
) -> Iterator[tuple[str, list[Values]]]:
    for what, measure in CHANGES.items():
        found: list[Values] = []
        for seed in range(seeds):
            found.append(_merge(measure(collection, seed) for collection in collections))
            print(f"{what}, seed {seed}: {_mean(found[-1]):.4f}", file=sys.stderr, flush=True)
        yield what, found


def _measure_real(
    collections: Sequence[Collection],
) -> tuple[dict[str, Values], dict[str, tuple[str, Values]]]:
    """The systems as they are, and each worse one with the name of what it was."""
    before = {
        name: _merge(one.measure(SYSTEMS[name]) for one in collections)
        for name in ("rules", "combined")
    }
    after: dict[str, tuple[str, Values]] = {}
    for what, (name, changed) in WORSE.items():
        settings = _lay(SYSTEMS[name], changed)
        after[what] = (what.partition(":")[0], _merge(one.measure(settings) for one in collections))
        print(f"{what}: {_mean(after[what][1]):.4f}", file=sys.stderr, flush=True)
    lost = _merge(one.measure(RULES, one.lose()) for one in collections)
    after[f"rules: {LOST:.0%} of the passages are missing in the index"] = ("rules", lost)
    return before, after


def _lay(settings: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        **{key: {**settings.get(key, {}), **value} for key, value in changed.items()},
    }


def _merge(parts: Any) -> Values:
    return {id_: value for part in parts for id_, value in part.items()}


def _mean(values: Values) -> float:
    return sum(values.values()) / len(values)


def _draw(values: Values, ids: Sequence[str]) -> Values:
    return {id_: values[id_] for id_ in ids}


def _ask(before: Values, after: Values, size: int, seed: str) -> tuple[bool, bool, bool]:
    """Whether the gate fails on *size* questions, and by which of its tests: the mean, the counts."""
    ids = Random(seed).sample(sorted(before), min(size, len(before)))
    (change,) = measure_changes({"": _draw(before, ids)}, {"": _draw(after, ids)})
    return change.verdict == "worse", change.has_significant_loss, change.has_mostly_losses


def _count_false_alarms(harmless: Mapping[str, Sequence[Values]]) -> str:
    rows, alarms = [], {size: [0, 0, 0] for size in SIZES}
    compared = 0
    for what, runs in harmless.items():
        pairs = list(combinations(range(len(runs)), 2))
        compared += len(pairs)
        counts = []
        for size in SIZES:
            found = [
                # Either of the two may be the earlier one.
                _ask(
                    *((runs[a], runs[b]) if (a + b) % 2 else (runs[b], runs[a])),
                    size,
                    f"{what} {a} {b}",
                )
                for a, b in pairs
            ]
            for place in range(3):
                alarms[size][place] += sum(one[place] for one in found)
            counts.append(sum(alarm for alarm, _, _ in found))
        moved = [_share_changed(runs[a], runs[b]) for a, b in pairs]
        rows.append([what, str(len(pairs)), f"{sum(moved) / len(moved):.0%}", *map(str, counts)])
    totals = [f"{alarms[size][0]} ({alarms[size][0] / compared:.1%})" for size in SIZES]
    rows.append(["**all**", str(compared), "", *totals])
    for place, test in ((1, "by the mean"), (2, "by the number of worse questions")):
        rows.append([test, "", "", *(str(alarms[size][place]) for size in SIZES)])
    head = [
        "change",
        "comparisons",
        "changed",
        *(f"false alarms, {size} questions" for size in SIZES),
    ]
    return table(head, rows)


def _share_changed(one: Values, other: Values) -> float:
    return sum(abs(one[id_] - other[id_]) > 1e-9 for id_ in one) / len(one)


def _count_found(before: Mapping[str, Values], after: Mapping[str, tuple[str, Values]]) -> str:
    rows = []
    for what, (name, values) in after.items():
        (change,) = measure_changes({"": before[name]}, {"": values})
        of = len(change.gains)
        moved = f"{100 * change.difference.gain:+.1f} ({100 * change.worse_count / of:.0f}, {100 * change.better_count / of:.0f})"
        found = [
            [_ask(before[name], values, size, f"{what} {draw}")[0] for draw in range(DRAWS)]
            for size in SIZES
        ]
        rows.append([what, moved, *(f"{sum(drawn) / DRAWS:.0%}" for drawn in found)])
    return table(
        ["change", "change (worse, better)", *(f"found, {size} questions" for size in SIZES)], rows
    )


def _show_comments(
    harmless: Mapping[str, Sequence[Values]],
    before: Mapping[str, Values],
    after: Mapping[str, tuple[str, Values]],
) -> Iterator[str]:
    """The comments for two pull requests, on 100 questions."""
    ids = Random("comment").sample(sorted(before["rules"]), min(100, len(before["rules"])))
    real = {name: values for what, (name, values) in after.items() if what.endswith("evidence off")}
    careless = harmless["combined: a model that writes other replies"]
    yield "## What a pull request gets"
    pairs = (
        ("after keyword evidence was switched off", before, real),
        ("after a model wrote other replies", {"combined": careless[0]}, {"combined": careless[1]}),
    )
    for what, then, now in pairs:
        old, new = (
            {name: _draw(values, ids) for name, values in side.items()} for side in (then, now)
        )
        comment = write_comment(GateResult("base.json", Rule(), measure_changes(old, new)))
        yield f"### The comment {what}\n\n" + "\n".join(
            f"> {line}".rstrip() for line in comment.rstrip().splitlines()
        )


if __name__ == "__main__":
    main()
