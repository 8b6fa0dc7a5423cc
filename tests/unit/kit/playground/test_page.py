"""The page: whatever the texts are, they are texts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import Question
from qtmiddleware.kit.playground.asked import PageState
from qtmiddleware.kit.playground.cards import MOST_SHOWN
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.types import Message
from tests.support import playground_app as app
from tests.support.retrieval_world import QUERY

KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "script",
        "body",
        "header",
        "main",
        "footer",
        "search",
        "section",
        "nav",
        "aside",
    ),
    *(
        "article",
        "h1",
        "h2",
        "h3",
        "p",
        "a",
        "b",
        "em",
        "small",
        "span",
        "div",
        "bdi",
        "mark",
        "br",
        "pre",
        "code",
    ),
    *(
        "form",
        "label",
        "textarea",
        "button",
        "fieldset",
        "legend",
        "input",
        "select",
        "option",
        "details",
        "summary",
    ),
    *("ol", "ul", "li", "dl", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td"),
    *("template", "slot", "svg", "path", "g", "circle", "text", "rect"),
}


class Reader(HTMLParser):
    """Collects what stands in a page: its elements, their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def write(
    fn: Any,
    question: str = QUERY,
    history: Sequence[str] = (),
    examples: Sequence[Question] = (),
    qrels: Mapping[str, Mapping[str, int]] | None = None,
    tiers: Sequence[str] = (),
    has_recorded_reply: Any = None,
    learned: Sequence[Question] = (),
    **options: Any,
) -> str:
    """The whole page of *question*."""
    names = tuple(tiers)

    async def ask() -> str:
        tiers = Tiers(fn, timeout_seconds=20, has_recorded_reply=has_recorded_reply)
        if learned:
            tiers.warm_up(learned, should_search_examples=True)
        page = Page(
            tiers,
            name="a <b>name</b>",
            examples=examples,
            notes=["a <i>note</i>"],
            qrels=qrels,
            **options,
        )
        turns = tuple(Message("user", it) for it in history)
        asked = PageState(question=question, tiers=names or tiers.shown, history=turns)
        is_running = bool(question.strip())
        parts, cards, baseline = [page.render_head(asked, "nonce", is_running=is_running)], [], None
        if is_running:
            async for answer in tiers.ask_tiers(asked):
                baseline = answer.retrieval if answer.tier.name == "raw" else baseline
                cards.append(page.make_card(answer, asked, baseline))
                parts.append(page.render_card(cards[-1]))
            parts.append(page.render_tail(asked, cards))
        return "".join([*parts, page.render_foot(is_running=is_running)])

    return asyncio.run(ask())


def check_markup(page: str) -> Reader:
    """*page*, of which every element and address is our own."""
    read = Reader(page)
    assert {tag for tag, _ in read.elements} <= KNOWN
    scripts = [attributes for tag, attributes in read.elements if tag in ("script", "style")]
    assert all(attributes == {"nonce": "nonce"} for attributes in scripts)
    names = {name for _, attributes in read.elements for name in attributes}
    assert not [
        name for name in names if name.startswith("on") or name in ("style", "src", "srcdoc")
    ]
    links = [str(attributes["href"]) for _, attributes in read.elements if attributes.get("href")]
    assert all(
        link.startswith(("?", "#", "../", "small/", "data:image/svg+xml,")) for link in links
    )
    return read


def test_hostile_passages_and_variants_are_texts() -> None:
    page = write(app.hostile)
    read = check_markup(page)
    assert page.count("<script") == page.count("<script nonce") == 1
    assert "<script>document.title='hacked'</script>" in "".join(read.texts)
    assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    page.encode("utf-8", "replace")


@given(
    question=st.text(min_size=1, max_size=40), text=st.text(max_size=60), title=st.text(max_size=20)
)
@settings(max_examples=25, deadline=None)
def test_no_text_becomes_markup(question: str, text: str, title: str) -> None:
    rows = [
        {"id": "1", "score": 0.9, "metadata": {"text": text, "title": title}},
        {"id": title, "score": 0.8},
    ]
    wrapped = qtm.QueryMiddleware().wrap(lambda query: rows)
    check_markup(write(wrapped, question, history=[text]))


def test_names_notes_examples_and_turns_are_texts() -> None:
    examples = [Question("1", "<u>one</u>", (Message("user", "<u>turn</u>"),))]
    page = write(app.search, "", history=["<u>said</u>"], examples=examples)
    check_markup(page)
    assert "&lt;u&gt;one&lt;/u&gt;" in page
    assert 'value="&lt;u&gt;said&lt;/u&gt;"' in page


def test_every_tier_says_what_moved_why_and_what_it_cost() -> None:
    page = write(app.search, tiers=("raw", "rules", "rewrite", "stepback", "decompose", "combined"))
    for name in ("raw", "rules", "rewrite", "stepback", "decompose", "combined"):
        assert (
            page.count(
                f'<article class="card{" base" if name == "raw" else ""}" slot="tier-{name}"'
            )
            == 1
        )
    for said in (
        "passed by",
        "in the question&#39;s own search",
        "search, variants",
        "model calls",
    ):
        assert said in page
    assert "Does the dog Jaco have medical conditions or illness?" in page
    assert page.count("Config that gives this") == 6


def test_ids_are_unique_and_every_field_has_its_label() -> None:
    read = Reader(write(app.search, history=["a turn"]))
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {attributes["for"] for tag, attributes in read.elements if tag == "label"}
    fields = [
        attributes for tag, attributes in read.elements if tag in ("input", "select", "textarea")
    ]
    assert fields
    assert all(
        attributes["id"] in labelled for attributes in fields if attributes.get("type") != "hidden"
    )


def test_a_long_passage_is_cut() -> None:
    rows = [
        {"id": str(at), "score": 1 - at / 9, "metadata": {"text": "word " * 20_000}}
        for at in range(4)
    ]
    assert len(write(qtm.QueryMiddleware().wrap(lambda query: rows))) < 20 * MOST_SHOWN


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (
            app.raising,
            "raised ConnectionError: no route to &lt;b&gt;host&lt;/b&gt; with api_key=(not shown)",
        ),
        (app.down, "transform.combined: unavailable (the service is down)"),
        (app.empty, "No passage was found."),
    ],
)
def test_what_went_wrong_is_said(fn: Any, said: str) -> None:
    assert said in write(fn)


def test_who_was_not_asked_is_not_waited_for() -> None:
    page = write(app.raising)
    assert '<div slot="tier-rules" hidden></div>' in page
    assert "There is no plain list, so no tier ran." in page


def test_a_model_that_gave_nothing_is_said_at_once() -> None:
    assert find_headline(write(app.down)) == (
        "rules and combined give the plain list. Nobody judged which passage answers. "
        "The model gave nothing usable to 1 tier."
    )


def find_headline(page: str) -> str:
    found = re.search('id="headline">(.*?)</h2>', page)
    assert found
    return found[1]


def wrap_list(*texts: str) -> Any:
    """A function that finds *texts*, called a, b, c and so on, in this order."""
    rows = [
        {"id": "abcdefgh"[at], "score": 0.9 - at / 100, "text": text}
        for at, text in enumerate(texts)
    ]
    return qtm.QueryMiddleware({"keywordEvidence": {"weight": 0.9}}).wrap(
        lambda query, top_k=2: rows[:top_k]
    )


CHANGES = "rules replaces 1 of the 2 passages. Nobody judged which passage answers."

# The rules put c first, a second, and drop b to the third place.
TEXTS = ("Jaco is a dog.", "Nothing at all.", "Jaco has health concerns.", "Nothing else.")


@pytest.mark.parametrize(
    ("grades", "headline"),
    [
        ({"a": 2, "b": 1}, "The answer is 1st in the plain list: worse with rules (2nd)."),
        (
            {"b": 1, "a": 0},
            "The answer is 2nd in the plain list: worse with rules (not shown, 3rd).",
        ),
        ({"c": 1}, "The answer is not in the plain list: better with rules (1st)."),
        ({"d": 1}, "The answer is in none of the lists."),
        (
            {"b": 1, "c": 1},
            "The first of 2 answers is 2nd in the plain list: better with rules (1st).",
        ),
        ({"a": 1, "c": 1}, "The first of 2 answers is 1st in every list."),
        ({"a": 0}, CHANGES),
        ({}, CHANGES),
    ],
)
def test_a_headline_says_where_the_answer_went_and_without_a_judgement_that_the_list_changes(
    grades: dict[str, int], headline: str
) -> None:
    page = write(wrap_list(*TEXTS), examples=[Question("q", QUERY)], qrels={"q": grades})
    assert find_headline(page) == headline


def test_a_judgement_is_that_of_its_own_question_alone() -> None:
    asked = Question("q", QUERY, (Message("user", "Who is Jaco?"),))
    page = write(
        wrap_list(*TEXTS),
        examples=[asked, Question("r", "Who?")],
        qrels={"q": {"a": 1}, "r": {"a": 1}},
    )
    assert find_headline(page) == CHANGES


def test_a_question_that_no_passage_answers_is_said_to_be_one() -> None:
    asked = Question("q", QUERY, metadata={"type": "unanswerable"})
    page = write(wrap_list(*TEXTS), examples=[asked], qrels={"q": {"a": 0}})
    assert (
        find_headline(page)
        == "No passage answers this question. Every tier still returns 2 passages."
    )
    assert "★ answer" not in page


def test_a_question_far_from_the_collection_is_said_to_be_probably_unanswered() -> None:
    topics = ("pool", "sauna", "yoga", "towel")

    def search(query: str, top_k: int = 2) -> list[dict[str, Any]]:
        rows = [
            {
                "id": it,
                "score": 0.87 if it in query else 0.13 - at * at / 1_870,
                "text": f"All about the {it}.",
            }
            for at, it in enumerate(topics)
        ]
        return sorted(rows, key=lambda row: -float(row["score"]))[:top_k]

    learned = [Question(str(at), f"Where is the {topics[at % len(topics)]}?") for at in range(24)]
    wrapped = qtm.QueryMiddleware().wrap(search)
    assert "The passages probably do not hold the answer" in find_headline(
        write(wrapped, "Who painted Guernica?", learned=learned)
    )
    assert "Nobody judged" in find_headline(
        write(wrapped, "When does the sauna open?", learned=learned)
    )


def test_another_order_is_said_of_the_tiers_that_have_one() -> None:
    page = write(wrap_list("Nothing at all.", "Jaco has health concerns."))
    assert (
        find_headline(page) == "rules reorders the plain list. Nobody judged which passage answers."
    )


def read_verdict(page: str) -> list[tuple[str, ...]]:
    """The rows of the table above the lists, each with its kind."""
    rows = re.findall(
        r'<tr class="(\w+)".*?<th .*?>(\w+)</th><td class="outcome".*?>(.*?)</td>(.*?)</tr>', page
    )
    return [
        (kind, name, re.sub("<.*?>", "", outcome), *re.findall("<td.*?>(.*?)</td>", rest))
        for kind, name, outcome, rest in rows
    ]


def test_the_verdict_has_place_time_calls_and_dollars_of_every_tier_and_a_loss_is_one() -> None:
    plain, rules = read_verdict(
        write(wrap_list(*TEXTS), examples=[Question("q", QUERY)], qrels={"q": {"a": 1}})
    )
    assert plain[:3] == ("none", "raw", "1st")
    assert rules[:3] == ("worse", "rules", "2nd ▼, worse than the plain list")
    assert re.fullmatch(r"[\d.]+ m?s", plain[3])
    assert re.fullmatch(r"\+[\d.]+ m?s", rules[3])
    assert plain[4:] == rules[4:] == ("0", "$0.00")
    combined = read_verdict(write(app.search))[-1]
    assert combined[:2] == ("none", "combined")
    assert combined[4] == "1"


def test_without_a_judgement_the_verdict_counts_what_moved() -> None:
    assert [row[2] for row in read_verdict(write(wrap_list(*TEXTS)))] == [
        "2 passages",
        "1 new, 1 down, 1 out",
    ]


def test_the_answer_is_marked_wherever_it_stands() -> None:
    page = write(wrap_list(*TEXTS), examples=[Question("q", QUERY)], qrels={"q": {"a": 1}})
    # In both lists, and beside each other.
    assert page.count("★ answer") == 3


def test_tiers_without_a_reply_are_one_line_and_no_cards() -> None:
    page = write(
        app.search,
        has_recorded_reply=lambda question, history: False,
        skip_reason="No reply is recorded.",
    )
    assert re.findall('data-tier="(\\w+)">', page) == ["raw", "rules"]
    assert page.count('class="folded"') == 1
    assert (
        "<b>11 tiers need a model</b> (combined, words, auto and 8 more). No reply is recorded."
        in page
    )
    assert "Degraded" not in page
    assert 'slot name="tier-combined"' not in page


def test_examples_have_their_kind_and_many_are_folded() -> None:
    examples = [Question(str(number), f"question {number}") for number in range(9)]
    page = write(app.search, "", examples=examples, example_types={"2": "a <i>kind</i>"})
    assert '<b class="kind">a &lt;i&gt;kind&lt;/i&gt;</b> <a href="?q=question+2">' in page
    before, after = page.split("<summary>3 more</summary>")
    assert before.count('<a href="?q=question') == 6
    assert after.count('<a href="?q=question') == 3


def test_collections_are_chosen_by_links_and_the_one_that_is_shown_is_marked() -> None:
    page = write(
        app.search, "", collections=[("the <b>large</b> one", ""), ("the small one", "small/")]
    )
    read = check_markup(page)
    marked = [
        attributes["href"]
        for _, attributes in read.elements
        if attributes.get("aria-current") == "page"
    ]
    assert marked == ["?"]
    assert '<a href="small/">the small one</a>' in page
    assert "the &lt;b&gt;large&lt;/b&gt; one" in page


def test_the_page_says_who_keeps_what_is_asked() -> None:
    assert "The server stores no questions. Your browser does" in write(app.search)


def test_a_result_that_nobody_can_read_is_said_with_what_mends_it() -> None:
    with pytest.warns(qtm.SetupWarning):
        page = write(app.odd)
    assert "run qtm check" in page
