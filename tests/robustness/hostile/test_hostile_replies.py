"""Whatever a model says becomes bounded texts to search for, or a `ModelError`, and nothing else."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.kit.evaluation.asking import parse_reply
from qtmiddleware.kit.evaluation.judge import parse_opinion
from qtmiddleware.kit.evaluation.testset import find_check_fault, find_fault
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import (
    ORIGINAL,
    PROMPTS,
    find_repeats,
    guard_transformation,
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


def test_what_must_be_kept_of_a_hostile_question_makes_nothing_longer_than_it_may_be() -> None:
    for hostile in (*SHORT, *LONG[::3]):
        query = hostile.text[: 2_000 if hostile in LONG else 8_000]
        spans = [(span.kind, span.text) for span in find_protected_spans(query)]
        said = Transformation(
            rewrite="Is the dog ill?", sub_queries=("Is it?", query[:900]), hyde=query[:4_000]
        )
        made = guard_transformation(said, query=query, required_spans=spans)
        assert is_bounded(made)
        repeats = find_repeats([made.rewrite or "a", query[:1_000], query[:999]], original=query)
        assert set(repeats) <= {None, ORIGINAL, 0, 1}


def answered(pieces: list[str], passages: list[str]) -> tuple[str, bool, list[int]]:
    reading = AnswerReader([Match(str(at), "", 1.0, text=text) for at, text in enumerate(passages)])
    shown = "".join(map(reading.feed, pieces)) + reading.finish()
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
    for hostile in LONG[::3]:
        text = hostile.text
        pieces = [text[at : at + 997] for at in range(0, len(text), 997)]
        assert answered(pieces, [text]) == answered([text], [text])


@settings(deadline=None)
@given(st.lists(st.sampled_from([it.text for it in SHORT]), max_size=6).map("".join), st.data())
def test_an_answer_put_together_of_hostile_texts_comes_out_the_same_however_it_is_cut(
    text: str, data: st.DataObject
) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [
        text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)
    ]
    assert answered(pieces, [text, "b"]) == answered([text], [text, "b"])


def test_a_judge_and_a_writer_of_questions_who_say_anything_fail_as_models_do() -> None:
    for hostile in SHORT:
        for text in replies(hostile.text)[:2]:
            reply = Reply(text)
            with suppress(ModelError):
                assert len(parse_opinion(reply, (1, 0))[0]) == 2
            parse_reply(reply, ("question", "answer"))
    for hostile in SHORT:
        text = hostile.text
        assert isinstance(find_fault(text, text, text), str)
        assert isinstance(find_check_fault({"quote": text, "answers": text}, text), str)
