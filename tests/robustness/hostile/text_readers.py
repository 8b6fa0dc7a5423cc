"""The functions of the package that read texts of others, each as a function of one text."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from lxml.etree import ParserError

import qtmiddleware as qtm
from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import QtMiddlewareError
from qtmiddleware.kit.documents.chunking import cut_into_chunks
from qtmiddleware.kit.documents.formats import (
    read_csv,
    read_html,
    read_json,
    read_json_lines,
    read_plain_text,
)
from qtmiddleware.kit.evaluation.asking import parse_reply
from qtmiddleware.kit.evaluation.judge import parse_opinion
from qtmiddleware.kit.evaluation.report import escape_text
from qtmiddleware.kit.playground.words import Keywords
from qtmiddleware.kit.stores.sqlite import extract_words
from qtmiddleware.preprocessing import find_protected_spans, preprocess
from qtmiddleware.preprocessing.hidden_characters import escape_hidden, escape_json
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import PROMPTS, find_repeats, parse_transformation
from qtmiddleware.transforms.guard import guard_transformation
from qtmiddleware.types import Match, Transformation

QUESTION: Final = "Does Jaco have any health concerns in May 2024, and not before?"


def parse(mode: str, text: str) -> None:
    prompt = PROMPTS[mode].build_prompt(Settings(), QUESTION)
    for said in (text, f'{{"rewrite": "{text}', f'["{text}'):
        with suppress(QtMiddlewareError):
            parse_transformation(prompt, Reply(said))


def read_answer(text: str) -> None:
    reading = AnswerReader([Match("a", "", 1.0, text=text[:100_000])] * 3)
    for at in range(0, len(text), 4_096):
        reading.feed(text[at : at + 4_096])
    reading.feed("", is_last=True)


def guard(query: str, text: str) -> None:
    spans = [(span.kind, span.text) for span in find_protected_spans(query)]
    made = Transformation(rewrite=text, sub_queries=(text, "a"), hyde=text, keywords=(text,))
    guard_transformation(made, query=query, required_spans=spans)


def read_document(read: Callable[[Path, Any], Any], text: str) -> None:
    # What cannot be parsed is damaged, as `read_document` says.
    with suppress(RecursionError, ParserError):
        list(read(Path("a"), io.BytesIO(text.encode("utf-8", "replace"))))


def show_to_agent(text: str) -> None:
    rows = [{"id": "a", "text": text, "metadata": {"note": text}}]
    qtm.middleware(lambda query: rows).as_tool().run("note")


FUNCTIONS: Final[dict[str, Callable[[str], Any]]] = {
    "preprocess": preprocess,
    "preprocess, German": lambda text: preprocess(text, language="de"),
    **{f"parse, {mode}": partial(parse, mode) for mode in ("rewrite", "combined", "keywords")},
    "guard, the text": partial(guard, QUESTION),
    # Longer queries are refused.
    "guard, the query": lambda text: guard(text[:8_000], text[:1_000]),
    "repeats": lambda text: find_repeats([text, text + "b"], original=text),
    "an answer with citations": read_answer,
    "opinion of a judge": lambda text: parse_opinion(Reply(text), (0, 1)),
    "members of a reply": lambda text: parse_reply(Reply(text), ("a",)),
    "words of a query": partial(extract_words, for_index=False),
    "words of an index": partial(extract_words, for_index=True),
    "chunks": lambda text: list(cut_into_chunks([text], size=800, overlap=120)),
    "a report": lambda text: escape_text(text, len(text)),
    "the playground": lambda text: Keywords(text[:200], "a").mark(text),
    "a terminal": lambda text: (escape_hidden(text), escape_json(text)),
    "a text": partial(read_document, read_plain_text),
    "a page": partial(read_document, read_html),
    "a table": partial(read_document, read_csv),
    "JSON": partial(read_document, read_json),
    "JSON lines": partial(read_document, read_json_lines),
    "the tool of an agent": show_to_agent,
}
