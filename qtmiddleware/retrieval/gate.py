"""Decide whether to ask the language model about a question.

`find_skip_reason` decides before the search. `Gate` decides after the search, by four signals of
the first result. A low signal means doubt:

==============  =================================================================================
``lead``        The difference between the first score and the tenth, or the last if there are
                fewer, in the backend's unit.
``coverage``    The fraction of the question's words that occur, in any form, in at least one of
                the first three passages.
``agreement``   The score of the passage that matches the question's words best, scaled from 0 (the
                lowest of the first thirty scores) to 1 (the highest). If scores and words agree,
                the result is seldom wrong. 0 if the words match all passages equally.
``joint_lead``  The difference between the first and the tenth score of the first thirty passages.
                Their scores are scaled from 0 to 1, and keyword evidence is added. A large
                difference means that the result is clear without a model.
==============  =================================================================================

If scores are missing, ``agreement`` and ``joint_lead`` use ranks, and there is no ``lead``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from heapq import nlargest
from itertools import islice
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing import Span
from qtmiddleware.retrieval.keyword_evidence import judge_lead
from qtmiddleware.retrieval.question_words import (
    LEADING,
    find_words,
    load_word_rules,
    measure_coverage,
    parse_question,
    sum_word_scores,
)
from qtmiddleware.runtime.forking import make_lock
from qtmiddleware.types import Decision

# The number of passages that the signals read, and the rank whose score is compared with the first.
LOOKED_AT: Final = 30
NEAR: Final = 10
# How many characters of a passage are read. A longer text takes time and contains almost any word.
_READ: Final = 800

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
        "hi", "hello", "hey", "hi there", "hello there", "good morning", "good afternoon",
        "good evening", "good night",
        "bye", "goodbye", "thanks", "thank you", "thanks a lot", "thank you very much", "thx",
        "ok", "okay", "sure",
        "yes", "no", "yep", "nope", "cool", "great", "nice", "please", "test",
        "hola", "gracias", "muchas gracias", "buenos dias", "buenos días", "adios", "adiós", "si",
        "sí", "vale",
        "hallo", "guten tag", "guten morgen", "danke", "vielen dank", "tschüss", "ja", "nein",
        "moin",
        "bonjour", "salut", "merci", "merci beaucoup", "au revoir", "oui", "non", "d'accord",
        "ciao", "buongiorno", "grazie", "grazie mille", "arrivederci", "va bene",
        "olá", "ola", "bom dia", "obrigado", "obrigada", "tchau", "sim", "não",
        "hoi", "goedemorgen", "dank je", "bedankt", "dank u", "tot ziens", "nee",
    }
)  # fmt: skip


def find_skip_reason(
    settings: Settings, query: str, *, has_history: bool, find_spans: Callable[[], Sequence[Span]]
) -> str:
    """Return a one-word reason not to ask the model, whatever is found; ``""`` if there is none."""
    escalation = settings.escalation
    if settings.transformation_type == "none":
        return "no_transformation"
    if escalation.mode == "never":
        return "never"
    # In a conversation, even a trivial query may need its context: "Yes" answers the assistant.
    if has_history:
        return ""
    # A word in lower case shows that the query has more than identifiers.
    is_prose = any(word.isalpha() and word.islower() for word in query.split())
    return classify_trivial_query(
        query, [] if is_prose else [span.text for span in find_spans() if span.kind in _LITERAL]
    )


def classify_trivial_query(query: str, literals: Sequence[str]) -> str:
    """Return a one-word reason why rewriting cannot improve *query*; ``""`` if there is none.

    - ``small_talk``: the query is a greeting, thanks or the like.
    - ``only_identifiers``: the query consists only of *literals* (codes, numbers, URLs), which are
      best searched as they are written.
    """
    if (
        " ".join(query.casefold().replace("’", "'").strip(" \t\r\n.!?,;:…¡¿").split())
        in _SMALL_TALK
    ):
        return "small_talk"
    rest = query
    for literal in sorted(literals, key=len, reverse=True):
        rest = rest.replace(literal, " ")
    if literals and not any(character.isalnum() for character in rest):
        return "only_identifiers"
    return ""


class Gate:
    """Decides from the first result of a query whether to ask the model. Thread-safe.

    The gate compares the result with earlier results of the same function. Each signal is converted
    to its percentile among earlier signals, so the scale of scores does not matter. Doubt is 1
    minus the mean of the percentiles.

    The gate asks the model if doubt exceeds a threshold. The threshold rises after too many calls
    and falls after too few, so that the call rate stays near its target.
    """

    def __init__(self) -> None:
        self._percentiles = {name: Percentiles(expected) for name, expected in _EXPECTED.items()}
        # How many fewer calls were made than wanted; negative if there were more.
        self._unused_calls = 0.0
        self._lock = make_lock()

    def copy(self) -> Gate:
        """Return a gate that starts with what this one has learned."""
        gate = Gate()
        with self._lock:
            gate._percentiles = deepcopy(self._percentiles)
            gate._unused_calls = self._unused_calls
        return gate

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
            observed = max(len(self._percentiles[name]) for name in signals)
            percentiles = [self._percentiles[name].record(it) for name, it in signals.items()]
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
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def record(self, number: float) -> float:
        """Return the percentile of *number*, from 0 to 1, and remember it. Equals count half."""
        lower = (bisect_left(self._ordered, number) + bisect_right(self._ordered, number)) / 2
        count = len(self)
        if self._expected is not None:
            low, high = self._expected
            lower += PRIOR * min(1.0, max(0.0, (number - low) / (high - low)))
            count += PRIOR
        percentile = lower / count if count else 0.5
        self._recent.append(number)
        insort(self._ordered, number)
        if len(self._recent) > MAX_OBSERVED:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        return percentile

    @property
    def ordered(self) -> Sequence[float]:
        """The remembered numbers, the lowest first."""
        return self._ordered

    def list_earliest(self, count: int) -> list[float]:
        """Return the *count* numbers that were added first."""
        return list(islice(self._recent, count))


def measure_signals(
    scores: Sequence[float | None], texts: Sequence[str | None], keywords: str, language: str = ""
) -> dict[str, float]:
    """Return the signals of a first result by name, without those that cannot be measured."""
    signals: dict[str, float] = {}
    near_scores = get_complete_scores(scores[:NEAR])
    if len(near_scores) > 1:
        signals["lead"] = abs(near_scores[0] - near_scores[-1])
    rules = load_word_rules(language)
    question = parse_question(keywords, rules)
    if not question.terms or not any(texts):
        return signals
    read_texts = [(text or "")[:_READ] for text in texts[:LOOKED_AT]]
    found_words = find_words(question, read_texts, rules)
    signals["coverage"] = len(set().union(*found_words.held[:LEADING])) / len(question.terms)
    if len(read_texts) < LEADING:
        return signals
    heights = _scale_scores_or_ranks(scores[: len(read_texts)], len(read_texts))
    word_shares = sum_word_scores(question, found_words)
    most = max(word_shares)
    matches_all_equally = most == min(word_shares)
    signals["agreement"] = 0.0 if matches_all_equally else heights[word_shares.index(most)]
    strength, _ = judge_lead(measure_coverage(question, found_words), is_whole_collection=False)
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
