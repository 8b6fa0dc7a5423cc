"""What stands behind the protocols: language models, embedders, rerankers and stores, a file or folder a vendor."""

from __future__ import annotations

from functools import partial
from typing import Any


def replace_surrogates(text: str) -> str:
    """*text* with surrogates that stand alone replaced: JSON can hold them, neither a tokenizer nor UTF-8 can."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def find_name(fn: Any) -> str:
    """The name a function, method, partial or callable object goes by."""
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", "") or type(fn).__qualname__)
