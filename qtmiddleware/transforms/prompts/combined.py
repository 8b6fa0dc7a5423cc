"""Ask for a rewrite, a step-back question, sub-queries and a passage in one model call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform
from qtmiddleware.transforms.prompts.hyde import ASSUMED, UNKNOWN

INSTRUCTION: Final = (
    "You prepare a user's query for a semantic search in documents by writing several texts to be"
    " searched beside it."
)

RULES: Final = (
    "Write in the language of the query.",
    (
        "Keep every name, number, date, identifier, quoted phrase and negation of the query; only"
        " mend plain typos. step_back alone may leave details out."
    ),
    (
        'Outside of hyde add no facts, names, numbers or possible answers of your own (no "such as'
        ' ...").'
    ),
)

REWRITE: Final = ReplyField(
    "rewrite",
    "line",
    "the query as one specific, self-contained sentence (a statement stays one), with two or three"
    " synonyms or technical terms that the documents would use, and the full form of an"
    " abbreviation that has one meaning here",
)
STEP_BACK: Final = ReplyField(
    "step_back",
    "line",
    'one broader question, one level up: without the special case ("Why did the Brio 3 stop in'
    ' May?": "What makes a Brio 3 stop?"), never the query in other words',
)
HYDE: Final = ReplyField(
    "hyde",
    "passage",
    "60 to 100 words from the middle of a document that answers the query: plain statements in its"
    " tone and terms, no "
    f'hedging, no "This document". {UNKNOWN} {ASSUMED}',
)
SUB_QUERIES: Final = (
    "an empty list, unless the query compares things, asks for several or builds on a fact that has"
    ' to be found first; then a full question for each: names, never "it" or "that person"; what'
    ' has no name yet is described ("the author of ...")'
)
RESEARCH: Final = (
    "full questions on its subject, in this order: 1. definition and background, 2. methods and"
    " approaches, 3. results and findings, 4. comparison with alternatives and limitations, 5."
    " applications and implications"
)

ASPECTS: Final = (
    "simpler questions that together answer it, each on another aspect: where it asks for breadth"
    " (impacts, causes, kinds, an overview, the main topics), those an expert would tell apart,"
    " named in words it need not have; where it has several parts, those parts; each makes sense on"
    ' its own (names instead of "it"); an empty list where it asks for one plain fact'
)


def _adapt(settings: Settings) -> Mapping[str, Any]:
    style = settings.llm.sub_query_style
    sub_queries = ReplyField(
        "sub_queries",
        "list",
        ASPECTS if style == "aspects" else SUB_QUERIES,
        min_items=0,
        max_items=settings.max_sub_queries,
    )
    if style == "research":
        sub_queries = ReplyField("sub_queries", "list", RESEARCH, min_items=5, max_items=5)
    has_passage = settings.fusion.weights["hyde"] > 0
    suffixes = [style] * (style != "simple") + ["hyde"] * has_passage
    return {
        "version": "+".join(["combined/3", *suffixes]),
        "fields": (REWRITE, STEP_BACK, sub_queries, *([HYDE] * has_passage)),
    }


TRANSFORM: Final = Transform(
    mode="combined",
    version="combined/3",
    instruction=INSTRUCTION,
    rules=RULES,
    adapt=_adapt,
)
