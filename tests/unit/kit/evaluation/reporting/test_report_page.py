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
    Question,
    Run,
    measure,
)
from qtmiddleware.kit.evaluation.judging import Judged, Reason, Verdict
from qtmiddleware.kit.evaluation.reporting import headings, layout, page
from qtmiddleware.kit.evaluation.reporting.verdicts import WorstQuestionFinder
from qtmiddleware.protocols import Passage
from qtmiddleware.types import Message
from tests.support.report_world import comparison, data, run, score, several

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
VOID = {"meta"}


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


def test_it_is_one_file_that_loads_nothing_and_forbids_itself_to() -> None:
    found = Reading(page(several(), data(several())))
    names = {name for name, _ in found.attributes}
    assert not names & {"src", "href", "action", "xlink:href", "srcset"}
    policy = next(value for _, value in found.attributes if "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
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
    assert "seed 7, corrected for 6 comparisons after Holm" in text
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
    assert "-24.6" in text
    assert "look 3.0 3.0" in text
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


def test_one_system_alone_is_a_page_too() -> None:
    text = Reading(page(comparison())).text
    assert (
        "“raw” has the right passage first for 0 of 1 question. Only the baseline was measured"
        in text
    )
    assert "get worse most" not in text


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_no_text_becomes_markup(name: str) -> None:
    text = named(name)
    text.encode()
    found = Reading(text)
    assert found.tags == PLAIN.tags
    assert [key for key, _ in found.attributes] == [key for key, _ in PLAIN.attributes]


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
    layout._load_template_and_style.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(
        MissingExtra, match=r'jinja2 is not installed; run: pip install "qtmiddleware\[eval\]"'
    ):
        page(several())


def test_where_the_models_time_is_not_counted_every_time_says_so() -> None:
    found = replace(several(), counts_model_time=False)
    text = Reading(page(found, data(found))).text
    assert "(median, without the model’s own time) and calls the model" in text
    assert "median of the questions, without the model’s own time" in text
    assert "without the model" not in Reading(page(several())).text


def test_every_figure_that_was_measured_stands_in_the_table() -> None:
    found = replace(
        several(),
        systems=tuple(replace(it, means={**it.means, "R@100": 0.9}) for it in several().systems),
    )
    table = page(found).split("</table>")[0]
    assert re.findall(r'<th scope="col">([^<]*)</th>', table) == headings(found, wide=True)
    assert all(f">{score.name}<" in table for score in found.systems)


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
    assert "How a judge compares" not in Reading(page(found)).text
