"""Fits the evidence of a question's own words, and prints gain against harm beside one sum of BM25.

    python -m benchmarks.evidence --data ../shared/data --recordings ../shared/recordings > benchmarks/results/evidence.md

The sets of `benchmarks.outside` take part if `python -m benchmarks.outside` has converted them. The
first run embeds all passages and scores some token by token, which takes 20 minutes; lists and
features are kept under `.tmp/evidence`. Of each set up to 300 questions are asked, and all that
were recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PACKAGE: Final = HERE.parents[1] / "qtmiddleware"
LEXICONS: Final = PACKAGE / "preprocessing" / "lexicons"
HEAD: Final = """# How a question's own words count

Written by `python -m benchmarks.evidence`. Every set is searched by functions of several kinds with all-MiniLM-L6-v2 and
SQLite's BM25, and their lists are ordered anew by the question's words: with *one sum* of BM25 at a weight of 0.35, and with
the constants that the package has ([how they work](../../docs/how-it-works.md#keyword-evidence)): {chosen}.

*Gain* is in points of nDCG@10 over the list as it is. *Worse*, in brackets where it follows a gain, is the share of questions
that score lower. *Lowest* names the set with the lowest gain. All are means of sets. *Small* are six collections of one topic,
*own* the demo and orrisdale, *large* the sets of [quality.md](quality.md), *more* two others, *language* XQuAD in five
languages, *outside* four of [outside.md](outside.md). *Parts of 5* are collections of their own: a set is cut into parts of
five near passages.
"""


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from benchmarks.evidence.candidates import KINDS, PARTS, find_places, read_lists
    from benchmarks.evidence.fitting import LIMITS, Constants, find_group, try_all

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--no-fit", action="store_true", help="only measure the constants that the package has"
    )
    parser.add_argument(
        "--details",
        action="store_true",
        help="only print each set, and the questions that do worse",
    )
    options = parser.parse_args()
    lists: list[Any] = []
    for listed in read_lists(find_places(options.data, options.recordings)):
        lists += _keep(listed, (*KINDS, *PARTS))
    chosen = Constants()
    if options.details:
        _print_sets(lists, chosen)
        _print_worse(lists, chosen)
        return
    print(HEAD.format(chosen=chosen))
    _print_groups(lists, {"one sum": None, "chosen": chosen})
    _print_first(lists, chosen)
    if not options.no_fit:
        fitted = [it for it in lists if find_group(it)]
        pool = try_all(fitted)
        _print_frontier(pool, fitted, LIMITS)


def _keep(listed: Any, kinds: Sequence[str]) -> list[Any]:
    """The lists of one set with their features, made anew if the formula or the lists changed."""
    from benchmarks.evidence.arrays import build_lists
    from benchmarks.evidence.candidates import KEPT

    known = hashlib.sha256(repr([(it.id, it.text, it.lists) for it in listed.questions]).encode())
    for file in (
        HERE / "arrays.py",
        *sorted((PACKAGE / "retrieval").glob("*.py")),
        *LEXICONS.glob("*.json"),
    ):
        known.update(file.read_bytes())
    file = KEPT / f"features-{listed.place.name.replace('/', '-')}-{known.hexdigest()[:12]}.pickle"
    if not file.is_file():
        file.write_bytes(
            pickle.dumps([it for kind in kinds if (it := build_lists(listed, kind)) is not None])
        )
    return list(pickle.loads(file.read_bytes()))


def _print_sets(lists: Sequence[Any], constants: Any) -> None:
    """A row per set with vectors: nDCG@10, worse questions and right first results, of both kinds of evidence."""
    from benchmarks.evidence.arrays import rank_by_sum, summarise
    from benchmarks.evidence.candidates import PARTS
    from benchmarks.evidence.fitting import rank

    head = [
        "set",
        "questions",
        "off",
        "one sum",
        "worse",
        "first right",
        "kinds",
        "worse",
        "first right",
    ]
    for recorded in (False, True):
        rows = []
        for it in lists:
            mask = it.recorded if recorded else None
            if it.kind not in ("cosine", *PARTS) or (
                recorded and not (it.recorded.any() and it.kind == "cosine")
            ):
                continue
            old, new = (summarise(it, how, mask) for how in (rank_by_sum(it), rank(it, constants)))
            shown = [f"{old.raw:.3f}", *_cells(old), *_cells(new)]
            rows.append(
                (f"{it.group}, {it.kind}", [it.name, str(old.questions), *shown], (old, new))
            )
        for group in dict.fromkeys(group for group, _, _ in rows):
            print(f"\n### {group}, {'recorded questions' if recorded else 'all questions'}\n")
            _print_table(head, [cells for name, cells, _ in rows if name == group])
            both = [pair for name, _, pair in rows if name == group]
            for label, at in (("one sum", 0), ("kinds", 1)):
                print(f"mean {label}: {_describe([pair[at] for pair in both])}")


def _cells(found: Any) -> list[str]:
    return [
        f"{found.new:.3f}",
        f"{found.worse:.1%}",
        f"{found.first_raw:.3f} -> {found.first_new:.3f}",
    ]


def _describe(found: Sequence[Any]) -> str:
    mean: Callable[[Iterable[float]], float] = lambda values: sum(values) / len(found)  # noqa: E731
    return (
        f"off {mean(it.raw for it in found):.4f}, gain {mean(it.gain for it in found):+.2f},"
        f" worse {mean(it.worse for it in found):.2%}, helped {mean(it.helped for it in found):.1%},"
        f" first right {mean(it.first_raw for it in found):.3f} -> {mean(it.first_new for it in found):.3f}"
    )


def _print_groups(lists: Sequence[Any], named: dict[str, Any]) -> None:
    """Means over sets, by kind of function and group of sets."""
    from benchmarks.evidence.arrays import rank_by_sum, summarise
    from benchmarks.evidence.fitting import rank

    print("\n## By kind of function and group of sets\n")
    rows = []
    for kind in dict.fromkeys(it.kind for it in lists):
        for group in dict.fromkeys(it.group for it in lists if it.kind == kind):
            some = [it for it in lists if (it.kind, it.group) == (kind, group)]
            cells = [kind, group, str(len(some))]
            for constants in named.values():
                found = [
                    summarise(it, rank(it, constants) if constants else rank_by_sum(it))
                    for it in some
                ]
                worst = min(range(len(some)), key=lambda at: found[at].gain)
                cells += [f"{sum(it.gain for it in found) / len(found):+.2f}"]
                cells += [
                    f"{sum(it.worse for it in found) / len(found):.1%}",
                    f"{some[worst].name} {found[worst].gain:+.1f}",
                ]
            rows.append(cells)
    _print_table(
        [
            "kind",
            "sets of",
            "sets",
            *(f"{name}: {it}" for name in named for it in ("gain", "worse", "lowest")),
        ],
        rows,
    )


def _print_worse(lists: Sequence[Any], constants: Any) -> None:
    """Every question of the small sets that does worse, and why."""
    import numpy as np

    from benchmarks.evidence.arrays import measure
    from benchmarks.evidence.candidates import WIDE
    from benchmarks.evidence.fitting import find_strength, rank

    print("\n## Questions of the small sets that do worse\n")
    rows = []
    for it in lists:
        if it.kind != "cosine" or it.group not in ("small", "own"):
            continue
        columns = rank(it, constants)
        raw, _ = measure(it, np.arange(WIDE)[None].repeat(len(it.ids), 0))
        new, _ = measure(it, columns)
        strength, places = find_strength(it, constants), columns.argsort(1)
        for row in np.flatnonzero(new < raw - 1e-9):
            moved = [
                f"grade {it.grades[row, at]:g}: {at + 1} -> {places[row, at] + 1}"
                for at in np.flatnonzero(it.grades[row]) if at != places[row, at] and at < 15
            ]  # fmt: skip
            first = columns[row, 0]
            coverage = it.features["coverage"][row]
            why = f"strength {strength[row]:.2f}; first {first + 1}: {coverage[first]:.0%} covered, was {coverage[0]:.0%}"
            rows.append(
                [
                    f"{it.name} {it.ids[row]}",
                    it.texts[row],
                    f"{raw[row]:.2f} -> {new[row]:.2f}",
                    "; ".join(moved[:3]),
                    why,
                ]
            )
    _print_table(["question", "text", "nDCG@10", "moved", "why"], rows)


def _print_first(lists: Sequence[Any], constants: Any) -> None:
    """What it costs that a passage leaves the plain first ones only for one that covers clearly more."""
    from benchmarks.evidence.arrays import summarise
    from benchmarks.evidence.fitting import keep_first, rank

    print("\n## A passage leaves the plain first ones only for one that covers more by so much\n")
    rows = []
    for top_k in (10, 5, 4):
        for lead in (None, 0.0, 0.01, 0.1, 0.2, 0.34, 2.0):
            cells = [str(top_k), "free" if lead is None else "never" if lead > 1 else f"{lead:g}"]
            for group, kind in (
                ("small", "cosine"),
                ("own", "cosine"),
                ("large", "cosine"),
                ("large", "parts of 40"),
                ("outside", "cosine"),
            ):
                found = []
                for it in lists:
                    if (it.group, it.kind) == (group, kind):
                        columns = rank(it, constants)
                        columns = columns if lead is None else keep_first(it, columns, top_k, lead)
                        found.append(summarise(it, columns, depth=top_k))
                if found:
                    cells.append(
                        f"{sum(it.gain for it in found) / len(found):+.2f}"
                        f" ({sum(it.worse for it in found) / len(found):.1%})"
                    )
            rows.append(cells)
    _print_table(
        ["top_k", "covers more by", "small", "own", "large", "large, parts", "outside"], rows
    )


def _print_frontier(pool: Any, fitted: Sequence[Any], limits: Sequence[float]) -> None:
    """Gain and worse questions under each limit: on all sets, and each set with constants chosen on the others."""
    from benchmarks.evidence.arrays import rank_by_sum, summarise

    print("\n## Gain against worse questions\n")
    summed = [summarise(it, rank_by_sum(it)) for it in fitted]
    means = []
    for some in pool.groups.values():
        found = [summed[at] for at in some]
        gain, worse = (
            sum(it.gain for it in found) / len(found),
            sum(it.worse for it in found) / len(found),
        )
        means.append(f"{gain:+.2f} ({worse:.1%})")
    rows = [["one sum", "", *means]]
    for limit in limits:
        whole = pool.constants.index(pool.choose(limit))
        rows.append([f"{limit:g} %", str(pool.constants[whole])])
        rows.append([f"{limit:g} %", "each set with what the others chose"])
        others = {
            name: pool.constants.index(pool.choose(limit, name, fitted))
            for name in {it.name for it in fitted}
        }
        for some in pool.groups.values():
            for row, chosen in (
                (rows[-2], [whole] * len(some)),
                (rows[-1], [others[fitted[at].name] for at in some]),
            ):
                pairs = list(zip(chosen, some, strict=True))
                gain = sum(pool.gains[pair] for pair in pairs) / len(pairs)
                row.append(
                    f"{gain:+.2f} ({sum(pool.worse[pair] for pair in pairs) / len(pairs):.1f}%)"
                )
    _print_table(["limit", "constants", *pool.groups], rows)


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from benchmarks.quality.report import table

    print(table(head, rows), flush=True)


if __name__ == "__main__":
    main()
