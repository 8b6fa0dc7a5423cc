"""Ask for the key terms that documents about the question's topic would use."""

from __future__ import annotations

from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM: Final = Transform(
    mode="keywords",
    version="keywords/3",
    instruction=(
        "You list the key terms for a keyword search on a user's query: first the terms of the"
        " query that matter most, then the synonyms, technical terms, abbreviations and full forms"
        " that documents on it would use instead. Single words or phrases of up to three words, as"
        " documents write them; no question words, no filler, no guessed answers."
    ),
    fields=(
        ReplyField(
            "keywords", "list", "the terms, most important first", min_items=1, max_items=12
        ),
    ),
    rules=(
        (
            "Write in the language of the query; terms that documents in it use in another language"
            " stay as they are."
        ),
        "Copy names, numbers and identifiers as they are written.",
    ),
    example=(
        "how do I get my deposit back when I move out",
        (
            '{"keywords": ["deposit", "move out", "security deposit", "refund", "tenancy",'
            ' "lease end", "landlord"]}'
        ),
    ),
)
