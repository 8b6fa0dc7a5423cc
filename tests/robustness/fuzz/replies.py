"""Targets that read what a model or its provider says."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, Final

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.providers.llms.openai.replies import StreamReader, read_reply
from qtmiddleware.transforms import (
    PROMPTS,
    find_repeats,
    guard_transformation,
    is_within_limits,
    parse_transformation,
)
from qtmiddleware.transforms.json_reading import Members, find_json
from qtmiddleware.types import Match, Transformation
from tests.robustness.fuzz.promises import check, text_of

QUESTION: Final = "Does Jaco have any health concerns in May 2024?"


@cache
def _prompts() -> tuple[Prompt, ...]:
    return tuple(transform.build_prompt(Settings(), QUESTION) for transform in PROMPTS.values())


def parsing(data: bytes) -> None:
    """A reply of any mode: what comes of it is bounded, whole or cut."""
    prompts = _prompts()
    prompt = prompts[(data[0] if data else 0) % len(prompts)]
    text = text_of(data[1:])
    try:
        made = parse_transformation(prompt, Reply(text))
    except ModelError:
        return
    spans = [(span.kind, span.text) for span in find_protected_spans(QUESTION)]
    kept = guard_transformation(made, query=QUESTION, required_spans=spans)
    check(_is_bounded(made) and _is_bounded(kept), "texts are bounded")
    check(
        all(is_within_limits(it, prompt.fields) for it in (made, kept)),
        "what a reply gives can be remembered",
    )
    for cut in (0, len(text) // 2):
        with suppress(ModelError):
            check(
                _is_bounded(parse_transformation(prompt, Reply(text[:cut], truncated=True))),
                "texts are bounded",
            )


def _is_bounded(made: Transformation) -> bool:
    lines = (made.standalone, made.rewrite, made.step_back, *made.sub_queries, *made.paraphrases)
    return all(len(it or "") <= 1_000 for it in lines) and len(made.hyde or "") <= 4_000


def guarding(data: bytes) -> None:
    """A question and a text of the model: what the guard leaves holds every span, and near texts are told apart."""
    query, _, said = text_of(data).partition("\n")
    spans = [(span.kind, span.text) for span in find_protected_spans(query)]
    given = Transformation(
        rewrite=said[:1_000] or None, sub_queries=(said[:500], query[:500]), hyde=said[:4_000]
    )
    made = guard_transformation(given, query=query, required_spans=spans)
    check(made.rewrite is None or len(made.rewrite) <= 1_000, "texts are bounded")
    repeats = find_repeats([said, query, said], original=query)
    check(None not in repeats[1:], "a text that was there is searched once")


def salvaging(data: bytes) -> None:
    """JSON out of anything; what the standard reads is read as the standard reads it."""
    text = text_of(data)
    found = find_json(text)
    check(all(it.start < it.end <= len(text) for it in found), "what is found stands in the text")
    check(all(one.end <= other.start for one, other in pairwise(found)), "no two overlap")
    try:
        value = json.loads(text, object_pairs_hook=Members, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return
    if isinstance(value, list) and _depth(text) <= 16 and not re.search(r"\\u[dD][89a-fA-F]", text):
        check(len(found) == 1 and not found[0].is_cut, "a well-formed text is one value")
        check(
            _words(found[0].value) == _words(value),
            "a well-formed text is read as the standard says",
        )


def _no_constant(_: str) -> None:
    raise ValueError


def _depth(text: str) -> int:
    return text.count("[") + text.count("{")


def _words(value: Any) -> Any:
    """*value* with its texts and nothing else told apart."""
    if isinstance(value, Members):
        return [(key, _words(inner)) for key, inner in value]
    if isinstance(value, list):
        return [_words(inner) for inner in value]
    return value if isinstance(value, str) and not _is_number(value) else None


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", text))


def body(data: bytes) -> None:
    """A body of a provider is a reply or a `ModelError`."""
    with suppress(ModelError):
        reply = read_reply(data)
        reply.text.encode()
        check(bool(reply.text.strip()), "a reply says something")


def streaming(data: bytes) -> None:
    """A streamed body says the same however it is cut, or fails with the same reason."""
    if data:
        step = data[0] % 32 + 1
        stream = data[1:]
        check(
            _streamed([stream])
            == _streamed([stream[at : at + step] for at in range(0, len(stream), step)]),
            "however a stream is cut the same comes out",
        )


def _streamed(chunks: list[bytes]) -> tuple[str, str]:
    reader = StreamReader()
    try:
        pieces = [piece for chunk in chunks for piece in reader.read_chunk(chunk)]
        pieces += reader.yield_rest_and_reply()
    except ModelError as error:
        return error.reason, ""
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    text.encode()
    whole = pieces[-1]
    check(isinstance(whole, Reply) and text == whole.text, "the pieces are the whole")
    return "", text


def answer(data: bytes) -> None:
    """An answer read piece by piece says what it says as a whole, and cites what it says it cites."""
    text = text_of(data)
    passages, said = text[: len(text) // 3], text[len(text) // 3 :]
    step = (data[0] if data else 0) % 7 + 1
    pieces = [said[at : at + step] for at in range(0, len(said), step)]
    check(
        _read(passages, [said]) == _read(passages, pieces),
        "however an answer is cut the same comes out",
    )


def _read(passage: str, pieces: list[str]) -> tuple[str, bool, list[int], int]:
    reading = AnswerReader([Match(str(at), "", 1.0, text=passage) for at in range(3)])
    given = "".join([*map(reading.feed, pieces), reading.flush_held_text()])
    check(given == reading.text, "the pieces are the whole")
    for it in reading.citations:
        check(
            given[it.start : it.end] == f"[{it.number}]" and 1 <= it.number <= 3,
            "a citation is its mark",
        )
    return (
        given,
        reading.is_answered,
        [it.number for it in reading.citations],
        reading.invented_count,
    )
