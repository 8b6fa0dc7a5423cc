"""The world of a case: an index, the function over it, a model with its moods, and what they saw.

Nothing here knows the inside of the package: it is used as people use it, through its public names.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

import qtmiddleware as qtm
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.types import Deadline
from tests.laws.cases import Case
from tests.laws.shapes import SHAPES, Row
from tests.support.living import tasks_left

QUERY: Final = "Does Jaco have any health concerns?"
DEFAULT_NUMBER: Final = 4
NUMBERS: Final = {"positional": 5, "keyword": 3, "default": DEFAULT_NUMBER}
MOST: Final = 20
"""The largest number of passages that a function takes which rejects or caps many, or fails at it."""
ALL: Final = 12
"""How many passages a function without such a parameter returns, at most."""
PATIENCE: Final = 20.0
"""Seconds after which something that hangs gives up. Who waits so long for it has broken a law."""

WHO: Final = ("Jaco", "Bella", "The shelter", "A cat", "The vet", "Every dog", "Tom", "A puppy")
WHAT: Final = (
    "has no health concerns",
    "eats dry food twice a day",
    "was seen by the vet in May",
    "sleeps most of the day",
    "likes the walk at eight",
    "has a medical condition",
    "is insured against illness",
    "pays the fee in March",
    "needs a vaccination each year",
    "came from the south",
)
CORPUS: Final = tuple(f"{who} {what}." for what in WHAT for who in WHO)

REPLIES: Final[Mapping[str, Any]] = {
    "rewrite": "Which medical condition or illness does the dog Jaco have?",
    "step_back": "Which illness do dogs commonly have?",
    "sub_queries": [
        "What did the vet say about Jaco?",
        "Which vaccination does the dog Jaco need?",
    ],
    "paraphrases": ["Is Jaco ill?", "How fit is the dog Jaco?", "What ails Jaco?"],
    "hyde": "Jaco was seen by the vet, who found him healthy and without any illness.",
    "keywords": ["vet", "illness"],
    "standalone": QUERY,
}

caller: ContextVar[str] = ContextVar("caller", default="nobody")


class Unlucky(Exception):
    """What the function raises itself."""


class TooMany(Exception):
    """What the function raises for more passages than it gives."""


class Broken(Exception):
    """What a vendor raises whose service cannot do what it was asked for."""

    status_code = 503


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the function, and where it was made."""

    text: str
    number: int | None
    filters: Any
    thread: int
    task: Any
    caller: str


@dataclass
class World:
    """Everything a question meets in one *case*, and a record of what happened."""

    case: Case
    calls: list[Call] = field(default_factory=list)
    served: list[tuple[str, Any, Any]] = field(default_factory=list)
    """For each response: the text it was found for, the response, and a copy made when it was returned."""
    prompts: list[str] = field(default_factory=list)
    """What the model's callers saw in the context variable `caller`."""
    waited_for: list[str] = field(default_factory=list)
    outwaited: list[str] = field(default_factory=list)
    """What was waited for until it gave up."""
    failed_searches: int = 0
    running: int = 0
    released: threading.Event = field(default_factory=threading.Event)
    model_asked: threading.Event = field(default_factory=threading.Event)
    error: Unlucky = field(default_factory=lambda: Unlucky("no index"))
    lock: threading.Lock = field(default_factory=threading.Lock)

    # --- the index ---

    @property
    def takes_number(self) -> bool:
        return self.case.number != "absent" or self.case.question in ("clause", "vector")

    @property
    def number(self) -> int | None:
        """How many passages the caller asks for; ``None`` if the function has no such parameter."""
        return NUMBERS.get(self.case.number, DEFAULT_NUMBER) if self.takes_number else None

    def rank(self, text: str) -> list[Row]:
        """Every passage that *text* finds, best first."""
        case = self.case
        chance = Random(f"{case.seed} {text}")
        words = {word.strip("?.,").casefold() for word in text.split()}
        scores = {
            place: len(words & set(passage.casefold().strip(".").split())) / 10
            + chance.random() / 2
            for place, passage in enumerate(CORPUS)
        }
        order = sorted(scores, key=lambda place: -scores[place])
        order = order[: {"some": 9, "few": 2, "none": 0}.get(case.supply, len(order))]
        if case.supply == "repeated":
            order = [place for at, place in enumerate(order) for _ in range(1 + (at % 3 == 0))]
        lacks = case.fields if case.fields in SHAPES[case.shape].can_lack else "all"
        return [
            Row(
                None if lacks == "no ids" else f"p{place}",
                None if lacks == "no text" else CORPUS[place],
                None if lacks == "no scores" else round(scores[place], 2),
                place % 7,
            )
            for place in order
        ]

    def begin(self, question: Any, number: int | None, filters: Any) -> str:
        """Record a call of the function, and raise what this case raises for it."""
        text = _read_question(question)
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        with self.lock:
            self.calls.append(
                Call(text, number, filters, threading.get_ident(), task, caller.get())
            )
        search = self.case.search
        if search == "fails":
            raise self.error
        if number is not None and number > MOST and search in ("rejects many", "breaks for many"):
            raise TooMany(number) if search == "rejects many" else Broken(number)
        is_unlucky = search == "one fails" and text == REPLIES["rewrite"]
        if is_unlucky or (search == "variants fail" and text != QUERY):
            self.failed_searches += 1
            raise Unlucky(text)
        return text

    def awaited(self, text: str) -> tuple[str, threading.Event] | None:
        """What the search for *text* waits for, and its name."""
        case = self.case
        if case.search == "variants hang" and text != QUERY:
            self.failed_searches += 1
            return "a variant's search", self.released
        # The question is searched while the model thinks; a search that waits for the model shows it.
        if case.search == "slow" and case.is_model_asked and case.model not in ("none", "late"):
            return "the question's search", self.model_asked
        return None

    def finish(self, text: str, number: int | None) -> Any:
        """The response to *text*."""
        is_generous = number is None or self.case.search == "ignores the number"
        rows = self.rank(text)[: ALL if is_generous else number]
        if self.case.search == "caps many":
            rows = rows[:MOST]
        # As a function does that swallows its vendor's refusal.
        if self.case.search == "gives less of many" and number is not None and number > MOST:
            rows = rows[: self.case.seed % 3]
        response = SHAPES[self.case.shape].build(rows)
        self.served.append((text, response, copy.deepcopy(response)))
        return response

    def find(self, question: Any, number: int | None, filters: Any) -> Any:
        text = self.begin(question, number, filters)
        with self._at_work():
            self.wait(self.awaited(text))
            return self.finish(text, number)

    async def afind(self, question: Any, number: int | None, filters: Any) -> Any:
        text = self.begin(question, number, filters)
        with self._at_work():
            await self.await_(self.awaited(text))
            return self.finish(text, number)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        with self.lock:
            self.running += 1
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1

    def wait(self, awaited: tuple[str, threading.Event] | None) -> None:
        if awaited:
            self.waited_for.append(awaited[0])
            if not awaited[1].wait(PATIENCE):
                self.outwaited.append(awaited[0])

    async def await_(self, awaited: tuple[str, threading.Event] | None) -> None:
        await asyncio.sleep(0)
        if awaited is None:
            return
        self.waited_for.append(awaited[0])
        end = time.monotonic() + PATIENCE
        while not awaited[1].is_set():
            if time.monotonic() > end:
                self.outwaited.append(awaited[0])
                return
            await asyncio.sleep(0.001)

    # --- the model ---

    name = "a model of the world"

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        del deadline  # this model has no manners
        with self._at_work():
            self.wait(self._hear())
            return self._reply(prompt)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        del deadline
        with self._at_work():
            await self.await_(self._hear())
            return self._reply(prompt)

    def _hear(self) -> tuple[str, threading.Event] | None:
        self.prompts.append(caller.get())
        self.model_asked.set()
        return ("the model", self.released) if self.case.model == "late" else None

    def _reply(self, prompt: Prompt) -> Reply:
        mood = self.case.model
        if mood == "failing":
            raise RuntimeError("a bug in the user's own model")
        if mood == "refusing":
            raise qtm.ModelError("refused")
        if mood == "garbage":
            return Reply("{" * 50)
        if mood == "chatting":
            return Reply("I'm sorry, but I can't help with that.")
        reply = {wanted.name: REPLIES[wanted.name] for wanted in prompt.fields}
        if mood == "wrong count":
            reply |= {
                name: [f"{text} And case {number}?" for text in texts for number in range(9)]
                for name, texts in reply.items()
                if isinstance(texts, list)
            }
            reply |= {name: [text, text] for name, text in reply.items() if name == "rewrite"}
        return Reply(json.dumps(reply))


DIMENSION: Final = 400
"""The length of a vector, which holds the longest text of this world."""


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Vectors from which the texts can be read again: the index of this world finds by text."""
    return [[float(ord(letter)) for letter in text.ljust(DIMENSION)] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


def _read_question(question: Any) -> str:
    if isinstance(question, str):
        return question
    if isinstance(question[0], float):
        return "".join(chr(int(letter)) for letter in question).rstrip()
    (clause,) = question
    return str(clause["query"])


# --- the functions ------------------------------------------------------------------------------


class Index:
    """The user's own class; its methods have the parameters that people's functions have."""

    def __init__(self, world: World) -> None:
        self.find = world.afind if world.case.way == "async" else world.find

    def search(self, query: str, top_k: int = DEFAULT_NUMBER, *, filters: Any = None) -> Any:
        """Find passages."""
        return self.find(query, top_k, filters)

    def search_all(self, query: str, *, filters: Any = None) -> Any:
        return self.find(query, None, filters)

    def search_vector(
        self, vector: list[float], top_k: int = DEFAULT_NUMBER, *, filters: Any = None
    ) -> Any:
        return self.find(vector, top_k, filters)

    def search_clause(
        self, *, score_by: list[Any], top_k: int = DEFAULT_NUMBER, filters: Any = None
    ) -> Any:
        return self.find(score_by, top_k, filters)


def decorate(method: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """*method* as decorators leave it: a plain function, or a coroutine function, with its parameters."""

    @functools.wraps(method)
    def search(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    @functools.wraps(method)
    async def asearch(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        return await found if inspect.isawaitable(found) else found

    return asearch if is_async else search


def make_function(world: World) -> Callable[..., Any]:
    """The function of the world's case."""
    case = world.case
    name = {"vector": "search_vector", "clause": "search_clause"}.get(
        case.question, "search" if world.takes_number else "search_all"
    )
    method = decorate(getattr(Index, name), is_async=case.way == "async")
    index: Any = type("Search", (Index,), {name: method, "__call__": method})(world)
    functions = {
        "object": index,
        "method": getattr(index, name),
        "partial": functools.partial(method, index),
    }
    return functions.get(case.callable) or decorate(
        getattr(index, name), is_async=case.way == "async"
    )


def make_arguments(case: Case, *, is_plain: bool = False) -> tuple[list[Any], dict[str, Any]]:
    """What the caller passes, positional and by keyword; where the function takes a vector, the plain
    call passes one."""
    question: Any = embed([QUERY])[0] if is_plain and case.question == "vector" else QUERY
    args: list[Any] = []
    kwargs: dict[str, Any] = {"filters": {"kind": ["dog", "cat"]}}
    if case.question == "clause":
        kwargs["score_by"] = [{"type": "embed", "field": "body", "query": QUERY}]
    elif case.question == "vector":
        kwargs["vector"] = question
    elif case.question == "keyword":
        kwargs["query"] = question
    else:
        args.append(question)
    if case.number == "positional" and args:
        args.append(NUMBERS["positional"])
    elif case.number in ("positional", "keyword"):
        kwargs["top_k"] = NUMBERS[case.number]
    return args, kwargs


PATIENT_MS: Final = 300_000


def make_config(case: Case) -> qtm.Config:
    """The case's setting, with time enough for what is quick on a busy machine and little for what hangs."""
    limits = {"llmTimeoutMs": PATIENT_MS, "deadlineMs": 2 * PATIENT_MS}
    if case.model == "late":
        limits["llmTimeoutMs"] = 30
    if case.search == "variants hang":
        limits["deadlineMs"] = 150
    presets = ("off", "rules", "words", "balanced", "thorough", "auto", "research")
    source: Any = {"transformationType": case.setting}
    if case.setting in presets:
        source = case.setting
    elif case.setting == "concat":
        source = {"transformationType": "decompose", "fusion": {"method": "concat"}}
    config = qtm.Config.load(source, environ={})
    return config.overridden({"limits": limits})


# --- one play --------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a call returned or raised."""

    response: Any = None
    error: BaseException | None = None
    retrieval: qtm.Retrieval | None = None


@dataclass
class Played:
    """One case, asked plainly and through the middleware in one of two manners."""

    world: World
    plain: Outcome = field(default_factory=Outcome)
    plain_calls: list[Call] = field(default_factory=list)
    got: Outcome = field(default_factory=Outcome)
    arguments: Any = None
    """What the caller passed, as it was after the call."""
    thread: int = field(default_factory=threading.get_ident)
    task: Any = None
    tasks_left: list[str] = field(default_factory=list)
    running_left: int = 0
    log: list[str] = field(default_factory=list)

    @property
    def case(self) -> Case:
        return self.world.case

    def read(self, outcome: Outcome) -> list[Row]:
        return SHAPES[self.case.shape].read(outcome.response)


class _Lines(logging.Handler):
    """Keeps what is logged above DEBUG."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.INFO)
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_text or ''} {vars(record)}")


def play(case: Case, *, manner: str = "retrieve") -> Played:
    """Ask the function of *case*, then the wrapped function, by ``retrieve`` or by ``call``."""
    played = Played(World(case))
    handler = _Lines(played.log)
    logger = logging.getLogger("qtmiddleware")
    logger.addHandler(handler)
    token = caller.set("the caller")
    playing = _play(played, manner)
    try:
        if case.way == "async" or (case.way == "threads" and manner == "retrieve"):
            asyncio.run(playing)
        else:
            with suppress(StopIteration):
                playing.send(None)
    finally:
        caller.reset(token)
        logger.removeHandler(handler)
        played.world.released.set()
    return played


async def _play(played: Played, manner: str) -> None:
    """Ask twice. Without a running loop nothing in here suspends."""
    world, case = played.world, played.case
    with suppress(RuntimeError):
        played.task = asyncio.current_task()
    function = make_function(world)
    embedding = {"embed_many": aembed if case.way == "async" else embed}
    qm = qtm.QueryMiddleware(make_config(case), client=None if case.model == "none" else world)
    wrapped = qm.wrap(function, **(embedding if case.question == "vector" else {}))
    asked = wrapped
    if manner == "retrieve":
        asked = wrapped.aretrieve if played.task else wrapped.retrieve
    world.model_asked.set()
    await _ask(played.plain, function, make_arguments(case, is_plain=True))
    _forget(played)
    played.arguments = make_arguments(case)
    await _ask(played.got, asked, played.arguments)
    if manner == "retrieve" and played.got.error is None:
        played.got.retrieval = played.got.response
        played.got.response = played.got.retrieval.response
    if played.task:
        played.tasks_left = list(map(repr, tasks_left()))
    # What was begun in the loop is over when the call is: nothing has to be released for it.
    left = world.running if case.way == "async" else 0
    world.released.set()
    end = time.monotonic() + PATIENCE
    while world.running and time.monotonic() < end:
        await asyncio.sleep(0.001) if played.task else time.sleep(0.001)
    played.running_left = max(left, world.running)


async def _ask(outcome: Outcome, function: Callable[..., Any], arguments: Any) -> None:
    args, kwargs = arguments
    try:
        found = function(*args, **kwargs)
        outcome.response = await found if inspect.isawaitable(found) else found
    except Exception as error:
        outcome.error = error


def _forget(played: Played) -> None:
    """Forget the plain call, but for its response, which stays what it is too."""
    world = played.world
    played.plain_calls = list(world.calls)
    world.calls.clear()
    world.served.clear()
    world.failed_searches = 0
    world.model_asked.clear()


def turn(case: Case) -> Case:
    """The same case the other way: blocking and async."""
    return replace(case, way="blocking" if case.way == "async" else "async")
