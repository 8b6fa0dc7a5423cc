"""Ask for the same question in several wordings."""

from __future__ import annotations

from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM: Final = Transform(
    mode="multi_query",
    version="multi_query/3",
    instruction=(
        "You put a user's query into other words, so that a search also finds documents that say"
        " the same thing differently. Every paraphrase asks for exactly what the query asks, no"
        " more and no less. Make them differ from the query and from each other in vocabulary and"
        " form: everyday words, the technical terms of the field, the sentence of a document that"
        " would answer it."
    ),
    fields=(
        ReplyField(
            "paraphrases",
            "list",
            "the paraphrases, one sentence each",
            min_items=3,
            max_items=3,
        ),
    ),
)
