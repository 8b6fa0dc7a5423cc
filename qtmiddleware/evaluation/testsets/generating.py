"""Questions by a language model about a sample of passages, those kept that are of use for a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.evaluation import Dataset, Question
from qtmiddleware.evaluation.prompt_runner import PromptRunner, parse_object
from qtmiddleware.evaluation.prompts import CHECK, QUESTION, build_check_prompt, build_question_prompt, cut_text
from qtmiddleware.evaluation.testsets.filtering import Written, extract_key, find_check_fault, find_fault
from qtmiddleware.evaluation.testsets.passages import MIN_WORDS, Relevance, draw_passages
from qtmiddleware.protocols import LanguageModel, Passage, Prompt, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.transforms.chatter import is_refusal

ATTEMPTS: Final = 4
"""So many passages are tried for each question that is wanted."""
MOST_FAILURES: Final = 16
"""After so many passages in a row for which the model gave no reply at all it is not asked again."""

logger: Final = get_logger("qtmiddleware.testsets")


@dataclass(frozen=True, slots=True)
class Generated:
    """A synthetic data set and how it came about.

    *asked* passages were tried; each gave a question or is counted in *dropped* by the reason why not: that of a
    `ModelError`, or ``unparsable``, ``refused``, ``nothing_to_ask``, ``too_long``, ``no_question``, ``refers_to_text``,
    ``other_language``, ``copied``, ``unchecked`` (no verdict), ``unanswerable``, ``unquoted``, ``duplicate``.
    *cost_usd* is what all replies cost, ``None`` where the model's price is not known.
    """

    dataset: Dataset
    asked: int
    dropped: Mapping[str, int]
    cost_usd: float | None


def generate(
    passages: Sequence[Passage],
    model: LanguageModel,
    *,
    count: int = 100,
    seed: int = 0,
    name: str = "synthetic",
    concurrency: int = 8,
    timeout: float = 30.0,
    progress: Callable[[int, int], None] | None = None,
) -> Generated:
    """Build a data set of *passages* and *count* questions that *model* writes about some of them, drawn by *seed*.

    The draw is spread over the documents and leaves out what holds no whole phrases. A question is kept if a second
    look of the model finds it answered by words that really stand in the passage, and if it is a question in the
    passage's language, does not copy its words or speak of it as a text, and has other content words than those kept
    before. For each that is not, another passage is drawn, at most `ATTEMPTS` for each question; so there may be fewer.

    A question's metadata says ``synthetic`` and holds the ``answer``, the ``passage`` it was made of and the ``model``.
    Relevant, with grade 1, are that passage and all that hold the very words its answer was found in.

    *concurrency* prompts are answered at a time, each within *timeout* seconds; *progress* receives how many questions
    there are of how many. For a model that always replies the same to the same prompt the result depends on the
    passages, *count* and *seed* alone.

    Raises `ModelError` where the model gives no reply for `MOST_FAILURES` passages in a row, or for all there are, or
    refuses the key, before there is any question; after that it ends with those there are and logs why. Raises
    `ConfigError` for numbers below 1, or passages that share an id or of which none can be asked about.
    """
    if count < 1:
        raise ConfigError(f"count must be at least 1, not {count}", path="count", value=count, allowed=">= 1")
    if len({passage.id for passage in passages}) < len(passages):
        raise ConfigError("two of the passages have the same id", path="passages")
    asking = PromptRunner(model, timeout, concurrency)
    drawn = draw_passages(passages, seed)[: ATTEMPTS * count]
    if not drawn:
        raise ConfigError(
            f"none of the {len(passages)} passages can be asked about: each needs {MIN_WORDS} words in whole phrases",
            path="passages",
        )
    writing = _Writing(asking, model.name, Relevance(passages))
    while len(writing.questions) < count and writing.asked < len(drawn) and not writing.is_over:
        # Never more than are missing: so the same are asked about however many at a time.
        wave = min(concurrency, count - len(writing.questions))
        writing.write(drawn[writing.asked : writing.asked + wave])
        if progress is not None:
            progress(len(writing.questions), count)
    writing.require_replies()
    dataset = Dataset(name, tuple(passages), tuple(writing.questions), writing.qrels)
    return Generated(dataset, writing.asked, dict(writing.dropped.most_common()), asking.cost_usd)


@dataclass(slots=True)
class _Draft:
    """What came of one passage: a question with its check, a *fault* in one word, or the *error* of the model."""

    passage: Passage
    written: Written | None = None
    quote: str = ""
    fault: str = ""
    error: ModelError | None = None

    def read_question(self, reply: Reply) -> None:
        given = parse_object(reply, [field.name for field in QUESTION.fields])
        if given:
            self.written = Written.read(given)
            self.fault = find_fault(self.written, cut_text(self.passage))
        elif is_refusal(reply.text, self.passage.text):
            self.fault = "refused"
        else:
            self.fault = "truncated" if reply.truncated else "unparsable"

    def read_check(self, reply: Reply) -> None:
        given = parse_object(reply, [field.name for field in CHECK.fields])
        self.fault = find_check_fault(given, cut_text(self.passage)) if given else "unchecked"
        self.quote = str(given.get("quote", ""))


@dataclass(slots=True)
class _Writing:
    """Asks about passages and keeps what is of use."""

    asking: PromptRunner
    model: str
    relevance: Relevance
    asked: int = 0
    questions: list[Question] = field(default_factory=list)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    is_over: bool = False
    _known: set[frozenset[str]] = field(default_factory=set)
    _failures: int = 0
    _error: ModelError | None = None

    def write(self, passages: Sequence[Passage]) -> None:
        """Ask for a question about each of *passages*, then whether it is answered there; keep the good ones."""
        drafts = [_Draft(passage) for passage in passages]
        self._ask(drafts, [build_question_prompt(draft.passage) for draft in drafts], _Draft.read_question)
        rest = [draft for draft in drafts if draft.written and not draft.fault]
        prompts = [build_check_prompt(draft.passage, draft.written.question) for draft in rest if draft.written]
        self._ask(rest, prompts, _Draft.read_check)
        for draft in drafts:
            if not self.is_over:
                self._settle(draft)

    def _ask(self, drafts: Sequence[_Draft], prompts: Sequence[Prompt], read: Callable[[_Draft, Reply], None]) -> None:
        for draft, reply in zip(drafts, self.asking.run(prompts), strict=True):
            if isinstance(reply, ModelError):
                draft.error = reply
            else:
                read(draft, reply)

    def _settle(self, draft: _Draft) -> None:
        """Keep the question of *draft*, or count why not."""
        self.asked += 1
        self._count_failure(draft)
        key = extract_key(draft.written.question) if draft.written else frozenset()
        fault = draft.error.reason if draft.error else draft.fault or ("duplicate" if key in self._known else "")
        if fault or draft.written is None:
            self.dropped[fault] += 1
            return
        self._known.add(key)
        id_ = f"s{len(self.questions) + 1}"
        written, passage = draft.written, draft.passage
        metadata = {"synthetic": True, "answer": written.answer, "passage": passage.id, "model": self.model}
        self.questions.append(Question(id_, written.question, metadata=metadata))
        self.qrels[id_] = dict.fromkeys(self.relevance.find_relevant(passage, draft.quote), 1)

    def _count_failure(self, draft: _Draft) -> None:
        """Raise the model's error where asking on is in vain, or end there if there are questions."""
        error = draft.error
        if error is None:
            self._failures = 0
            return
        self._error = error
        # Where it wrote a question it did not fail all the time.
        self._failures = self._failures + 1 if draft.written is None else 1
        if self._failures < MOST_FAILURES and error.reason != "unauthorized":
            return
        if not self.questions:
            raise error
        self.is_over = True
        logger.warning(
            "the model was given up after %d questions, failing for %d passages in a row (%s: %s)",
            len(self.questions),
            self._failures,
            error.reason,
            error,
        )

    def require_replies(self) -> None:
        """Raise the model's own error where it failed for every passage."""
        if self._error is not None and self._failures == self.asked:
            raise self._error
