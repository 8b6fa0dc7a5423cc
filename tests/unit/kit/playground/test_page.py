"""The page: what it says of every tier, and whatever the texts are, they are texts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import unescape
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Dataset, Question, explain_movement
from qtmiddleware.kit.playground.page import Page
from qtmiddleware.kit.playground.server import build_app, open_socket
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.kit.playground.words import Keywords
from qtmiddleware.types import Message
from tests.support import playground_app as app
from tests.support.retrieval_world import QUERY


class Reader(HTMLParser):
    """Collects the elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def write(
    fn: Any,
    question: str = QUERY,
    history: Sequence[str] = (),
    questions: Sequence[Question] = (),
    qrels: Mapping[str, Mapping[str, int]] | None = None,
    tiers: Sequence[str] = (),
    learned: Sequence[Question] = (),
) -> str:
    """The page of *question*."""
    opened = Tiers(fn, timeout_seconds=20)
    opened.warm_up(learned)
    data = Dataset("data", (), tuple(questions), qrels or {})
    page = Page(opened, name="a <b>name</b>", dataset=data, notes=["a <i>note</i>"])
    turns = tuple(Message("user", text) for text in history)
    state = PageState(question=question, tiers=tuple(tiers) or opened.shown, history=turns)
    return asyncio.run(page.render(state))


@cache
def list_own_elements() -> set[str]:
    """The names of the elements in pages without a text of anybody else."""
    example = [Question("1", "one")]
    pages = (write(app.search, history=["a turn"]), write(app.search, "", questions=example))
    return {tag for page in pages for tag, _ in Reader(page).elements}


TEXTS = st.text(min_size=1, max_size=40)


@given(question=TEXTS, text=TEXTS, title=TEXTS)
@settings(max_examples=25, deadline=None)
def test_no_text_becomes_markup(question: str, text: str, title: str) -> None:
    rows = [
        {"id": "1", "score": 0.9, "metadata": {"text": text, "title": title}},
        {"id": title, "score": 0.8},
    ]
    wrapped = qtm.QueryMiddleware().wrap(lambda query: rows)
    elements = Reader(write(wrapped, question, history=[text])).elements
    assert {tag for tag, _ in elements} <= list_own_elements()
    names = {name for _, attributes in elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "srcdoc")]
    addresses = [it.get("href") or it.get("src") or "?" for _, it in elements]
    own = ("?", "#", "../", "small/", "/static/page.", "data:image/svg+xml,")
    assert all(address.startswith(own) for address in addresses)


@given(*[st.text(st.characters(exclude_categories=["Cs"]))] * 3)
@settings(deadline=None)
def test_marking_words_changes_no_letter(text: str, question: str, model: str) -> None:
    assert "".join(piece for piece, _ in Keywords(question, model).mark(text)) == text


def test_words_are_marked_by_whose_they_are() -> None:
    pieces = Keywords("jaco dog l-15", "vet dog").mark("Jaco's dogs saw the vet 15 times: L-15.")
    marked = [("Jaco", "question"), ("dogs", "question"), ("vet", "model"), ("L-15", "question")]
    assert [piece for piece in pieces if piece[1]] == marked


def test_each_row_has_its_ranks_and_the_reason_of_explain_movement() -> None:
    page = write(app.search, tiers=("off", "decompose"))
    article = page[page.index('data-tier="decompose"') :]
    tiers = Tiers(app.search).all
    before, found = (tiers[name].function.retrieve(QUERY) for name in ("off", "decompose"))
    moved = explain_movement(found, before.matches)
    expected = [*moved.passages, *moved.dropped]
    rows = re.findall(r'<li class="row.*?</li>', article, re.DOTALL)
    assert len(rows) == len(expected) > len(moved.passages)
    for row, movement in zip(rows, expected, strict=True):
        start = movement.before or movement.question_place or ""
        assert f'data-start="{start}"' in row
        assert f">{movement.place or movement.last_place or '–'}</b>" in row
        whys = [unescape(why) for why in re.findall(r'<p class="why"><bdi>(.*?)</bdi>', row)]
        assert whys == ([movement.why] if movement.change != 0 else [])


@pytest.mark.parametrize(
    ("fn", "texts"),
    [
        (
            app.raising,
            [
                "ConnectionError: no route to &lt;b&gt;host&lt;/b&gt; with api_key=(not shown)",
                "There is no plain list, so no tier ran.",
            ],
        ),
        (
            app.down,
            [
                "transform.combined: unavailable (the service is down)",
                "rules and balanced give the plain list. Nobody judged which passage answers.",
            ],
        ),
    ],
)
def test_what_went_wrong_is_reported(fn: Any, texts: list[str]) -> None:
    page = write(fn)
    assert [text for text in texts if text not in page] == []


# --- headline and verdict -------------------------------------------------------------------------


def find_headline(page: str) -> str:
    found = re.search('id="headline">(.*?)</h2>', page)
    assert found
    return found[1]


# The rules put c first, a second, and drop b to the third place.
TEXTS_FOUND = {
    "a": "Jaco is a dog.",
    "b": "Nothing at all.",
    "c": "Jaco has health concerns.",
    "d": "Nothing else.",
}


def search(query: str, top_k: int = 2) -> list[dict[str, Any]]:
    rows = [
        {"id": id_, "score": 0.9 - at / 100, "text": text}
        for at, (id_, text) in enumerate(TEXTS_FOUND.items())
    ]
    return rows[:top_k]


def write_judged(grades: dict[str, int], **metadata: Any) -> str:
    """The page of a question with these *grades*."""
    wrapped = qtm.QueryMiddleware({"keywordEvidence": {"weight": 0.9}}).wrap(search)
    asked = Question("q", QUERY, metadata=metadata)
    return write(wrapped, questions=[asked], qrels={"q": grades})


@pytest.mark.parametrize(
    ("grades", "headline"),
    [
        ({"a": 2, "b": 1}, "The answer is 1st in the plain list: worse with rules (2nd)."),
        ({"c": 1}, "The answer is not in the plain list: better with rules (1st)."),
        ({"d": 1}, "The answer is in none of the lists."),
        ({"b": 1, "c": 1}, "The first of 2 answers is 2nd in the plain list: better with rules"),
        ({}, "rules replaces 1 of the 2 passages. Nobody judged which passage answers."),
    ],
)
def test_a_headline_says_where_the_answer_is_or_else_how_the_lists_change(
    grades: dict[str, int], headline: str
) -> None:
    assert find_headline(write_judged(grades)).startswith(headline)


def test_a_question_that_no_passage_answers_is_reported() -> None:
    page = write_judged({"a": 0}, type="unanswerable")
    said = "No passage answers this question. Every tier still returns 2 passages."
    assert find_headline(page) == said
    assert "★ answer" not in page


def test_the_verdict_has_place_time_calls_and_dollars_of_every_tier() -> None:
    def read_verdict(page: str) -> list[list[str]]:
        rows = re.findall(r'<tr class="(\w+)">(.*?)</tr>', page)
        cells = [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for _, row in rows]
        return [
            [kind, *(re.sub("<.*?>", "", cell) for cell in row)]
            for (kind, _), row in zip(rows, cells, strict=True)
        ]

    page = write_judged({"a": 1})
    # The answer is marked in both lists.
    assert page.count("★ answer") == 2
    plain, rules = read_verdict(page)
    assert plain[:3] == ["none", "off", "1st"]
    assert rules[:3] == ["worse", "rules", "2nd ▼, worse than the plain list"]
    assert re.fullmatch(r"[\d.]+ m?s", plain[3])
    assert re.fullmatch(r"\+[\d.]+ m?s", rules[3])
    assert plain[4:] == rules[4:] == ["0", "$0.00"]
    combined = read_verdict(write(app.search))[-1]
    assert (combined[0], combined[1], combined[4]) == ("none", "balanced", "1")


# --- who is answered ------------------------------------------------------------------------------


def get(path: str, **headers: str) -> httpx.Response:
    page = Page(Tiers(qtm.QueryMiddleware().wrap(app.plain)), name="x")
    transport = httpx.ASGITransport(build_app(page))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(send())


def test_the_page_loads_only_its_own_files() -> None:
    response = get("/")
    assert response.status_code == 200
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
    assert "frame-ancestors 'none'" in policy
    assert response.headers["cache-control"] == "no-store"
    for name in re.findall(r'="(/static/.*?)"', response.text):
        assert get(name).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example:8765"}, 400),
        ({"host": "localhost:8765"}, 200),
    ],
)
def test_other_sites_and_other_host_names_get_no_page(headers: dict[str, str], status: int) -> None:
    response = get("/?q=Jaco", **headers)
    assert response.status_code == status
    assert ("Jaco" in response.text) == (status == 200)


def test_a_port_that_is_taken_is_an_error_only_if_it_was_asked_for() -> None:
    with open_socket(0) as first:
        host, port = first.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"port {port} .*leave --port out"):
            open_socket(port)
    with open_socket(None) as one, open_socket(None) as other:
        assert one.getsockname() != other.getsockname()
