"""Get the model's transformation of one question, from the cache if possible."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.config.introspection import read_marked_values
from qtmiddleware.config.settings import Mark, Settings
from qtmiddleware.errors import ModelError
from qtmiddleware.preprocessing import Span, find_protected_spans
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.retrieval.signals import measure_leading_coverage
from qtmiddleware.runtime.cache import follow_flight, hash_key
from qtmiddleware.runtime.concurrency import Outcome
from qtmiddleware.runtime.services import Services
from qtmiddleware.transforms import (
    GlossaryTerms,
    build_prompts,
    guard_transformation,
    is_within_limits,
    merge_transformations,
    parse_transformation,
)
from qtmiddleware.transforms.prompt import Anchors
from qtmiddleware.types import (
    Deadline,
    Decision,
    Degradation,
    Message,
    Trace,
    Transformation,
)

if TYPE_CHECKING:
    from qtmiddleware.retrieval.state import State

# A leader that is this many seconds past its deadline was stopped before it could share a result.
_GRACE: Final = 1.0

# Reasons that concern only the leader. Another request for the same question may have more time.
_LEADERS_OWN: Final = frozenset({"timeout", "cancelled"})


class Transformed(NamedTuple):
    """A transformation, and the failures on the way to it."""

    texts: Transformation
    degradations: tuple[Degradation, ...] = ()


class TransformStage:
    """Asks the model to transform one question.

    If several threads or tasks ask the same question at the same time, they share one model call.
    The first caller, the leader, asks the model. The other callers, the followers, get the leader's
    transformation and degradations. If the leader is cancelled or out of time, a follower
    becomes the leader.

    Args:
        state: What is known of the question. Receives the decision, notes and failures.
        request: Builds the prompts and reads the replies.
    """

    def __init__(self, state: State, request: ModelRequest) -> None:
        self._state = state
        self._call = call = state.call
        self._request = request
        self._trace = state.trace
        self._degradations = state.degradations
        self._cache = call.engine.cache
        model_name = "" if call.model is None else call.model.name
        self._key = request.build_cache_key(model_name) if call.settings.cache.enabled else None

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
        self._degradations.extend(degradations)
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
        state, request, model = self._state, self._request, self._call.model
        if model is not None and (error := model.find_blocking_error()) is not None:
            self._record_skipped_model_call(error.reason)
            return Transformed(NOTHING, (Degradation("transform", error.reason, str(error)),))
        asks = [partial(services.ask, prompt, deadline, model) for prompt in request.prompts]
        request.read_replies(await services.gather(asks, deadline), self._trace)
        self._record_relevance()
        texts = request.repair_or_drop_texts(
            self._call.original, state.find_protected_spans(), state.query.language or "auto"
        )
        degradations = tuple(request.degradations)
        if self._key is not None and not texts.is_empty and not degradations:
            self._cache.put(self._key, texts)
            if self._cache.shared is not None:
                await self._cache.shared.write(
                    services.io,
                    hash_key(self._key),
                    texts,
                    self._call.settings.cache.ttl_seconds,
                    deadline,
                    self._degradations,
                )
        return Transformed(texts, degradations)

    def _record_relevance(self) -> None:
        """Remember which fraction of the question's words the model's texts keep."""
        state, model, written = self._state, self._call.model, self._request.texts
        if model is None or state.is_follow_up:
            return
        if written.rewrite or written.sub_queries or written.paraphrases:
            texts = [text for name in TEXT_FIELDS for text in written.texts(name)]
            query = state.query
            kept = measure_leading_coverage(query.keywords, [" ".join(texts)], query.language)
            if kept is not None:
                model.relevance.record(kept)

    async def _read_from_shared_cache(
        self, services: Services, deadline: Deadline
    ) -> Transformation | None:
        shared = self._cache.shared
        if shared is None or self._key is None:
            return None
        texts = await shared.read(services.io, hash_key(self._key), deadline, self._degradations)
        if texts is None:
            return None
        fields = [field for prompt in self._request.prompts for field in prompt.fields]
        if texts.is_empty or not is_within_limits(texts, fields):
            self._degradations.append(Degradation("cache", "unreadable"))
            return None
        self._trace.cache_hits += 1
        self._cache.put(self._key, texts)
        return texts

    def _record_skipped_model_call(self, reason: str) -> None:
        """Record in the trace that the model was not asked, and the one-word *reason*."""
        decision = self._trace.decision or Decision(call=False, reason=reason)
        self._trace.decision = replace(decision, call=False, reason=reason)


class ModelRequest:
    """The prompts to the model about one query, and the model's replies.

    Attributes:
        query: The user's query.
        prompts: The prompts, which are asked at the same time.
        texts: The texts of all replies that could be read.
        degradations: The failed calls and unusable replies.
    """

    def __init__(
        self,
        query: str,
        history: tuple[Message, ...],
        settings: Settings,
        glossary_terms: GlossaryTerms = (),
        anchors: Anchors | None = None,
    ) -> None:
        self.query = query
        self.texts = NOTHING
        self.degradations: list[Degradation] = []
        self._history = history
        self._settings = settings
        self._glossary_terms = tuple(glossary_terms)
        self._anchors = anchors
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

    def read_replies(self, outcomes: Sequence[Outcome[Reply]], trace: Trace) -> None:
        """Read the replies to all prompts into `texts`."""
        replies = [outcome.value for outcome in outcomes if outcome.value is not None]
        # The prompts are asked at the same time, so the slowest reply counts.
        trace.replayed_ms += 1e3 * max((reply.seconds for reply in replies), default=0.0)
        transformations = [
            texts
            for prompt, outcome in zip(self.prompts, outcomes, strict=True)
            if (texts := self._read_reply(prompt, outcome, trace)) is not None
        ]
        self.texts = merge_transformations(transformations)

    def _read_reply(
        self, prompt: Prompt, outcome: Outcome[Reply], trace: Trace
    ) -> Transformation | None:
        stage = f"transform.{prompt.mode}"
        error = outcome.error
        if outcome.late:
            error = ModelError("timeout")
        elif error is not None and not isinstance(error, ModelError):
            error = ModelError("failed", type(error).__name__)
        if error is None:
            reply = outcome.get()
            record_cost(trace, reply)
            try:
                texts = parse_transformation(prompt, reply)
            except ModelError as unusable:
                error = unusable
                trace.notes.extend(unusable.notes)
            else:
                trace.record_stage(stage, outcome.seconds, began=outcome.began)
                return texts
        elif error.was_asked:
            # The model was asked, so the call cost something. Unless it is known to be free, the
            # amount is unknown.
            trace.record_usage(
                calls=1, input_tokens=0, output_tokens=0, cost_usd=0.0 if error.is_free else None
            )
        trace.record_stage(stage, outcome.seconds, "degraded", error.reason, began=outcome.began)
        self.degradations.append(
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
        texts = self.texts
        if texts.is_empty or not self._settings.llm.guard:
            return texts
        guard = partial(
            guard_transformation,
            # Models may answer in English, which is easy to detect. Other languages with the same
            # script are harder to tell apart.
            may_be_english=language in ("auto", "en"),
            glossary=self._glossary_terms,
            conversation=" ".join(message.content for message in self._history),
        )
        reference = original_query
        if texts.standalone:
            guarded_form = guard(
                Transformation(standalone=texts.standalone),
                query=original_query,
                required_spans=[(span.kind, span.text) for span in protected_spans],
            )
            notes = texts.notes + guarded_form.notes
            texts = replace(texts, standalone=guarded_form.standalone, notes=notes)
            if texts.standalone:
                reference = texts.standalone
                protected_spans = find_protected_spans(reference, language=language)
                if self._anchors is not None:
                    protected_spans = self._anchors.drop_relative_spans(protected_spans)
        guarded = guard(
            texts,
            query=reference,
            required_spans=[(span.kind, span.text) for span in protected_spans],
        )
        if guarded.is_empty:
            # The model answered, but none of its texts may be searched.
            other_script = any(note == "language_mismatch" for _, note in guarded.notes)
            reasons = "; ".join(
                f"{field} {note}" for field, note in guarded.notes if note.startswith("dropped")
            )
            self.degradations.append(
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
