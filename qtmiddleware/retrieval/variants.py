"""Which texts are searched for a question, and the weight of each in the fusion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.config.settings import FusionSettings
from qtmiddleware.transforms import ORIGINAL, SAME, find_repeats
from qtmiddleware.types import Transformation, Variant, VariantKind

_Candidate = tuple[VariantKind, str, float]


def _candidates(made: Transformation, weights: Any) -> list[_Candidate]:
    return [
        (row.variant, text, getattr(weights, name))
        for name, row in TEXT_FIELDS.items()
        if row.variant
        for text in made.texts(name)
        if text and not text.isspace()
    ]


def variants_of(
    made: Transformation, original: str, options: FusionSettings
) -> tuple[tuple[Variant, ...], tuple[tuple[str, str], ...]]:
    """The variants to search beside *original*, and a note on each that is not, as it says the same as another.

    Sub-queries share one weight, and so do paraphrases. One that says the same as the original is searched where the
    original takes no part in the fusion.
    """
    heard = original if options.include_original else ""
    if not heard and ("rewrite", SAME) in made.notes:
        made = replace(made, rewrite=original)
    candidates = _candidates(made, options.weights)
    repeated = find_repeats([text for _, text, _ in candidates], original=heard)
    kept = [candidate for candidate, other in zip(candidates, repeated, strict=True) if other is None]
    kinds = [kind for kind, _, _ in kept]
    notes = tuple(
        (kind, f"not searched: says the same as the {'original' if other == ORIGINAL else candidates[other][0]}")
        for (kind, _, _), other in zip(candidates, repeated, strict=True)
        if other is not None
    )
    return tuple([Variant(kind, text, weight / kinds.count(kind)) for kind, text, weight in kept]), notes
