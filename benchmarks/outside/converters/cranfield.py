"""Cranfield 1400: abstracts of aerodynamics of the 1960s with the questions of researchers (Cleverdon 1967)."""

from __future__ import annotations

import html
import re
from typing import Final

from benchmarks.outside.collection import Collection, flat
from benchmarks.outside.sources import Repository, Sources

REPOSITORY: Final = Repository(
    "oussbenk/cranfield-trec-dataset",
    "1208e6edfb6cb2527b2c44398d3d8fefd3249144",
    "none named; a research collection that has always been distributed freely",
)


def abstracts(sources: Sources) -> Collection:
    """Every abstract that holds something a passage; every grade above 0 is relevant."""
    made = Collection()
    for document in re.findall(
        r"<doc>(.*?)</doc>", sources.read(REPOSITORY, "cran.all.1400.xml"), re.DOTALL
    ):
        title, text = _tagged(document, "title"), _tagged(document, "text")
        # The abstract begins with its title once more.
        text = text.removeprefix(title).strip()
        if title or text:
            made.passages[_tagged(document, "docno")] = (title, text)
    grades: dict[str, dict[str, int]] = {}
    for line in sources.read(REPOSITORY, "cranqrel.trec.txt").splitlines():
        question, _, document, grade = line.split()
        if int(grade) > 0 and document in made.passages:
            grades.setdefault(question, {})[document] = 1
    topics = re.findall(r"<top>(.*?)</top>", sources.read(REPOSITORY, "cran.qry.xml"), re.DOTALL)
    # The judgements number the questions by their place, not by the number that stands beside them.
    for place, topic in enumerate(topics, 1):
        if str(place) in grades:
            made.ask(str(place), _tagged(topic, "title"), grades[str(place)])
    return made


def _tagged(within: str, tag: str) -> str:
    found = re.search(f"<{tag}>(.*?)</{tag}>", within, re.DOTALL)
    return flat(html.unescape(found[1])) if found else ""
