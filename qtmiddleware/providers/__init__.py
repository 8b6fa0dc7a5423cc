"""Connect language models, embedders and rerankers, with one file or folder per vendor."""

from __future__ import annotations

from functools import partial
from typing import Any

from qtmiddleware.runtime.fields import read_field
from qtmiddleware.runtime.spending import MOST_TOKENS


def replace_surrogates(text: str) -> str:
    """Return *text* with lone surrogates replaced by U+FFFD, because UTF-8 encoders reject them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def find_function_name(fn: Any) -> str:
    """Return the name of *fn*, which may be a function, method, partial or callable object."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", "") or type(fn).__qualname__)


def read_count(usage: Any, names: tuple[str, ...]) -> int:
    """Return the first valid number of tokens under *names* in *usage*; 0 if there is none."""
    counts = (read_field(usage, name) for name in names)
    return next((count for count in counts if type(count) is int and 0 < count <= MOST_TOKENS), 0)
