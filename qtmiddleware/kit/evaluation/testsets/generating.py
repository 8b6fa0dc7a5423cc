"""Let a language model write questions about a sample of passages, and keep the usable ones."""

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
    parse_reply,
    shorten_passage_text,
)
from qtmiddleware.kit.evaluation.testsets.filtering import (
    extract_content_words,
    find_check_fault,
    find_fault,
)
from qtmiddleware.kit.evaluation.testsets.passages import MIN_WORDS, Relevance, draw_passages
from qtmiddleware.preprocessing.text import clean_text
from qtmiddleware.protocols import LanguageModel, Passage, Reply
from qtmiddleware.runtime.logs import get_logger
from qtmiddleware.transforms.chatter import is_refusal

ATTEMPTS: Final = 4
"""The maximum number of passages to try per wanted question."""
MOST_FAILURES: Final = 16
"""After this many passages in a row without a reply, the model is not asked again."""

logger: Final = get_logger("qtmiddleware.testsets")


@dataclass(frozen=True, slots=True)
class Generated:
    """A synthetic data set, and figures on how it was generated.

    Attributes:
        dataset: The data set.
        asked: The number of passages that were tried.
        dropped: The number of passages whose question was dropped, by reason. The reason is that of
            a `ModelError`, or ``unparsable``, ``truncated``, ``refused``, ``nothing_to_ask``,
            ``too_long``, ``no_question``, ``refers_to_text``, ``other_language``, ``copied``,
            ``unchecked`` (no verdict), ``unanswerable``, ``unquoted`` or ``duplicate``.
        cost_usd: The cost of all replies in US dollars, or ``None`` if the model's price is not
            known.
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
    """Build a data set of *passages* and of questions that *model* writes about some passages.

    The chosen passages cover as many documents as possible. Passages without whole phrases, such as
    lists of headings, are skipped. A question is kept if all of these are true:

    - In reply to a second prompt, the model quotes words of the passage that answer the question.
    - The question is in the passage's language.
    - The question does not copy the passage's words or refer to the passage as a text.
    - No earlier question has the same content words.

    If a question is dropped, another passage is tried. At most `ATTEMPTS` passages are tried per
    wanted question, so there may be fewer than *count* questions.

    A question's metadata has ``synthetic``, the ``answer``, the id of its ``passage`` and the
    ``model``. This passage and all passages that contain the quoted words get grade 1. If the
    model's replies are deterministic, the result depends only on the passages, *count* and *seed*.

    Args:
        passages: The passages.
        model: The model that writes and checks the questions.
        count: The number of questions wanted.
        seed: The seed that draws the passages to ask about.
        name: The data set's name.
        concurrency: The number of prompts that run at a time.
        timeout: Seconds to wait for each reply.
        progress: Receives the number of questions so far, and the number wanted.

    Raises:
        ModelError: No question was kept, because the service refused the key or the model failed
            for all passages or for `MOST_FAILURES` passages in a row. If some questions were kept,
            they are returned instead, and a warning is logged.
        ConfigError: A number is below 1, passages share an id, or no passage can be asked about.
    """
    if count < 1:
        raise ConfigError(
            f"count must be at least 1, not {count}", path="count", value=count, allowed=">= 1"
        )
    if len({passage.id for passage in passages}) < len(passages):
        raise ConfigError("two of the passages have the same id", path="passages")
    runner = PromptRunner(model, timeout, concurrency)
    candidates = draw_passages(passages, seed)[: ATTEMPTS * count]
    if not candidates:
        raise ConfigError(
            f"none of the {len(passages)} passages is long enough: each needs {MIN_WORDS} words in"
            " whole phrases",
            path="passages",
        )
    builder = _TestSetBuilder(model.name, Relevance(passages))
    while len(builder.questions) < count and builder.asked < len(candidates):
        # At most as many passages as questions are missing. Otherwise the last wave could keep more
        # questions than wanted, depending on the concurrency.
        wave_size = min(concurrency, count - len(builder.questions))
        for draft in _write_checked_drafts(
            candidates[builder.asked : builder.asked + wave_size], runner
        ):
            builder.add_draft(draft)
        if progress is not None:
            progress(len(builder.questions), count)
        if builder.should_stop:
            break
    builder.raise_or_log_failure()
    dataset = Dataset(name, tuple(passages), tuple(builder.questions), builder.qrels)
    return Generated(dataset, builder.asked, dict(builder.dropped.most_common()), runner.cost_usd)


@dataclass(slots=True)
class _Draft:
    """A question that the model wrote about a passage, before it is kept or dropped.

    Attributes:
        passage: The passage.
        question: The question about the passage.
        answer: The answer to the question.
        quote: The words of the passage that answer the question, according to the model's check.
        fault: The reason for dropping the question, such as ``copied``. Empty if there is none.
        error: The error if the model gave no reply, or else ``None``.
    """

    passage: Passage
    question: str = ""
    answer: str = ""
    quote: str = ""
    fault: str = ""
    error: ModelError | None = None

    def read_question_reply(self, reply: Reply | ModelError) -> None:
        """Read the question and its answer from *reply*, or set the fault if *reply* has none."""
        if isinstance(reply, ModelError):
            self.fault, self.error = reply.reason, reply
        elif members := parse_reply(reply, [field.name for field in QUESTION.fields]):
            self.question, self.answer = (
                _clean_string(members["question"]),
                _clean_string(members["answer"]),
            )
            self.fault = find_fault(self.question, self.answer, shorten_passage_text(self.passage))
        # A refusal is not JSON either, but "refused" tells the user more than "unparsable".
        elif is_refusal(reply.text, self.passage.text):
            self.fault = "refused"
        else:
            self.fault = "truncated" if reply.truncated else "unparsable"

    def read_check_reply(self, reply: Reply | ModelError) -> None:
        """Read the quote from the model's *reply* to the check, or set the fault."""
        if isinstance(reply, ModelError):
            self.fault, self.error = reply.reason, reply
        elif members := parse_reply(reply, [field.name for field in CHECK.fields]):
            self.fault = find_check_fault(members, shorten_passage_text(self.passage))
            self.quote = str(members["quote"])
        else:
            self.fault = "unchecked"


def _clean_string(value: object) -> str:
    """Return *value* on one line if it is a string, or else an empty string."""
    return clean_text(value) if isinstance(value, str) else ""


def _write_checked_drafts(passages: Sequence[Passage], runner: PromptRunner) -> list[_Draft]:
    """Let the model write a question about each of *passages*, and then check the questions."""
    drafts = [_Draft(passage) for passage in passages]
    for draft, reply in zip(
        drafts,
        runner.run_prompts([build_question_prompt(passage) for passage in passages]),
        strict=True,
    ):
        draft.read_question_reply(reply)
    # A second prompt costs money, so only usable questions are checked.
    checked = [draft for draft in drafts if not draft.fault]
    prompts = [build_check_prompt(draft.passage, draft.question) for draft in checked]
    for draft, reply in zip(checked, runner.run_prompts(prompts), strict=True):
        draft.read_check_reply(reply)
    return drafts


@dataclass(slots=True)
class _TestSetBuilder:
    """Collects the kept questions with their judgements, and counts the dropped drafts.

    Attributes:
        model: The model's name.
        relevance: Finds the passages that answer a question.
        questions: The questions kept so far.
        qrels: The judgements of the kept questions.
        dropped: The number of dropped drafts, by reason.
        asked: The number of passages that were tried.
        failures: The number of passages in a row for which the model gave no reply.
        error: The model's error for the last passage, if any.
    """

    model: str
    relevance: Relevance
    questions: list[Question] = field(default_factory=list)
    qrels: dict[str, dict[str, int]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    failures: int = 0
    error: ModelError | None = None
    _content_word_sets: set[frozenset[str]] = field(default_factory=set)

    @property
    def should_stop(self) -> bool:
        """``True`` if the service refused the key, or the model failed too often in a row."""
        return self.error is not None and (
            self.error.reason == "unauthorized" or self.failures >= MOST_FAILURES
        )

    def add_draft(self, draft: _Draft) -> None:
        """Add the question of *draft* to the test set.

        If the draft has a fault or is a duplicate, add 1 to the count for that reason instead.
        """
        self.asked += 1
        self.error = draft.error
        # If only the check failed, the model replied to the first prompt. This is not a failure.
        self.failures = self.failures + 1 if draft.error and not draft.question else 0
        key = extract_content_words(draft.question)
        fault = draft.fault or ("duplicate" if key in self._content_word_sets else "")
        if fault:
            self.dropped[fault] += 1
            return
        self._content_word_sets.add(key)
        id_ = f"s{len(self.questions) + 1}"
        metadata = {
            "synthetic": True,
            "answer": draft.answer,
            "passage": draft.passage.id,
            "model": self.model,
        }
        self.questions.append(Question(id_, draft.question, metadata=metadata))
        self.qrels[id_] = dict.fromkeys(
            self.relevance.list_relevant_ids(draft.passage, draft.quote), 1
        )

    def raise_or_log_failure(self) -> None:
        """Raise the model's error if the model failed and no question was kept.

        If some questions were kept but the model failed too often, log a warning instead.
        """
        if self.error is None:
            return
        if not self.questions and (self.should_stop or self.failures == self.asked):
            raise self.error
        if self.should_stop:
            logger.warning(
                "writing questions stopped after %d (%s: %s)",
                len(self.questions),
                self.error.reason,
                self.error,
                event="model_given_up",
                reason=self.error.reason,
            )
