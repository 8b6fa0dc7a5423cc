"""What is searched because of replies as models really write them.

Each row of ``bad_replies.json`` is a transformation, a reply to it, and what is searched because of
the reply: texts by field, or the reason why there are none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

import qtmiddleware as qtm
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import build_prompts, parse_transformation
from qtmiddleware.types import Transformation

QUERY: Final = "What is Nike's strategy?"
REPLIES: Final[list[tuple[str, str, dict[str, object] | str]]] = json.loads(
    Path(__file__).with_name("bad_replies.json").read_text(encoding="utf-8")
)


def searched(mode: str, text: str) -> dict[str, object] | str:
    prompt = build_prompts(
        Settings(transformation_type=mode),
        QUERY,
    )[0]  # type: ignore[arg-type]
    try:
        found = parse_transformation(prompt, Reply(text))
    except ModelError as error:
        return error.reason
    fields = [name for name in Transformation.__dataclass_fields__ if name != "notes"]
    texts = {name: value for name in fields if (value := getattr(found, name))}
    return {name: list(it) if isinstance(it, tuple) else it for name, it in texts.items()}


def test_a_reply_gives_what_is_usable_in_it_and_nothing_else(subtests: pytest.Subtests) -> None:
    for mode, text, expected in REPLIES:
        with subtests.test(mode):
            assert searched(mode, text) == expected


NONSENSE = (
    'nope|OK|Done.|...|]]{{ \x00 <b>|{"answer": "nope"}|["nope"]|Answer: nope'
    "|Hello! How can I assist you today?|Invalid API key provided."
    '|The model is overloaded, please try again later.|{"rewrite": "...", "sub_queries": ["...", "..."]}'
)
MODES = ("rewrite", "stepback", "decompose", "multi_query", "keywords", "hyde", "combined")


def test_a_text_that_has_nothing_to_do_with_the_question_is_not_searched() -> None:
    question = "What about case 258 on dogs and health?"
    for mode in MODES:
        for reply in (*NONSENSE.split("|"), "[" * 990 + "]" * 990):
            middleware = qtm.QueryMiddleware(
                {"transformationType": mode}, client=lambda messages, said=reply: said
            )
            found = middleware.wrap(lambda query: [{"id": "a", "text": "A."}]).retrieve(question)
            assert (found.status, len(found.variants)) == ("degraded", 1), (mode, reply)
