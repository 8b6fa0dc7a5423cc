"""The page of what a judge made of all answers."""

from __future__ import annotations

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import ask_systems
from qtmiddleware.kit.evaluation.reporting import ranking_page
from tests.support.judging_world import ranked_side_by_side
from tests.support.retrieval_world import QUERY, search


def test_it_says_how_the_systems_stand_what_that_took_and_why() -> None:
    found = ranked_side_by_side()
    text = ranking_page(found)
    assert "<h1>“rewrite” gives the best answer to 6 of 6 questions, “raw” to 0.</h1>" in text
    assert "Repeats agree on 100% of the pairs." in text
    assert text.count('<tr class="better">') == 2  # in the chart and in the table
    assert "1. rewrite (accuracy " in text
    assert "2. raw = rules (accuracy " in text
    assert "says most. <small>(A is " in text
    assert "It is number 3." in text


def test_what_is_no_ranking_is_refused_and_one_that_length_decided_is_told() -> None:
    with pytest.raises(ConfigError, match="needs a question with an ideal answer"):
        ranking_page(ask_systems(search, QUERY, ["rules"], top_k=2))
    swayed = ranking_page(ranked_side_by_side(prefers_longer=True))
    assert "<h1>There is no ranking.</h1>" in swayed
    assert "not counted: length decided" in swayed


@pytest.mark.parametrize(
    "words", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
)
def test_no_text_is_markup(words: str) -> None:
    text = ranking_page(ranked_side_by_side(words=words))
    assert "<script" not in text
    assert "<img" not in text
    assert "Jaco at number 1? 49" not in text
