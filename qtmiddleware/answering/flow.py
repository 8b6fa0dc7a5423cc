"""Answer one question: retrieve passages, ask the model, and read its reply.

    retrieve ─┬─ plain: passages ───────────────────────────────┬─ ask ─ read ─ Answer
              └─ synthesis: retrieve × n ─ ask × n ─ read × n ──┘

In a synthesis, the model answers each sub-query from the passages of that sub-query's search. The
last model call writes the answer, which is read whole or in pieces.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from pkgutil import get_data
from time import perf_counter
from typing import Any, Final, Literal, Self

from qtmiddleware.answering.reading import AnswerReader
from qtmiddleware.answering.streaming import Piece, stream_reply
from qtmiddleware.catalogue import PLACES
from qtmiddleware.config.settings import Settings
from qtmiddleware.errors import ModelError, convert_to_model_error
from qtmiddleware.preprocessing import detect_language
from qtmiddleware.preprocessing.lexicon import load_lexicon
from qtmiddleware.protocols import Prompt, Reply, StreamingModel
from qtmiddleware.retrieval.call import Call
from qtmiddleware.retrieval.flow import retrieve
from qtmiddleware.runtime.concurrency import Bulkhead, Outcome, Threads, drive, make_async_io
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.runtime.services import Searcher, Services
from qtmiddleware.transforms.prompt import (
    append_digest,
    find_user_instruction,
    format_json_message,
    select_recent_messages,
)
from qtmiddleware.types import (
    Answer,
    Deadline,
    Degradation,
    Match,
    Message,
    Retrieval,
    SubAnswer,
    Trace,
)

PromptMode = Literal["answer", "sub_answer", "synthesis"]

_LABELS: Final = ("title", "source", "url", *PLACES, "context")
_LABEL_CHARS: Final = 1_000
MAX_TOKENS: Final = 1_000
"""The token limit of a reply, unless the settings set another."""
_WORDS: Final = json.loads(get_data("qtmiddleware.answering", "prompts.json") or b"{}")
_DECOMPOSING: Final = frozenset({"decompose", "all", "combined"})

logger: Final = get_logger("qtmiddleware")


@dataclass(frozen=True, slots=True)
class PromptPassages:
    """The passages to show to the model, numbered from 1.

    Attributes:
        matches: the passages, in the order of their numbers.
        entries: each passage as a mapping for the prompt: its number, labels and text.
    """

    matches: tuple[Match, ...] = ()
    entries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    def __add__(self, other: PromptPassages) -> PromptPassages:
        return PromptPassages(self.matches + other.matches, self.entries + other.entries)

    @property
    def context(self) -> str:
        """The texts of the passages, each under a heading such as ``PASSAGE 1:``."""
        return "\n\n".join(
            f"PASSAGE {number}:\n{entry['text']}"
            for number, entry in enumerate(self.entries, start=1)
        )


_NO_PASSAGES: Final = PromptPassages()
_NO_TEXT: Final = AnswerReader(())


@dataclass(slots=True)
class _Part:
    """A sub-query, the passages that its search found, and what was read of the model's reply.

    *reason* says why there is no answer.
    """

    question: str
    passages: PromptPassages = _NO_PASSAGES
    reader: AnswerReader = _NO_TEXT
    reason: str = "no_passages"


@dataclass(frozen=True, slots=True)
class _Draft:
    """The model call that writes an answer, the passages to cite, and what to say if it fails."""

    prompt: Prompt
    passages: PromptPassages
    fallback: str = ""


class AnswerFlow:
    """Answers one question.

    Args:
        call: The question, its settings and the state of the function.
        chat: The model that writes the answer.
        finish_retrieval: Takes the retrieval when the trace is complete, and returns the retrieval
            for the answer.
    """

    def __init__(
        self,
        call: Call,
        chat: StreamingModel,
        finish_retrieval: Callable[[Retrieval], Retrieval],
    ) -> None:
        settings = call.settings
        self._is_synthesis = settings.answer.mode == "synthesis"
        if self._is_synthesis:
            settings = _add_sub_queries(settings)
        self._settings = settings
        self._observation = call.observation.make_child("answer", content=call.original)
        self._call = replace(
            call, settings=settings, observation=self._observation, has_parts=self._is_synthesis
        )
        self._chat = chat
        self._finish_retrieval = finish_retrieval
        self._degradations: list[Degradation] = []
        self._sub_answers: tuple[SubAnswer, ...] = ()
        self._first_error: ModelError | None = None

    async def answer(self, services: Services) -> Answer:
        """Return the whole answer.

        Raises `ModelError` if the model gives no answer. Exceptions from the wrapped function pass
        through.
        """
        async for event in self.stream(services):
            if isinstance(event, Answer):
                answer = event
        return answer

    async def stream(self, services: Services) -> AsyncGenerator[Retrieval | str | Answer, None]:
        """Yield the retrieval, then the pieces of the answer that can be shown, then the answer."""
        with self._observation as observation:
            retrieval = await retrieve(self._call, services)
            services = services.within(observation, self._settings.limits.max_concurrency)
            reader, draft = _NO_TEXT, None
            try:
                yield retrieval
                draft = await self._draft(retrieval, services)
                if draft is None:
                    answer = self._build_answer(retrieval)
                else:
                    reader = AnswerReader(draft.passages.matches)
                    deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
                    outcome = Outcome(Reply(""), began=perf_counter())
                    reply = stream_reply(self._chat, draft.prompt, deadline, services)
                    async with aclosing(self._read_reply(reply, reader, outcome)) as pieces:
                        async for piece in pieces:
                            yield piece
                    answer = self._read_answer(draft, outcome, reader, retrieval)
            except BaseException as error:
                # The caller closed the stream, or cancelled the call.
                if not isinstance(error, Exception):
                    trace = retrieval.trace
                    if draft is not None:
                        # Nobody knows what the model call cost.
                        trace.record_usage(1, 0, 0, None)
                    trace.record_stage("answer", 0.0, "skipped", "closed")
                    self._complete(retrieval)
                raise
            observation.keep_result(answer)
        if not reader.text:
            yield answer.text
        yield answer

    async def _read_reply(
        self, reply: AsyncGenerator[Piece, None], reader: AnswerReader, outcome: Outcome[Reply]
    ) -> AsyncGenerator[str, None]:
        """Yield what *reader* shows of the model's *reply*, and complete the *outcome*."""
        has_text = False
        try:
            async with aclosing(reply) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        text = piece
                    else:
                        outcome.value = piece
                        # A model that cannot stream sends all of its text at once.
                        text = "" if has_text else piece.text
                    has_text |= bool(text)
                    if shown := reader.feed(text):
                        yield shown
            if shown := reader.feed("", is_last=True):
                yield shown
        except ModelError as error:
            outcome.error = error
        outcome.seconds = perf_counter() - outcome.began

    async def _draft(self, retrieval: Retrieval, services: Services) -> _Draft | None:
        """Return the model call that writes the answer; ``None`` if nothing is known to answer."""
        settings = self._settings
        if retrieval.is_unsure and settings.answer.if_unsure == "decline":
            return None
        if self._is_synthesis and (draft := await self._draft_synthesis(retrieval, services)):
            return draft
        passages = select_passages(retrieval.matches, settings.answer.context_chars)
        if passages.matches:
            return _Draft(self._build_prompt("answer", passages.entries), passages)
        if retrieval.matches:
            self._degrade("passages", "no_text")
        return None

    # --- a synthesis ------------------------------------------------------------------------------

    async def _draft_synthesis(self, retrieval: Retrieval, services: Services) -> _Draft | None:
        """Answer the sub-queries, and return the model call that combines their answers.

        Returns ``None`` if too few sub-queries have an answer.
        """
        settings, trace = self._settings, retrieval.trace
        questions = retrieval.transformation.sub_queries
        if (most_searches := settings.limits.max_searches) is not None:
            questions = questions[: max(0, most_searches - trace.searches)]
        # A single sub-query is only the question in other words.
        if len(questions) < 2:
            return None
        began = perf_counter()
        parts = await self._search_parts(questions, trace, services)
        await self._ask_parts(parts, trace, services)
        trace.record_stage("sub_answers", perf_counter() - began, began=began)
        self._sub_answers = tuple(
            SubAnswer(
                part.question,
                part.reader.text,
                tuple(part.reader.citations),
                matches=part.passages.matches,
                found=not part.reason,
                reason=part.reason,
            )
            for part in parts
        )
        useful = [part for part in parts if not part.reason]
        if len(useful) < min(settings.fusion.min_successes, len(questions)):
            detail = f"{len(useful)} of {len(questions)} sub-queries got an answer"
            self._degrade("sub_answers", "too_few_successes", detail)
            return None
        data: list[dict[str, str]] = []
        best = 0, 0, ""
        passages = _NO_PASSAGES
        for part in useful:
            # The citations of all parts are numbered through.
            text = part.reader.renumber(len(passages.matches))
            data.append({"question": part.question, "answer": text})
            passages += part.passages
            cited = {citation.number for citation in part.reader.citations}
            best = max(best, (len(cited), len(text), text))
        return _Draft(self._build_prompt("synthesis", data), passages, fallback=best[2])

    async def _search_parts(
        self,
        questions: Sequence[str],
        trace: Trace,
        services: Services,
    ) -> list[_Part]:
        """Return each of *questions* with the passages found for it; failures are degradations."""
        settings = self._settings
        # The user did not ask for these retrievals, so they call no hook. A sub-query is not
        # transformed again.
        plain = replace(settings, transformation_type="none")
        call = replace(self._call, history=(), hooks=(), settings=plain)
        searches = [
            partial(retrieve, replace(call, original=question), services) for question in questions
        ]
        deadline = Deadline.after(settings.limits.deadline_ms / 1e3)
        outcomes = await services.gather(searches, deadline)
        parts = [_Part(question) for question in questions]
        for part, outcome in zip(parts, outcomes, strict=True):
            if outcome.has_succeeded:
                retrieval = outcome.get()
                trace.searches += retrieval.trace.searches
                known = self._degradations
                known.extend(problem for problem in retrieval.degradations if problem not in known)
                matches = retrieval.matches[: settings.fusion.sub_query_top_k]
                part.passages = select_passages(matches, settings.answer.context_chars)
            else:
                trace.searches += 1
                part.reason = "timeout" if outcome.late else "search_failed"
                self._degrade("sub_answers", part.reason, outcome.detail)
        return parts

    async def _ask_parts(self, parts: Sequence[_Part], trace: Trace, services: Services) -> None:
        """Set the model's replies of all *parts* with passages; failures become degradations."""
        parts = [part for part in parts if part.passages.matches]
        deadline = Deadline.after(self._settings.answer.timeout_ms / 1e3)
        asks = []
        for part in parts:
            entries = part.passages.entries
            prompt = build_prompt("sub_answer", self._settings, part.question, (), entries)
            asks.append(partial(services.ask, prompt, deadline, self._chat))
        outcomes = await services.gather(asks, deadline)
        for part, outcome in zip(parts, outcomes, strict=True):
            part.reader = reader = AnswerReader(part.passages.matches)
            if outcome.has_succeeded:
                reader.feed(outcome.get().text, is_last=True)
            part.reason = "" if reader.is_answered else "no_answer"
            if error := self._record_reply("sub_answer", "sub_answers", outcome, reader, trace):
                self._first_error = self._first_error or error
                self._degrade("sub_answers", error.reason, str(error))
                part.reason = error.reason

    # --- the answer -------------------------------------------------------------------------------

    def _read_answer(
        self, draft: _Draft, outcome: Outcome[Reply], reader: AnswerReader, retrieval: Retrieval
    ) -> Answer:
        """Return the answer that *reader* has read; if the model failed, the draft's fallback."""
        mode = draft.prompt.mode
        error = self._record_reply(mode, mode, outcome, reader, retrieval.trace)
        if error is None:
            return self._build_answer(retrieval, reader, draft.passages, found=reader.is_answered)
        if not draft.fallback:
            # The first error of a model call explains the later ones.
            first_error = self._first_error or error
            first_error.retrieval = self._complete(retrieval)
            raise first_error
        self._degrade(mode, error.reason, str(error))
        reader = AnswerReader(draft.passages.matches)
        reader.feed(draft.fallback, is_last=True)
        return self._build_answer(retrieval, reader, draft.passages, found=True)

    def _record_reply(
        self, mode: str, stage: str, outcome: Outcome[Reply], reader: AnswerReader, trace: Trace
    ) -> ModelError | None:
        """Record a model call in *trace*, and flaws of its reply as degradations of *stage*.

        Returns an error if the call failed, or if the model wrote nothing to show.
        """
        began = outcome.began or None
        if not outcome.has_succeeded:
            error = convert_to_model_error(outcome.error)
            # A call that had begun has cost something, but nobody knows how much.
            cost = 0.0 if error.is_free else None
            trace.record_usage(int(error.was_asked), 0, 0, cost)
            trace.record_stage(mode, outcome.seconds, "failed", error.reason, began=began)
            return error
        reply = outcome.get()
        trace.record_usage(reply.calls, reply.input_tokens, reply.output_tokens, reply.cost_usd)
        status = ("degraded", "truncated") if reply.truncated else ("ok", "")
        trace.record_stage(mode, outcome.seconds, *status, began=began)
        # The marker that says that there is no answer is something.
        if reader.is_answered and not reader.text:
            return ModelError("empty", "the language model's answer is empty")
        if reader.invented_count:
            self._degrade("citations", "invented", f"{reader.invented_count} removed")
        if reply.truncated:
            self._degrade(stage, "truncated")
        return None

    def _build_prompt(self, mode: PromptMode, data: Sequence[Mapping[str, Any]]) -> Prompt:
        call = self._call
        return build_prompt(mode, self._settings, call.original, call.history, data)

    def _degrade(self, stage: str, reason: str, detail: str = "") -> None:
        self._degradations.append(Degradation(stage, reason, detail))

    def _complete(self, retrieval: Retrieval) -> Retrieval:
        """Complete the trace of *retrieval*, and return the retrieval for the answer."""
        retrieval.trace.finish()
        return self._finish_retrieval(retrieval)

    def _build_answer(
        self,
        retrieval: Retrieval,
        content: AnswerReader = _NO_TEXT,
        passages: PromptPassages = _NO_PASSAGES,
        *,
        found: bool = False,
    ) -> Answer:
        """Return the answer; without a text in *content*, one that says that there is none."""
        call = self._call
        retrieval = self._complete(retrieval)
        call.log_degradations(logger, "answer", retrieval.trace, self._degradations)
        degradations = (*retrieval.degradations, *self._degradations)
        return Answer(
            text=content.text or load_lexicon(detect_language(call.original) or "en").no_answer,
            citations=tuple(content.citations),
            matches=passages.matches,
            retrieval=retrieval,
            found=found,
            sub_answers=self._sub_answers,
            status="degraded" if degradations else "full",
            degradations=degradations,
            context=passages.context,
            transformation_type=self._settings.transformation_type,
        )


def _add_sub_queries(settings: Settings) -> Settings:
    """Return *settings* with a transformation that makes sub-queries."""
    kind = settings.transformation_type
    if kind in _DECOMPOSING or "sub_queries" in settings.transform.fields:
        return settings
    return replace(settings, transformation_type="decompose" if kind == "none" else "combined")


# --- prompts -------------------------------------------------------------------------------------


def select_passages(matches: Sequence[Match], max_chars: int) -> PromptPassages:
    """Return the first passages of *matches* that fit into *max_chars* characters.

    Matches without a text are skipped. The entry of each passage also holds labels from its
    metadata: title, source, URL, location (such as the page), and the ``context`` that ingestion
    may have added. If the first passage alone is too long, its text is cut and has no labels.
    """
    kept_matches: list[Match] = []
    entries: list[dict[str, Any]] = []
    remaining_chars = max_chars
    for match in matches:
        text = (match.text or "").strip()
        if not text:
            continue
        labels = _collect_labels(match.metadata)
        size = len(text) + sum(len(str(value)) for value in labels.values())
        if size > remaining_chars:
            if not entries:
                cut = text[: max_chars - 1].rstrip() + "…"
                return PromptPassages((match,), ({"passage": 1, "text": cut},))
            break
        kept_matches.append(match)
        entries.append({"passage": len(kept_matches), **labels, "text": text})
        remaining_chars -= size
    return PromptPassages(tuple(kept_matches), tuple(entries))


def _collect_labels(metadata: Mapping[str, Any]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for label in _LABELS:
        value = metadata.get(label)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # Pinecone stores every number as a float.
        if isinstance(value, str):
            value = value.strip()[:_LABEL_CHARS]
        if isinstance(value, str | int) and value != "":
            labels[label] = value
    return labels


def build_prompt(
    mode: PromptMode,
    settings: Settings,
    question: str,
    history: Sequence[Message],
    data: Sequence[Mapping[str, Any]],
) -> Prompt:
    """Return the prompt for *question*; *data* holds the passages or the sub-answers.

    The settings may replace the instruction, but not the rules. The system message holds only
    instructions and rules, so that the model does not take a passage's text for an instruction.
    """
    own_instruction = find_user_instruction(settings, mode)
    turns = select_recent_messages(history, question)
    material = "sub_answers" if mode == "synthesis" else "passages"
    content: dict[str, Any] = {material: data}
    if turns:
        content["history"] = [{"role": turn.role, "content": turn.content} for turn in turns]
    words = _WORDS[material]
    data_description = _WORDS["data"].format(
        material=words["description"],
        history=_WORDS["history"] if turns else "",
    )
    rules = "\n".join(f"- {rule}" for rule in words["rules"])
    instruction = own_instruction or _WORDS["instructions"][mode]
    return Prompt(
        mode=mode,
        version=append_digest(f"{mode}/1", own_instruction),
        system=f"{instruction}\n\n{data_description}\n\n{rules}",
        user=format_json_message({**content, "question": question}),
        fields=(),
        query=question,
        history=turns,
        max_tokens=settings.answer.max_tokens or MAX_TOKENS,
    )


# --- streams -------------------------------------------------------------------------------------


class AnswerStream:
    """An answer in pieces. Iterate over the pieces, then read the whole answer from `answer`.

    `Wrapped.stream_answer` returns a stream for ``for`` and ``with``, and searches at once. Use the
    stream of `Wrapped.astream_answer` with ``async for`` and ``async with``; it searches when you
    enter it or iterate over it.

    If you may stop early, use the stream in a ``with`` block or close it, so that the model stops
    too. If the model gives no answer, the iteration raises `ModelError`. The error's ``retrieval``
    holds the passages found.

    Attributes:
        retrieval: The retrieval for the question. An asynchronous stream has it only after you
            entered it or iterated over it.
        answer: The whole answer. A stream has it only at its end.
    """

    retrieval: Retrieval
    answer: Answer

    def __init__(
        self, flow: AnswerFlow, bulkhead: Bulkhead, searcher: Searcher, *, is_async: bool
    ) -> None:
        self._bulkhead = bulkhead
        self._is_async = is_async
        # A reader that stopped waiting may have left a thread that still reads.
        self._lock = threading.Lock()
        self._pieces = self._iterate(flow, searcher)
        if not is_async:
            drive(self._read_piece())

    async def _iterate(self, flow: AnswerFlow, searcher: Searcher) -> AsyncGenerator[str, None]:
        """Yield an empty piece once there are passages, and then the pieces of the answer."""
        # Tasks belong to the event loop that runs when they begin.
        make_io = make_async_io if self._is_async else Threads
        services = Services(make_io(self._bulkhead), searcher)
        async with aclosing(flow.stream(services)) as events:
            async for event in events:
                if isinstance(event, Retrieval):
                    self.retrieval = event
                    yield ""
                elif isinstance(event, Answer):
                    self.answer = event
                else:
                    yield event

    async def _read_piece(self) -> str:
        return await anext(self._pieces)

    def __getattr__(self, name: str) -> Any:
        # Called only for what is not there yet.
        if name in AnswerStream.__annotations__:
            raise AttributeError(f"{name} is not known yet: iterate over the stream first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            with self._lock:
                return drive(self._read_piece())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Stop the model and drop unread pieces. You may close a stream more than once."""
        with self._lock:
            drive(self._pieces.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        if self._is_async:
            # The first piece is empty, unless the stream was entered before.
            return await anext(self._pieces) or await anext(self._pieces)
        # Starlette reads any stream by ``async for`` if it can. A thread keeps its loop free.
        io = make_async_io(self._bulkhead)
        piece: str | None = await io.blocking(partial(next, self, None))
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def aclose(self) -> None:
        """Stop the model and drop unread pieces. This is the async version of `close`."""
        if self._is_async:
            await self._pieces.aclose()
        else:
            # A thread may still wait for the next piece.
            await make_async_io(self._bulkhead).blocking(self.close)

    async def __aenter__(self) -> Self:
        if self._is_async:
            await anext(self._pieces)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
