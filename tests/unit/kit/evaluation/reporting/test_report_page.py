from __future__ import annotations

import base64
import hashlib
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtmiddleware.errors import MissingExtra
from qtmiddleware.kit.evaluation import (
    Comparison,
    Dataset,
    Percentiles,
    Question,
    Run,
    measure,
)
from qtmiddleware.kit.evaluation.judging import Judged, Reason, Verdict
from qtmiddleware.kit.evaluation.reporting import charts, headings, page
from qtmiddleware.kit.evaluation.reporting.template import load_template_and_markup
from qtmiddleware.kit.evaluation.reporting.verdicts import WorstQuestionFinder
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message
from tests.support.report_world import comparison, data, run, score, several

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VOID = {"meta", "link", "input", "path", "line", "circle", "rect"}


class Reading(HTMLParser):
    """What a page is made of: tags, attributes and texts; raises where tags do not fit together."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.styles: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, found: str) -> None:
        where = self.open[-1] if self.open else ""
        (self.styles if where == "style" else self.texts).append(found)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def named(name: str) -> str:
    """The page of a comparison in which everything that others wrote is *name*."""
    runs = {name: run(name, text=name, ids=(name, "p1"), variants=[("hyde", name, 0.5)])}
    found = comparison(
        score(f"{name}!", {name: -0.2}, runs=runs, stages={name: (1.0, 2.0)}),
        notes=(name,),
        name=name,
    )
    return page(found, data(found, words=name, history=[Message("user", name)]))


PLAIN = Reading(named("plain"))
WIDE = Reading(named("M" * 40))
"""A name that does not fit beside its dot stands in a numbered list below the chart."""


def test_it_is_one_file_that_loads_nothing_and_forbids_itself_to() -> None:
    found = Reading(page(several(), data(several())))
    links = {
        value
        for name, value in found.attributes
        if name in ("src", "href", "action", "xlink:href", "srcset")
    }
    assert all(link.startswith("data:image/svg+xml,") for link in links)
    policy = next(value for _, value in found.attributes if "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", "".join(links))
    assert not re.search(r"url\(|@import", "".join(found.styles))


def test_its_policy_lets_its_own_style_apply_and_no_other_and_no_script() -> None:
    found = Reading(page(several()))
    policy = next(value for _, value in found.attributes if "default-src" in value)
    assert base64.b64encode(hashlib.sha256(found.styles[0].encode()).digest()).decode() in policy
    assert "script" not in policy
    assert "script" not in found.tags
    assert not [name for name, _ in found.attributes if name == "style" or name.startswith("on")]


def test_it_tells_everything() -> None:
    found = several()
    text = Reading(page(found, data(found))).text
    for said in (
        "“system",
        "Replies are recorded.",
        "system 1",
        "words of question q",
        "rewritten q",
        "A title: words of",
    ):
        assert said in text
    assert "9,999 times (seed 7)" in text
    assert "corrected for 6 comparisons after Holm" in text
    assert "relevant, grade 2" in text


def test_what_was_really_measured_is_told() -> None:
    passages = tuple(Passage(id_, f"about {id_}") for id_ in "abc")
    asked = Dataset(
        "three",
        passages,
        tuple(Question(id_, f"where is {id_}?") for id_ in "abc"),
        {it: {it: 1} for it in "abc"},
    )
    found = measure(
        {
            "raw": lambda it: [(it.id, 1.0)],
            "ours": lambda it: Run(("c", it.id), seconds_added=0.25, stages={"look": 3.0}),
        },
        asked,
        baseline="raw",
    )
    text = Reading(page(found, asked)).text
    assert (
        "No system is clearly better than “raw”, which has the right passage first for 3 of 3 questions."
        in text
    )
    assert "−24.6" in text
    assert "0.250" not in text
    assert "250 ms" in text
    assert "where is a?" in text
    assert found.data_hash in text


def test_it_needs_no_data() -> None:
    text = Reading(page(several())).text
    assert "what about q" in text
    assert "relevant, grade" not in text


def test_it_tells_what_was_said_before_a_question() -> None:
    found = several(4, 2)
    said = data(found, history=[Message("user", "Who was it?"), Message("assistant", "Ada.")])
    assert "Said before user Who was it? assistant Ada." in Reading(page(found, said)).text


def test_without_any_price_model_calls_are_drawn_and_without_a_model_nothing() -> None:
    asked = {question: run(question, calls=1, cost=None) for question in ("q1", "q2")}
    text = Reading(page(comparison(score("ours", {"q1": 0.1, "q2": 0.2}, runs=asked)))).text
    assert "Quality and calls" in text
    free = Reading(page(comparison(score("ours", {"q1": 0.1, "q2": 0.2})))).text
    assert "No system called a model" in free
    assert "Quality and calls" not in free


def test_one_system_alone_is_a_page_too() -> None:
    text = Reading(page(comparison())).text
    assert (
        "“raw” has the right passage first for 0 of 1 question. Only the baseline was measured"
        in text
    )
    assert "Question by question" not in text


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_no_text_becomes_markup(name: str) -> None:
    text = named(name)
    text.encode()
    found = Reading(text)
    same_layout = WIDE if found.tags.count("ol") == WIDE.tags.count("ol") else PLAIN
    assert sorted(found.tags) == sorted(same_layout.tags)
    assert [key for key, _ in found.attributes] == [key for key, _ in same_layout.attributes]


def test_a_name_that_does_not_fit_beside_its_dot_is_listed_below_the_chart() -> None:
    assert WIDE.tags.count("ol") == PLAIN.tags.count("ol") + 1


@pytest.mark.parametrize(
    "name",
    ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}{% x %}"],
)
def test_markup_in_texts_is_shown_as_text(name: str) -> None:
    found = Reading(named(name))
    assert sorted(found.tags) == sorted(PLAIN.tags)
    assert name in found.text


def test_characters_that_turn_or_hide_text_are_left_out() -> None:
    text = named("a\u202eb\u2066c\x00d\x1be\x85f\u2028g\ud800h")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b\x85\u2028\ud800]", text)
    assert "abcde f gh" in text


@settings(max_examples=25, deadline=None)
@given(
    gains=st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=5),
    ms=st.tuples(FLOATS, FLOATS),
    cost=st.none() | st.floats(0, allow_nan=False, allow_infinity=False),
    stage=st.tuples(FLOATS, FLOATS),
)
def test_no_figure_breaks_a_chart(
    gains: list[float], ms: tuple[float, float], cost: float | None, stage: tuple[float, float]
) -> None:
    questions = {f"q{place}": gain for place, gain in enumerate(gains)}
    one = {question: run(question, calls=1, cost=0.0) for question in questions}
    system = replace(score("ours", questions, ms=ms, runs=one, stages={"s": stage}), cost_usd=cost)
    found = Reading(page(comparison(system)))
    drawn = [
        value
        for name, value in found.attributes
        if name in ("d", "x", "y", "x1", "x2", "y1", "y2", "width", "cx", "cy")
    ]
    for value in drawn:
        for number in re.findall(r"[^MLVHvhZ%, ]+", value):
            assert math.isfinite(float(number)) or number == "device-width"


def test_numbers_that_are_none_are_drawn_nowhere() -> None:
    odd = replace(score("odd", {"q1": 0.1, "q2": 0.2}), added_ms=Percentiles(math.nan, math.inf))
    text = page(comparison(odd, score("ours", {"q1": 0.1, "q2": 0.2})))
    assert "its time is not known: <bdi>odd</bdi>" in text
    assert not re.search(r'(x|y|d|width|cx|cy)="[^"]*(nan|inf)', text)


def large() -> Comparison:
    """Twelve systems on 1,500 questions, with as much to show as there may be."""
    questions = [f"q{number:04}" for number in range(1500)]
    systems = []
    for place in range(12):
        gained = {
            question: math.sin(number * (place + 1)) / 2
            for number, question in enumerate(questions)
        }
        runs = {
            question: run(
                question,
                text=f"a question of usual length about the matter {question}, asked by somebody "
                * 2,
                ids=[f"document-{question}-passage-{rank}" for rank in range(10)],
                variants=[("sub_query", "a variant of usual length, which is a sentence " * 3, 0.3)]
                * 8,
            )
            for question in questions
        }
        systems.append(score(f"system number {place}", gained, runs=runs))
    return comparison(*systems)


def test_a_large_comparison_is_no_large_page() -> None:
    found = large()
    assert (
        len(
            page(
                found, data(found, words="words of usual length, so many that they are cut, ")
            ).encode()
        )
        < 1_500_000
    )


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load_template_and_markup.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        MissingExtra, match=r'jinja2 is not installed; run: pip install "qtmiddleware\[eval\]"'
    ):
        page(several())


def test_where_the_models_time_is_not_counted_every_time_says_so() -> None:
    found = replace(several(), counts_model_time=False)
    text = Reading(page(found, data(found))).text
    assert "Time added, without the model’s own" in text
    assert "(median, without the model’s own time) and calls the model" in text
    assert "median of the questions, without the model’s own time" in text
    assert "the time of the model is no part of any figure here" in text
    assert "without the model" not in Reading(page(several())).text


def test_every_figure_that_was_measured_stands_in_one_of_two_tables() -> None:
    found = replace(
        several(),
        systems=tuple(replace(it, means={**it.means, "R@100": 0.9}) for it in several().systems),
    )
    text = page(found)
    main, more = re.findall(r'<table class="all">.*?</table>', text, re.DOTALL)
    titles = [re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', table) for table in (main, more)]
    assert {*titles[0], *titles[1]} == {*headings(found, wide=True)}
    assert titles[1] == ["system", "MRR@10", "P@5", "MAP", "helped", "$/+0.01"]
    for table in (main, more):
        assert all(f">{score.name}<" in table for score in found.systems)


def test_a_minus_stands_before_numbers_and_hyphens_stay_in_names() -> None:
    gains = {"q1": -0.1, "q2": -0.2}
    text = Reading(page(comparison(score("seed-parity-2", gains)))).text
    assert "−15.0" in text
    assert "seed−parity" not in text
    assert "parity−2" not in text


def test_the_table_stands_in_the_order_of_the_chart() -> None:
    found = Reading(page(several())).text
    table = found[found.index("All figures") :]
    order = [score.name for score in charts.rank_systems(several())]
    assert sorted(order, key=table.index) == order


def test_one_question_has_one_figure_whichever_system_it_is_told_of() -> None:
    hurt = [score(name, {"q1": by, "q2": 0.9}) for name, by in (("a", -0.1), ("b", -0.3))]
    base = replace(score("raw", {"q1": 0.1805, "q2": 0.0}), difference=hurt[0].difference)
    found = replace(comparison(*hurt), systems=(base, *hurt))
    finder = WorstQuestionFinder(found)
    assert {finder.find_worst_questions(one)[0].before for one in hurt} == {0.6805}


def test_what_a_judge_said_is_told_in_its_own_words() -> None:
    verdict = Verdict("q1", "win", reasons=(Reason("A names <both> vets.", ("ours", "raw")),))
    judged = Judged("raw", "ours", "judge-1", (verdict, Verdict("q2", "tie", reason="equal")))
    found = comparison(score("ours", {"q1": 0.1, "q2": 0.2}))
    text = Reading(page(found, judged=judged)).text
    assert "ours is better" in text
    assert "A names <both> vets. (A is ours, B is raw)" in text
    assert "Both answers are the same." in text
    assert "What a judge says" not in Reading(page(found)).text
