"""What stands behind the protocols: language models, embedders, rerankers and stores, a file or folder a vendor."""

from __future__ import annotations


def replace_surrogates(text: str) -> str:
    """*text* with surrogates that stand alone replaced: JSON can hold them, neither a tokenizer nor UTF-8 can."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
