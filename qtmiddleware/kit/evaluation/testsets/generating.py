"""Questions by a language model about a sample of passages, those kept that are of use for a test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.prompts import (
    CHECK,
    QUESTION,
    PromptRunner,
    build_check_prompt,
    build_question_prompt,
    cut_text,
    parse_object,
)
from qtmiddleware.kit.evaluation.testsets.filtering import extract_key, find_check_fault, find_fault
from qtmiddleware.kit.evaluation.testsets.passages import MIN_WORDS, Relevance, draw_passages
from qtmiddleware.preprocessing.text import clean
from qtmiddleware.protocols import LanguageModel, Passage, Reply
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

    *asked* passages were tried; each gave a question or is counted in *dropped* by the reason why
    not: that of a `ModelError`, or ``unparsable``, ``refused``, ``nothing_to_ask``, ``too_long``,
    ``no_question``, ``refers_to_text``, ``other_language``, ``copied``, ``unchecked`` (no verdict),
    ``unanswerable``, ``unquoted``, ``duplicate``.
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

    The draw is spread over the documents and leaves out what holds no whole phrases. A question is
    kept if a second look of the model finds it answered by words that really stand in the passage,
    and if it is a question in the passage's language, does not copy its words or speak of it as a
    text, and has other content words than those kept before. For each that is not, another passage
    is drawn, at most `ATTEMPTS` for each question; so there may be fewer.

    A question's metadata says ``synthetic`` and holds the ``answer``, the ``passage`` it was made
    of and the ``model``. Relevant, with grade 1, are that passage and all that hold the very words
    its answer was found in.

    *concurrency* prompts are answered at a time, each within *timeout* seconds; *progress* receives
    how many questions there are of how many. For a model that always replies the same to the same
    prompt the result depends on the passages, *count* and *seed* alone.

    Raises `ModelError` where the model gives no reply for `MOST_FAILURES` passages in a row, or for
    all there are, or refuses the key, before there is any question; after that it ends with those
    there are and logs why. Raises `ConfigError` for numbers below 1, or passages that share an id
    or of which none can be asked about.
    """
    if count < 1:
        raise ConfigError(
            f"count must be at least 1, not {count}", path="count", value=count, allowed=">= 1"
        )
    if len({passage.id for passage in passages}) < len(passages):
        raise ConfigError("two of the passages have the same id", path="passages")
    runner = PromptRunner(model, timeout, concurrency)
    drawn = draw_passages(passages, seed)[: ATTEMPTS * count]
    if not drawn:
        raise ConfigError(
            f"none of the {len(passages)} passages is long enough: each needs {MIN_WORDS} words in"
            " whole phrases",
            path="passages",
        )
    written = _Written(model.name, Relevance(passages))
    while len(written.questions) < count and written.asked < len(drawn):
        # Never more than are missing: so the same are asked about however many at a time.
        wave = min(concurrency, count - len(written.questions))
        for draft in _write_drafts(drawn[written.asked : written.asked + wave], runner):
            written.settle(draft)
        if progress is not None:
            progress(len(written.questions), count)
        if written.is_in_vain:
            break
    written.report_failure()
    dataset = Dataset(name, tuple(passages), tuple(written.questions), written.qrels)
    return Generated(dataset, written.asked, dict(written.dropped.most_common()), runner.cost_usd)


@dataclass(slots=True)
class _Draft:
    """What came of one passage: a question with its check, a *fault* in one word, or the *error* of the model."""

    passage: Passage
    question: str = ""
    answer: str = ""
    quote: str = ""
    fault: str = ""
    error: ModelError | None = None

    def read_question(self, reply: Reply | ModelError) -> None:
        if isinstance(reply, ModelError):
            self.fault, self.error = reply.reason, reply
        elif given := parse_object(reply, [field.name for field in QUESTION.fields]):
            self.question, self.answer = _read_line(given["question"]), _read_line(given["answer"])
            self.fault = find_fault(self.question, self.answer, cut_text(self.passage))
        elif is_refusal(reply.text, self.passage.text):
            self.fault = "refused"
        else:
            self.fault = "truncated" if reply.truncated else "unparsable"

    def read_check(self, reply: Reply | ModelError) -> None:
        if isinstance(reply, ModelError):
            self.fault, self.error = reply.reason, reply
        elif given := parse_object(reply, [field.name for field in CHECK.fields]):
            self.fault = find_check_fault(given, cut_text(self.passage))
            self.quote = str(given["quote"])
        else:
            self.fault = "unchecked"


def _read_line(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _write_drafts(passages: Sequence[Passage], runner: PromptRunner) -> list[_Draft]:
    """Return what comes of each of *passages*: a question is asked for, and what is one is checked."""
    drafts = [_Draft(passage) for passage in passages]
    for draft, reply in zip(
        drafts, runner.run([build_question_prompt(passage) for passage in passages]), strict=True
    ):
        draft.read_question(reply)
    checked = [draft for draft in drafts if not draft.fault]
    prompts = [build_check_prompt(draft.passage, draft.question) for draft in checked]
    for draft, reply in zip(checked, runner.run(prompts), strict=True):
        draft.read_check(reply)
    return drafts


@dataclass(slots=True)
class _Written:
    """The questions that are kept, their judgements, and how often the model failed in a row until now."""

    model: str
    relevance: Relevance
    questions: list[Question] = field(default_factory=list)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    failures: int = 0
    error: ModelError | None = None
    _keys: set[frozenset[str]] = field(default_factory=set)

    @property
    def is_in_vain(self) -> bool:
        """Whether the model need not be asked again: its key is refused, or it failed too often in a row."""
        return self.error is not None and (
            self.error.reason == "unauthorized" or self.failures >= MOST_FAILURES
        )

    def settle(self, draft: _Draft) -> None:
        """Keep the question of *draft*, or count why not."""
        self.asked += 1
        self.error = draft.error
        # Where it wrote a question it does not fail all the time.
        self.failures = self.failures + 1 if draft.error and not draft.question else 0
        key = extract_key(draft.question)
        fault = draft.fault or ("duplicate" if key in self._keys else "")
        if fault:
            self.dropped[fault] += 1
            return
        self._keys.add(key)
        id_ = f"s{len(self.questions) + 1}"
        metadata = {
            "synthetic": True,
            "answer": draft.answer,
            "passage": draft.passage.id,
            "model": self.model,
        }
        self.questions.append(Question(id_, draft.question, metadata=metadata))
        self.qrels[id_] = dict.fromkeys(self.relevance.find_relevant(draft.passage, draft.quote), 1)

    def report_failure(self) -> None:
        """Raise the model's own error where it gave nothing but that, and log it where it was given up later."""
        if self.error is None:
            return
        if not self.questions and (self.is_in_vain or self.failures == self.asked):
            raise self.error
        if self.is_in_vain:
            logger.warning(
                "writing questions stopped after %d (%s: %s)",
                len(self.questions),
                self.error.reason,
                self.error,
                event="model_given_up",
                reason=self.error.reason,
            )
