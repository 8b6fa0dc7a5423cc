"""FaQuAD: Portuguese questions on Brazilian higher education (Sayama et al. 2019)."""

from __future__ import annotations

import json
from typing import Final

from benchmarks.outside.collection import Collection
from benchmarks.outside.converters.squad import paragraphs
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "liafacom/faquad", "6ad978f20672bb41625b3b71fbe4a88b893d0a86", "CC BY 4.0"
)


def portuguese(sources: Sources) -> Collection:
    """All its questions."""
    articles = json.loads(sources.read(REPOSITORY, "data/dataset.json"))["data"]
    return paragraphs(
        {**article, "title": article["title"].replace("_", " ")} for article in articles
    )
