"""Get the model's transformation of one question, from the cache if possible."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import Span, find_protected_spans
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.retrieval.history import is_new_topic
from qtmiddleware.retrieval.question_words import find_words
from qtmiddleware.retrieval.state import State
from qtmiddleware.runtime.cache import follow_flight
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.runtime.services import Services
from qtmiddleware.transforms import (
    GlossaryTerms,
    build_prompts,
    guard_conversation,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.transforms.prompt import Anchors, select_recent_messages
from qtmiddleware.types import (
    Deadline,
    Decision,
    Degradation,
    Message,
    Transformation,
)

# A leader that is this many seconds past its deadline was stopped before it could share a result.
_GRACE: Final = 1.0

# Reasons that concern only the leader. Another request for the same question may have more time.
_LEADERS_OWN: Final = frozenset({"timeout", "cancelled"})


class Transformed(NamedTuple):
    """A transformation, and the failures on the way to it."""

    texts: Transformation
    degradations: tuple[Degradation, ...] = ()


def plan_model_call(state: State) -> TransformStage | None:
    """Return the stage that asks the model; ``None`` if the cache has the model's texts."""
    call, trace = state.call, state.trace
    if call.history:
        recent = select_recent_messages(call.history, call.original)
        if is_new_topic(state.query, recent):
            state.is_follow_up = False
            trace.note("standalone", "not searched: the question starts a new topic")
    stage = TransformStage(state)
    cached = stage.find_cached_transformation()
    if cached is not None:
        trace.decision = Decision(call=False, reason="cached")
        state.texts = cached
        return None
    if state.is_follow_up:
        # The gate compensates for this call, so that the call rate stays near its target.
        state.learned.gate.record_forced_call(call.settings.escalation.target_call_rate)
    trace.decision = Decision(call=True, reason="conversation" if state.is_follow_up else "always")
    return stage


class TransformStage:
    """Asks the model to transform one question.

    If several threads or tasks ask the same question at the same time, they share one model call.
    The first caller, the leader, asks the model. The other callers, the followers, get the leader's
    transformation and degradations. If the leader is cancelled or out of time, a follower
    becomes the leader.

    *state* says what is known of the question. It receives the decision, notes and failures.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._call = call = state.call
        self._trace = state.trace
        self._cache = call.engine.cache
        self._glossary_terms = tuple((term.form, term.others) for term in state.glossary_terms)
        self._prompts = build_prompts(
            call.settings, call.original, call.history, self._glossary_terms
        )
        # The dates help if the question depends on today's date.
        self._anchors: Anchors | None = None
        if state.times.needs_today and state.today is not None:
            self._anchors = Anchors(state.today, state.times)
            self._prompts = tuple(map(self._anchors.add_dates, self._prompts))
        self._key: Hashable = None
        if call.settings.cache.enabled:
            self._key = build_cache_key(
                "" if call.model is None else call.model.name,
                call.settings,
                self._prompts,
                call.original,
                call.history,
                self._glossary_terms,
            )

    def find_cached_transformation(self, *, is_counted: bool = True) -> Transformation | None:
        """Return the transformation in this process's cache; ``None`` if there is none."""
        key = self._key
        remembered = None if key is None else self._cache.get(key, is_counted=is_counted)
        if remembered is not None:
            self._trace.cache_hits += 1
        return remembered

    async def get_transformation(self, services: Services) -> Transformation:
        """Return the transformation; an empty one if the model does not reply in time."""
        deadline = self._state.deadline.sooner(self._call.settings.limits.model_seconds)
        texts, degradations = await self._share_result(services, deadline)
        self._trace.notes.extend(texts.notes)
        self._state.degradations.extend(degradations)
        return texts

    async def _share_result(self, services: Services, deadline: Deadline) -> Transformed:
        cache, key = self._cache, self._key
        if key is None:
            return await self._read_or_ask(services, deadline)
        # A leader may end without a result to share. Then its followers try again, and one of them
        # becomes the leader.
        while True:
            flight, is_leader = cache.join_flight(key, deadline.at + _GRACE)
            if is_leader:
                shared: Transformed | None = None
                try:
                    result = await self._read_or_ask(services, deadline)
                    reasons = {problem.reason for problem in result.degradations}
                    shared = result if reasons.isdisjoint(_LEADERS_OWN) else None
                    return result
                finally:
                    # Even if this question is cancelled, its followers must not wait any longer.
                    cache.land_flight(key, flight, shared)
            landed: Transformed | None = await follow_flight(flight, services.io, deadline)
            if landed is not None or deadline.passed:
                break
        self._record_skipped_model_call("shared")
        if landed is not None:
            self._trace.cache_hits += 1
            return landed
        detail = "an identical question got no reply in time"
        return Transformed(NOTHING, (Degradation("transform", "timeout", detail),))

    async def _read_or_ask(self, services: Services, deadline: Deadline) -> Transformed:
        """Return the transformation from a cache, or else from the model."""
        # Since the first lookup, an equal question may have filled the cache.
        remembered = self.find_cached_transformation(is_counted=False)
        if remembered is None:
            remembered = await self._read_from_shared_cache(services, deadline)
        if remembered is not None:
            self._record_skipped_model_call("cached")
            return Transformed(remembered)
        model = self._call.model
        error = None if model is None else model.find_blocking_error()
        if error is not None:
            self._record_skipped_model_call(error.reason)
            return Transformed(NOTHING, (Degradation("transform", error.reason, str(error)),))
        asks = [partial(services.ask, prompt, deadline, model) for prompt in self._prompts]
        outcomes = await services.gather(asks, deadline)
        degradations: list[Degradation] = []
        written = self._read_replies(outcomes, degradations)
        self._record_relevance(written)
        texts = self._repair_or_drop_texts(written, degradations)
        if not degradations and not texts.is_empty:
            await self._write_to_caches(texts, services, deadline)
        return Transformed(texts, tuple(degradations))

    async def _read_from_shared_cache(
        self, services: Services, deadline: Deadline
    ) -> Transformation | None:
        shared, problems = self._cache.shared, self._state.degradations
        if shared is None or self._key is None:
            return None
        texts = await shared.read(services.io, self._key, deadline, problems)
        if texts is None:
            return None
        fields = [field for prompt in self._prompts for field in prompt.fields]
        if texts.is_empty or not is_within_limits(texts, fields):
            problems.append(Degradation("cache", "unreadable"))
            return None
        self._trace.cache_hits += 1
        self._cache.put(self._key, texts)
        return texts

    async def _write_to_caches(
        self, texts: Transformation, services: Services, deadline: Deadline
    ) -> None:
        if self._key is None:
            return
        self._cache.put(self._key, texts)
        if (shared := self._cache.shared) is not None:
            problems = self._state.degradations
            await shared.write(services.io, self._key, texts, deadline, problems)

    def _record_skipped_model_call(self, reason: str) -> None:
        """Record in the trace that the model was not asked, and the one-word *reason*."""
        decision = self._trace.decision or Decision(call=False, reason=reason)
        self._trace.decision = replace(decision, call=False, reason=reason)

    # --- the replies ------------------------------------------------------------------------------

    def _read_replies(
        self, outcomes: Sequence[Outcome[Reply]], degradations: list[Degradation]
    ) -> Transformation:
        """Return the texts of all replies that can be read."""
        replies = [outcome.value for outcome in outcomes if outcome.value is not None]
        # The prompts are asked at the same time, so the slowest reply counts.
        self._trace.replayed_ms += 1e3 * max((reply.seconds for reply in replies), default=0.0)
        transformations: list[Transformation] = []
        for prompt, outcome in zip(self._prompts, outcomes, strict=True):
            stage, status, reason = f"transform.{prompt.mode}", "ok", ""
            error = self._find_error(outcome)
            if error is None:
                reply = outcome.get()
                self._trace.record_usage(
                    reply.calls, reply.input_tokens, reply.output_tokens, reply.cost_usd
                )
                try:
                    transformations.append(parse_transformation(prompt, reply))
                except ModelError as unusable:
                    self._trace.notes.extend(unusable.notes)
                    error = unusable
            if error is not None:
                status, reason = "degraded", error.reason
                detail = "" if outcome.late else str(error)
                degradations.append(Degradation(stage, reason, detail))
            self._trace.record_stage(stage, outcome.seconds, status, reason, began=outcome.began)
        return merge_transformations(transformations)

    def _record_relevance(self, texts: Transformation) -> None:
        """Remember which fraction of the question's words the model's *texts* keep."""
        query, model = self._state.query, self._call.model
        # Without a word list, words without a topic and endings hide how much a text keeps.
        if model is None or self._state.is_follow_up or not query.language:
            return
        if texts.rewrite or texts.sub_queries or texts.paraphrases:
            written = " ".join(text for name in TEXT_FIELDS for text in texts.texts(name))
            words = find_words(query.keywords, [written], query.language)
            if words.question.content:
                model.relevance.record(words.measure_beginnings())

    def _find_error(self, outcome: Outcome[Reply]) -> ModelError | None:
        """Return the error of a model call, and record what the call cost; ``None`` for none."""
        if outcome.has_succeeded:
            return None
        error = outcome.error
        if outcome.late:
            error = ModelError("timeout")
        elif not isinstance(error, ModelError):
            error = ModelError("failed", type(error).__name__)
        if error.was_asked:
            # The model was asked, so the call cost something. Unless it is known to be free, the
            # amount is unknown.
            self._trace.record_usage(1, 0, 0, 0.0 if error.is_free else None)
        return error

    def _repair_or_drop_texts(
        self, texts: Transformation, degradations: list[Degradation]
    ) -> Transformation:
        """Return *texts* after a check that no required part of the question is missing."""
        call = self._call
        if texts.is_empty or not call.settings.llm.guard:
            return texts
        language = self._state.query.language or "auto"
        guarded = guard_conversation(
            texts,
            query=call.original,
            language=language,
            find_spans=partial(self._find_required_spans, language=language),
            glossary=self._glossary_terms,
            conversation=" ".join(message.content for message in call.history),
        )
        if guarded.is_empty:
            # The model answered, but none of its texts may be searched.
            other_script = any(note == "language_mismatch" for _, note in guarded.notes)
            reason = "language_mismatch" if other_script else "dropped"
            dropped = [
                f"{field} {note}" for field, note in guarded.notes if note.startswith("dropped")
            ]
            degradations.append(Degradation("transform", reason, "; ".join(dropped)))
        return guarded

    def _find_required_spans(self, text: str, language: str) -> list[tuple[str, str]]:
        """Return the parts of *text* that the model must keep, such as numbers and names."""
        spans: Sequence[Span] = find_protected_spans(text, language=language)
        # The model is told to replace "last year" by a date, so it need not keep the words.
        if self._anchors is not None:
            spans = self._anchors.drop_relative_spans(spans)
        return [(span.kind, span.text) for span in spans]


def build_cache_key(
    model: str,
    settings: Settings,
    prompts: Sequence[Prompt],
    query: str,
    history: Sequence[Message],
    glossary_terms: GlossaryTerms,
) -> Hashable:
    """Return the cache key of everything that shapes the model's reply and how it is read."""
    return (
        model,
        settings.reply_values,
        tuple((prompt.mode, prompt.version) for prompt in prompts),
        query,
        tuple((message.role, message.content) for message in history),
        tuple(glossary_terms),
    )
