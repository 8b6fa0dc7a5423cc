"""What an agent reads of a retrieval: within the budget, quoted, and with what helps it decide."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.runtime.control_characters import escape_hidden
from qtmiddleware.tools.passages import LEAST_TOKENS, build_text_result, format_json
from qtmiddleware.tools.tokens import count_tokens

texts = st.text() | st.sampled_from(
    ["A sentence. " * 400, '\n\t"\\' * 900, "猫。" * 2_000, "x" * 5_000]
)
passages = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(max_size=20), "text": texts, "metadata": st.just({"title": "T" * 900})}
    ),
    max_size=12,
)


def call(rows: Any, **arguments: Any) -> str:
    return qtm.middleware(lambda query: rows).as_tool(collection="a test").run("why?", **arguments)


@settings(max_examples=60, deadline=None)
@given(passages, st.integers(LEAST_TOKENS, 3_000))
def test_the_budget_is_kept_whatever_was_found(rows: list[Any], tokens: int) -> None:
    written = call(rows, max_tokens=tokens)
    assert count_tokens(written) <= tokens
    assert "results" in json.loads(written)


@settings(deadline=None)
@given(texts, st.integers(LEAST_TOKENS, 2_000))
def test_a_document_keeps_the_budget_and_says_where_it_is_cut(text: str, tokens: int) -> None:
    written = build_text_result({"note": "A note."}, text, tokens)
    found = json.loads(written)
    assert count_tokens(written) <= tokens
    assert (found["text"] == text) is ("cut" not in found)


def test_short_passages_leave_their_share_to_long_ones() -> None:
    rows = [
        {"id": "a", "text": "Short."},
        {"id": "b", "text": "A long sentence of eight words is here. " * 100},
    ]
    found = json.loads(call(rows, max_tokens=600))["results"]
    assert found[0]["text"] == "Short."
    assert count_tokens(found[1]["text"]) > 350


def test_passages_that_do_not_fit_are_left_out_and_counted() -> None:
    rows = [{"id": str(it), "text": "A sentence of six words. " * 50} for it in range(30)]
    found = json.loads(call(rows, top_k=30, max_tokens=400))
    left = int(re.search(r"(\d+) passages left out", found["cut"])[1])  # type: ignore[index]
    assert left + len(found["results"]) == 30
    assert [it["id"] for it in found["results"]] == [str(it) for it in range(len(found["results"]))]


def test_ids_are_whole_whatever_their_length() -> None:
    rows = [
        {"id": "x" * 130, "text": "a"},
        {"id": "y" * 9_000, "text": "b"},
        {"id": "z", "text": "c"},
    ]
    found = json.loads(call(rows))
    assert [it["id"] for it in found["results"]] == ["x" * 130, "z"]
    assert found["cut"].startswith("1 passage left out")


class Odd:
    def __str__(self) -> str:
        raise ValueError("odd")


def test_one_odd_value_takes_nothing_else_away() -> None:
    endless: dict[str, Any] = {"page": 3}
    endless["self"] = endless
    for odd in (Odd(), endless, float("nan"), 10**5_000, b"\xff"):
        rows = [
            {"id": "a", "metadata": {"title": odd, "text": "A."}},
            {"id": "b", "metadata": {"x": odd}},
            {"id": "c", "text": "C."},
        ]
        tool = qtm.middleware(lambda query, found=rows: found).as_tool(fields=["title", "x"])
        found = json.loads(tool.run("why?"))["results"]
        assert {it["id"] for it in found} == {"a", "b", "c"}
        assert {"A.", "C."} < {it["text"] for it in found}


HIDDEN = ["\u202e", "\u200b", "a\u200d", "\u2066", "\xad", "\u034f", "\u3164", "\ufe0f\ufe0f", "\x1b", "\x85", "\U000e0041", "\U000e01ef", "\ud800"]  # fmt: skip


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_cannot_be_seen_is_an_escape_for_agents_terminal_and_page(hidden: str) -> None:
    written = format_json(f"x {hidden}")
    assert json.loads(written) == f"x {hidden}"
    for shown in (written, escape_hidden(f"x {hidden}")):
        assert hidden not in shown
        assert "\\u" in shown


@pytest.mark.parametrize(
    "text", ["❤️", "👩‍💻", "👩‍❤️‍👩 ok", "می‌خواهم", "क्‍ष", "Kranken\xadhaus", "a\tb\nc", "naïve 犬 café", "Zürich\u00a0AG"]
)  # fmt: skip
def test_what_belongs_to_a_script_or_a_symbol_is_shown_as_it_is(text: str) -> None:
    assert escape_hidden(text) == text
    assert json.loads(format_json(text)) == text


@pytest.mark.parametrize(
    ("rows", "could_help", "said"),
    [
        ([], True, "Search with other words"),
        (None, True, "Search with other words"),
        ([{"id": "a", "text": "b"}], False, ""),
    ],
)
def test_it_says_whether_another_search_could_help(rows: Any, could_help: bool, said: str) -> None:
    found = json.loads(call(rows))
    assert found["another_search_could_help"] is could_help
    assert said in found.get("advice", "")


def test_a_weak_result_among_many_good_ones_is_said_to_be_one() -> None:
    def search(query: str) -> list[dict[str, Any]]:
        score = 0.1 if "volcano" in query else 0.9 - len(query) / 1_000
        return [{"id": "a", "score": score, "text": "Jaco is a healthy dog."}]

    tool = qtm.middleware(search).as_tool()
    for number in range(25):
        usual = json.loads(tool.run(f"Is Jaco healthy, {'really ' * number}?"))
    assert usual["confidence"] is not None
    weak = json.loads(tool.run("Which volcano erupted?"))
    assert weak["another_search_could_help"] is True
    assert "probably do not hold the answer" in weak["advice"]


def test_a_response_that_cannot_be_read_is_delivered_as_it_is() -> None:
    found = json.loads(call("The whole context, as one text."))
    assert found["text"] == "The whole context, as one text."
    assert "could be read" in found["advice"]


def test_a_passage_without_text_shows_its_metadata() -> None:
    found = json.loads(call([{"id": "a", "score": 1.0, "metadata": {"page": 3}}]))
    assert json.loads(found["results"][0]["text"]) == {"page": 3}
