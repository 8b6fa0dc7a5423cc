"""Define the steps that a flow yields, and the protocol of the objects that perform them.

A flow is a generator: it yields a step and receives the step's result. Two drivers perform flows,
one with threads and one with asyncio.
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
        observation: Reports the start and the end of the step to the observers.
    """

    observation: Observation = NOT_OBSERVED


@dataclass(eq=False, repr=False, slots=True)
class Search(_Leaf):
    """Search for one text by calling the wrapped function. The result is the function's response.

    The performer sets *embed_seconds* and the attributes after it.

    Attributes:
        text: The text to search for. ``None`` repeats the caller's call unchanged, because its
            question is not a text.
        top_k: How many passages to request. ``None`` requests as many as the caller did. The
            performer sets it to ``None`` if it repeats the search so.
        vector: The text's vector, if it is already known.
        narrow_by: Until when the search may be repeated with the caller's number of passages if it
            fails; ``None`` for never.
        fields: The document fields to search for the text's words, instead of the caller's own
            clauses.
        kind: How the text relates to the question; for observers.
        weight: The text's weight in the fusion; for observers.
        embed_seconds: How many seconds embedding the text took.
        calls: How often the function was called.
        was_refused: Whether the function rejected the call and was called again with other
            arguments.
        initial: The rankings that the backend merged into the response, by name; empty if unknown.
        reads: The read units that each request to the vector database used.
    """

    text: str | None
    top_k: int | None = None
    vector: Sequence[float] | None = None
    narrow_by: Deadline | None = field(default=None, kw_only=True)
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
    """Embed *texts* in one batch. The result is a list of vectors."""

    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Ask(_Leaf):
    """Send *prompt* to *model* and wait at most until *deadline*. The result is a `Reply`.

    If *model* is ``None``, the performer's own model gets the prompt.
    """

    prompt: Prompt
    deadline: Deadline
    model: LanguageModel | None = None


@dataclass(eq=False, repr=False, slots=True)
class Rerank(_Leaf):
    """Score *texts* against *query*. The result is one score per text; higher is better."""

    query: str
    texts: Sequence[str]


@dataclass(eq=False, repr=False, slots=True)
class Join(_Leaf):
    """Wait for the result of *flight*, a computation that another caller performs.

    Allowed only in a `Together`, because its deadline limits the wait.
    """

    flight: Flight


@dataclass(eq=False, repr=False, slots=True)
class Recall(_Leaf):
    """Call *call*, a blocking function that reads a cache or a file, and return its result.

    An awaitable result is awaited, for at most *seconds* seconds.
    """

    call: Callable[[], Any]
    seconds: float = NEVER


@dataclass(eq=False, repr=False, slots=True)
class Tell(_Leaf):
    """Call *hook* with *retrieval*. There is no result, and the hook's exceptions are raised."""

    hook: RetrievalHook
    retrieval: Retrieval


Leaf = Search | Embed | Ask | Rerank | Join | Recall | Tell


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Together:
    """Perform *steps* at the same time. The result is a list with one `Outcome` per step.

    Attributes:
        steps: The steps. Their outcomes have the same order.
        deadline: When to stop waiting. Steps that have not finished by then are late.
        limit: The maximum number of steps at once.
    """

    steps: Sequence[Leaf]
    deadline: Deadline
    limit: int


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Beside:
    """Perform *search* in the caller's thread or task, and *flow* at the same time.

    The result is a list of two outcomes: first the search's, then the flow's. The search has no
    deadline. If the search fails, the flow is stopped and counts as late.

    Attributes:
        search: The original search.
        flow: The flow to perform beside the search.
        limit: The maximum number of steps at once, including the search.
    """

    search: Search
    flow: Flow[Any]
    limit: int


@dataclass(eq=False, repr=False, slots=True)
class Outcome:
    """The outcome of one step: a *value*, an *error*, or neither if the step was late.

    Attributes:
        value: The step's result.
        error: The exception that the step raised.
        seconds: The step's duration. For a late step, how long the caller waited.
        began: When the step began, on the clock of `time.perf_counter`.
        late: Whether the step was still unfinished when the caller stopped waiting.
    """

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    began: float = 0.0
    late: bool = field(default=False, kw_only=True)

    @property
    def has_succeeded(self) -> bool:
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
        """The name of the error's type; ``""`` if there was no error.

        If no thread was free, this is the error's message. Other messages are left out, because
        they may quote a query or a passage.
        """
        if self.error is None:
            return ""
        return str(self.error) if self.reason == "overloaded" else type(self.error).__name__


Step = Leaf | Together | Beside

Flow = Generator["Step", Any, T]
"""A generator that yields steps, receives the result of each step, and returns a final result."""


class Performer(Protocol):
    """Performs the steps of one call, using the wrapped function, the embedder and the model."""

    @property
    def can_await_calls(self) -> bool:
        """Whether `asearch` and `aembed` can be awaited.

        If not, `search` and `embed` are called in threads.
        """

    @property
    def bulkhead(self) -> Bulkhead:
        """The threads that perform all steps except the original search."""

    @property
    def model(self) -> LanguageModel | None:
        """The language model; ``None`` if no model is configured."""

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
    """A `Performer` for flows that only call the model. All other steps raise `WrapError`."""

    __slots__ = ("bulkhead", "model")
    can_await_calls = True

    def __init__(self, model: LanguageModel | None, bulkhead: Bulkhead | None = None) -> None:
        self.model = model
        self.bulkhead = bulkhead or Bulkhead()

    def search(self, _: Any) -> Any:
        """Raise `WrapError`, because there is no wrapped function."""
        raise WrapError("there is no wrapped function to search, embed or rerank")

    asearch = aembed = embed = rerank = search


def choose_model(step: Ask, performer: Performer) -> LanguageModel:
    """Return the model for *step*; raise `ModelError` if there is none."""
    model = step.model or performer.model
    if model is None:
        raise ModelError("unavailable", "no language model is configured")
    return model


def gather_flows(
    flows: Sequence[Flow[T]], *, max_steps: int, deadline: Deadline | None = None
) -> Flow[list[T]]:
    """Perform *flows* at the same time and return their results in the order of *flows*.

    In each round every flow yields a step, and all these steps are performed together. No flow may
    yield a `Beside`. If a flow raises an exception, the other flows are closed and the exception is
    raised here.

    Args:
        flows: The flows to perform.
        max_steps: The maximum number of steps at once.
        deadline: When to stop waiting for a step; by default never. At the deadline, a flow that
            yielded a `Together` receives a late outcome, and a flow that yielded a single step
            receives a `TimeoutError`.
    """
    latest = NEVER if deadline is None else deadline.at
    results: dict[int, T] = {}
    yielded: dict[int, Step] = {}
    outcomes_of: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(flows)))
    try:
        while outcomes_of:
            for position, outcomes in outcomes_of.items():
                try:
                    yielded[position] = resume_flow(
                        flows[position], yielded.pop(position, None), outcomes
                    )
                except StopIteration as stop:
                    results[position] = stop.value
            outcomes_of = {}
            if yielded:
                # All flows wait for one another in each round, so the latest deadline counts.
                until = min(latest, max(map(_find_deadline, yielded.values())))
                leaves = [leaf for step in yielded.values() for leaf in list_single_steps(step)]
                outcomes = yield Together(leaves, Deadline(until), max_steps)
                for position, step in yielded.items():
                    count = len(list_single_steps(step))
                    outcomes_of[position], outcomes = outcomes[:count], outcomes[count:]
    finally:
        for flow in flows:
            flow.close()
    return [results[position] for position in range(len(flows))]


Models = Mapping[str, Any]
"""The models that a flow calls, by operation: ``model`` (transforms), ``embedding``, ``rerank``."""


def observe_flow(
    flow: Flow[T], observation: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """Return a flow that reports *flow* to the observers as one operation.

    Args:
        flow: The flow. Without observers it is returned unchanged.
        observation: The operation to report.
        models: The models that the flow's steps call.
    """
    return _observe_flow(flow, observation, models) if observation.is_observed else flow


def _observe_flow(flow: Flow[T], observation: Observation, models: Models) -> Flow[T]:
    with observation:
        return observation.keep_result((yield from observe_steps(flow, observation, models)))


def observe_steps(
    flow: Flow[T], parent: Observation, models: Models = MappingProxyType({})
) -> Flow[T]:
    """Return a flow that reports each step of *flow* to the observers.

    Args:
        flow: The flow. Without observers it is returned unchanged. A step that already has an
            observation keeps it.
        parent: The operation that contains the steps.
        models: The models that the flow's steps call.
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
            for leaf in list_single_steps(step):
                if leaf.observation is NOT_OBSERVED:
                    leaf.observation = _make_step_observation(leaf, parent, models)
            answer = error = None
            # The driver throws a step's error into this generator; the inner flow handles it.
            try:
                answer = yield step
            except Exception as raised:
                error = raised


def _make_step_observation(step: Leaf, parent: Observation, models: Models) -> Observation:
    if isinstance(step, Search):
        return parent.make_child(
            "search", step.kind, weight=step.weight, top_k=step.top_k, content=step.text
        )
    if isinstance(step, Embed):
        return observe_embedding(parent, models.get("embedding"), step.texts)
    if isinstance(step, Ask):
        fields = describe_model(step.model or models.get("model"))
        return parent.make_child("model", step.prompt.mode, content=step.prompt, **fields)
    if isinstance(step, Rerank):
        fields = describe_model(models.get("rerank"))
        return parent.make_child(
            "rerank", counts={"texts": len(step.texts)}, content=step.texts, **fields
        )
    return NOT_OBSERVED


def observe_embedding(parent: Observation, embedder: Any, texts: Sequence[str]) -> Observation:
    """Return an observation for embedding *texts*, as a part of the operation *parent*.

    The observation has not started yet. Without observers, *parent* is returned.
    """
    if not parent.is_observed:
        return parent
    return parent.make_child(
        "embedding", counts={"texts": len(texts)}, content=texts, **describe_model(embedder)
    )


def list_single_steps(step: Step) -> Sequence[Leaf]:
    """Return the single steps that *step* consists of.

    For a `Beside`, this is only the search: its flow has not yielded its steps yet.
    """
    if isinstance(step, Together):
        return step.steps
    return (step.search,) if isinstance(step, Beside) else (step,)


def _find_deadline(step: Step) -> float:
    """Return the deadline of *step*, in seconds on the monotonic clock.

    Only a `Together` has a deadline. Returns `NEVER` for all other steps.
    """
    return step.deadline.at if isinstance(step, Together) else NEVER


def resume_flow(flow: Flow[Any], step: Step | None, outcomes: list[Outcome] | None) -> Step:
    """Send the outcomes of the last step to *flow* and return the flow's next step.

    Args:
        flow: The flow.
        step: The last step; ``None`` at the start of the flow.
        outcomes: The outcomes of *step*; ``None`` at the start of the flow.

    Raises:
        StopIteration: The flow has ended. The exception's value is the flow's result.
        Exception: The flow raised an exception.
    """
    if step is None or isinstance(step, Together):
        return flow.send(outcomes)
    # The flow yielded a single step, so it expects a plain result or an exception, not a list.
    (outcome,) = outcomes or (Outcome(late=True),)
    if outcome.has_succeeded:
        return flow.send(outcome.value)
    return flow.throw(
        outcome.error or TimeoutError("there was no time left for one of several searches")
    )


class FunctionStopped(Exception):
    """Carries a `StopIteration` of the wrapped function, which a generator could not pass on."""

    def __init__(self, error: StopIteration) -> None:
        super().__init__()
        self.error = error


Asked = TypeVar("Asked")


def drive_generator(generator: Generator[Asked, Any, T], send: Callable[[Asked], Any]) -> T:
    """Answer each request that *generator* yields, and return the generator's result.

    Calls *send* with each request and sends the answer back to the generator. An exception of
    *send* is thrown into the generator.
    """
    try:
        request = next(generator)
        while True:
            try:
                answer = send(request)
            except Exception as error:
                request = generator.throw(error)
            else:
                request = generator.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive_generator(
    generator: Generator[Asked, Any, T], send: Callable[[Asked], Awaitable[Any]]
) -> T:
    """Answer each request that *generator* yields, and return the generator's result.

    Like `drive_generator`, but *send* is awaited.
    """
    try:
        request = next(generator)
        while True:
            try:
                answer = await send(request)
            except Exception as error:
                request = generator.throw(error)
            else:
                request = generator.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
