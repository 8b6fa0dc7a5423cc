"""Which texts are searched for a question, and the weight of each in the fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.settings import FusionSettings
from qtmiddleware.transforms import SAME, distinct
from qtmiddleware.types import Transformation, Variant, VariantKind

_Candidate = tuple[VariantKind, str, float]


def _candidates(made: Transformation, weights: Any) -> list[_Candidate]:
    return [
        (row.variant, text, getattr(weights, name))
        for name, row in TEXT_FIELDS.items()
        if row.variant
        for text in made.texts(name)
        if not text.isspace()
    ]


def variants_of(made: Transformation, original: str, options: FusionSettings) -> tuple[Variant, ...]:
    """The variants to search beside *original*, without those that say the same as another one.

    Sub-queries share one weight, and so do paraphrases. One that says the same as the original is searched where the
    original takes no part in the fusion.
    """
    heard = original if options.include_original else ""
    if not heard and ("rewrite", SAME) in made.notes:
        made = replace(made, rewrite=original)
    candidates = _candidates(made, options.weights)
    kept = [candidates[position] for position in distinct([text for _, text, _ in candidates], original=heard)]
    kinds = [kind for kind, _, _ in kept]
    return tuple([Variant(kind, text, weight / kinds.count(kind)) for kind, text, weight in kept])
