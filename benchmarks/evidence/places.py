"""The shared data sets, and the passages and vectors of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

LARGE: Final = (
    "anthropic_docs", "canard_dev", "covid_faq", "covidqa", "hotpotqa_small", "nq_small", "strategyqa_dev",
)  # fmt: skip
SMALL: Final = (
    "acronyms", "camper_rental", "catalogue_es", "changelog", "gym_faq", "policies_by_year", "products",
    "release_notes", "remote_policy", "runbooks",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where one set lies: its *group* and *name*, its *folder*, and its recorded replies if there are some."""

    group: str
    name: str
    folder: Path
    recording: Path | None = None


def find_places(data: Path, recordings: Path) -> list[Place]:
    """Return every set that is there, with its recording if there is one."""
    places = [
        Place("small", name, data / "small" / name, recordings / "small" / f"{name}.jsonl")
        for name in SMALL
    ]
    for name, folder in (
        ("demo", "qtmiddleware/kit/demo/data"),
        ("orrisdale", "benchmarks/data/orrisdale"),
    ):
        places.append(Place("own", name, Path(folder), Path(folder) / "recordings.jsonl"))
    places += [Place("large", name, data / name, recordings / f"{name}.jsonl") for name in LARGE]
    return [
        Place(place.group, place.name, place.folder, known)
        for place in places
        if (place.folder / "corpus.jsonl").is_file()
        for known in [place.recording if place.recording and place.recording.is_file() else None]
    ]
