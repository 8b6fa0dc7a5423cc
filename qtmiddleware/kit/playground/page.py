"""Render the playground's page, and answer its requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from qtmiddleware.kit.evaluation.dataset import Dataset, Question
from qtmiddleware.kit.evaluation.report import load_template
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.kit.playground.view import build_cards, compare_places, write_headline
from qtmiddleware.preprocessing.hidden_characters import escape_hidden
from qtmiddleware.types import Message

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

FEW: Final = 6
"""The number of examples that the page shows at first. A click shows the other examples."""
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src data:;"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


@dataclass(eq=False)
class Page:
    """The page that compares the results of several tiers for one question.

    Attributes:
        tiers: The configurations to compare.
        name: The name of the function, index or collection.
        dataset: The example questions with their judgements.
        examples: The kind of each example by question id. Default: all questions, without kind.
        notes: Sentences to show below the verdict.
    """

    tiers: Tiers
    name: str
    dataset: Dataset | None = None
    examples: Mapping[str, str] | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Pair each example with its kind, and find the answers of each judged question."""
        self._examples: list[tuple[str, Question]] = []
        # An address holds the question's text and not its id, so the text finds the answers.
        self._answers: dict[tuple[str, Sequence[Message]], frozenset[str]] = {}
        dataset = self.dataset
        if dataset is None:
            return
        questions = {question.id: question for question in dataset.questions}
        kinds = self.examples
        if kinds is None:
            kinds = dict.fromkeys(questions, "")
        self._examples = [(kind, questions[id_]) for id_, kind in kinds.items()]
        for question in questions.values():
            answers = _find_answers(question, dataset)
            if answers is not None:
                self._answers[question.text.strip(), question.history] = answers

    async def respond(self, request: Request) -> Response:
        """Return the page for the question in the address of *request*."""
        from starlette.responses import PlainTextResponse, RedirectResponse, Response

        # Browsers send this header, and a page cannot change it.
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Copy the address into the browser's address bar.\n", 403)
        parameters = request.query_params.multi_items()
        state = PageState.from_parameters(parameters, tuple(self.tiers.all), self.tiers.shown)
        # A form also sends its blank fields. The address without them can be kept.
        if not state.problems and parameters != state.list_parameters(self.tiers.shown):
            return RedirectResponse(state.format_link(self.tiers.shown), 303)
        content = (await self.render(state)).encode("utf-8", "replace")
        return Response(content, headers=_HEADERS, media_type="text/html; charset=utf-8")

    async def render(self, state: PageState) -> str:
        """Ask the tiers in *state*, and return the page as HTML."""
        cards, headline = [], "No question has been asked."
        answers = self._answers.get((state.question.strip(), state.history))
        is_asked = bool(state.question.strip())
        if is_asked:
            asked = await self.tiers.ask(state)
            cards = build_cards(asked, self.tiers, answers or ())
            headline = write_headline(cards, None if answers is None else len(answers))

        def link(question: Question) -> str:
            asked = replace(state, question=question.text, history=question.history)
            return asked.format_link(self.tiers.shown)

        return load_template(__package__, "cli", "page.html.jinja").render(
            page=self,
            state=state,
            is_asked=is_asked,
            examples=[(kind, question.text, link(question)) for kind, question in self._examples],
            few=FEW,
            cards=cards,
            headline=headline,
            is_judged=bool(answers),
            ways={card.tier.name: compare_places(card, cards[0]) for card in cards},
            follow_up=state.follow_up().format_link(self.tiers.shown),
            clean=escape_hidden,
        )


def _find_answers(
    question: Question,
    dataset: Dataset,
) -> frozenset[str] | None:
    """Return the ids of the passages with the question's highest grade.

    The set is empty if no passage answers the question. ``None`` means that nobody judged it.
    """
    if question.metadata.get("type") == "unanswerable":
        return frozenset()
    grades = dataset.qrels.get(question.id, {})
    best = max(grades.values(), default=0)
    if best <= 0:
        return None
    return frozenset(id_ for id_, grade in grades.items() if grade == best)
