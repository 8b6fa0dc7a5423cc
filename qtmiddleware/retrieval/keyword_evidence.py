"""Lexical evidence: how well passages that were already found match the keywords of the query.

BM25 (Robertson and Zaragoza, 2009) over the candidates alone, with pairs of neighbouring keywords as further terms
(Metzler and Croft, 2005): frequencies are taken from the candidates, so no index is needed and no call is made.

How much evidence weighs is found out from the lists themselves where no weight is set, see `choose_weight`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import groupby, pairwise
from math import ceil, log, sqrt
from operator import add
from typing import Final, NamedTuple, TypeVar

from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.retrieval.fusion import Fused, FusedItem
from qtmiddleware.retrieval.responses import read_texts
from qtmiddleware.types import Evidence, Trace

K1: Final = 1.2
B: Final = 0.75
# The best match of a query usually scores about five times as much over the worst one as the mean does, more where the
# words single out a few passages, and less where most hold them alike; no passage has more evidence than so much.
MEANS: Final = 5.0
MOST: Final = 1.4
# What a pair of neighbours counts beside a single term, and in how many characters of a text it is looked for.
PAIR: Final = 0.5
_READ: Final = 8_000
# Variants share words with their question. At 1 their evidence would count as one opinion, at 2 as independent ones.
OVERLAP: Final = 1.5

# So many bytes are read of all texts of a question. Where they have more, those longer than their equal share are read
# in windows, evenly spread from beginning to end.
MOST_READ: Final = 800_000
WINDOWS: Final = 8
# Bytes of ASCII to lower case, and to a space what belongs to no word; those of other characters stay.
_SPACED: Final = bytes(c if c > 127 else ord(chr(c).lower()) if chr(c).isalnum() or c == 95 else 32 for c in range(256))


# What evidence weighs where the function's own order says little of the words, where it follows them by itself (from
# which rank correlation to which), and where its scores are ranks, which say nothing of distances. With the words of
# variants, which are news to every function, it weighs more.
WEIGHT: Final = 0.35
LEAST_WEIGHT: Final = 0.2
WEIGHT_BESIDE_RANKS: Final = 0.1
WEIGHT_OF_VARIANTS: Final = 0.4
WEIGHT_OF_VARIANTS_BESIDE_RANKS: Final = 0.3
_INDEPENDENT, _FOLLOWING = 0.35, 0.45
# Passages a list must have to show what its order follows.
_TELLING: Final = 20
# How many scores are looked at, and how far from a whole number a rank may be by rounding.
_LOOKED_AT: Final = 8
_ROUNDING: Final = 1e-4


class _Patterns(NamedTuple):
    """How the words of a text are found that is not ASCII alone.

    *unspaced* finds what is written without spaces: there a "word" is every pair of neighbouring characters, and *runs*
    splits it off. *punctuation* finds what belongs to no word, in UTF-8: most English texts have no other sign that is
    not ASCII.
    """

    word: re.Pattern[str]
    unspaced: re.Pattern[str]
    runs: re.Pattern[str]
    punctuation: re.Pattern[bytes]


@cache
def _compile_patterns() -> _Patterns:
    # Vowel signs and other marks, which \w leaves out, belong to their word.
    marks = "".join(sign for sign in map(chr, range(0x300, 0x1A00)) if unicodedata.category(sign)[0] == "M")
    word = re.compile(rf"[\w{marks}]+")
    unspaced = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
    signs = [
        sign.encode()
        for sign in map(chr, (*range(0xA0, 0xC0), *range(0x2000, 0x2070)))
        if not word.search(unicodedata.normalize("NFKC", sign).casefold())
    ]
    return _Patterns(word, re.compile(unspaced), re.compile(f"({unspaced})"), re.compile(b"|".join(signs)))


WeightedKeywords = Sequence[tuple[str, float]]
"""The keywords of several queries, each with its weight."""
Pair = tuple[str, str]
"""Two neighbouring words."""
_Term = TypeVar("_Term", str, Pair)


Gains = list[tuple[int, float]]
"""What something adds to the score of each text that it is in, by the place of the text."""


class TextTerms(NamedTuple):
    """What one text holds: how often each term, how many words in all, and which pairs of terms side by side."""

    counts: Mapping[str, int]
    length: int
    pairs: Set[Pair] = frozenset()


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the lists of one function follow the words of the question by themselves: from -1 to 1, and of how many.

    The *mean* of Spearman's rank correlation between their order and the evidence. It begins as if some lists had been
    seen, so that the first ones decide little, and forgets what is long ago.
    """

    mean: float = _INDEPENDENT
    lists: int = 10

    def observe(self, evidence: Sequence[float]) -> Agreement:
        """Returns it with one more list, whose passages have this *evidence*; itself where the list is too short."""
        if len(evidence) < _TELLING or (correlation := correlate_ranks(evidence)) is None:
            return self
        lists = min(self.lists + 1, 200)
        return Agreement(self.mean + (correlation - self.mean) / lists, lists)


def weigh_by_keywords(
    fused: Fused,
    collect_keywords: Callable[[], WeightedKeywords],
    options: KeywordEvidenceSettings,
    own_scores: Sequence[float | None],
    agreement: Agreement,
    trace: Trace,
) -> tuple[Fused, Agreement]:
    """Returns *fused* with its leading candidates ordered by score and by keywords; unchanged where none has a text.

    *collect_keywords* is called only where there are texts to look for keywords in. *own_scores* are those of the
    question's own list, *agreement* is that of the earlier lists of the same function; it is returned with this one.
    """
    candidates, rest = fused.items[: options.candidates], fused.items[options.candidates :]
    if len(candidates) < 2:
        return fused, agreement
    texts = read_texts([it.item for it in candidates], options.text_field)
    if not any(texts):
        trace.note("keyword_evidence", "no text in the metadata; order kept")
        return fused, agreement
    keywords = collect_keywords()
    evidence = score_by_keywords(keywords, texts)
    if evidence is None:
        trace.note("keyword_evidence", "no keyword in any candidate; order kept")
        return fused, agreement
    numbers = [it.score for it in candidates]
    weight, has_variants = options.weight, len(keywords) > 1
    if weight is None:
        weight, why = choose_weight(own_scores, agreement, has_variants=has_variants)
        if why:
            usual = WEIGHT_OF_VARIANTS if has_variants else WEIGHT
            trace.note("keyword_evidence", f"weight {weight:.2f} of {usual}: {why}")
    if not has_variants and all(it.sources == 1 for it in candidates):
        agreement = agreement.observe(evidence)
    spread = max(numbers) - min(numbers) if fused.spread is None else fused.spread
    # What follows the candidates has no evidence, and no score above theirs: it stays behind them, in its order.
    scores = add_evidence(fused.scores, [*evidence, *(0.0 for _ in rest)], weight, spread)
    weighed = [FusedItem(it.key, it.item, score, it.sources) for it, score in zip(fused.items, scores, strict=True)]
    leading = sorted(zip(weighed, evidence, strict=False), key=lambda pair: pair[0].score, reverse=True)
    items = [it for it, _ in leading]
    account = Evidence(
        keywords=tuple(keywords),
        weight=weight,
        keys=tuple(it.key for it in items),
        scores=tuple(it.score for it in items),
        shares=tuple(weight * share for _, share in leading),
    )
    return Fused([*items, *weighed[len(candidates) :]], fused.method, evidence=account), agreement


def choose_weight(own_scores: Sequence[float | None], agreement: Agreement, *, has_variants: bool) -> tuple[float, str]:
    """Returns what evidence weighs beside scores, and why that is less than usual.

    A function that fuses lists by rank, or whose order follows the words already, has less to gain from them.
    *own_scores* are those of the question's own list, and *agreement* is that of the function's earlier lists.
    """
    scores = [score for score in own_scores if score is not None]
    if len(scores) == len(own_scores) and are_reciprocal_ranks(scores):
        weight = WEIGHT_OF_VARIANTS_BESIDE_RANKS if has_variants else WEIGHT_BESIDE_RANKS
        return weight, "the scores are reciprocal ranks"
    if has_variants:
        return WEIGHT_OF_VARIANTS, ""
    share = (agreement.mean - _INDEPENDENT) / (_FOLLOWING - _INDEPENDENT)
    weight = round(WEIGHT - (WEIGHT - LEAST_WEIGHT) * min(1.0, max(0.0, share)), 2)
    return weight, "the function's order follows the words already" if weight < WEIGHT else ""


def are_reciprocal_ranks(scores: Sequence[float]) -> bool:
    """Whether *scores*, best first, are those of a reciprocal rank fusion: 1 / (k + rank) of one list or of two.

    The lower half is looked at, whose passages are seldom in more lists. Any k will do, and no weights. Of few scores
    nothing can be said, nor of round ones: 0.7 is 1 / 2 + 1 / 5.
    """
    lower = scores[len(scores) // 2 :]
    if len(lower) < 5 or not 0.0 < lower[-1] < lower[0] < 1.0 or all(score == round(score, 3) for score in lower):
        return False
    step = max(1, len(lower) // _LOOKED_AT)
    return all(map(_is_sum_of_reciprocals, lower[::step]))


def _is_sum_of_reciprocals(score: float) -> bool:
    """Whether *score* is 1 / i, or 1 / i + 1 / j with i <= j, of whole numbers."""
    if abs(1.0 / score - round(1.0 / score)) < _ROUNDING:
        return True
    rests = (score - 1.0 / i for i in range(ceil(1.0 / score), min(1_000, int(2.0 / score + _ROUNDING)) + 1))
    return any(rest > 0.0 and abs(1.0 / rest - round(1.0 / rest)) < _ROUNDING for rest in rests)


def correlate_ranks(values: Sequence[float]) -> float | None:
    """Returns Spearman's rank correlation of *values* with their own falling order; ``None`` where all are equal.

    Equal values have the mean of their ranks.
    """
    size, ranks = len(values), dict[int, float]()
    order = sorted(range(size), key=lambda place: -values[place])
    for _, group in groupby(order, key=lambda place: values[place]):
        places, first = list(group), len(ranks)
        ranks.update(dict.fromkeys(places, first + (len(places) - 1) / 2))
    middle = (size - 1) / 2
    own = sum((rank - middle) ** 2 for rank in ranks.values())
    both = sum((place - middle) * (rank - middle) for place, rank in ranks.items())
    return both / sqrt(own * size * (size * size - 1) / 12) if own else None


def add_evidence(scores: Sequence[float], evidence: Sequence[float], weight: float, spread: float) -> list[float]:
    """Returns the backend's *scores* (higher is better) and the keyword *evidence* as one sum each.

    sum = (1 - weight) x (score - lowest) / spread + weight x evidence. *spread* is how far apart such scores usually
    lie; at 0 they tell nothing apart and have no say.
    """
    low = min(scores, default=0.0)
    # A score divided by less than that may be infinite.
    tells_apart = spread > 1e-300
    return [
        (1.0 - weight) * ((score - low) / spread if tells_apart else 0.0) + weight * keyword
        for score, keyword in zip(scores, evidence, strict=True)
    ]


def score_by_keywords(keywords: WeightedKeywords, texts: Sequence[str | None]) -> list[float] | None:
    """Returns how well each text holds several queries' keywords; ``None`` where no text holds any.

    evidence = sum over queries of weight x (score - lowest) / (`MEANS` x mean of that), at most `MOST`, divided by
    (sum of weight ** OVERLAP) ** (1 / OVERLAP) over the queries that any text matches; score is BM25 of the words plus
    `PAIR` x idf for each two of them that stand side by side in the text as in the query. The worst text has 0, and the
    best the more, the fewer have as much.
    """
    queries = [(*_read_keywords(words), weight) for words, weight in keywords if weight > 0]
    all_terms = frozenset[str]().union(*(terms for terms, _, _ in queries))
    counted = count_terms(texts, all_terms, frozenset[Pair]().union(*(pairs for _, pairs, _ in queries)))
    term_gains, pair_gains, size = weigh_terms(counted), weigh_pairs(counted), len(texts)
    matching = [
        (list(map(add, scores, sum_gains(pairs, pair_gains, size))), weight)
        for terms, pairs, weight in queries
        if any(scores := sum_gains(terms, term_gains, size))
    ]
    if not matching:
        return None
    largest = max(weight for _, weight in matching)
    shares = [weight / largest for _, weight in matching]
    whole = sum(share**OVERLAP for share in shares) ** (1.0 / OVERLAP)
    evidence = [0.0] * len(texts)
    for (scores, _), share in zip(matching, shares, strict=True):
        evidence = list(map(add, evidence, [share / whole * score for score in _normalize(scores)]))
    return evidence


def find_terms(keywords: str) -> frozenset[str]:
    """Returns the words of the *keywords* as they are compared."""
    return frozenset(map(strip_plural, _split_words(keywords)))


def _read_keywords(keywords: str) -> tuple[Sequence[str], Sequence[Pair]]:
    """The words of the *keywords* as they are compared, and each two that stand side by side; each once, in order."""
    terms = list(map(strip_plural, _split_words(keywords)))
    return list(dict.fromkeys(terms)), list(dict.fromkeys(pairwise(terms)))


def find_held_words(keywords: str, text: str) -> tuple[str, ...]:
    """Returns those words of the *keywords*, in their order and each once, that stand in *text*."""
    counts = count_terms([text], find_terms(keywords))[0].counts
    words = {strip_plural(word): word for word in _split_words(keywords)[::-1]}
    return tuple(words[term] for term in dict.fromkeys(map(strip_plural, _split_words(keywords))) if term in counts)


def locate_words(keywords: str, text: str) -> list[tuple[int, int]]:
    """Returns from where to where words of the *keywords* stand in *text*, in their order; none overlap."""
    terms = find_terms(keywords)
    spans: list[tuple[int, int]] = []
    patterns = _compile_patterns()
    for word in patterns.word.finditer(text):
        start = word.start()
        for piece in patterns.runs.split(word.group()):
            # Of scripts without spaces, as where they are counted, each pair of neighbours is a word.
            size = 2 if patterns.unspaced.match(piece) else len(piece)
            for at in range(start, start + max(1, len(piece) - size + 1) if piece else start):
                if not find_terms(text[at : at + size]).isdisjoint(terms):
                    begins = spans.pop()[0] if spans and spans[-1][1] > at else at
                    spans.append((begins, min(at + size, start + len(piece))))
            start += len(piece)
    return spans


def count_terms(
    texts: Sequence[str | None], wanted: Set[str], wanted_pairs: frozenset[Pair] = frozenset()
) -> list[TextTerms]:
    """Returns for each text how often it holds each of the *wanted* terms, and which of the *wanted_pairs* it holds.

    Each text is read once. Of long ones, as by `MOST_READ`, counts and length are those of parts, so that time does not
    grow with length, and pairs are looked for at the beginning.
    """
    forms = {form: term for term in wanted for form in (term, term + "s") if strip_plural(form) == term}
    ascii_forms = {form.encode(): term for form, term in forms.items() if form.isascii()}
    # A pair of such characters, or one that is asked for alone and stands in no list of pairs.
    unspaced = {
        form for form in forms if len(form) <= 2 and not form.isascii() and _compile_patterns().unspaced.fullmatch(form)
    }
    whole = [text or "" for text in texts]
    counted = []
    for text, part in zip(whole, _read_windows(whole), strict=True):
        runs: Sequence[str] = ()
        plain = part.encode("utf-8", "surrogatepass")
        if not part.isascii():
            plain = _compile_patterns().punctuation.sub(b" ", plain)
        if plain.isascii():
            # Bytes are split several times as fast as a pattern finds words.
            words = plain.translate(_SPACED).split()
            places = [(place, ascii_forms[word]) for place, word in enumerate(words) if word in ascii_forms]
            length = len(words)
        else:
            spaced, runs = _split_others(part)
            places = [(place, forms[word]) for place, word in enumerate(spaced) if word in forms]
            length = len(spaced) + sum(max(1, len(run) - 1) for run in runs)
        counts: dict[str, int] = {}
        neighbours: list[Pair] = []
        before, previous = -2, ""
        for place, term in places:
            counts[term] = counts.get(term, 0) + 1
            if place == before + 1:
                neighbours.append((previous, term))
            before, previous = place, term
        if runs and unspaced:
            joined = " ".join(runs)
            counts.update({form: count for form in unspaced if (count := _count_in_runs(joined, form))})
        if runs or part is not text or len(text) > _READ:
            pairs = _find_pairs_at_beginning(text, forms, counts, wanted_pairs)
        else:
            pairs = wanted_pairs.intersection(neighbours) if neighbours else frozenset()
        counted.append(TextTerms(counts, length, pairs))
    return counted


def _find_pairs_at_beginning(
    text: str, forms: Mapping[str, str], counts: Mapping[str, int], wanted: Set[Pair]
) -> Set[Pair]:
    """Which of the *wanted* pairs the beginning of *text* holds, which is read only if both words were counted."""
    if not any(one in counts and other in counts for one, other in wanted):
        return frozenset()
    return wanted & set(pairwise(map(forms.get, _split_words(text[:_READ]))))


def weigh_terms(counted: Sequence[TextTerms]) -> dict[str, Gains]:
    """Returns what each term adds to the BM25 scores of the texts that hold it.

    gain = idf x tf x (K1 + 1) / (tf + K1 x (1 - B + B x length / mean length)), with
    idf = log(1 + (n - df + 0.5) / (df + 0.5)).
    """
    size = len(counted)
    idf = _weigh_by_rarity(Counter([term for text in counted for term in text.counts]), size)
    mean_length = sum(text.length for text in counted) / size if size else 0.0
    gains: dict[str, Gains] = {term: [] for term in idf}
    for place, (counts, length, _) in enumerate(counted):
        damping = K1 * (1.0 - B + B * length / mean_length) if counts else 0.0
        for term, tf in counts.items():
            gains[term].append((place, idf[term] * tf * (K1 + 1.0) / (tf + damping)))
    return gains


def weigh_pairs(counted: Sequence[TextTerms]) -> dict[Pair, Gains]:
    """Returns what each pair adds to the scores of the texts that hold it: `PAIR` x idf."""
    idf = _weigh_by_rarity(Counter([pair for text in counted for pair in text.pairs]), len(counted))
    gains: dict[Pair, Gains] = {pair: [] for pair in idf}
    for place, text in enumerate(counted):
        for pair in text.pairs:
            gains[pair].append((place, PAIR * idf[pair]))
    return gains


def sum_gains(terms: Iterable[_Term], gains: Mapping[_Term, Gains], size: int) -> list[float]:
    """Returns for each of *size* texts the sum of its *gains* from these *terms* or pairs, above 0 if it holds any."""
    sums = [0.0] * size
    for term in terms:
        for place, gain in gains.get(term, ()):
            sums[place] += gain
    return sums


def _weigh_by_rarity(frequencies: Mapping[_Term, int], size: int) -> dict[_Term, float]:
    """The idf of each term that stands in so many of *size* texts: log(1 + (size - df + 0.5) / (df + 0.5))."""
    return {term: log(1.0 + (size - df + 0.5) / (df + 0.5)) for term, df in frequencies.items()}


def _read_windows(texts: Sequence[str]) -> Sequence[str]:
    """What is read of *texts*: all of them where they are not too long together, else parts of the long ones."""
    if 4 * sum(map(len, texts)) <= MOST_READ:
        return texts
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    if sum(sizes) <= MOST_READ:
        return texts
    share = MOST_READ // len(texts)
    return [
        text if size <= share else " ".join(_cut_windows(text, share * len(text) // (size * WINDOWS)))
        for text, size in zip(texts, sizes, strict=True)
    ]


def _cut_windows(text: str, width: int) -> list[str]:
    """`WINDOWS` parts of *text*, each of *width* characters."""
    starts = [(len(text) - width) * window // (WINDOWS - 1) for window in range(WINDOWS)]
    return [text[start : start + width] for start in starts]


def _split_words(text: str) -> list[str]:
    """The words of *text*, casefolded; of scripts without spaces, all pairs of neighbours."""
    words, runs = _split_others(text)
    return words + [run[i : i + 2] for run in runs for i in range(max(1, len(run) - 1))]


def _split_others(text: str) -> tuple[list[str], list[str]]:
    """The words of *text*, casefolded, and apart from them its runs of scripts without spaces."""
    if text.isascii():
        return text.encode().translate(_SPACED).decode().split(), []
    word, unspaced, *_ = _compile_patterns()
    words: list[str] = word.findall(unicodedata.normalize("NFKC", text).casefold())
    if not unspaced.search(text := " ".join(words)):
        return words, []
    return unspaced.sub(" ", text).split(), unspaced.findall(text)


def _count_in_runs(runs: str, form: str) -> int:
    """How often *form*, one or two characters, stands in *runs*; the same one twice may overlap."""
    if len(form) == 2 and form[0] == form[1]:
        runs = runs.replace(form[0], f"{form[0]} {form[0]}")
    return runs.count(form)


def strip_plural(word: str) -> str:
    """Returns *word* without a plural's last letter, as far as that is safe in every language of the word lists.

    "dogs" meets "dog"; "bus" and "class" stay.
    """
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] not in "su" else word


def _normalize(scores: Sequence[float]) -> list[float]:
    """*scores* over their lowest, in `MEANS` times the mean of that, at most `MOST`; zeros where all are the same."""
    low, high = min(scores), max(scores)
    # What differs by rounding alone is the same.
    if high - low <= 1e-9 * high:
        return [0.0] * len(scores)
    width = MEANS * (sum(scores) / len(scores) - low)
    return [min(MOST, (score - low) / width) for score in scores]
