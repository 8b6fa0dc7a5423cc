"""The steps a flow yields, and who performs them.

A flow is a generator: it yields a step and is sent what came of it. The drivers perform flows, one
with threads, one with asyncio.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from qtmiddleware.errors import ModelError, WrapError
from qtmiddleware.protocols import LanguageModel, Prompt, RetrievalHook
from qtmiddleware.runtime.observing import NOT_OBSERVED, Observation, describe_model
from qtmiddleware.runtime.single_flight import Flight
from qtmiddleware.runtime.threads import Bulkhead, Overloaded
from qtmiddleware.types import NEVER, Deadline, Ranking, Retrieval, VariantKind

T = TypeVar("T")


@dataclass(eq=False, repr=False, slots=True, kw_only=True)
class _Leaf:
    """A step of its own, and the *observation* of it."""

    observation: Observation = NOT_OBSERVED


@dataclass(eq=False, repr=False, slots=True)
class Search(_Leaf):
    """Search for one text. Performed by the wrapped function; answers its response, whatever that is.

    *text* ``None`` is the caller's own call as it was made, for what is no text.
    *top_k* is how many passages to ask for, ``None`` for what the caller's own call says;
    *may_narrow* lets a function that refuses so many be asked as the caller asked. *vector* stands
    in for the text where it was embedded before. With *fields* a document search looks for the text
    in these fields by words, in place of the caller's own clauses.
    *kind* is what the text is to the question, and *weight* that in the fusion; both are for
    observers.

    Who performs the step writes down how long the text took to embed, how many *calls* of the
    function were begun (`Searching` counts them), whether the function refused an earlier form of
    the call (*was_refused*), the *initial* lists that the response was merged from, and the read
    units of each request.
    """

    text: str | None
    top_k: int | None = None
    vector: Sequence[float] | None = None
    may_narrow: bool = field(default=False, kw_only=True)
    fields: Sequence[str] = field(default=(), kw_only=True)
    kind: VariantKind = field(default="original", kw_only=True)
    weight: float = field(default=1.0, kw_only=True)
    embed_seconds: float = field(default=0.0, kw_only=True)
    calls: int = field(default=0, kw_only=True)
    was_refused: bool = field(default=False, kw_only=True)
    initial: dict[str, Ranking] = field(default_factory=dict, kw_only=True)
    reads: list[float] = field(default_factory=list, kw_only=True)


@dataclass(eq=False, repr=False, slots=True)
class Embed(_Leaf):
    """Turn *texts* into vectors, all in one batch; answers a list of vectors."""

    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Ask(_Leaf):
    """Put *prompt* to *model* and wait no longer than *deadline*; answers a `Reply`.

    Without a *model* the one of the transformations is asked.
    """

    prompt: Prompt
    deadline: Deadline
    model: LanguageModel | None = None


@dataclass(eq=False, repr=False, slots=True)
class Rerank(_Leaf):
    """Judge *texts* against *query*; answers a score a text, greater is better."""

    query: str
    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Join(_Leaf):
    """Wait for the result of *flight*, which somebody else leads. Only within `Together`."""

    flight: Flight


@dataclass(eq=False, repr=False, slots=True)
class Recall(_Leaf):
    """Perform *call*, which blocks, as it speaks with a cache or a ledger; answers what it returns."""

    call: Callable[[], Any]


@dataclass(eq=False, repr=False, slots=True)
class Tell(_Leaf):
    """Tell *hook* of *retrieval*; answers nothing, and raises what the hook raises."""

    hook: RetrievalHook
    retrieval: Retrieval


Leaf = Search | Embed | Ask | Rerank | Join | Recall | Tell


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Together:
    """Perform *steps* at the same time, at most *limit* of them at once; answers an `Outcome` each, in their order.

    Steps that have not come back by *deadline* are given up and are late.
    """

    steps: Sequence[Leaf]
    deadline: Deadline
    limit: int


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Beside:
    """Perform *search* in the caller's own thread or task, and *flow* beside it; at most *limit* steps run at once.

    Answers two outcomes: of the search, however long it takes, and of the flow. If the search
    fails, the flow is given up and its outcome is late.
    """

    search: Search
    flow: Flow[Any]
    limit: int


@dataclass(eq=False, repr=False, slots=True)
class Outcome:
    """What came of one step: a *value*, or the *error* that was raised, or neither where it was *late*.

    *began* is when it began, on the clock of `time.perf_counter`, and *seconds* is how long it
    took, or how long a late one was waited for.
    """

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = field(default=False, kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None and not self.late

    @property
    def reason(self) -> str:
        """Why there is no value, in one word: ``timeout``, ``overloaded`` (no thread was free) or ``failed``."""
        if self.late:
            return "timeout"
        return "overloaded" if isinstance(self.error, Overloaded) else "failed"

    @property
    def detail(self) -> str:
        """More about why there is no value: of a foreign error its type alone, which quotes nobody."""
        if self.error is None:
            return ""
        return str(self.error) if self.reason == "overloaded" else type(self.error).__name__


Step = Leaf | Together | Beside

Flow = Generator["Step", Any, T]
"""A flow: it yields steps, is sent what came of each, and returns its result."""


class Performer(Protocol):
    """What performs the steps of one call: the wrapped function, the embedding and the model.

    *native_async* says that `asearch` and `aembed` may be awaited; otherwise the plain ones are
    called in threads.
    """

    @property
    def native_async(self) -> bool:
        """Whether the wrapped function is asynchronous."""

    @property
    def bulkhead(self) -> Bulkhead:
        """The threads for everything beside the original's own search."""

    @property
    def model(self) -> LanguageModel | None:
        """The language model, if one is configured."""

    def search(self, step: Search) -> Any:
        """The wrapped function's response to one text."""

    def asearch(self, step: Search) -> Awaitable[Any]:
        """The wrapped function's response to one text."""

    def embed(self, texts: Sequence[str]) -> Any:
        """A vector a text."""

    def aembed(self, texts: Sequence[str]) -> Awaitable[Any]:
        """A vector a text."""

    def rerank(self, step: Rerank) -> Any:
        """A score a text."""


class ModelOnly:
    """A `Performer` for flows that ask the model alone; searching, embedding and reranking raise `WrapError`."""

    __slots__ = ("bulkhead", "model")
    native_async = True

    def __init__(self, model: LanguageModel | None, bulkhead: Bulkhead | None = None) -> None:
        self.model = model
        self.bulkhead = bulkhead or Bulkhead()

    def search(self, _: Any) -> Any:
        """Raises `WrapError`."""
        raise WrapError("there is no wrapped function to search, embed or rerank")

    asearch = aembed = embed = rerank = search


def model_of(step: Ask, performer: Performer) -> LanguageModel:
    """The model that *step* is for; raises `ModelError` where there is none."""
    model = step.model or performer.model
    if model is None:
        raise ModelError("unavailable", "no language model is configured")
    return model


def gather_flows(
    flows: Sequence[Flow[T]], *, limit: int, deadline: Deadline | None = None
) -> Flow[list[T]]:
    """The results of *flows* in their order; the steps that they yield at the same time are performed together.

    Nothing is waited for beyond *deadline*: a step that is late comes back so in a `Together` and
    raises `TimeoutError` where it stands alone. What one flow raises is raised here, and the others
    are closed. None of *flows* may yield a
    `Beside`: what they yield is performed in step.
    """
    latest = NEVER if deadline is None else deadline.at
    results: dict[int, T] = {}
    yielded: dict[int, Step] = {}
    outcomes_of: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(flows)))
    try:
        while outcomes_of:
            for position, outcomes in outcomes_of.items():
                try:
                    yielded[position] = resume(
                        flows[position], yielded.pop(position, None), outcomes
                    )
                except StopIteration as stop:
                    results[position] = stop.value
            outcomes_of = {}
            if yielded:
                until = min(latest, max(map(_find_deadline, yielded.values())))
                leaves = [leaf for step in yielded.values() for leaf in leaves_of(step)]
                outcomes = yield Together(leaves, Deadline(until), limit)
                for position, step in yielded.items():
                    count = len(leaves_of(step))
                    outcomes_of[position], outcomes = outcomes[:count], outcomes[count:]
    finally:
        for flow in flows:
            flow.close()
    return [results[position] for position in range(len(flows))]


Models = Mapping[str, Any]
"""What is asked in a flow, by the kind of operation: ``model`` (of the transformations), ``embedding``, ``rerank``."""


def observe_flow(
    flow: Flow[T], observation: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """*flow* as the operation of *observation*; *models* are what its steps ask."""
    return _observe_flow(flow, observation, models) if observation.is_observed else flow


def _observe_flow(flow: Flow[T], observation: Observation, models: Models) -> Flow[T]:
    with observation:
        return observation.keep((yield from observe_steps(flow, observation, models)))


def observe_steps(
    flow: Flow[T], within: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """*flow*, whose steps are operations *within* another one, save those that are part of one already."""
    return _observe_steps(flow, within, models) if within.is_observed else flow


def _observe_steps(flow: Flow[T], within: Observation, models: Models) -> Flow[T]:
    with closing(flow):
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            if isinstance(step, Beside):
                step = replace(step, flow=_observe_steps(step.flow, within, models))
            for leaf in leaves_of(step):
                if leaf.observation is NOT_OBSERVED:
                    leaf.observation = _observe_step(leaf, within, models)
            answer = error = None
            try:
                answer = yield step
            except Exception as raised:
                error = raised


def _observe_step(step: Leaf, within: Observation, models: Models) -> Observation:
    if isinstance(step, Search):
        return within.child(
            "search", step.kind, weight=step.weight, top_k=step.top_k, content=step.text
        )
    if isinstance(step, Embed):
        return observe_embedding(within, models.get("embedding"), step.texts)
    if isinstance(step, Ask):
        known = describe_model(step.model or models.get("model"))
        return within.child("model", step.prompt.mode, content=step.prompt, **known)
    if isinstance(step, Rerank):
        known = describe_model(models.get("rerank"))
        return within.child(
            "rerank", counts={"texts": len(step.texts)}, content=step.texts, **known
        )
    return NOT_OBSERVED


def observe_embedding(within: Observation, embedder: Any, texts: Sequence[str]) -> Observation:
    """The operation of embedding *texts*, which has not started."""
    if not within.is_observed:
        return within
    return within.child(
        "embedding", counts={"texts": len(texts)}, content=texts, **describe_model(embedder)
    )


def leaves_of(step: Step) -> Sequence[Leaf]:
    """Return the single steps of *step*; of a `Beside` its search, since its flow yields its own."""
    if isinstance(step, Together):
        return step.steps
    return (step.search,) if isinstance(step, Beside) else (step,)


def _find_deadline(step: Step) -> float:
    """When a step is given up; one that stands alone never is."""
    return step.deadline.at if isinstance(step, Together) else NEVER


def resume(flow: Flow[Any], step: Step | None, outcomes: list[Outcome] | None) -> Step:
    """Return the next step of *flow* after the *outcomes* of its last *step*; raises `StopIteration` at its end."""
    if step is None or isinstance(step, Together):
        return flow.send(outcomes)
    (outcome,) = outcomes or (Outcome(late=True),)
    if outcome.ok:
        return flow.send(outcome.value)
    return flow.throw(
        outcome.error or TimeoutError("there was no time left for one of several searches")
    )


Asked = TypeVar("Asked")


def converse(talk: Generator[Asked, Any, T], send: Callable[[Asked], Any]) -> T:
    """What *talk* returns: it is sent what *send* returns for each thing it yields, or has the error thrown in."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = send(asked)
            except Exception as error:
                asked = talk.throw(error)
            else:
                asked = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def aconverse(talk: Generator[Asked, Any, T], send: Callable[[Asked], Awaitable[Any]]) -> T:
    """`converse`, awaiting."""
    try:
        asked = next(talk)
        while True:
            try:
                answer = await send(asked)
            except Exception as error:
                asked = talk.throw(error)
            else:
                asked = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
