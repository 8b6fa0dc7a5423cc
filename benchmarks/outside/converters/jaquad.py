"""JaQuAD: Japanese questions on paragraphs of the Japanese Wikipedia (So et al. 2022)."""

from __future__ import annotations

import json
from typing import Final

from benchmarks.outside.collection import Collection
from benchmarks.outside.converters.squad import paragraphs
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "SkelterLabsInc/JaQuAD", "23f5d72cc273c49b35e2d9efe0f51757aa1770bd", "CC BY-SA 3.0"
)
FILES: Final = tuple(f"data/dev/jaquad_dev_{number:04}.json" for number in range(4))


def japanese(sources: Sources) -> Collection:
    """The questions of its development part."""
    files = [json.loads(sources.read(REPOSITORY, file))["data"] for file in FILES]
    return paragraphs(article for articles in files for article in articles)
