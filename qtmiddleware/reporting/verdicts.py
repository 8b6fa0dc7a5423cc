"""What to take home from a comparison, in a sentence or two."""

from __future__ import annotations

from typing import Final

from qtmiddleware.evaluation import PRIMARY, TOLERANCE, Comparison, Dataset, SystemScore, difference
from qtmiddleware.evaluation.statistics import SIGNIFICANT
from qtmiddleware.reporting import figures
from qtmiddleware.reporting.wording import short

NAME_LENGTH: Final = 60
_FEW: Final = 30
_SYNTHETIC: Final = "The questions are synthetic: a language model wrote them."


def winner(comparison: Comparison) -> SystemScore | None:
    """The system that gained most of those whose gain is more than chance; ``None`` where there is none."""
    return _best([score for score in comparison.challengers if _won(score)])


def foremost(comparison: Comparison) -> SystemScore:
    """The system to look at first: the winner, else the challenger that gained most, else the baseline itself."""
    return winner(comparison) or _best(comparison.challengers) or comparison[comparison.baseline]


def verdict(comparison: Comparison) -> str:
    """Which system beats the baseline by more than chance and at what price, or that none does, in plain sentences."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> tuple[str, str]:
    """The verdict as a headline and what must be known with it."""
    best = winner(comparison)
    if best is not None:
        return _headline(comparison, best), f"{_price(comparison, best)}{_rival(comparison, best)}"
    base = named(comparison.baseline)
    if not comparison.challengers:
        return f"There is nothing to compare {base} with.", "Only the baseline was measured."
    few = " With so few questions only a large difference can show." if comparison.questions < _FEW else ""
    return f"Nothing beats {base}.", f"On {_questions(comparison)} {_rest(comparison)}.{few}"


def notes(comparison: Comparison, data: Dataset | None) -> tuple[str, ...]:
    """What a reader must know to judge the figures; that the questions are synthetic is among it if *data* says so."""
    if data is None or not data.is_synthetic or any("synthetic" in note.casefold() for note in comparison.notes):
        return comparison.notes
    return (_SYNTHETIC, *comparison.notes)


def named(name: str) -> str:
    """A system's name as it stands in a sentence."""
    return f"“{short(name, NAME_LENGTH)}”"


def _headline(comparison: Comparison, best: SystemScore) -> str:
    gain = _bare(best.difference.gain)
    return f"{named(best.name)} beats {named(comparison.baseline)} by {gain} points of {PRIMARY}."


def _bare(gain: float) -> str:
    """A gain in points without its sign, which the sentence tells."""
    return figures.points(gain).removeprefix("+")


def _price(comparison: Comparison, best: SystemScore) -> str:
    """What the best system hurts, takes and costs, and what there is for less."""
    told = [f"hurts {figures.share(best.hurt_rate)} of the questions", f"adds {figures.duration(best.added_ms.p50)}"]
    if not best.llm_calls:
        return f"It {told[0]}, {told[1]} (median) and asks no model."
    cost = best.usd_per_thousand
    price = "at a price that is not known" if cost is None else f"for {figures.dollars(cost)} per 1,000 questions"
    calls = figures.rate(best.llm_calls / len(best.runs))
    said = f"It {told[0]}, {told[1]} (median) and asks the model {calls} times a question, {price}"
    free = _best([score for score in comparison.challengers if _won(score) and not score.llm_calls])
    if free is None:
        return f"{said}; nothing gains significantly without a model."
    return f"{said}; without a model, {named(free.name)} gains {_bare(free.difference.gain)}."


def _rival(comparison: Comparison, best: SystemScore) -> str:
    """The best of those that may be as good as the best and cost less; empty where there is none.

    At most half as much, if there is one, as that is worth a change; else any that costs less, else the second best.
    """
    others = [score for score in comparison.challengers if _won(score) and score is not best]
    others.sort(key=lambda score: (-score.difference.gain, _cost(score)))
    half = [score for score in others if _cost(score) <= tuple(part / 2 for part in _cost(best))]
    cheaper = [score for score in others if _cost(score) < _cost(best)]
    for score in (*half, *cheaper, *others[:1]):
        lead = difference([best.gains[asked] - score.gains[asked] for asked in best.gains], seed=comparison.seed)
        if lead.p >= SIGNIFICANT:
            who = f"{named(score.name)}{_told_price(score)}"
            if abs(lead.gain) <= TOLERANCE:
                return f" {who} does as well."
            between = f"the {_bare(lead.gain)} points between them {figures.interval(lead)}"
            return f" {who} may be as good: {between} may be chance."
    return ""


def _cost(score: SystemScore) -> tuple[float, float]:
    """By what systems are cheaper than one another: money where it is known, then model calls."""
    money = score.usd_per_thousand
    return (float("inf") if money is None else money, score.llm_calls / len(score.runs))


def _told_price(score: SystemScore) -> str:
    if not score.llm_calls:
        return ""
    cost = score.usd_per_thousand
    calls = f"{figures.rate(score.llm_calls / len(score.runs))} calls a question"
    return f" ({calls if cost is None else figures.dollars(cost)})"


def _rest(comparison: Comparison) -> str:
    """What the systems did where none won."""
    best = _best(comparison.challengers)
    worse = [it for it in comparison.challengers if it.difference.is_significant and it.difference.gain < -TOLERANCE]
    if best is None or best.difference.gain <= TOLERANCE:
        said = "no system gained anything"
    else:
        said = f"the largest gain, {_bare(best.difference.gain)} points by {named(best.name)}, may be chance"
    if not worse:
        return said
    which = f"{named(worse[0].name)} is" if len(worse) == 1 else f"{len(worse)} systems are"
    return f"{said}, and {which} significantly worse"


def _questions(comparison: Comparison) -> str:
    return "one question" if comparison.questions == 1 else f"these {comparison.questions:,} questions"


def _won(score: SystemScore) -> bool:
    """Whether it gained more than chance would, and by what it is: not all of its answers were degraded."""
    is_itself = score.degraded < len(score.runs)
    return is_itself and score.difference.is_significant and score.difference.gain > TOLERANCE


def _best(scores: list[SystemScore] | tuple[SystemScore, ...]) -> SystemScore | None:
    return max(scores, key=lambda score: score.difference.gain, default=None)
