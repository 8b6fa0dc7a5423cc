"""Which texts are searched for a question, and how loudly each speaks in the fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from qtmiddleware.settings import FusionWeights
from qtmiddleware.transforms import distinct
from qtmiddleware.types import Transformation, Variant, VariantKind


def _candidates(made: Transformation, weights: FusionWeights) -> list[Variant]:
    single: list[tuple[VariantKind, str | None, float]] = [
        ("standalone", made.standalone, weights.standalone),
        ("rewrite", made.rewrite, weights.rewrite),
        ("hyde", made.hyde, weights.hyde),
    ]
    shared: list[tuple[VariantKind, Sequence[str], float]] = [
        ("sub_query", made.sub_queries, weights.sub_queries),
        ("paraphrase", made.paraphrases, weights.paraphrases),
    ]
    last: list[tuple[VariantKind, str | None, float]] = [("step_back", made.step_back, weights.step_back)]
    return [
        *(Variant(kind, text, weight) for kind, text, weight in single if text and not text.isspace()),
        *chain.from_iterable(
            (Variant(kind, text, weight) for text in texts if text and not text.isspace())
            for kind, texts, weight in shared
        ),
        *(Variant(kind, text, weight) for kind, text, weight in last if text and not text.isspace()),
    ]


def variants_of(made: Transformation, original: str, weights: FusionWeights) -> tuple[Variant, ...]:
    """The variants to search beside *original*, without those that say the same as another one.

    Sub-queries share one weight, and so do paraphrases.
    """
    candidates = _candidates(made, weights)
    kept = [candidates[position] for position in distinct([it.text for it in candidates], original=original)]
    sharing = Counter(variant.kind for variant in kept)
    return tuple(Variant(it.kind, it.text, it.weight / sharing[it.kind]) for it in kept)
