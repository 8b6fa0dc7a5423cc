"""Render the playground's page in pieces of HTML, so that the server can send each when ready."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from qtmiddleware.kit.evaluation import figures
from qtmiddleware.kit.evaluation.dataset import Question
from qtmiddleware.kit.evaluation.report import build_environment
from qtmiddleware.kit.playground.asked import KNOBS, TOP_K, Knob, PageState
from qtmiddleware.kit.playground.cards import Card, build_card
from qtmiddleware.kit.playground.tiers import TierAnswer, Tiers
from qtmiddleware.kit.playground.verdict import format_headline, judge_tiers
from qtmiddleware.runtime.control_characters import escape_hidden
from qtmiddleware.types import Retrieval

if TYPE_CHECKING:
    import jinja2

FEW: Final = 6
"""The number of examples that the page shows at first. A click shows the other examples."""
UNANSWERABLE: Final = "unanswerable"
"""The ``type`` in the metadata of a question that no passage answers."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example question on the page.

    Attributes:
        question: The question to ask.
        kind: The type of the question, such as ``typo``; empty if unknown.
        link: The address of the page with this question.
    """

    question: Question
    kind: str
    link: str


class Page:
    """The playground's page, which compares the results of several tiers (configurations).

    Attributes:
        tiers: The configurations to compare.
        name: The name of the function, index or collection on the page.
        examples: The example questions.
        notes: Sentences shown on the page.
        collections: The name and the link of each page; the link of this page is empty.
    """

    def __init__(
        self,
        tiers: Tiers,
        *,
        name: str,
        examples: Sequence[Question] = (),
        notes: Sequence[str] = (),
        qrels: Mapping[str, Mapping[str, int]] | None = None,
        judged_questions: Sequence[Question] = (),
        example_types: Mapping[str, str] | None = None,
        collections: Sequence[tuple[str, str]] = (),
        skip_reason: str = "",
    ) -> None:
        """Set up the page.

        Args:
            tiers: The configurations to compare.
            name: The name of the function, index or collection on the page.
            examples: The example questions.
            notes: Sentences shown on the page.
            qrels: The grades of passages, by question id and passage id.
            judged_questions: The questions with grades in *qrels*. Default: the *examples*.
            example_types: The type of each example, by question id.
            collections: The name and the link of each page; the link of this page is empty.
            skip_reason: A sentence on why no model replies. The page shows the sentence instead of
                the tiers that need a model.
        """
        self.tiers = tiers
        # The address holds the question's text and not its id, so the text finds the answers.
        self._answers = {
            (question.text.strip(), question.history): answers
            for question in judged_questions or examples
            if (answers := _find_answer_ids(question, (qrels or {}).get(question.id, {})))
            is not None
        }
        self.name = name
        self.examples = tuple(examples)
        self.notes = tuple(notes)
        self.collections = tuple(collections)
        self._example_types = dict(example_types or {})
        self._skip_reason = skip_reason
        self._environment = _load_template_environment()

    def render_head(self, state: PageState, nonce: str, *, is_running: bool) -> str:
        """Return the first piece of the page's HTML: the form, and one empty area per tier.

        Args:
            state: The question and its settings.
            nonce: The random value that allows the page's own script and style.
            is_running: Whether the tiers run. If false, the HTML contains no areas.
        """
        default_tiers = self.tiers.shown
        folded = self.tiers.list_skipped_tiers(state) if is_running else ()
        chosen = [
            tier for tier in self.tiers.all if tier.name in state.tiers and tier.name not in folded
        ]
        examples = [self._build_example(question, state) for question in self.examples]
        return self._render_template(
            "head",
            state=state,
            nonce=nonce,
            style=_read_page_file("page.css"),
            script=_read_page_file("page.js"),
            waiting=_read_page_file("waiting.css"),
            page=self,
            chosen=chosen,
            is_running=is_running,
            # Without an argument of the function, the page cannot set the number of passages.
            knobs=[
                knob
                for knob in KNOBS.values()
                if knob.key != TOP_K or self.tiers.has_top_k_argument
            ],
            describe_usual=self._format_default_value,
            follow_up=state.build_follow_up().format_query_string(default_tiers),
            examples=examples[:FEW],
            more=examples[FEW:],
        )

    def _build_example(self, question: Question, state: PageState) -> Example:
        """Return an example whose link asks *question* with the settings in *state*."""
        link = replace(state, question=question.text, history=question.history).format_query_string(
            self.tiers.shown
        )
        return Example(question, self._example_types.get(question.id, ""), link)

    def render_card(self, card: Card) -> str:
        """Return the HTML of one tier's result, which *card* contains."""
        return self._render_template("card", card=card)

    def render_tail(self, state: PageState, cards: Sequence[Card], problem: str = "") -> str:
        """Return the HTML after the results: the verdict, a table of the tiers, and remarks.

        Args:
            state: The question and its settings.
            cards: The tiers' results.
            problem: An error message to show instead of the verdict; empty without an error.
        """
        # The cards come in the order in which the tiers finished; the table has a fixed order.
        card_by_tier = {card.tier.name: card for card in cards}
        ordered = [card_by_tier[tier.name] for tier in self.tiers.all if tier.name in card_by_tier]
        folded = self.tiers.list_skipped_tiers(state)
        return self._render_template(
            "tail",
            state=state,
            page=self,
            cards=ordered,
            problem=problem,
            table=list(_build_comparison_rows(ordered)),
            sums=list(_list_figures_by_tier(ordered)),
            folded=folded if ordered else (),
            why_folded=self._skip_reason,
            verdict=None if problem or len(ordered) < 2 else judge_tiers(ordered),
            headline="" if problem else format_headline(ordered),
            unanswered=[
                name for name in state.tiers if name not in card_by_tier and name not in folded
            ],
        )

    def render_foot(self, *, is_running: bool) -> str:
        """Return the last piece of the page's HTML."""
        return self._render_template("foot", is_running=is_running)

    def make_card(self, answer: TierAnswer, state: PageState, baseline: Retrieval | None) -> Card:
        """Return a tier's *answer* prepared for the page, compared with the plain search.

        *baseline* is the result of the plain search; ``None`` if the plain search failed.
        """
        config = json.dumps(
            self.tiers.build_config_values(answer.tier, state), indent=2, ensure_ascii=False
        )
        answers = self._answers.get((state.question.strip(), state.history))
        return build_card(answer, state, baseline, answers, config)

    def _format_default_value(self, knob: Knob) -> str:
        """Return the default value of the setting *knob* as text, to show in the empty field."""
        settings = self.tiers.settings
        if knob.key == TOP_K:
            return str(settings.top_k)
        if knob.choices:
            return str(settings.fusion.method)
        return knob.usual

    def _render_template(self, template_name: str, **values: Any) -> str:
        """Return the HTML of the template *template_name* with *values*."""
        template = self._environment.get_template(f"{template_name}.html.jinja")
        return template.render(figures=figures, rem=_convert_to_rem, clean=escape_hidden, **values)


def _find_answer_ids(question: Question, grades: Mapping[str, int]) -> frozenset[str] | None:
    """Return the ids of the passages that answer *question*: those with the highest grade.

    Returns an empty set if the question has no answer, and ``None`` if no passage has a grade.
    """
    best = max(grades.values(), default=0)
    if question.metadata.get("type") == UNANSWERABLE:
        return frozenset()
    return frozenset(id_ for id_, grade in grades.items() if grade == best) if best > 0 else None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A row of the table that compares all tiers: the ranks of one passage.

    Attributes:
        key: Identifies the passage on the page.
        title: The passage's title.
        cells: The passage's rank and direction of movement, one pair per tier.
        is_answer: Whether the passage answers the question, according to the judgements.
    """

    key: str
    title: str
    cells: tuple[tuple[str, str], ...]
    is_answer: bool


def _build_comparison_rows(cards: Sequence[Card]) -> Iterator[ComparedRow]:
    """Yield one row per passage that any tier found, in order of first appearance."""
    rows_by_card = [{row.key: row for row in card.rows} for card in cards]
    answers = {key for rows in rows_by_card for key, row in rows.items() if row.is_answer}
    titles = {key: row.title for rows in rows_by_card for key, row in reversed(rows.items())}
    for key in dict.fromkeys(key for rows in rows_by_card for key in rows):
        cells = [
            (str(rows[key].place), rows[key].way) if key in rows else ("–", "none")
            for rows in rows_by_card
        ]
        yield ComparedRow(key, titles[key], tuple(cells), key in answers)


def _list_figures_by_tier(cards: Sequence[Card]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each figure, such as a time or a cost, with one value per tier."""
    figures_by_tier = [dict(card.figures) for card in cards]
    for name in dict.fromkeys(name for tier_figures in figures_by_tier for name in tier_figures):
        yield name, [tier_figures.get(name, figures.UNKNOWN) for tier_figures in figures_by_tier]


def _convert_to_rem(pixels: float) -> str:
    """Convert *pixels* to a CSS length in rem; 1 rem is 16 pixels."""
    return f"{pixels / 16:g}rem"


@cache
def _load_template_environment() -> jinja2.Environment:
    return build_environment(_read_page_file, "cli")


@cache
def _read_page_file(file_name: str) -> str:
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")
