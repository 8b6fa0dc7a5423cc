"""Which texts are searched for a question, and how loudly each speaks in the fusion."""

from __future__ import annotations

from dataclasses import replace

from qtmiddleware.settings import FusionSettings, FusionWeights
from qtmiddleware.transforms import SAME, distinct
from qtmiddleware.types import Transformation, Variant, VariantKind

_Candidate = tuple[VariantKind, str, float]


def _candidates(made: Transformation, weights: FusionWeights) -> list[_Candidate]:
    found: list[tuple[VariantKind, str | None, float]] = [
        ("standalone", made.standalone, weights.standalone),
        ("rewrite", made.rewrite, weights.rewrite),
        ("hyde", made.hyde, weights.hyde),
    ]
    found.extend([("sub_query", text, weights.sub_queries) for text in made.sub_queries])
    found.extend([("paraphrase", text, weights.paraphrases) for text in made.paraphrases])
    found.append(("step_back", made.step_back, weights.step_back))
    return [(kind, text, weight) for kind, text, weight in found if text and not text.isspace()]


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
