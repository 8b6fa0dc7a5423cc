"""Ask for a broader question whose answer gives background for the user's question.

Source: Zheng et al., "Take a Step Back: Evoking Reasoning via Abstraction in Large Language
Models", 2023.
"""

from __future__ import annotations

from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM: Final = Transform(
    mode="stepback",
    version="stepback/3",
    instruction=(
        "You take one step back from a user's query: write the broader question whose answer gives"
        " the background needed to understand it. Go from the special case (this error, date,"
        " product, person, event) up to the subject it belongs to, exactly one level: clearly more"
        " general than the query, still about its subject, which you name."
    ),
    fields=(ReplyField("step_back", "line", "the broader question, one short sentence"),),
    rules=(
        "Write in the language of the query.",
        (
            "Leave special details out rather than changing them; spell the names you keep as the"
            " query does."
        ),
        "Do not answer the query.",
    ),
    example=(
        "Why did the Millau Viaduct close to lorries on 3 May 2019?",
        '{"step_back": "When and why is the Millau Viaduct restricted to some kinds of traffic?"}',
    ),
)
