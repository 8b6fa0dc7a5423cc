"""Recognising a model that says it will not do its task, in the languages it may say so."""

from __future__ import annotations

import re
from functools import cache

from qtmiddleware.preprocessing.lexicon import load_all
from qtmiddleware.transforms.wording import opening_of, opens_with


def is_refusal(text: str, query: str) -> bool:
    """Whether *text* opens as a model does that will not do its task, in words that *query* does not hold itself."""
    return opens_with(_refusal(), text, query)


@cache
def _refusal() -> re.Pattern[str]:
    return opening_of(pattern for one in load_all() for pattern in one.refusals)
