"""What others wrote stays data in every prompt."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qtmiddleware.config.settings import Settings
from qtmiddleware.transforms import PROMPTS
from tests.support.hostile_corpus import LONG, SHORT
from tests.support.hostile_world import prompts, strings, whole

pytestmark = pytest.mark.thorough

PLAIN = {
    with_history: prompts("where is the vet?", with_history=with_history)
    for with_history in (False, True)
}


def check(text: str) -> None:
    for with_history in (False, True):
        for prompt, plain in zip(
            prompts(text, with_history=with_history), PLAIN[with_history], strict=True
        ):
            has_turns = with_history and bool(text.strip())
            if has_turns == with_history or "history" not in plain.user:
                assert prompt.system == plain.system
            prompt.user.encode()
            given = json.loads(prompt.user)
            assert set(given) <= set(json.loads(plain.user)) or not has_turns
            shown = text[:8_000] if prompt.mode.startswith("test_") else text
            if prompt.mode == "rank":
                assert given["A"] == given["B"] == whole(text[:12_000])
            assert whole(shown) in {whole(it) for it in strings(given)}


def test_no_text_of_the_corpus_reaches_the_instructions_and_all_of_it_arrives() -> None:
    for hostile in (*SHORT, *LONG[::6]):
        check(hostile.text)


@pytest.mark.parametrize("mode", PROMPTS)
def test_an_own_instruction_of_any_words_is_taken_as_it_is_and_changes_nothing_else(
    mode: str,
) -> None:
    for hostile in SHORT:
        own = hostile.text.strip()
        if not own:
            continue
        prompt = PROMPTS[mode].build_prompt(_with(mode, own), "where?")
        assert prompt.system.startswith(own)
        assert (
            prompt.system[len(own) :]
            == PROMPTS[mode].build_prompt(_with(mode, "x"), "where?").system[1:]
        )
        assert json.loads(prompt.user) == {"query": "where?"}


def _with(mode: str, own: str) -> Settings:
    plain = Settings()
    return replace(plain, llm=replace(plain.llm, prompts={mode: own}))
