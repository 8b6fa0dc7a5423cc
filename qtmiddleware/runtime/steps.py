"""The steps that a flow yields, and the protocol of the objects that perform the steps.

A flow is a generator: it yields a step and is sent the step's result. Flows are performed by two
drivers, one with threads and one with asyncio.
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
    """A step that contains no other steps.

    Attributes:
        observation: The observation of the step as an operation.
    """

    observation: Observation = NOT_OBSERVED


@dataclass(eq=False, repr=False, slots=True)
class Search(_Leaf):
    """Search for one text by calling the wrapped function; the result is the function's response.

    The performer of the step fills in the attributes from *embed_seconds* on.

    Attributes:
        text: The text to search for; ``None`` to repeat the caller's own call unchanged, if the
            question in that call is not a text.
        top_k: How many passages to request; ``None`` for the number that the caller requests.
        vector: The text's vector, if the text was embedded before.
        may_narrow: Whether the search may request only as many passages as the caller's own call,
            if the function rejects *top_k*.
        fields: The fields in which a document search looks for the text's words, instead of the
            caller's own clauses.
        kind: How the text is related to the question; for observers.
        weight: The text's weight in the fusion; for observers.
        embed_seconds: How many seconds embedding the text took.
        calls: How often the function was called; `Searching` counts the calls.
        was_refused: Whether the function rejected an earlier form of the call.
        initial: The ranked lists that were merged into the response, by name.
        reads: How many read units each request used.
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
    """Embed *texts* in one batch; the result is a list of vectors."""

    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Ask(_Leaf):
    """Send *prompt* to *model* and wait until *deadline* at most; the result is a `Reply`.

    If *model* is ``None``, *prompt* goes to the performer's model, which makes the transformations.
    """

    prompt: Prompt
    deadline: Deadline
    model: LanguageModel | None = None


@dataclass(eq=False, repr=False, slots=True)
class Rerank(_Leaf):
    """Score *texts* against *query*; the result is one score per text, higher is better."""

    query: str
    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Join(_Leaf):
    """Wait for the result of *flight*, which another caller leads. Allowed only in a `Together`."""

    flight: Flight


@dataclass(eq=False, repr=False, slots=True)
class Recall(_Leaf):
    """Read a cache or ledger with the blocking *call*; the result is what *call* returns."""

    call: Callable[[], Any]


@dataclass(eq=False, repr=False, slots=True)
class Tell(_Leaf):
    """Call *hook* with *retrieval*, without a result; exceptions of *hook* are raised."""

    hook: RetrievalHook
    retrieval: Retrieval


Leaf = Search | Embed | Ask | Rerank | Join | Recall | Tell


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Together:
    """Perform *steps* at the same time; the result is a list with one `Outcome` per step.

    Attributes:
        steps: The steps; the outcomes have the order of the steps.
        deadline: When to stop waiting for unfinished steps, whose outcomes are then late.
        limit: The most steps that run at once.
    """

    steps: Sequence[Leaf]
    deadline: Deadline
    limit: int


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Beside:
    """Perform *search* in the caller's own thread or task, and *flow* at the same time.

    The result is two outcomes: the outcome of the search, which has no deadline, and the outcome of
    the flow. If the search fails, the flow is stopped and its outcome is late.

    Attributes:
        search: The search.
        flow: The flow.
        limit: The most steps that run at once, including the search.
    """

    search: Search
    flow: Flow[Any]
    limit: int


@dataclass(eq=False, repr=False, slots=True)
class Outcome:
    """The outcome of one step: a *value*, an *error*, or neither if the step was *late*.

    Attributes:
        value: The step's result.
        error: The exception that the step raised.
        seconds: How many seconds the step took or, if it was late, was awaited.
        began: When the step began, on the clock of `time.perf_counter`.
        late: Whether waiting for the step ended before the step did.
    """

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = field(default=False, kw_only=True)

    @property
    def ok(self) -> bool:
        """Whether the step succeeded: it was not late and raised no exception."""
        return self.error is None and not self.late

    @property
    def reason(self) -> str:
        """Why the step failed: ``timeout``, ``overloaded`` (no thread was free) or ``failed``."""
        if self.late:
            return "timeout"
        return "overloaded" if isinstance(self.error, Overloaded) else "failed"

    @property
    def detail(self) -> str:
        """The name of the error's type, or the message if no thread was free; ``""`` if no error.

        An error's message is used only if this package wrote it, because other messages may quote a
        text.
        """
        if self.error is None:
            return ""
        return str(self.error) if self.reason == "overloaded" else type(self.error).__name__


Step = Leaf | Together | Beside

Flow = Generator["Step", Any, T]
"""A generator that yields steps, is sent the result of each, and returns a result of its own."""


class Performer(Protocol):
    """Performs the steps of one call with the wrapped function, the embedder and the model."""

    @property
    def native_async(self) -> bool:
        """Whether `asearch` and `aembed` can be awaited; if not, threads call the other methods."""

    @property
    def bulkhead(self) -> Bulkhead:
        """The threads for all steps except the original search."""

    @property
    def model(self) -> LanguageModel | None:
        """The language model, if one is configured."""

    def search(self, step: Search) -> Any:
        """Return the wrapped function's response to *step*."""

    def asearch(self, step: Search) -> Awaitable[Any]:
        """Return the wrapped function's response to *step*, without blocking the running loop."""

    def embed(self, texts: Sequence[str]) -> Any:
        """Return one vector per text."""

    def aembed(self, texts: Sequence[str]) -> Awaitable[Any]:
        """Return one vector per text, without blocking the running loop."""

    def rerank(self, step: Rerank) -> Any:
        """Return one score per text."""


class ModelOnly:
    """A `Performer` for flows that only call the model; all other steps raise `WrapError`."""

    __slots__ = ("bulkhead", "model")
    native_async = True

    def __init__(self, model: LanguageModel | None, bulkhead: Bulkhead | None = None) -> None:
        self.model = model
        self.bulkhead = bulkhead or Bulkhead()

    def search(self, _: Any) -> Any:
        """Raise `WrapError`."""
        raise WrapError("there is no wrapped function to search, embed or rerank")

    asearch = aembed = embed = rerank = search


def choose_model(step: Ask, performer: Performer) -> LanguageModel:
    """Return the model for *step*; raise `ModelError` if there is none."""
    model = step.model or performer.model
    if model is None:
        raise ModelError("unavailable", "no language model is configured")
    return model


def gather_flows(
    flows: Sequence[Flow[T]], *, limit: int, deadline: Deadline | None = None
) -> Flow[list[T]]:
    """Perform *flows* at the same time and return their results in the order of *flows*.

    In each round, the steps that all flows yielded are performed as one `Together`, so no flow may
    yield a `Beside`. If a flow raises an exception, the exception is raised here and the other
    flows are closed.

    Args:
        flows: The flows.
        limit: The most steps that run at once.
        deadline: When waiting ends. If a step is late, a flow that yielded a `Together` gets a late
            outcome, and a flow that yielded the step itself gets a `TimeoutError`.
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
                # All flows wait for one another in each round, so the latest deadline counts.
                until = min(latest, max(map(_find_deadline, yielded.values())))
                leaves = [leaf for step in yielded.values() for leaf in list_leaves(step)]
                outcomes = yield Together(leaves, Deadline(until), limit)
                for position, step in yielded.items():
                    count = len(list_leaves(step))
                    outcomes_of[position], outcomes = outcomes[:count], outcomes[count:]
    finally:
        for flow in flows:
            flow.close()
    return [results[position] for position in range(len(flows))]


Models = Mapping[str, Any]
"""What a flow asks, by operation: ``model`` (for transformations), ``embedding``, ``rerank``."""


def observe_flow(
    flow: Flow[T], observation: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """Return *flow*, observed as one operation from its first step to its end.

    *observation* represents the operation. *models* are the models that the steps call.
    """
    return _observe_flow(flow, observation, models) if observation.is_observed else flow


def _observe_flow(flow: Flow[T], observation: Observation, models: Models) -> Flow[T]:
    with observation:
        return observation.keep((yield from observe_steps(flow, observation, models)))


def observe_steps(
    flow: Flow[T], parent: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """Return *flow* with each of its steps observed as an operation within *parent*.

    A step that already has an observation keeps that observation. *models* are the models that the
    steps call.
    """
    return _observe_steps(flow, parent, models) if parent.is_observed else flow


def _observe_steps(flow: Flow[T], parent: Observation, models: Models) -> Flow[T]:
    with closing(flow):
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            if isinstance(step, Beside):
                step = replace(step, flow=_observe_steps(step.flow, parent, models))
            for leaf in list_leaves(step):
                if leaf.observation is NOT_OBSERVED:
                    leaf.observation = _observe_step(leaf, parent, models)
            answer = error = None
            try:
                answer = yield step
            except Exception as raised:
                error = raised


def _observe_step(step: Leaf, parent: Observation, models: Models) -> Observation:
    if isinstance(step, Search):
        return parent.child(
            "search", step.kind, weight=step.weight, top_k=step.top_k, content=step.text
        )
    if isinstance(step, Embed):
        return observe_embedding(parent, models.get("embedding"), step.texts)
    if isinstance(step, Ask):
        fields = describe_model(step.model or models.get("model"))
        return parent.child("model", step.prompt.mode, content=step.prompt, **fields)
    if isinstance(step, Rerank):
        fields = describe_model(models.get("rerank"))
        return parent.child(
            "rerank", counts={"texts": len(step.texts)}, content=step.texts, **fields
        )
    return NOT_OBSERVED


def observe_embedding(parent: Observation, embedder: Any, texts: Sequence[str]) -> Observation:
    """Return a new observation, not started yet, of embedding *texts* within *parent*."""
    if not parent.is_observed:
        return parent
    return parent.child(
        "embedding", counts={"texts": len(texts)}, content=texts, **describe_model(embedder)
    )


def list_leaves(step: Step) -> Sequence[Leaf]:
    """Return the steps in *step* that contain no other steps.

    For a `Beside`, this is only its search, because its flow yields its own steps.
    """
    if isinstance(step, Together):
        return step.steps
    return (step.search,) if isinstance(step, Beside) else (step,)


def _find_deadline(step: Step) -> float:
    """Return the deadline of *step* on the monotonic clock.

    Only a `Together` has a deadline; for other steps it is infinite.
    """
    return step.deadline.at if isinstance(step, Together) else NEVER


def resume(flow: Flow[Any], step: Step | None, outcomes: list[Outcome] | None) -> Step:
    """Send *outcomes* of the last step, *step*, to *flow* and return the flow's next step.

    Raises `StopIteration` at the end of the flow.
    """
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
    """Run the generator *talk* to its end and return its result.

    Calls *send* with each item that the generator yields, and sends the result back to the
    generator. An exception of *send* is thrown into the generator.
    """
    try:
        request = next(talk)
        while True:
            try:
                answer = send(request)
            except Exception as error:
                request = talk.throw(error)
            else:
                request = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def aconverse(talk: Generator[Asked, Any, T], send: Callable[[Asked], Awaitable[Any]]) -> T:
    """Run the generator *talk* to its end like `converse`, awaiting each result of *send*."""
    try:
        request = next(talk)
        while True:
            try:
                answer = await send(request)
            except Exception as error:
                request = talk.throw(error)
            else:
                request = talk.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
