"""Whether a question is worth a call to the language model."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from math import fsum, isfinite, sqrt
from threading import Lock
from typing import Final

from qtmiddleware.settings import Settings
from qtmiddleware.trace import Decision

# Before enough queries of an index were seen to know its own scale, the spread below which a result counts as unsure.
PRIOR_SPREAD: Final = 0.05
MIN_OBSERVED: Final = 20
MAX_OBSERVED: Final = 512

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


def nothing_to_transform(query: str, literals: Sequence[str]) -> str:
    """Why no rewriting could make *query* a better search, as one word; ``""`` where one might.

    A greeting asks for nothing, and what consists of *literals* alone (codes, numbers, addresses) is searched best as
    it is written.
    """
    if " ".join(query.casefold().replace("’", "'").strip(" \t\r\n.!?,;:…¡¿").split()) in _SMALL_TALK:
        return "small_talk"
    rest = query
    for literal in sorted(literals, key=len, reverse=True):
        rest = rest.replace(literal, " ")
    if literals and not any(character.isalnum() for character in rest):
        return "only_identifiers"
    return ""


def reason_not_to_ask(
    settings: Settings, query: str, *, is_follow_up: bool, literals: Callable[[], Sequence[str]]
) -> str:
    """Why the model is not asked about *query* whatever the first result says, as one word; ``""`` where it may be.

    *literals* gives the codes, numbers and addresses in it; it is called only where there may be nothing else.
    """
    escalation = settings.escalation
    if settings.transformation_type == "none":
        return "no_transformation"
    if escalation.mode == "never" or escalation.max_llm_calls_per_query == 0:
        return "never"
    if is_follow_up:
        return ""
    is_prose = any(word.isalpha() and word.islower() for word in query.split())
    return nothing_to_transform(query, [] if is_prose else literals())


class Gate:
    """Decides from the first result of a query, against what it has seen of the same index before.

    The signal is the spread (standard deviation) of the first result's scores: a clear winner spreads them, a result
    that is unsure does not. The threshold is the quantile of the spreads seen so far that sends *target_call_rate* of
    the queries to the model; until `MIN_OBSERVED` were seen it is `PRIOR_SPREAD`. Safe with many threads.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._calls = self._decided = 0

    def _threshold(self, target_call_rate: float) -> float:
        if len(self._ordered) < MIN_OBSERVED:
            return PRIOR_SPREAD
        return self._ordered[min(len(self._ordered) - 1, int(target_call_rate * len(self._ordered)))]

    def _remember(self, spread: float) -> None:
        self._recent.append(spread)
        insort(self._ordered, spread)
        if len(self._recent) > MAX_OBSERVED:
            del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def decide(self, scores: Sequence[float | None], *, target_call_rate: float) -> Decision:
        """Whether to ask the model, given the first result's *scores*."""
        if target_call_rate <= 0.0:
            return Decision(call=False, reason="target_call_rate_is_zero")
        numbers = [float(score) for score in scores if score is not None and _is_number(score)]
        if len(numbers) < 2:
            return Decision(call=True, reason="too_few_scores", signals={"scores": len(numbers)})
        spread = _spread(numbers)
        with self._lock:
            threshold = self._threshold(target_call_rate)
            # Where spreads are equal, as those of scores made of ranks, only counting keeps the rate.
            call = spread < threshold or (spread == threshold and self._calls < target_call_rate * self._decided)
            self._remember(spread)
            self._calls += call
            self._decided += 1
            observed = len(self._ordered)
        signals = {"spread": spread, "threshold": threshold, "observed": observed}
        if target_call_rate >= 1.0:
            return Decision(call=True, reason="target_call_rate_is_one", signals=signals)
        return Decision(call=call, reason="low_spread" if call else "clear_first_result", signals=signals)


def _is_number(score: float) -> bool:
    try:
        return isfinite(score)
    except OverflowError:
        return False


def _spread(numbers: Sequence[float]) -> float:
    """The population standard deviation; `statistics.pstdev` is exact and many times as slow."""
    mean = fsum(numbers) / len(numbers)
    return sqrt(fsum((number - mean) ** 2 for number in numbers) / len(numbers))
