"""What the model is asked about one question, and what is made of its replies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.config.keys import key_of
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import Span, protected_spans
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.steps import Ask, Outcome
from qtmiddleware.transforms import (
    Facts,
    build_prompts,
    build_standalone_prompt,
    guard,
    is_within_limits,
    merge,
    parse,
)
from qtmiddleware.transforms.anchors import Anchors
from qtmiddleware.types import Deadline, Degradation, Message, Trace, Transformation


class Question:
    """What the model is asked about one query, in one round of *prompts* or two; *degradations* are what went wrong.

    Two rounds are needed only where several prompts depend on the standalone form of a follow-up.
    *facts* are what the glossary says of the query; *anchors* are told with every prompt, if the
    query leans on today.
    """

    __slots__ = (
        "_anchors",
        "_facts",
        "_history",
        "_is_last_round",
        "_settings",
        "_transformation",
        "degradations",
        "prompts",
        "query",
    )

    def __init__(
        self,
        query: str,
        history: tuple[Message, ...],
        settings: Settings,
        facts: Facts = (),
        anchors: Anchors | None = None,
    ) -> None:
        self._anchors = anchors
        self.query = query
        self.degradations: list[Degradation] = []
        self._history = history
        self._settings = settings
        self._facts = tuple(facts)
        self._transformation = NOTHING
        self._is_last_round = not (history and settings.transformation_type == "all")
        self.prompts = self._add_anchors(
            self._limit_calls(build_prompts(settings, query, history, facts))
            if self._is_last_round
            else (build_standalone_prompt(settings, query, history, facts),)
        )

    def _add_anchors(self, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
        return prompts if self._anchors is None else tuple(map(self._anchors.add_to, prompts))

    def _limit_calls(self, prompts: tuple[Prompt, ...], spent: int = 0) -> tuple[Prompt, ...]:
        return prompts[: max(0, self._settings.escalation.max_llm_calls_per_query - spent)]

    def cache_key(self, model: str) -> Hashable:
        """What two questions must share to share a transformation."""
        return (
            model,
            key_of(self._settings, "reply"),
            tuple((prompt.mode, prompt.version) for prompt in self.prompts),
            self.query,
            tuple((message.role, message.content) for message in self._history),
            # Without a term the key is what it was before there was a glossary.
            *((self._facts,) if self._facts else ()),
        )

    def accepts(self, transformation: Transformation) -> bool:
        """Whether replies to the prompts could give *transformation*, which comes from a shared cache."""
        prompts = build_prompts(self._settings, self.query, self._history)
        return is_within_limits(
            transformation, [field for prompt in prompts for field in prompt.fields]
        )

    def build_asks(self, deadline: Deadline) -> list[Ask]:
        """The steps of this round; each has its own deadline, since each may be cancelled alone."""
        return [Ask(prompt, deadline.copy()) for prompt in self.prompts]

    def read_replies(self, outcomes: Sequence[Outcome], trace: Trace) -> bool:
        """Take in the replies of this round; returns whether another round is to be asked."""
        parts = [
            part
            for prompt, outcome in zip(self.prompts, outcomes, strict=True)
            if (part := self._read_reply(prompt, outcome, trace)) is not None
        ]
        replies = [outcome.value for outcome in outcomes if outcome.value is not None]
        # They were asked side by side.
        trace.replayed_ms += 1e3 * max((reply.seconds for reply in replies), default=0.0)
        self._transformation = merge([self._transformation, *parts])
        if self._is_last_round:
            return False
        self._is_last_round = True
        self.query = self._transformation.standalone or self.query
        prompts = self._limit_calls(
            build_prompts(self._settings, self.query, (), self._facts), spent=1
        )
        self.prompts = self._add_anchors(prompts)
        return bool(self.prompts)

    def _read_reply(self, prompt: Prompt, outcome: Outcome, trace: Trace) -> Transformation | None:
        """What one reply says; ``None``, and a degradation, where there is nothing usable."""
        stage, error = f"transform.{prompt.mode}", _find_error(outcome)
        if error is None:
            reply = outcome.value
            record_cost(trace, reply)
            try:
                part = parse(prompt, reply)
            except ModelError as unusable:
                error = unusable
                trace.notes.extend(unusable.notes)
            else:
                trace.stage(stage, outcome.seconds, began=outcome.began)
                return part
        elif error.was_asked:
            # A model that was at work has cost something, and nobody says how much.
            trace.spent(
                calls=1, input_tokens=0, output_tokens=0, cost_usd=0.0 if error.is_free else None
            )
        trace.stage(stage, outcome.seconds, "degraded", error.reason, began=outcome.began)
        self.degradations.append(
            Degradation(stage, error.reason, "" if outcome.late else str(error))
        )
        return None

    def guard_replies(self, original: str, spans: Sequence[Span], language: str) -> Transformation:
        """The transformation of all replies, repaired or dropped where it lost what it had to keep.

        In a conversation the standalone form is compared with the user's words, and all else with
        it.
        """
        transformation = self._transformation
        if transformation.is_empty or not self._settings.llm.guard:
            return transformation
        reference = original
        if transformation.standalone:
            form = Transformation(standalone=transformation.standalone)
            alone = _guard(form, original, spans, language, self._facts)
            notes = transformation.notes + alone.notes
            transformation = replace(transformation, standalone=alone.standalone, notes=notes)
            if transformation.standalone:
                reference = transformation.standalone
                spans = protected_spans(reference, language=language)
                spans = spans if self._anchors is None else self._anchors.drop_relative(spans)
        kept = _guard(transformation, reference, spans, language, self._facts)
        if kept.is_empty:
            # The model did answer, and nothing of it may be searched.
            other_script = any(what == "language_mismatch" for _, what in kept.notes)
            why = "; ".join(
                f"{field} {what}" for field, what in kept.notes if what.startswith("dropped")
            )
            self.degradations.append(
                Degradation("transform", "language_mismatch" if other_script else "dropped", why)
            )
        return kept


def record_cost(trace: Trace, reply: Reply) -> None:
    """Add what *reply* cost to *trace*."""
    trace.spent(
        calls=reply.calls,
        input_tokens=reply.input_tokens,
        output_tokens=reply.output_tokens,
        cost_usd=reply.cost_usd,
    )


def _find_error(outcome: Outcome) -> ModelError | None:
    if outcome.late:
        return ModelError("timeout")
    if outcome.error is None or isinstance(outcome.error, ModelError):
        return outcome.error
    return ModelError("failed", type(outcome.error).__name__)


def _guard(
    transformation: Transformation, query: str, spans: Sequence[Span], language: str, facts: Facts
) -> Transformation:
    return guard(
        transformation,
        query=query,
        must_keep=[(span.kind, span.text) for span in spans],
        # Models fall into English. Between other languages of one script the difference is less
        # sure.
        may_be_english=language in ("auto", "en"),
        facts=facts,
    )
