"""A report of hostile texts is a page that does nothing and Markdown whose tables hold."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from qtmiddleware.kit.evaluation import Comparison, Dataset, report_comparison
from qtmiddleware.kit.evaluation.report import rows
from qtmiddleware.types import Message
from tests.support.hostile_corpus import SHORT
from tests.support.report_world import Open, comparison, data, run, score

pytestmark = pytest.mark.thorough


def told(texts: list[str]) -> Comparison:
    """A comparison in which everything that others write is one of *texts*; each is a question that was hurt."""
    runs = {
        text: run(text, text=text, ids=(text, "p1"), variants=[("hyde", text, 0.5)])
        for text in texts
    }
    gains = {text: -0.2 - at / 100 for at, text in enumerate(texts)}
    return comparison(score(f"{texts[0]}!", gains, runs=runs), notes=texts[:2], name=texts[-1])


def page(found: Comparison, known: Dataset | None = None) -> str:
    return report_comparison(found, known).to_html()


def markdown(found: Comparison, known: Dataset | None = None) -> str:
    return report_comparison(found, known).to_markdown()


BATCH = 10
BATCHES = [[it.text for it in SHORT[at : at + BATCH]] for at in range(0, len(SHORT) - BATCH, BATCH)]


class Tags(HTMLParser):
    """The tags and the names of attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def written(texts: list[str]) -> str:
    found = told(texts)
    return page(found, data(found, words=texts[0], history=[Message("user", texts[-1])]))


def test_a_page_of_hostile_texts_has_the_tags_of_one_of_plain_texts_and_no_other() -> None:
    plain = [f"plain words {number}" for number in range(BATCH)]
    wanted = set(Tags(written(plain)).found)
    for texts in BATCHES:
        html = written(texts)
        html.encode()
        assert set(Tags(html).found) <= wanted
        assert "\x1b" not in html
        assert "\u202e" not in html


def count_bars(text: str) -> list[int]:
    rows = [line for line in text.splitlines() if line[:1] == "|"]
    return [row.replace("\\\\", "").replace("\\|", "").count("|") for row in rows]


def test_markdown_of_hostile_texts_has_the_lines_of_one_of_plain_texts() -> None:
    plain_texts = [f"plain words {number}" for number in range(BATCH)]
    found = told(plain_texts)
    plain = markdown(found, data(found, words=plain_texts[0]))
    bars = count_bars(plain)
    for texts in BATCHES:
        found = told(texts)
        text = markdown(found, data(found, words=texts[0]))
        text.encode()
        lines = text.splitlines()
        assert count_bars(text) == bars
        assert len(lines) == len(plain.splitlines())
        assert "<" not in text.replace("&lt;", "")
        assert all("\n" not in cell for row in rows(found) for cell in row)


ACTING = (
    "</script><script>hacked = 1</script><img src=x onerror='hacked = 2'>\"><svg onload=alert(3)>"
    "<a href='javascript:hacked = 4'>\u202ex</a></title></style><iframe src='http://localhost:9/'></iframe>{{ 7 * 7 }}"
)


def test_nothing_of_them_runs_or_loads_in_a_real_browser(opened: Open) -> None:
    picked = [ACTING, *(it.text for it in SHORT if it.category in ("html", "template", "xml"))]
    for texts in (picked[:10], picked[12:22]):
        shown = opened(told(texts), words="".join(texts)[:400])
        for label in shown.locator("details summary").all():
            label.click()
        if texts[0] is ACTING:
            header = shown.locator("main").inner_text()
            assert "<img src=x onerror='hacked = 2'>" in header
            assert "{{ 7 * 7 }}" in header
        assert shown.evaluate("typeof hacked") == "undefined"
        loads = "document.querySelectorAll('img, iframe, a, base, object, embed, script').length"
        assert shown.evaluate(loads) == 0
        acts = "[...document.querySelectorAll('*')].some(it => it.onload || it.onerror)"
        assert shown.evaluate(acts) is False
        shown.close()
