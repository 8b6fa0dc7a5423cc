"""The flow of one answer, written once.

    retrieve ─┬─ plain: passages ─────────────────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: (retrieve ─ ask ─ read) × n ─── sub-answers ──┘

The last call of the model is apart from what comes before it, so that it can be streamed: `retrieved` and `drafted` are
flows, and what the model then says is `concluded`, however it came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any, Final

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import LanguageModel, Prompt
from qtmiddleware.rag.answering.calling import accounted
from qtmiddleware.rag.answering.passages import shown
from qtmiddleware.rag.answering.prompts import ANSWER, SYNTHESIS, Task, sub_answer_entries
from qtmiddleware.rag.answering.reading import Reading
from qtmiddleware.rag.answering.sentences import not_there
from qtmiddleware.rag.answering.sub_answers import SubAnswering, best, decomposing, together
from qtmiddleware.retrieval.pipeline import retrieve
from qtmiddleware.retrieval.request import Request
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.steps import Ask, Flow, Outcome, Together
from qtmiddleware.types import Answer, Citation, Deadline, Degradation, Match, Retrieval, SubAnswer

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer of which the model's last word is missing: the *prompt* for it and the *matches* it may cite.

    *parts* are the sub-answers it is made of in a synthesis, counting in *matches*.
    """

    stage: str
    prompt: Prompt
    matches: tuple[Match, ...] = field(repr=False)
    parts: tuple[SubAnswer, ...] = ()

    def reading(self) -> Reading:
        """What reads the reply."""
        return Reading(self.matches)


class Answering:
    """One answer under way. *finished* is told of the retrieval once everything is in its trace."""

    def __init__(self, request: Request, chat: LanguageModel, finished: Callable[[Retrieval], Retrieval]) -> None:
        self.chat = chat
        self.retrieval: Retrieval | None = None
        self.is_over = False
        self._asked = ""
        self._request = request
        self._settings = request.settings
        self._finished = finished
        self._trouble: list[Degradation] = []
        self._errors: list[ModelError] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()

    @property
    def is_synthesis(self) -> bool:
        """Whether the question is to be answered part by part."""
        return self._settings.answer.mode == "synthesis"

    def asking(self, draft: Draft) -> Deadline:
        """How long the call for *draft*, which is made now, is waited for."""
        self._asked = draft.stage
        return Deadline.after(self._settings.answer.timeout_ms / 1e3)

    def flow(self) -> Flow[Answer]:
        """The whole flow; raises what the wrapped function raises, and `ModelError` where there is no answer."""
        yield from self.retrieved()
        draft = yield from self.drafted()
        if isinstance(draft, Answer):
            return draft
        patience = self.asking(draft)
        (outcome,) = yield Together((Ask(draft.prompt, Deadline(patience.at), self.chat),), patience, 1)
        reading = draft.reading()
        if outcome.ok:
            reading.feed(outcome.value.text)
            reading.end()
        return self.concluded(draft, outcome, reading)

    def retrieved(self) -> Flow[Retrieval]:
        """What is found for the question."""
        request = self._request
        if self.is_synthesis:
            request = changed(request, settings=decomposing(self._settings))
        self.retrieval = yield from retrieve(request)
        return self.retrieval

    def drafted(self) -> Flow[Draft | Answer]:
        """What to ask the model last, or the answer where there is nothing to ask it."""
        questions = self._known.transformation.sub_queries if self.is_synthesis else ()
        # One sub-query alone is the question in other words.
        if len(questions) > 1:
            draft = yield from self._synthesis(questions)
            if draft is not None:
                return draft
        passages = shown(self._known.matches, self._settings.answer.context_chars)
        if not passages.matches:
            if self._known.matches:
                detail = f"{len(self._known.matches)} matches without a text; keywordEvidence.textField names its field"
                self._trouble.append(Degradation("passages", "no_text", detail))
            return self._answer(not_there(self._request.original), found=False)
        return Draft("answer", self._prompt(ANSWER, {"passages": passages.entries}), passages.matches)

    def _synthesis(self, questions: tuple[str, ...]) -> Flow[Draft | None]:
        asking = SubAnswering(self._request, self.chat, self._known.trace)
        self._sub_answers = yield from asking.flow(questions)
        self._trouble.extend(asking.trouble)
        self._errors.extend(asking.errors)
        # That the passages do not hold an answer is no failure, but nothing to make an answer of either.
        useful = [answer for answer in self._sub_answers if answer.found]
        if len(useful) < min(self._settings.fusion.min_successes, len(questions)):
            detail = f"{len(useful)} of {len(questions)} sub-queries answered"
            self._trouble.append(Degradation("sub_answers", "too_few_successes", detail))
            return None
        matches, parts = together(useful)
        prompt = self._prompt(SYNTHESIS, {"sub_answers": sub_answer_entries(parts)})
        return Draft("synthesis", prompt, matches, parts)

    def _prompt(self, task: Task, material: Mapping[str, Any]) -> Prompt:
        return task.prompt(self._settings, self._request.original, self._request.history, material)

    def concluded(self, draft: Draft, outcome: Outcome, reading: Reading) -> Answer:
        """The answer, once the model has said its last word, which *reading* has read; raises `ModelError`.

        A synthesis that failed leaves the best of its parts.
        """
        error = accounted(draft.stage, outcome, self._known.trace) or reading.error
        if error is not None:
            if not draft.parts:
                raise self._failed(error)
            self._trouble.append(Degradation(draft.stage, error.reason, str(error)))
            part = best(draft.parts)
            return self._answer(part.text, part.citations, draft.matches)
        if reading.invented:
            self._trouble.append(Degradation("citations", "invented", f"{reading.invented} removed"))
        if outcome.value.truncated:
            self._trouble.append(Degradation(draft.stage, "truncated"))
        text = reading.text or not_there(self._request.original)
        return self._answer(text, reading.citations, draft.matches, found=reading.found)

    def abandoned(self) -> None:
        """Nobody wants the rest of it."""
        if self.retrieval is not None and not self.is_over:
            if self._asked:
                # What it cost is not known, but it was asked.
                self.retrieval.trace.spent(calls=1, input_tokens=0, output_tokens=0, cost_usd=None)
            self.retrieval.trace.stage(self._asked or "answer", 0.0, "skipped", "closed")
            self._settled()

    @property
    def _known(self) -> Retrieval:
        if self.retrieval is None:
            raise RuntimeError("nothing was retrieved yet")
        return self.retrieval

    def _settled(self) -> Retrieval:
        self.is_over = True
        self._known.trace.finish()
        self.retrieval = self._finished(self._known)
        return self.retrieval

    def _failed(self, error: ModelError) -> ModelError:
        """The first thing that went wrong with the model, with what was retrieved all the same."""
        first = next(iter(self._errors), error)
        first.retrieval = self._settled()
        return first

    def _answer(
        self,
        text: str,
        citations: tuple[Citation, ...] = (),
        matches: tuple[Match, ...] = (),
        *,
        found: bool = True,
    ) -> Answer:
        cited = f"{len({it.number for it in citations})} of {len(matches)} passages cited"
        self._known.trace.note("answer", cited if found else "not in the passages")
        retrieval = self._settled()
        kinds = [f"{it.stage} {it.reason}" for it in self._trouble]
        said = f"answer {retrieval.trace.query_id} degraded"
        self._request.memory.sampler.log(logger, "answer degraded", kinds, said=said)
        trouble = (*retrieval.degradations, *self._trouble)
        return Answer(
            text=text,
            citations=citations,
            matches=matches,
            retrieval=retrieval,
            found=found,
            sub_answers=self._sub_answers,
            status="degraded" if trouble else "full",
            degradations=trouble,
        )
