"""Whatever a model says becomes bounded texts to search for, or a `ModelError`, and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import (
    PROMPTS,
    is_within_limits,
    parse_transformation,
)
from qtmiddleware.types import Match, Transformation
from tests.support.hostile_corpus import LONG, SHORT
from tests.support.hostile_world import replies

pytestmark = pytest.mark.thorough

QUESTION = "Does Jaco have any health concerns?"
FIELDS = {"standalone", "rewrite", "step_back", "sub_queries", "paraphrases", "hyde", "keywords"}
MOST = {"sub_queries": Settings().max_sub_queries, "paraphrases": 10, "keywords": 20}


def is_bounded(made: Transformation) -> bool:
    """Whether nothing in *made* is longer, and no list of it has more, than is asked for."""
    lines = (made.standalone, made.rewrite, made.step_back, *made.sub_queries, *made.paraphrases)
    return (
        all(len(text or "") <= 1_000 for text in lines)
        and len(made.hyde or "") <= 4_000
        and all(len(term) <= 100 for term in made.keywords)
        and all(len(getattr(made, name)) <= most for name, most in MOST.items())
    )


def test_a_reply_gives_bounded_texts_for_the_fields_that_were_asked_for_or_a_model_error() -> None:
    prompts = [transform.build_prompt(Settings(), QUESTION) for transform in PROMPTS.values()]
    # Each mode reads replies of each kind, with other texts.
    for number, hostile in enumerate(SHORT):
        for kind, text in enumerate(replies(hostile.text)):
            prompt = prompts[(number + 3 * kind) % len(prompts)]
            with suppress(ModelError):
                made = parse_transformation(prompt, Reply(text))
                assert is_bounded(made)
                assert not any(
                    getattr(made, name) for name in FIELDS - {field.name for field in prompt.fields}
                )
                # Or no other process would take it from a shared cache.
                assert is_within_limits(made, prompt.fields)


def test_a_reply_of_any_length_is_read_to_its_bounds() -> None:
    modes = list(PROMPTS)
    for number, hostile in enumerate(LONG):
        prompt = PROMPTS[modes[number % len(modes)]].build_prompt(Settings(), QUESTION)
        for said in (hostile.text, f'{{"{prompt.fields[0].name}": ["a", "{hostile.text}"'):
            with suppress(ModelError):
                assert is_bounded(parse_transformation(prompt, Reply(said)))


def answered(pieces: list[str], passages: list[str]) -> tuple[str, bool, list[int]]:
    reading = AnswerReader([Match(str(at), "", 1.0, text=text) for at, text in enumerate(passages)])
    shown = "".join(map(reading.feed, pieces)) + reading.feed("", is_last=True)
    assert shown == reading.text
    assert all(shown[it.start : it.end] == f"[{it.number}]" for it in reading.citations)
    return shown, reading.is_answered, [it.number for it in reading.citations]


def test_an_answer_comes_out_the_same_however_it_is_cut() -> None:
    for hostile in SHORT:
        text = f"{hostile.text} So it is [1]. {hostile.text}[2]"
        passages = [hostile.text, f"a passage that says: {text}", "plain"]
        if len(text) < 120:
            assert answered([text], passages) == answered(list(text), passages)
        cut = len(hostile.text) // 2 + 1
        assert answered([text[:cut], text[cut:]], passages) == answered([text], passages)
    for hostile in LONG[::2]:
        text = hostile.text
        pieces = [text[at : at + 997] for at in range(0, len(text), 997)]
        assert answered(pieces, [text]) == answered([text], [text])
