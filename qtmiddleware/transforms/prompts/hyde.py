"""Ask for a hypothetical passage that answers the question, to search for similar passages.

Source: Gao et al., "Precise Zero-Shot Dense Retrieval without Relevance Labels", 2022.
"""

from __future__ import annotations

from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

UNKNOWN: Final = (
    "Leave out figures, dates and names you do not know; say what else such documents say on the"
    " subject."
)
ASSUMED: Final = (
    "What the query claims or assumes holds in the passage too, unless you are sure that it is"
    " false: then state what is right."
)

TRANSFORM: Final = Transform(
    mode="hyde",
    version="hyde/3",
    instruction=(
        "You write the passage of a document in which the answer to a user's query would be found."
        " It is only used to search for real passages like it, so it has to sound like them:"
        " statements in the tone and with the terms of such a document (manual, article, report,"
        " policy), the subject called by its name, straight to the point. Do not mention the query"
        " or the document, do not hedge, do not say what you do not know."
    ),
    fields=(ReplyField("hyde", "passage", "the passage, 60 to 100 words in one paragraph"),),
    rules=(
        "Write in the language of the query.",
        "Use the names, numbers and identifiers of the query; only mend plain typos.",
        UNKNOWN,
        ASSUMED,
    ),
)
