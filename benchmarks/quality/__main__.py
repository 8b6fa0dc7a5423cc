"""How well each system retrieves on data sets with judgements and recorded replies.

    python -m benchmarks.quality --data ../shared/data --recordings ../shared/recordings

Every set is a folder in BEIR layout, its recordings a file of the same name; only the questions
that were recorded are asked. Without a further option every system is measured; each option
measures something else instead, and several may be given. The results are written to
`benchmarks/results`; indexes and vectors are kept under `.tmp/quality`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

from benchmarks.quality import ablation, beside_peers, embedding_models, small, systems
from benchmarks.quality.sets import Source


def main() -> None:
    parts = {
        "systems": (systems.run, "every system (what is measured by default)"),
        "ablation": (ablation.run, "one factor of the defaults changed at a time"),
        "embedding-models": (
            embedding_models.run,
            "the presets with three embedding models, whose vectors lie beside the data",
        ),
        "peers": (
            beside_peers.run,
            "other libraries on the same replies and vectors (see setup-peers)",
        ),
        "small": (small.run, "small collections of one topic, by preset"),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--sets",
        default="",
        help="names with commas, only printed; all that were recorded by default",
    )
    for name, (_, what) in parts.items():
        parser.add_argument(f"--{name}", action="append_const", const=name, dest="parts", help=what)
    parser.add_argument(
        "--all", action="store_const", const=list(parts), dest="parts", help="all of these"
    )
    options = parser.parse_args()
    source = Source.of(options.data, options.recordings, options.sets)
    for name in options.parts or ["systems"]:
        began = perf_counter()
        parts[name][0](source)
        print(f"{name}: {perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
