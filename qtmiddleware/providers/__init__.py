"""Connect language models, embedders and rerankers of vendors and users."""

from __future__ import annotations

from functools import partial
from typing import Any


def replace_surrogates(text: str) -> str:
    """Return *text* with lone surrogates replaced by U+FFFD, because UTF-8 encoders reject them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def find_function_name(fn: Any) -> str:
    """Return the name of *fn*, which may be a function, method, partial or callable object."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", "") or type(fn).__qualname__)
