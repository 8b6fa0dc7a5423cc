"""Measure how good a result looks, to decide whether to ask the model, and as the confidence.

`find_skip_reason` decides before the search. `Gate` and `Standings` compare these signals of a
result with earlier results of the same function. Low signals mean doubt:

==============  =================================================================================
``best_score``  The function's score for its first passage.
``lead``        The difference between the first score and the tenth, or the last if there are
                fewer, in the backend's unit.
``coverage``    The fraction of the question's words that occur, in any form, in at least one of
                the first three passages. The confidence counts only content words.
``agreement``   The score of the passage that matches the question's words best, scaled from 0 (the
                lowest of the first thirty scores) to 1 (the highest). If scores and words agree,
                the result is seldom wrong. 0 if the words match all passages equally.
``joint_lead``  The difference between the first and the tenth score of the first thirty passages.
                Their scores are scaled from 0 to 1, and keyword evidence is added. A large
                difference means that the result is clear without a model.
==============  =================================================================================

If scores are missing, ``agreement`` and ``joint_lead`` use ranks, and there is no ``lead``. The
gate uses all signals but ``best_score``. The confidence is the weighted mean of the first three, as
percentiles; `python -m benchmarks.confidence` measures how well they work.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from heapq import nlargest
from itertools import islice
from math import isfinite
from typing import Final, Self

from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing import Span
from qtmiddleware.preprocessing.text import fold_text
from qtmiddleware.retrieval.fusion import are_reciprocal_ranks
from qtmiddleware.retrieval.question_words import LEADING, find_words, judge_lead
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.types import Decision, Standing

# The number of passages that the signals read, and the rank whose score is compared with the first.
LOOKED_AT: Final = 30
NEAR: Final = 10
# How many characters of a passage are read. A longer text takes time and contains almost any word.
_READ: Final = 800
_READ_FOR_CONFIDENCE: Final = 2_000

# How many numbers of a signal are remembered. The expected range counts like PRIOR of them.
MAX_OBSERVED: Final = 512
PRIOR: Final = 5
# The usual ranges if sentences are compared by cosine similarity. They count until an index has
# shown its own ranges.
_EXPECTED: Final[Mapping[str, tuple[float, float] | None]] = {
    "lead": None,  # Embedding models differ: the usual lead is 0.2 with one, 0.05 with another.
    "coverage": (0.25, 1.0),
    "agreement": (0.2, 1.0),
    "joint_lead": (0.5, 1.5),
}
# The doubts of most queries are spread about evenly over this range. The mean of several
# percentiles is seldom near 0 or 1.
_LOWEST, _HIGHEST = 0.18, 0.8

# Too many or too few calls are compensated over about this many queries.
HORIZON: Final = 20
# The most forced calls that are compensated. The call rate falls by at most MAX_DEBT / HORIZON.
MAX_DEBT: Final = 4.0

# Parts of a query that are best searched exactly as they are written.
_LITERAL: Final = frozenset({"identifier", "number", "url"})
_SMALL_TALK: Final = frozenset(
    {
        "hi", "hello", "hey", "good morning", "good evening", "bye", "goodbye", "thanks",
        "thank you", "thx", "ok", "okay", "yes", "no", "please", "test",
        "hola", "gracias", "muchas gracias", "buenos dias", "adios", "si",
        "hallo", "guten tag", "danke", "vielen dank", "ja", "nein",
        "bonjour", "salut", "merci", "au revoir", "oui", "non",
        "ciao", "buongiorno", "grazie", "ola", "bom dia", "obrigado", "obrigada", "sim", "nao",
        "hoi", "dank je", "bedankt", "nee",
    }
)  # fmt: skip
"""Greetings and the like, in lower case and without accents."""

WEIGHTS: Final = {"best_score": 2.0, "lead": 1.0, "coverage": 1.0}
"""The weight of each signal in the confidence."""
LEAST_SEEN: Final = 20
"""How many earlier questions are needed to compute a confidence."""
FENCE: Final = 2.0
"""A best score is low if it is below median - `FENCE` x (upper quartile - median).

Median and quartile are those of earlier best scores. Evenly spread scores are never so low, so no
fixed fraction of questions is flagged.
"""
EARLIEST: Final = 4
"""A best score must also be low among the earliest of the remembered ones: one in `EARLIEST`."""
LEAST_COVERAGE: Final = 1 / 3
"""A result is unsure if its best score is low and its coverage is at most this fraction."""


def find_skip_reason(
    settings: Settings, query: str, *, has_history: bool, find_spans: Callable[[], Sequence[Span]]
) -> str:
    """Return a one-word reason not to ask the model, whatever is found; ``""`` if there is none.

    - ``small_talk``: the query is a greeting, thanks or the like.
    - ``only_identifiers``: the query consists only of codes, numbers and URLs, which are best
      searched as they are written.
    """
    if settings.transformation_type == "none":
        return "no_transformation"
    if settings.escalation.mode == "never":
        return "never"
    # In a conversation, even a trivial query may need its context: "Yes" answers the assistant.
    if has_history:
        return ""
    words = query.split()
    if fold_text(" ".join(words)).strip(" .!?,;:…¡¿") in _SMALL_TALK:
        return "small_talk"
    # A word in lower case shows that the query has more than identifiers.
    if any(word.isalpha() and word.islower() for word in words):
        return ""
    literals = [span.text for span in find_spans() if span.kind in _LITERAL]
    rest = query
    for literal in sorted(literals, key=len, reverse=True):
        rest = rest.replace(literal, " ")
    is_prose = any(map(str.isalnum, rest))
    return "only_identifiers" if literals and not is_prose else ""


class _Comparison:
    """Compares results with the latest results of the same function. Thread-safe.

    Each signal becomes its percentile among earlier ones, so the scale of scores does not matter.
    """

    def __init__(
        self,
        expected: Mapping[str, tuple[float, float] | None],
    ) -> None:
        self._percentiles = {name: Percentiles(usual) for name, usual in expected.items()}
        self._lock = make_lock()

    def copy(self) -> Self:
        """Return an object that starts with the results that this one remembers."""
        other = copy(self)
        other._lock = make_lock()
        with self._lock:
            other._percentiles = deepcopy(self._percentiles)
        return other


class Gate(_Comparison):
    """Decides from the first result of a query whether to ask the model.

    Doubt is 1 minus the mean of the percentiles. The gate asks the model if doubt exceeds a
    threshold. The threshold rises after too many calls and falls after too few, so that the call
    rate stays near its target.
    """

    def __init__(self) -> None:
        super().__init__(_EXPECTED)
        # How many fewer calls were made than wanted; negative if there were more.
        self._unused_calls = 0.0

    def record_forced_call(self, target_call_rate: float) -> None:
        """Count a model call made without asking the gate, which then allows fewer."""
        with self._lock:
            self._unused_calls = min(
                self._unused_calls, max(self._unused_calls + target_call_rate - 1.0, -MAX_DEBT)
            )

    def decide_model_call(
        self,
        scores: Sequence[float | None],
        texts: Iterable[str | None] = (),
        keywords: str = "",
        *,
        target_call_rate: float,
        language: str = "",
    ) -> Decision:
        """Decide whether to ask the model, and remember the signals of the first result."""
        if target_call_rate <= 0.0:
            return Decision(call=False, reason="target_call_rate_is_zero")
        signals = measure_signals(scores, list(islice(texts, LOOKED_AT)), keywords, language)
        # If nothing can be measured, nothing shows that the result is good. The model is asked.
        if not signals:
            self.record_forced_call(target_call_rate)
            return Decision(call=True, reason="too_few_scores", signals={"scores": len(scores)})
        with self._lock:
            observed = max(len(self._percentiles[name].ordered) for name in signals)
            percentiles = [self._percentiles[name].record(value) for name, value in signals.items()]
            doubt = 1.0 - sum(percentiles) / len(percentiles)
            threshold_share = 1.0 - target_call_rate - self._unused_calls / HORIZON
            threshold = _LOWEST + (_HIGHEST - _LOWEST) * threshold_share
            call = doubt > threshold or target_call_rate >= 1.0
            self._unused_calls += target_call_rate - call
        signals |= {"doubt": doubt, "threshold": threshold, "observed": observed}
        if target_call_rate >= 1.0:
            return Decision(call=True, reason="target_call_rate_is_one", signals=signals)
        return Decision(
            call=call,
            reason="unsure_first_result" if call else "clear_first_result",
            signals=signals,
        )


class Percentiles:
    """Computes percentiles among the latest `MAX_OBSERVED` numbers.

    The first ones assume numbers spread evenly over *expected_range*; ``None`` assumes nothing.
    """

    def __init__(self, expected_range: tuple[float, float] | None = None) -> None:
        self._expected = expected_range
        self.recent: deque[float] = deque()
        # The remembered numbers, the lowest first.
        self.ordered: list[float] = []

    def record(self, number: float) -> float:
        """Return the percentile of *number*, from 0 to 1, and remember it. Equals count half."""
        lower = (bisect_left(self.ordered, number) + bisect_right(self.ordered, number)) / 2
        count = len(self.ordered)
        if self._expected is not None:
            low, high = self._expected
            lower += PRIOR * min(1.0, max(0.0, (number - low) / (high - low)))
            count += PRIOR
        percentile = lower / count if count else 0.5
        self.recent.append(number)
        insort(self.ordered, number)
        if len(self.recent) > MAX_OBSERVED:
            del self.ordered[bisect_left(self.ordered, self.recent.popleft())]
        return percentile


def measure_signals(
    scores: Sequence[float | None], texts: Sequence[str | None], keywords: str, language: str = ""
) -> dict[str, float]:
    """Return the signals of a first result by name, without those that cannot be measured."""
    signals: dict[str, float] = {}
    near_scores = get_complete_scores(scores[:NEAR])
    if len(near_scores) > 1:
        signals["lead"] = abs(near_scores[0] - near_scores[-1])
    read_texts = [(text or "")[:_READ] for text in texts[:LOOKED_AT]]
    words = find_words(keywords, read_texts, language)
    if not words.question.terms or not any(texts):
        return signals
    held = frozenset().union(*words.held[:LEADING])
    signals["coverage"] = len(held) / len(words.question.terms)
    if len(read_texts) < LEADING:
        return signals
    heights = _scale_scores_or_ranks(scores[: len(read_texts)], len(read_texts))
    word_shares = words.score_texts()
    most = max(word_shares)
    matches_all_equally = most == min(word_shares)
    signals["agreement"] = 0.0 if matches_all_equally else heights[word_shares.index(most)]
    strength, _ = judge_lead(words.measure_coverage(), is_whole_collection=False)
    joint_scores = [
        height + strength * word_share
        for height, word_share in zip(heights, word_shares, strict=True)
    ]
    best_first = nlargest(NEAR, joint_scores)
    signals["joint_lead"] = best_first[0] - best_first[-1]
    return signals


def _scale_scores_or_ranks(scores: Sequence[float | None], passage_count: int) -> list[float]:
    """Return the *scores* of *passage_count* passages, scaled from 0 (worst) to 1 (best)."""
    numbers = get_complete_scores(scores)
    if len(numbers) < passage_count:
        numbers = [-float(rank) for rank in range(passage_count)]
    elif numbers[0] < numbers[-1]:
        # The list is best first, so numbers that rise are distances.
        numbers = [-number for number in numbers]
    low = min(numbers)
    width = max(numbers) - low
    return [(number - low) / width if width else 0.0 for number in numbers]


def get_complete_scores(scores: Sequence[float | None]) -> list[float]:
    """Return *scores*, or an empty list if any score is missing."""
    numbers = [score for score in scores if score is not None]
    return numbers if len(numbers) == len(scores) else []


class Standings(_Comparison):
    """Computes the confidence in a result."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(WEIGHTS))

    def measure_confidence(
        self,
        signals: Mapping[str, float],
        *,
        passage_count: int,
        scores: Sequence[float | None] = (),
    ) -> Standing:
        """Return the confidence in a result, and remember its *signals* unless it is empty."""
        if not passage_count:
            return Standing(0.0, is_unsure=True, problem="the function returned no passages")
        if not signals:
            return Standing(None, problem="the passages have neither scores nor texts")
        with self._lock:
            # A result is compared only with earlier ones.
            seen = min(len(self._percentiles[name].ordered) for name in signals)
            is_low = seen >= LEAST_SEEN and self._is_best_score_low(signals.get("best_score"))
            observed = {
                name: self._percentiles[name].record(signal) for name, signal in signals.items()
            }
        if seen < LEAST_SEEN:
            problem = f"needs {LEAST_SEEN} earlier questions of this function, and {seen} were seen"
            return Standing(None, signals, {}, seen, problem=problem)
        total_weight = sum(WEIGHTS[name] for name in observed)
        confidence = (
            sum(WEIGHTS[name] * percentile for name, percentile in observed.items()) / total_weight
        )
        is_unsure = (
            is_low
            and signals.get("coverage", 1.0) <= LEAST_COVERAGE
            and not are_reciprocal_ranks([score for score in scores if score is not None])
        )
        return Standing(confidence, signals, observed, seen, is_unsure=is_unsure)

    def _is_best_score_low(self, best_score: float | None) -> bool:
        scores = self._percentiles["best_score"]
        if best_score is None or best_score >= _find_fence(scores.ordered):
            return False
        # Among the latest may be many of one user, whose high scores say nothing about others.
        count = max(LEAST_SEEN, len(scores.ordered) // EARLIEST)
        return best_score < _find_fence(sorted(islice(scores.recent, count)))


def _find_fence(ordered: Sequence[float]) -> float:
    """Return the limit below which a best score is low among the best scores *ordered*."""
    median, upper_quartile = (ordered[int(part * len(ordered))] for part in (0.5, 0.75))
    return median - FENCE * (upper_quartile - median)


def measure_confidence_signals(
    scores: Sequence[float | None], coverage: float | None, *, lower_is_better: bool
) -> dict[str, float]:
    """Return the signals that can be measured, by name. Higher is better in each."""
    signals: dict[str, float] = {}
    near_scores = get_complete_scores(scores[:NEAR])
    if near_scores and isfinite(near_scores[0]) and isfinite(near_scores[-1]):
        signals["best_score"] = -near_scores[0] if lower_is_better else near_scores[0]
        if len(near_scores) > 1:
            signals["lead"] = abs(near_scores[0] - near_scores[-1])
    if coverage is not None:
        signals["coverage"] = coverage
    return signals


def measure_leading_coverage(
    keywords: str, texts: Sequence[str | None], language: str
) -> float | None:
    """Return the fraction of the content words of *keywords* that the first three *texts* contain.

    Returns ``None`` if there are no keywords or no texts. *language* is the code of the question's
    language; ``""`` if unknown.
    """
    words = find_words(keywords, [(text or "")[:_READ_FOR_CONFIDENCE] for text in texts], language)
    if not words.question.terms or not any(texts):
        return None
    return words.measure_joint_coverage()
