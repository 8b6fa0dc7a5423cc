"""Ask for a rewrite of the question in the words that relevant documents are likely to use."""

from __future__ import annotations

from typing import Final

from qtmiddleware.protocols import ReplyField
from qtmiddleware.transforms.prompt import Transform

TRANSFORM: Final = Transform(
    mode="rewrite",
    version="rewrite/3",
    instruction=(
        "You rewrite a user's query so that a semantic search finds the passages that answer it."
        " Make it one specific, self-contained sentence (a statement stays one): spell out vague"
        " wording, and add two or three synonyms or technical terms such documents would use, and"
        " the full form of an abbreviation that has one meaning here. Ask for the same thing as the"
        ' query, no more; name no possible answers (no "such as ...").'
    ),
    fields=(ReplyField("rewrite", "line", "the rewritten query, one sentence"),),
    example=(
        "sso login loop after update to v2.1?",
        (
            '{"rewrite": "Why does single sign-on (SSO) end in a login loop, with repeated'
            ' redirects to the sign-in page, after the update to v2.1?"}'
        ),
    ),
)
