"""The page and the Markdown of what a judge made of all answers."""

from __future__ import annotations

import pytest

from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import ask_systems
from qtmiddleware.kit.evaluation.reporting import ranking_markdown, ranking_page
from tests.support.judging_world import ranked_side_by_side
from tests.support.retrieval_world import QUERY, search


def test_it_says_how_the_systems_stand_what_that_took_and_why() -> None:
    found = ranked_side_by_side()
    page, markdown = ranking_page(found), ranking_markdown(found)
    headline = "“rewrite” gives the best answer to 6 of 6 questions, “raw” to 0."
    assert f"<h1><bdi>{headline}</bdi></h1>" in page
    assert markdown.startswith(f"# {headline}\n")
    for text in (page, markdown.replace("\\", "")):
        for said in (
            "Repeats agree on 100% of the pairs.",
            "1. rewrite (accuracy ",
            "2. raw = rules (accuracy ",
            "It is number 3.",
        ):
            assert said in text
    assert "says most.</span> <b>(A is " in page


def test_what_is_no_ranking_is_refused_and_one_that_length_decided_is_told() -> None:
    for write in (ranking_page, ranking_markdown):
        with pytest.raises(ConfigError, match="needs a question with an ideal answer"):
            write(ask_systems(search, QUERY, ["rules"], top_k=2))
    swayed = ranking_page(ranked_side_by_side(prefers_longer=True))
    assert "<h1><bdi>There is no ranking.</bdi></h1>" in swayed
    assert "not counted: length decided" in swayed


@pytest.mark.parametrize(
    "words", ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
)
def test_no_text_is_markup(words: str) -> None:
    found = ranked_side_by_side(words=words)
    for text in (ranking_page(found), ranking_markdown(found)):
        assert "<script" not in text
        assert "<img" not in text
        assert "Jaco at number 1? 49" not in text
