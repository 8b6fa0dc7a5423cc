"""The functions of the package that read texts of others, each as a function of one text."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.documents.chunking import cut_into_chunks
from qtmiddleware.kit.documents.formats import read_html
from qtmiddleware.kit.documents.pieces import read_plain_text
from qtmiddleware.kit.documents.records import read_csv, read_json, read_json_lines
from qtmiddleware.kit.evaluation.asking import parse_reply
from qtmiddleware.kit.evaluation.figures import shorten_start
from qtmiddleware.kit.evaluation.judge import parse_opinion
from qtmiddleware.kit.evaluation.report import escape_text
from qtmiddleware.kit.evaluation.testset import find_check_fault, find_fault
from qtmiddleware.kit.playground.words import Keywords
from qtmiddleware.kit.stores.words import extract_index_words, extract_query_words
from qtmiddleware.preprocessing import (
    detect_language,
    find_dominant_script,
    find_protected_spans,
    preprocess,
)
from qtmiddleware.preprocessing.text import clean_text, normalise_text, shorten_text, split_terms
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.control_characters import escape_hidden, escape_json
from qtmiddleware.transforms import (
    PROMPTS,
    find_repeats,
    guard_transformation,
    parse_transformation,
)
from qtmiddleware.transforms.json_reading import read_json as read_reply_json
from qtmiddleware.transforms.replies import strip_thoughts
from qtmiddleware.types import Match, Transformation

QUESTION: Final = "Does Jaco have any health concerns in May 2024, and not before?"

PUMPS: Final = tuple(
    (start, pump, end)
    for start in ("", "a")
    for end in ("", "x:", "\x00")
    for pump in (
        *" \naA0.'\"[{(<`_-/\\\u3000\u0301\u200d中あ。\ud800",
        *("a ", "Ab ", "AB ", "a.", ". ", "1,", "9 ", "[1]", "[1,"),
        *('",', '{"a":', "a: ", "1. a ", "- a\n", "`a", "a'", "“a", "l'"),
        *("<think></think>", "<a>", "</a>", "not ", "who "),
        *("can you tell me ", "a@b.", "a://b ", " \n", "\n\n", "\u0627\u200d"),
        *("<a ", "<a b='", "<!--", "</", "<?", "<![CDATA[", "<td>x", "<h1>", "<script>", "&#", "&a"),
        *("...", "?!", "\x1b[", "\\u0041", '\\"', "ab-", "a_b ", "**a** ", "NO_ANSWER", "\u202e", "é ", "ß", "\ufdfa"),
    )
)  # fmt: skip
"""Beginnings, parts that are repeated and ends of the texts."""


def _quietly(function: Callable[[str], Any]) -> Callable[[str], None]:
    def run(text: str) -> None:
        with suppress(QtMiddlewareError):
            function(text)

    return run


@cache
def _prompt(mode: str) -> Prompt:
    return PROMPTS[mode].build_prompt(Settings(), QUESTION)


def _parsed(mode: str) -> Callable[[str], None]:
    def run(text: str) -> None:
        for said in (text, f'{{"rewrite": "{text}', f'["{text}', f'"{text}"'):
            with suppress(QtMiddlewareError):
                parse_transformation(_prompt(mode), Reply(said))

    return _quietly(run)


def _read(text: str) -> None:
    reading = AnswerReader([Match("a", "", 1.0, text=text[:100_000])] * 3)
    for at in range(0, len(text), 4_096):
        reading.feed(text[at : at + 4_096])
    reading.finish()


def _guarded(text: str) -> None:
    spans = [(span.kind, span.text) for span in find_protected_spans(QUESTION)]
    made = Transformation(rewrite=text, sub_queries=(text, "a"), hyde=text, keywords=(text,))
    guard_transformation(made, query=QUESTION, required_spans=spans)


def _guarded_query(text: str) -> None:
    # Longer queries are refused.
    query = text[:8_000]
    spans = [(span.kind, span.text) for span in find_protected_spans(query)]
    guard_transformation(Transformation(rewrite=query[:1_000]), query=query, required_spans=spans)


def _chunked(text: str) -> None:
    for _ in cut_into_chunks([text], size=800, overlap=120):
        pass


def _as_document(read: Callable[[Path, Any], Any]) -> Callable[[str], None]:
    def run(text: str) -> None:
        # What is nested too deeply is damaged, as `read_document` says.
        with suppress(QtMiddlewareError, RecursionError):
            for _ in read(Path("a"), io.BytesIO(text.encode("utf-8", "replace"))):
                pass

    return run


FUNCTIONS: Final[dict[str, Callable[[str], None]]] = {
    "preprocess": _quietly(preprocess),
    "preprocess, German": _quietly(lambda text: preprocess(text, language="de")),
    "detect_language": _quietly(detect_language),
    "dominant_script": _quietly(find_dominant_script),
    "protected_spans": _quietly(find_protected_spans),
    **{f"parse, {mode}": _parsed(mode) for mode in ("rewrite", "combined", "hyde", "keywords")},
    "read_json of a reply": _quietly(read_reply_json),
    "strip_thoughts": _quietly(strip_thoughts),
    "clean": _quietly(clean_text),
    "normalise": _quietly(normalise_text),
    "split_terms": _quietly(split_terms),
    "guard, the text": _quietly(_guarded),
    "guard, the query": _quietly(_guarded_query),
    "find_repeats": _quietly(lambda text: find_repeats([text, text + "b"], original=text)),
    "an answer with citations": _quietly(_read),
    "opinion of a judge": _quietly(lambda text: parse_opinion(Reply(text), (0, 1))),
    "members of a reply": _quietly(lambda text: parse_reply(Reply(text), ("a",))),
    "faults of a question": _quietly(lambda text: find_fault(text[:300], text[:2_000], text)),
    "faults of a check": _quietly(
        lambda text: find_check_fault({"quote": text, "answers": "yes"}, text)
    ),
    "query_words": _quietly(extract_query_words),
    "index_text": _quietly(extract_index_words),
    "chunks": _quietly(_chunked),
    "a report's text": _quietly(lambda text: (shorten_start(text, 60), shorten_text(text, 12))),
    "a report's Markdown": _quietly(lambda text: escape_text(text, len(text))),
    "a snippet on the playground": _quietly(lambda text: Keywords(text[:200], "a").cut(text)),
    "words marked on the playground": _quietly(lambda text: Keywords(text[:200], "a").mark(text)),
    "a terminal's text": _quietly(escape_hidden),
    "a terminal's JSON": _quietly(escape_json),
    "a text": _as_document(read_plain_text),
    "a page": _as_document(read_html),
    "a table": _as_document(read_csv),
    "JSON": _as_document(read_json),
    "JSON lines": _as_document(read_json_lines),
}
