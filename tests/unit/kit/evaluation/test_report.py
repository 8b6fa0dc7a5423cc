"""The verdict on a comparison, and its report as Markdown and as a page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser

from qtmiddleware.kit.evaluation import Difference, Run, report_comparison, verdict
from qtmiddleware.kit.evaluation.report import HEADINGS, rows
from tests.support.report_world import comparison, data, run, score, several

RULES = "The right passage comes first for 2 of 4 questions instead of 0; 1 gets worse. “rules” gains 5.0 points"
GAINS = {"q1": 0.2, "q2": -0.1, "q3": 0.1, "q4": 0.0}
MARKUP = "<script>hacked = 1</script>|`*_[x](http://a.b)\u202e\x1b[31m"


def paid(gains: Mapping[str, float], cost: float | None) -> dict[str, Run]:
    return {question: run(question, calls=1, cost=cost, ms=1240.0) for question in gains}


def test_the_verdict_names_the_best_its_price_and_what_is_free() -> None:
    runs = paid(GAINS, 0.0005)
    best = score("combined", dict.fromkeys(GAINS, 0.2), runs=runs)
    found = comparison(best, score("rules", GAINS))
    assert verdict(found) == (
        "The right passage comes first for 4 of 4 questions instead of 0; none gets worse. "
        "“combined” gains 20.0 points of nDCG@10 (95% interval +18.0 to +22.0) over “off”. It calls "
        "the model 1.00 times per question, for $0.50 per 1,000 questions. Without a model, “rules” "
        "gains +5.0 [+3.0, +7.0], which is more than chance."
    )
    assert verdict(comparison(score("rules", GAINS))).startswith(RULES)
    best = score("combined", GAINS, runs=paid(GAINS, None))
    said = verdict(comparison(best, score("rules", GAINS, is_significant=False)))
    assert "at an unknown price. Without a model, “rules” gains +5.0 [+3.0, +7.0], which" in said
    below = {"q1": 0.05, "q2": 0.05, "q3": -0.02, "q4": 0.0}
    assert verdict(comparison(score("rules", below))).startswith(
        "2 of 4 questions get better and 1 gets worse. “rules” gains 2.0"
    )


def test_what_may_be_chance_does_not_win_and_the_reason_is_told_beside_an_interval_above_0() -> (
    None
):
    lucky = score("lucky", dict.fromkeys(GAINS, 0.4), is_significant=False)
    failing = {question: Run((), degraded=True) for question in GAINS}
    broken = score("combined", dict.fromkeys(GAINS, 0.4), runs=failing)
    assert verdict(comparison(lucky, broken, score("rules", GAINS))).startswith(RULES)
    chance = Difference(0.05, 0.03, 0.07, 0.09, 0.18, tests=2, gains=GAINS)
    worse = score("worse", dict.fromkeys(GAINS, -0.2))
    found = comparison(replace(score("lucky", GAINS), difference=chance), worse)
    assert verdict(found) == (
        "No system is clearly better than “off”, which has the right passage first for 0 of 4 "
        "questions. The largest gain, 5.0 points of nDCG@10 (95% interval +3.0 to +7.0) by “lucky”, "
        "may be chance (p = .18 after correction for 2 comparisons): 2 of 4 questions get better and "
        "1 gets worse. Significantly worse: “worse”. "
        "With so few questions, only a large difference can be seen."
    )
    assert "No system gained anything." in verdict(comparison())


def test_the_table_has_the_figures_of_each_system() -> None:
    found = several()
    names = ("system", "nDCG@10", "gain [95%]", "R@10", "hurt", "+ms p50")
    assert (*names, "searches", "calls", "$/1k") == HEADINGS
    gains = [row[2] for row in rows(found)]
    assert (gains[0], gains[1][-1], gains[3][-1]) == ("–", " ", "*")
    runs = {it: run(it, searches=2, calls=1, cost=0.00002) for it in GAINS}
    priced = comparison(score("rules", GAINS, runs=runs))
    assert rows(priced)[1][-3:] == ["2.00", "1.00", "$0.020"]


# --- the report -----------------------------------------------------------------------------------


def test_a_report_shows_the_questions_that_got_worse_most_with_what_was_found() -> None:
    gains = {"q1": -0.2, "q2": 0.3, "q3": 0.3}
    runs = {it: run(it, ids=("p2",), variants=[("rewrite", f"new {it}", 0.7)]) for it in gains}
    found = comparison(score("rules", gains, runs=runs), notes=["A note."])
    text = report_comparison(found, data(found)).to_markdown()
    for said in (
        verdict(found).partition(". ")[0],
        "> **Note:** A note.",
        "## Questions that get worse most with rules",
        "### words of question q1",
        "-20.0. q1: nDCG@10 0.500 to 0.300",
        "* rewrite new q1",
        "rules found:\n\n* p2 A title: words of passage p2",
    ):
        assert said in text, said


class Page(HTMLParser):
    """The tags of a page, and what of it a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_is_one_file_that_loads_nothing_and_tells_what_markdown_tells() -> None:
    found = several()
    page = report_comparison(found, data(found)).to_html()
    assert "default-src 'none'; style-src 'unsafe-inline';" in page
    parsed = Page(page)
    assert parsed.tags.isdisjoint({"script", "img", "link", "iframe", "a"})
    shown = " ".join(parsed.texts)
    for said in (*verdict(found).split(". ")[:1], *HEADINGS, "Replies are"):
        assert said in shown
    assert len(page) < 250_000


def test_no_text_becomes_markup_and_none_turns_or_hides_the_others() -> None:
    found = comparison(score(MARKUP, {"q": -0.2}), notes=[MARKUP], name=MARKUP)
    report = report_comparison(found, data(found, words=MARKUP))
    page, text = report.to_html(), report.to_markdown()
    assert "script" not in Page(page).tags
    assert "<script>" in "".join(Page(page).texts)
    assert "\u202e" not in page + text
    assert "\x1b" not in page + text
    assert "<" not in text
    assert not re.search(r"(?<!\\)[`*|]hacked|http:", text.replace("| ", "").replace(" |", ""))
