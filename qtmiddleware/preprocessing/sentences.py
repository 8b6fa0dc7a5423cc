"""Find the ends of sentences in any script, to cut texts between sentences."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from qtmiddleware.preprocessing.lexicon import load_all_lexicons

_SENTENCE: Final = r"""
    (?:
        # A run of full stops and marks counts as one. That also keeps the search linear.
        [.!?…](?<![.!?…].)[.!?…]*+
        # Something follows, and neither in small letters nor in the next cell of a table's row.
        (?=CLOSERS*+(?:\s|\Z))(?!CLOSERS*+(?:\s++\p{Ll}|[ \t]++\|))
        # No initial, no "e.g.", no abbreviation and no number of a list's item stands before it.
        (?<!(?<![\p{L}\p{M}\p{N}])(?:\p{L}|ABBREVIATIONS)\.)
        (?<!(?:^|[\n\r])[ \t]{0,8}[0-9]{1,3}\.)
    |
        # What ends a sentence in other scripts needs no white space behind it: 。 ！ ？ ؟ ۔ । ॥ ።
        [\p{Sentence_Terminal}--[.!?]]++
    )
    CLOSERS*+
"""
CLOSERS: Final = r"""[\p{Pe}\p{Pf}\p{Pi}"'*_]"""
"""Matches a bracket, quotation mark or emphasis mark after the punctuation of a sentence."""


@cache
def compile_sentence_end_pattern() -> Any:
    """Return a pattern for the punctuation that ends a sentence.

    The match includes closing brackets and quotation marks after the punctuation.
    """
    import regex

    # A full stop after an abbreviation such as "Dr." does not end a sentence.
    abbreviations = dict.fromkeys(
        word for lexicon in load_all_lexicons() for word in lexicon.abbreviations
    )
    sentence = _SENTENCE.replace("CLOSERS", CLOSERS).replace(
        "ABBREVIATIONS", "|".join(abbreviations)
    )
    return regex.compile(sentence, regex.VERSION1 | regex.VERBOSE)
