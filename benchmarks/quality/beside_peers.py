"""Other libraries, really run, on the same recorded replies and the same vectors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.quality.report import SEED, circumstances, mean, points, quality, table, write
from benchmarks.quality.sets import KEPT, Prepared, Source, prepared, records
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.measures import PRIMARY, TOLERANCE, difference, evaluate
from qtmiddleware.kit.evaluation.systems import BASELINE, chosen

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS: Final = {
    "langchain": "langchain_worker",
    "llamaindex": "llamaindex_worker",
    "haystack": "haystack_worker",
    "ragfusion": "ragfusion_worker",
}
OURS: Final = (BASELINE, "rules", "hyde", "balanced", "balanced, no hyde", "hybrid, balanced")
FULL: Final = "balanced"
GIVEN: Final = " (standalone)"
"""Marks the sets on which the peers were given the standalone question in place of the user's own words."""

Values = Mapping[str, float]  # nDCG@10 by question


@dataclass
class Line:
    """One system: its nDCG@10 of every question and its searches by vectors a question, by set."""

    peer: str
    name: str
    replies: str = ""
    lists: str = ""
    sets: dict[str, Values] = field(default_factory=dict)
    searches: dict[str, float] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        return [f"{self.peer} {self.name}".strip(), self.replies, self.lists]

    def mean(self, names: Sequence[str]) -> float:
        """Over sets, each counting the same."""
        return mean([average(self.sets[name]) for name in names])


def average(values: Values) -> float:
    return mean(list(values.values()))


def run(source: Source) -> None:
    """Run all, and write ``results/quality-peers.md``."""
    handed = KEPT / "handed"
    shutil.rmtree(handed, ignore_errors=True)
    handed.mkdir(parents=True)
    data: dict[str, Dataset] = {}
    ours = {name: Line("", name) for name in OURS}
    for name in source.names:
        with prepared(source, name) as one:
            _hand_over(one, source, handed)
            data[name] = one.data
            for score in one.measured(chosen(OURS), SEED).systems:
                ours[score.name].sets[name] = score.per_query[PRIMARY]
                ours[score.name].searches[name] = score.searches_per_question or 0.0
        print(f"{name}: handed over", flush=True)
    peers, versions = _peers(handed, data)
    plain = [line for line in peers if line.name == BASELINE]
    _check(ours[BASELINE], plain)
    lines = [line for line in peers if line.name != BASELINE]
    about = circumstances(source, "peers")
    about["versions"] |= versions
    parts = _report(list(ours.values()), lines, plain)
    write(source, "quality-peers", about, parts)


def _hand_over(one: Prepared, source: Source, folder: Path) -> None:
    """Write what `peers/handed.py` reads."""
    import numpy as np

    texts = [passage.text for passage in one.data.passages]
    replies_of = records(source.recording(one.name))
    questions = []
    for question in one.data.questions:
        replies = {
            name: replies_of[question.id][name]
            for name in ("standalone", "rewrite", "sub_queries", "hyde")
        }
        questions.append({"id": question.id, "text": question.text, **replies})
    searched = [
        text
        for row in questions
        for text in (
            row["text"],
            row["standalone"],
            row["rewrite"],
            *row["sub_queries"],
            row["hyde"],
        )
        if text
    ]
    searched = list(dict.fromkeys(searched))
    ids = [passage.id for passage in one.data.passages]
    file = folder / f"{one.name}.json"
    told = {
        "name": one.name,
        "ids": ids,
        "texts": texts,
        "questions": questions,
        "searched": searched,
    }
    file.write_text(json.dumps(told), encoding="utf-8")
    vectors = {"passages": one.vectors(texts), "searched": one.vectors(searched)}
    np.savez(file.with_suffix(".npz"), **vectors)


def _peers(handed: Path, data: Mapping[str, Dataset]) -> tuple[list[Line], dict[str, str]]:
    """What every peer found, measured; a peer whose environment is not there is left out, and said so."""
    lines: dict[tuple[str, ...], Line] = {}
    versions: dict[str, str] = {}
    for home, module in PEERS.items():
        interpreter = ROOT / ".tmp" / "peers" / home / "bin" / "python"
        if not interpreter.exists():
            print(
                f"{home} is not measured: run benchmarks/quality/setup-peers first", file=sys.stderr
            )
            continue
        found = handed.parent / f"{home}.found"
        command = [
            str(interpreter),
            "-m",
            f"benchmarks.quality.peers.{module}",
            str(handed),
            str(found),
        ]
        subprocess.run(
            command, cwd=ROOT, check=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        )
        answer = json.loads(found.read_text(encoding="utf-8"))
        versions |= answer["versions"]
        print(f"{answer['peer']} ran: {', '.join(answer['classes'])}", flush=True)
        for run in answer["runs"]:
            key = (answer["peer"], run["system"], run["reply"], run["lists"])
            name = run["set"] + (GIVEN if run["original"] == "standalone" else "")
            values = evaluate(data[run["set"]].qrels, run["found"])[PRIMARY]
            line = lines.setdefault(key, Line(*key))
            line.sets[name], line.searches[name] = values, run["searches"]
    return list(lines.values()), versions


def _check(ours: Line, theirs: Sequence[Line]) -> None:
    """End where a peer's plain search finds something else than ours."""
    for line in theirs:
        for name, values in ours.sets.items():
            if round(average(values), 4) != round(average(line.sets[name]), 4):
                sys.exit(
                    f"{line.peer} finds {average(line.sets[name]):.4f} on {name}, not {average(values):.4f}"
                )


def _report(ours: Sequence[Line], peers: Sequence[Line], plain: Sequence[Line]) -> list[str]:
    own, raw = list(ours[0].sets), dict(ours[0].sets)
    given = sorted({name for line in peers for name in line.sets} - set(own))
    names = [name for plain in own for name in (plain, plain + GIVEN) if name in {*own, *given}]
    raw |= {name: raw[name.removesuffix(GIVEN)] for name in given}
    # Ours are the same whatever the peers are given, but for the plain search, which is theirs as
    # well.
    for line in ours:
        line.sets |= {name: line.sets[name.removesuffix(GIVEN)] for name in given}
    for line in plain:
        ours[0].sets |= {name: line.sets[name] for name in given}

    def row(line: Line) -> list[str]:
        sets = line.sets
        cells = [quality(average(sets[name]), _hurt(sets[name], raw[name])) for name in names]
        hurt = mean([_hurt(sets[name], raw[name]) for name in own])
        searches = mean([line.searches[name] for name in own])
        return [*line.cells, *cells, quality(line.mean(own), hurt), f"{searches:.2f}"]

    head = ["system", "replies", "lists", *names, "mean of sets", "searches a question"]
    best: dict[tuple[str, str], Line] = {}
    for line in peers:
        other = best.setdefault((line.peer, line.name), line)
        if line.mean(own) > other.mean(own):
            best[line.peer, line.name] = line
    full = next(line for line in ours if line.name == FULL)
    return [
        "## Each at its best\n\nOf every peer's systems the one of its rows below that has the highest mean.\n\n"
        + table(head, [row(line) for line in (*ours, *best.values())]),
        "## balanced beside the strongest peer\n\n" + _verdict(full, peers, names),
        "## All of it\n\n" + table(head, [row(line) for line in (*ours, *peers)]),
    ]


def _hurt(values: Values, raw: Values) -> float:
    return mean([float(value < raw[question] - TOLERANCE) for question, value in values.items()])


def _verdict(full: Line, peers: Sequence[Line], names: Sequence[str]) -> str:
    """On each set, the peer's system that is best there, whichever that is."""
    rows, below = [], []
    for name in names:
        strongest = max(peers, key=lambda line: average(line.sets[name]))
        ours, theirs = full.sets[name], strongest.sets[name]
        apart = difference({id_: ours[id_] - theirs[id_] for id_ in ours}, seed=SEED)
        above = [line for line in peers if average(line.sets[name]) > average(ours) + TOLERANCE]
        if above:
            others = dict.fromkeys(f"{line.peer} {line.name}" for line in above)
            below.append(f"- {name}: {', '.join(others)} ({len(above)} of {len(peers)} rows)")
        what = ", ".join(filter(None, strongest.cells))
        rows.append([name, f"{average(ours):.3f}", what, f"{average(theirs):.3f}", points(apart)])
    said = f"`{FULL}` has a lower nDCG@10 than a peer on {len(below) or 'none'} of {len(names)} columns"
    said = ":\n\n".join([said, "\n".join(below)]) if below else f"{said}."
    head = ["set", FULL, "strongest row of any peer there", "its nDCG@10", "difference in points"]
    note = "The strongest row is picked with the judgements in hand, anew for each set, from all rows below."
    return f"{said}\n\n{note}\n\n{table(head, rows)}"
