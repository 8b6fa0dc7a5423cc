"""Whether a question is worth a call to the language model.

`find_skip_reason` decides before anything is searched; a `Gate` decides from the first result, by
these signals, of
which a low one means doubt:

==============  =======================================================================================================
``lead``        How far the first score lies above the tenth (or the last of fewer), in the backend's own unit.
``coverage``    Share of the question's words that stand, in any of their forms, in one of the first three passages.
``agreement``   How high the scores put the passage that the words of the question put first, from 0 (the last of the
                first thirty) to 1 (the first): two ways of searching that agree seldom err
                together. 0 where the words tell no passages apart.
``joint_lead``  How far the first of the first thirty lies above the tenth when the words of the question are added to
                the scores, stretched from 0 to 1, as strongly as the free tier adds them: how clear
                its result is. In a collection of few passages words count in full here.
==============  =======================================================================================================

Where scores are missing, ranks stand in for them beside the words.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest
from itertools import islice
from typing import Final

from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing import Span
from qtmiddleware.retrieval.keyword_evidence import measure_strength
from qtmiddleware.retrieval.question_words import (
    LEADING,
    find_words,
    load_word_rules,
    measure_coverage,
    read_question,
    weigh_words,
)
from qtmiddleware.runtime.forking import ForkLock
from qtmiddleware.types import Decision

# How many of the first passages the signals look at.
LOOKED_AT: Final = 30
NEAR: Final = 10
# So much of a passage is read: a longer one holds every word somewhere, and takes time.
_READ: Final = 800

# How many numbers of one signal are remembered, and how many of them what is expected beforehand
# weighs.
MAX_OBSERVED: Final = 512
PRIOR: Final = 5
# Between which numbers most queries lie where sentences are compared by cosines; counts until an
# index shows its own.
_EXPECTED: Final = {
    "lead": (0.05, 0.4),
    "coverage": (0.25, 1.0),
    "agreement": (0.2, 1.0),
    "joint_lead": (0.5, 1.5),
}
# Between which doubts most queries lie, as evenly as need be: the mean of several percentiles is
# seldom near 0 or 1.
_LOWEST, _HIGHEST = 0.18, 0.8

# Calls that were made too often or too rarely are evened out over about so many queries.
HORIZON: Final = 20
# How many forced calls the others may owe: their rate falls by no more than MAX_DEBT / HORIZON.
MAX_DEBT: Final = 4.0

# The kinds of span that are searched best as they are written.
_LITERAL: Final = frozenset({"identifier", "number", "url"})
_SMALL_TALK: Final = frozenset(
    {
        "hi", "hello", "hey", "hi there", "hello there", "good morning", "good afternoon", "good evening", "good night",
        "bye", "goodbye", "thanks", "thank you", "thanks a lot", "thank you very much", "thx", "ok", "okay", "sure",
        "yes", "no", "yep", "nope", "cool", "great", "nice", "please", "test",
        "hola", "gracias", "muchas gracias", "buenos dias", "buenos días", "adios", "adiós", "si", "sí", "vale",
        "hallo", "guten tag", "guten morgen", "danke", "vielen dank", "tschüss", "ja", "nein", "moin",
        "bonjour", "salut", "merci", "merci beaucoup", "au revoir", "oui", "non", "d'accord",
        "ciao", "buongiorno", "grazie", "grazie mille", "arrivederci", "va bene",
        "olá", "ola", "bom dia", "obrigado", "obrigada", "tchau", "sim", "não",
        "hoi", "goedemorgen", "dank je", "bedankt", "dank u", "tot ziens", "nee",
    }
)  # fmt: skip


def find_skip_reason(
    settings: Settings, query: str, *, is_follow_up: bool, find_spans: Callable[[], Sequence[Span]]
) -> str:
    """Returns why the model is not asked about *query* whatever is found first, as one word; ``""`` where it may be.

    *find_spans* returns the protected parts of the query; it is called only where there may be
    nothing else.
    """
    escalation = settings.escalation
    if settings.transformation_type == "none":
        return "no_transformation"
    if escalation.mode == "never" or escalation.max_llm_calls_per_query == 0:
        return "never"
    if is_follow_up:
        return ""
    is_prose = any(word.isalpha() and word.islower() for word in query.split())
    return classify_trivial_query(
        query, [] if is_prose else [it.text for it in find_spans() if it.kind in _LITERAL]
    )


def classify_trivial_query(query: str, literals: Sequence[str]) -> str:
    """Returns why no rewriting could make *query* a better search, as one word; ``""`` where one might.

    A greeting asks for nothing (``small_talk``), and what consists of *literals* alone, codes,
    numbers and addresses, is searched best as it is written (``only_identifiers``).
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
    """Decides from the first result of a query, against the earlier ones of the same index. Thread-safe.

    Each signal becomes its percentile among those of the queries before it, so that no scale of
    scores matters. Doubt is how low they are, the mean of all with the same weight. The model is
    asked where doubt is above the threshold that about the wanted share of the queries exceeds; the
    threshold rises with every call too many and falls with every one too few, so that the rate is
    kept whatever the results are like.
    """

    def __init__(self) -> None:
        self._percentiles = {name: Percentiles(expected) for name, expected in _EXPECTED.items()}
        # How many calls fewer than wanted were made.
        self._unused_calls = 0.0
        self._lock = ForkLock()

    def record_forced_call(self, target_call_rate: float) -> None:
        """Count a call that was not decided here, so that the others leave room for it."""
        with self._lock.free:
            self._unused_calls = min(
                self._unused_calls, max(self._unused_calls + target_call_rate - 1.0, -MAX_DEBT)
            )

    def decide(
        self,
        scores: Sequence[float | None],
        texts: Iterable[str | None] = (),
        keywords: str = "",
        *,
        target_call_rate: float,
        language: str = "",
    ) -> Decision:
        """Whether to ask the model, given the first result's *scores* and *texts*, best first, and the *keywords*.

        *language* is the code of the question's language, empty if unknown.
        """
        if target_call_rate <= 0.0:
            return Decision(call=False, reason="target_call_rate_is_zero")
        signals = measure_signals(scores, list(islice(texts, LOOKED_AT)), keywords, language)
        if not signals:
            self.record_forced_call(target_call_rate)
            return Decision(call=True, reason="too_few_scores", signals={"scores": len(scores)})
        with self._lock.free:
            observed = max(len(self._percentiles[name]) for name in signals)
            doubt = 1.0 - _mean(
                [self._percentiles[name].observe(signal) for name, signal in signals.items()]
            )
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
    """Where a number lies among the latest `MAX_OBSERVED` of its kind.

    With *expected*, the numbers are taken to lie evenly between these two before there are any;
    that fades as they come.
    """

    def __init__(self, expected: tuple[float, float] | None = None) -> None:
        self._expected = expected
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []

    def __len__(self) -> int:
        return len(self._ordered)

    def observe(self, number: float) -> float:
        """Returns the share of the numbers that are lower, equal ones counting half, and remembers *number*."""
        lower, count = (
            (bisect_left(self._ordered, number) + bisect_right(self._ordered, number)) / 2,
            len(self),
        )
        if self._expected is not None:
            low, high = self._expected
            lower, count = (
                lower + PRIOR * min(1.0, max(0.0, (number - low) / (high - low))),
                count + PRIOR,
            )
        percentile = lower / count if count else 0.5
        self._recent.append(number)
        insort(self._ordered, number)
        if len(self._recent) > MAX_OBSERVED:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]
        return percentile

    def quantile(self, share: float) -> float:
        """Return the number below which about *share* of the numbers lie; there must be one."""
        return self._ordered[min(len(self) - 1, int(share * len(self)))]


def measure_signals(
    scores: Sequence[float | None], texts: Sequence[str | None], keywords: str, language: str = ""
) -> dict[str, float]:
    """Returns the signals of a first result, best first, as far as there are *scores* or *texts* to measure them."""
    signals: dict[str, float] = {}
    near = to_numbers(scores[:NEAR])
    if len(near) > 1:
        signals["lead"] = abs(near[0] - near[-1])
    rules = load_word_rules(language)
    question = read_question(keywords, rules)
    if not question.terms or not any(texts):
        return signals
    read = [(text or "")[:_READ] for text in texts[:LOOKED_AT]]
    found = find_words(question, read, rules)
    signals["coverage"] = len(set().union(*found.places[:LEADING])) / len(question.terms)
    if len(read) >= LEADING:
        heights = _measure_heights(scores[: len(read)], len(read))
        words = weigh_words(question, found)
        best = max(words)
        signals["agreement"] = heights[words.index(best)] if best > min(words) else 0.0
        strength, _ = measure_strength(measure_coverage(question, found), is_whole=False)
        joint = nlargest(
            NEAR, [height + strength * word for height, word in zip(heights, words, strict=True)]
        )
        signals["joint_lead"] = joint[0] - joint[-1]
    return signals


def _measure_heights(scores: Sequence[float | None], count: int) -> list[float]:
    """The *scores* of *count* passages from 0, the worst, to 1, the best; those of their ranks where one is missing."""
    numbers = to_numbers(scores)
    if len(numbers) < count:
        numbers = [-float(rank) for rank in range(count)]
    elif numbers[0] < numbers[-1]:
        # A list whose numbers rise is one of distances.
        numbers = [-number for number in numbers]
    low = min(numbers)
    width = max(numbers) - low
    return [(number - low) / width if width else 0.0 for number in numbers]


def to_numbers(scores: Sequence[float | None]) -> list[float]:
    """Return the *scores*; none of them where one is missing."""
    numbers = [score for score in scores if score is not None]
    return numbers if len(numbers) == len(scores) else []


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
