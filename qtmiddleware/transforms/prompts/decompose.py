"""Ask for sub-queries that can be searched independently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import FAITHFUL, Transform

VERSION: Final = "decompose/3"

INSTRUCTION: Final = (
    "You split a user's query into the sub-queries that have to be looked up to answer it: one for"
    " each thing it compares, each part it asks for, or each fact it builds on. All are searched at"
    " the same time, so none may wait for the answer to another: where a name is not known yet,"
    " describe it in full in each. A query that asks for one thing is not split: give an empty"
    " list."
)

RESEARCH_INSTRUCTION: Final = (
    "You split a research question into exactly five sub-queries for a search in papers and"
    " reports, in this order: 1. definition and background, 2. methods and approaches, 3. results"
    " and findings, 4. comparison with alternatives, trade-offs and limitations, 5. applications"
    " and implications."
)

ASPECTS_INSTRUCTION: Final = (
    "You split a user's query into simpler sub-queries that, answered together, answer it. Each"
    " takes up another aspect of the query. Where it asks for breadth (impacts, causes, kinds, an"
    " overview, the main topics), the aspects are the fields, groups, places or periods that an"
    " expert would tell apart, named in words the query need not have; where it has several parts,"
    " they are those parts. All are searched at the same time, so none may wait for the answer to"
    " another. Only a query for one plain fact has no aspects: give none for that."
)

RULES: Final = (
    *FAITHFUL,
    'Each sub-query makes sense on its own: names instead of "it", "that person" or "#1".',
    "No two sub-queries ask for the same thing.",
)


INSTRUCTIONS: Final = {
    "simple": INSTRUCTION,
    "research": RESEARCH_INSTRUCTION,
    "aspects": ASPECTS_INSTRUCTION,
}


EXAMPLE: Final = (
    "Which has the longer warranty, the Brio 3 or the Tavo S?",
    (
        '{"sub_queries": ["How long is the warranty of the Brio 3?",'
        ' "How long is the warranty of the Tavo S?"]}'
    ),
)


def _adapt(settings: Settings) -> Mapping[str, Any]:
    style = settings.llm.sub_query_style
    field = ReplyField(
        "sub_queries",
        "list",
        "the sub-queries, each a full question",
        min_items=0,
        max_items=settings.max_sub_queries,
    )
    if style == "research":
        description = "the five sub-queries in their order"
        field = ReplyField("sub_queries", "list", description, min_items=5, max_items=5)
    return {
        "version": VERSION if style == "simple" else f"{VERSION}+{style}",
        "instruction": INSTRUCTIONS[style],
        "fields": (field,),
        "example": EXAMPLE if style == "simple" else None,
    }


TRANSFORM: Final = Transform(
    mode="decompose",
    version=VERSION,
    rules=RULES,
    example=EXAMPLE,
    adapt=_adapt,
)
