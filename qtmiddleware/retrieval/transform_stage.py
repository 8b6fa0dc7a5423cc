"""Get the model's transformation of one question, from the cache if possible."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from qtmiddleware.catalogue import NOTHING, TEXT_FIELDS
from qtmiddleware.retrieval.confidence import measure_leading_coverage
from qtmiddleware.runtime.cache import follow_flight, hash_key
from qtmiddleware.runtime.services import Services
from qtmiddleware.types import Deadline, Decision, Degradation, Transformation

if TYPE_CHECKING:
    from qtmiddleware.retrieval.plan import Plan
    from qtmiddleware.retrieval.question import Question

# A leader that is this many seconds past its deadline was stopped before it could share a result.
_GRACE: Final = 1.0

# Reasons that concern only the leader. Another request for the same question may have more time.
_LEADERS_OWN: Final = frozenset({"timeout", "cancelled"})


class Transformed(NamedTuple):
    """A transformation, and the failures on the way to it."""

    transformation: Transformation
    degradations: tuple[Degradation, ...] = ()


class TransformStage:
    """Asks the model to transform one question.

    If several threads or tasks ask the same question at the same time, they share one model call.
    The first caller, the leader, asks the model. The other callers, the followers, get the leader's
    transformation and degradations. If the leader is cancelled or out of time, a follower
    becomes the leader.

    Args:
        plan: What is understood of the question. Receives the decision, notes and failures.
        question: Builds the prompts and reads the replies.
    """

    def __init__(self, plan: Plan, question: Question) -> None:
        self._plan = plan
        self._call = call = plan.call
        self._question = question
        self._trace = plan.trace
        self._degradations = plan.degradations
        self._cache = call.engine.cache
        self._key = (
            question.build_cache_key(call.model_name) if call.settings.cache.enabled else None
        )

    def find_cached_transformation(
        self, *, should_count_lookup: bool = True
    ) -> Transformation | None:
        """Return the transformation in this process's cache; ``None`` if there is none."""
        remembered = (
            None
            if self._key is None
            else self._cache.get(self._key, is_counted=should_count_lookup)
        )
        if remembered is not None:
            self._trace.cache_hits += 1
        return remembered

    async def get_transformation(self, services: Services) -> Transformation:
        """Return the transformation; an empty one if the model does not reply in time."""
        transformation, degradations = await self._share_result(services, self._plan.model_deadline)
        self._trace.notes.extend(transformation.notes)
        self._degradations.extend(degradations)
        return transformation

    async def _share_result(self, services: Services, llm_deadline: Deadline) -> Transformed:
        cache, key, io = self._cache, self._key, services.io
        if key is None:
            return await self._get_cached_or_new_transformation(services, llm_deadline)
        # A leader may end without a result to share. Then its followers try again, and one of them
        # becomes the leader.
        while True:
            flight, is_leader = cache.join_flight(key, llm_deadline.at + _GRACE)
            if is_leader:
                shared: Transformed | None = None
                try:
                    result = await self._get_cached_or_new_transformation(services, llm_deadline)
                    if not any(
                        degradation.reason in _LEADERS_OWN for degradation in result.degradations
                    ):
                        shared = result
                    return result
                finally:
                    # Even if this question is cancelled, its followers must not wait any longer.
                    cache.land_flight(key, flight, shared)
            landed: Transformed | None = await follow_flight(flight, io, llm_deadline)
            if landed is not None or llm_deadline.passed:
                break
        self._record_skipped_model_call("shared")
        if landed is not None:
            self._trace.cache_hits += 1
            return landed
        detail = "an identical question got no reply in time"
        return Transformed(NOTHING, (Degradation("transform", "timeout", detail),))

    async def _get_cached_or_new_transformation(
        self, services: Services, llm_deadline: Deadline
    ) -> Transformed:
        # Since the first lookup, another request may have filled the cache.
        remembered = self.find_cached_transformation(should_count_lookup=False)
        if remembered is None:
            remembered = await self._read_from_shared_cache(services, llm_deadline)
        if remembered is not None:
            self._record_skipped_model_call("cached")
            return Transformed(remembered)
        if (error := self._call.find_blocking_error()) is not None:
            self._record_skipped_model_call(error.reason)
            return Transformed(NOTHING, (Degradation("transform", error.reason, str(error)),))
        asks = [partial(services.ask, prompt, llm_deadline) for prompt in self._question.prompts]
        self._question.read_replies(await services.gather(asks, llm_deadline), self._trace)
        plan = self._plan
        self._record_relevance()
        transformation = self._question.repair_or_drop_texts(
            self._call.original, plan.find_protected_spans(), plan.query.language or "auto"
        )
        degradations = tuple(self._question.reply_degradations)
        if self._key is not None and not transformation.is_empty and not degradations:
            self._cache.put(self._key, transformation)
            if self._cache.shared is not None:
                await self._cache.shared.write(
                    services.io,
                    hash_key(self._key),
                    transformation,
                    self._call.settings.cache.ttl_seconds,
                    llm_deadline,
                    self._degradations,
                )
        return Transformed(transformation, degradations)

    def _record_relevance(self) -> None:
        """Remember which fraction of the question's words the model's texts keep."""
        plan, model, written = self._plan, self._call.model, self._question.transformation
        if model is None or plan.is_follow_up:
            return
        if written.rewrite or written.sub_queries or written.paraphrases:
            texts = [text for name in TEXT_FIELDS for text in written.texts(name)]
            query = plan.query
            kept = measure_leading_coverage(query.keywords, [" ".join(texts)], query.language)
            if kept is not None:
                model.relevance.record(kept)

    async def _read_from_shared_cache(
        self, services: Services, llm_deadline: Deadline
    ) -> Transformation | None:
        shared = self._cache.shared
        if shared is None or self._key is None:
            return None
        transformation = await shared.read(
            services.io, hash_key(self._key), llm_deadline, self._degradations
        )
        if transformation is None:
            return None
        if not self._question.can_use_transformation(transformation):
            self._degradations.append(Degradation("cache", "unreadable"))
            return None
        self._trace.cache_hits += 1
        self._cache.put(self._key, transformation)
        return transformation

    def _record_skipped_model_call(self, reason: str) -> None:
        """Record in the trace that the model was not asked, and the one-word *reason*."""
        decision = self._trace.decision or Decision(call=False, reason=reason)
        self._trace.decision = replace(decision, call=False, reason=reason)
