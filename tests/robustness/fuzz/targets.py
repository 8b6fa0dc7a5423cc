"""What is fuzzed: each target reads bytes as its input and raises where a promise does not hold."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config import Config
from qtmiddleware.errors import ConfigError, InvalidQuery
from qtmiddleware.kit.cli.terminal import strip_control_characters
from qtmiddleware.kit.evaluation import Dataset
from qtmiddleware.kit.evaluation.reporting.figures import shorten_start
from qtmiddleware.kit.evaluation.reporting.markdown import escape_text
from qtmiddleware.kit.stores.filters import build_matcher
from qtmiddleware.kit.stores.passages import extract_index_words, extract_query_words
from qtmiddleware.preprocessing import extract_keywords, find_protected_spans
from qtmiddleware.preprocessing.text import shorten_text
from qtmiddleware.runtime.control_characters import escape_json
from qtmiddleware.runtime.redis_cache import decode_transformation, encode_transformation
from tests.robustness.fuzz import replies
from tests.robustness.fuzz.promises import check, text_of

Target = Callable[[bytes], None]
_CODES: Final = ("auto", "en", "de", "fr", "es", "it", "pt", "nl")


def preprocess(data: bytes) -> None:
    """Keywords of any text: preparing them again changes nothing, and every span is where it says."""
    text = text_of(data)
    made = extract_keywords(text)
    check(
        extract_keywords(made.keywords).keywords == made.keywords,
        "preparing keywords again changes nothing",
    )
    check(bool(made.keywords) or not text, "a query never becomes empty")
    code = _CODES[len(data) % len(_CODES)]
    own = extract_keywords(text, language=code, keep_words=("it",), extra_words=("dog",))
    check(bool(own.keywords) or not text, "a query never becomes empty")
    spans = find_protected_spans(text)
    check(all(text[it.start : it.end] == it.text for it in spans), "a span is where it says")
    check(all(one.end <= other.start for one, other in pairwise(spans)), "no spans overlap")


def dataset(data: bytes) -> None:
    """Files of a data set are read or refused with a `ConfigError`."""
    corpus, _, rest = data.partition(b"\x00")
    queries, _, qrels = rest.partition(b"\x00")
    folder = _folder()
    (folder / "corpus.jsonl").write_bytes(corpus)
    (folder / "queries.jsonl").write_bytes(queries)
    (folder / "qrels" / "test.tsv").write_bytes(qrels)
    with suppress(ConfigError):
        found = Dataset.load(folder)
        check(bool(found.data_hash), "a data set has a hash")


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    (folder / "qrels").mkdir()
    return folder


def filters(data: bytes) -> None:
    """A condition is met or not, or refused with an `InvalidQuery`."""
    for given in _json(data):
        with suppress(InvalidQuery):
            meets = build_matcher(given)
            for metadata in ({}, {"a": 1, "b": ["x", "y"], "c": "x", "d": True, "e": None}, given):
                if isinstance(metadata, dict):
                    check(isinstance(meets(metadata), bool), "a condition is met or not")


def config(data: bytes) -> None:
    """A configuration is one or is refused with a `ConfigError`."""
    for given in _json(data):
        if isinstance(given, dict):
            with suppress(ConfigError):
                Config.load(given, environ={})


def _json(data: bytes) -> Iterator[Any]:
    with suppress(ValueError, RecursionError):
        yield json.loads(data)


def terminal(data: bytes) -> None:
    """What is shown holds nothing a terminal obeys, and JSON says the same as before."""
    text = text_of(data)
    check(
        not _OBEYED.search(strip_control_characters(text)), "nothing is left that a terminal obeys"
    )
    written = json.dumps({text: [text]}, ensure_ascii=False)
    check(json.loads(escape_json(written)) == json.loads(written), "JSON says the same")
    check(not _OBEYED.search(escape_json(written)), "nothing is left that a terminal obeys")
    for one in (shorten_start(text, 40), shorten_text(text, 12), escape_text(text, 200)):
        one.encode()
        check("\n" not in one and not _OBEYED.search(one), "a shown text is one harmless line")


_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def words(data: bytes) -> None:
    """The words of a passage and of a query for a full-text index hold no syntax of its own."""
    text = text_of(data)
    for word in extract_query_words(text):
        check(not set(word) & set('"*^()+-:{} \x00'), "a word holds no syntax")
    extract_index_words(text, "{}")


def cached(data: bytes) -> None:
    """An entry of a shared cache is a transformation that is written as it was, or is nothing."""
    made = decode_transformation(data)
    check(made is None or encode_transformation(made) == data, "what was read is written as it was")


TARGETS: Final[dict[str, Target]] = {
    "preprocess": preprocess,
    "parse": replies.parsing,
    "guard": replies.guarding,
    "salvage": replies.salvaging,
    "body": replies.body,
    "streaming": replies.streaming,
    "answer": replies.answer,
    "dataset": dataset,
    "filters": filters,
    "config": config,
    "terminal": terminal,
    "words": words,
    "cached": cached,
}
