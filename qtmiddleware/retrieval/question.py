"""Build the prompts for one question, and read the model's replies."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.config.introspection import read_marked_values
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import Span, find_protected_spans
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.runtime.io import Outcome
from qtmiddleware.transforms import (
    GlossaryTerms,
    build_prompts,
    guard_transformation,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.transforms.prompt import Anchors
from qtmiddleware.types import Degradation, Message, Trace, Transformation


class Question:
    """The prompts to the model about one query, and the model's replies.

    Attributes:
        query: The user's query.
        prompts: The prompts, which are asked at the same time.
        transformation: The texts of all replies that could be read.
        reply_degradations: The failed calls and unusable replies.
    """

    __slots__ = (
        "_anchors",
        "_glossary_terms",
        "_history",
        "_settings",
        "prompts",
        "query",
        "reply_degradations",
        "transformation",
    )

    def __init__(
        self,
        query: str,
        history: tuple[Message, ...],
        settings: Settings,
        glossary_terms: GlossaryTerms = (),
        anchors: Anchors | None = None,
    ) -> None:
        self._anchors = anchors
        self.query = query
        self.reply_degradations: list[Degradation] = []
        self._history = history
        self._settings = settings
        self._glossary_terms = tuple(glossary_terms)
        self.transformation = NOTHING
        self.prompts = build_prompts(settings, query, history, glossary_terms)
        # The dates help if the query depends on today's date.
        if anchors is not None:
            self.prompts = tuple(map(anchors.add_dates, self.prompts))

    def build_cache_key(self, model: str) -> Hashable:
        """Return the cache key of *model*, the text, its history, the settings and the prompts."""
        return (
            model,
            read_marked_values(self._settings, Mark.REPLY),
            tuple((prompt.mode, prompt.version) for prompt in self.prompts),
            self.query,
            tuple((message.role, message.content) for message in self._history),
            self._glossary_terms,
        )

    def can_use_transformation(self, transformation: Transformation) -> bool:
        """Return whether a cached *transformation* is within the limits of the prompts."""
        return is_within_limits(
            transformation, [field for prompt in self.prompts for field in prompt.fields]
        )

    def read_replies(self, outcomes: Sequence[Outcome[Reply]], trace: Trace) -> None:
        """Read the replies to all prompts into `transformation`."""
        replies = [outcome.value for outcome in outcomes if outcome.value is not None]
        # The prompts are asked at the same time, so the slowest reply counts.
        trace.replayed_ms += 1e3 * max((reply.seconds for reply in replies), default=0.0)
        transformations = [
            transformation
            for prompt, outcome in zip(self.prompts, outcomes, strict=True)
            if (transformation := self._read_reply(prompt, outcome, trace)) is not None
        ]
        self.transformation = merge_transformations(transformations)

    def _read_reply(
        self, prompt: Prompt, outcome: Outcome[Reply], trace: Trace
    ) -> Transformation | None:
        stage = f"transform.{prompt.mode}"
        error = _find_model_error(outcome)
        if error is None:
            reply = outcome.get()
            record_cost(trace, reply)
            try:
                transformation = parse_transformation(prompt, reply)
            except ModelError as unusable:
                error = unusable
                trace.notes.extend(unusable.notes)
            else:
                trace.record_stage(stage, outcome.seconds, began=outcome.began)
                return transformation
        elif error.was_asked:
            # The model was asked, so the call cost something. Unless it is known to be free, the
            # amount is unknown.
            trace.record_usage(
                calls=1, input_tokens=0, output_tokens=0, cost_usd=0.0 if error.is_free else None
            )
        trace.record_stage(stage, outcome.seconds, "degraded", error.reason, began=outcome.began)
        self.reply_degradations.append(
            Degradation(stage, error.reason, "" if outcome.late else str(error))
        )
        return None

    def repair_or_drop_texts(
        self, original_query: str, protected_spans: Sequence[Span], language: str
    ) -> Transformation:
        """Return the model's texts after a check that no required part of the query is missing.

        A text that lacks such a part is repaired if possible, or else dropped. In a conversation,
        the standalone form is compared with the user's query, and all other texts are compared with
        the standalone form.
        """
        transformation = self.transformation
        if transformation.is_empty or not self._settings.llm.guard:
            return transformation
        guard = partial(
            guard_transformation,
            # Models may answer in English, which is easy to detect. Other languages with the same
            # script are harder to tell apart.
            may_be_english=language in ("auto", "en"),
            glossary=self._glossary_terms,
            conversation=" ".join(message.content for message in self._history),
        )
        reference = original_query
        if transformation.standalone:
            guarded_form = guard(
                Transformation(standalone=transformation.standalone),
                query=original_query,
                required_spans=_list_required(protected_spans),
            )
            notes = transformation.notes + guarded_form.notes
            transformation = replace(
                transformation, standalone=guarded_form.standalone, notes=notes
            )
            if transformation.standalone:
                reference = transformation.standalone
                protected_spans = find_protected_spans(reference, language=language)
                if self._anchors is not None:
                    protected_spans = self._anchors.drop_relative_spans(protected_spans)
        guarded = guard(
            transformation, query=reference, required_spans=_list_required(protected_spans)
        )
        if guarded.is_empty:
            # The model answered, but none of its texts may be searched.
            other_script = any(note == "language_mismatch" for _, note in guarded.notes)
            reasons = "; ".join(
                f"{field} {note}" for field, note in guarded.notes if note.startswith("dropped")
            )
            self.reply_degradations.append(
                Degradation(
                    "transform", "language_mismatch" if other_script else "dropped", reasons
                )
            )
        return guarded


def record_cost(trace: Trace, reply: Reply) -> None:
    """Add the calls, tokens and cost of *reply* to *trace*."""
    trace.record_usage(
        calls=reply.calls,
        input_tokens=reply.input_tokens,
        output_tokens=reply.output_tokens,
        cost_usd=reply.cost_usd,
    )


def _find_model_error(outcome: Outcome[Reply]) -> ModelError | None:
    if outcome.late:
        return ModelError("timeout")
    if outcome.error is None or isinstance(outcome.error, ModelError):
        return outcome.error
    return ModelError("failed", type(outcome.error).__name__)


def _list_required(spans: Sequence[Span]) -> list[tuple[str, str]]:
    return [(span.kind, span.text) for span in spans]
