"""The same question in several wordings."""

from __future__ import annotations

from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

INSTRUCTION: Final = (
    "You put a user's query into other words, so that a search also finds documents that say the same thing "
    "differently. Every paraphrase asks for exactly what the query asks, no more and no less. Make them differ from "
    "the query and from each other in vocabulary and form: everyday words, the technical terms of the field, the "
    "sentence of a document that would answer it."
)


def fields(settings: Settings) -> tuple[ReplyField, ...]:
    """The one field: as many paraphrases as the settings say."""
    count = settings.llm.paraphrases
    return (ReplyField("paraphrases", "list", "the paraphrases, one sentence each", min_items=count, max_items=count),)


TRANSFORM: Final = Transform(
    mode="multi_query",
    version="multi_query/1",
    instruction=INSTRUCTION,
    fields=fields,
)
