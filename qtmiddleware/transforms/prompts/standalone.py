"""Ask for the last question of a conversation, rewritten so that it is clear on its own."""

from __future__ import annotations

from typing import Final

from qtmiddleware.transforms.prompt import FAITHFUL, STANDALONE, Transform

TRANSFORM: Final = Transform(
    mode="standalone",
    version="standalone/3",
    instruction=(
        "You make the last question of a conversation understandable for a search engine that has"
        " not read the conversation. Take names and subjects from the history where the query"
        " points to them; add nothing else."
    ),
    fields=(STANDALONE,),
    rules=FAITHFUL,
)
