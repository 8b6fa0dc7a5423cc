"""The real flow with the reference formula in place of today's evidence, for questions without variants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from benchmarks.evidence import formula
from qtmiddleware.retrieval.fusion import Fused, FusedItem
from qtmiddleware.retrieval.pipeline import _Pipeline
from qtmiddleware.retrieval.request import collect_keywords
from qtmiddleware.retrieval.responses import read_texts


@contextmanager
def use_formula() -> Iterator[None]:
    """Puts the formula into the pipeline while the context lasts."""
    before = _Pipeline._weigh_by_keywords

    def weigh(self: Any, fusion: Any, transformation: Any, variants: Any) -> Fused:
        keywords = collect_keywords(variants.own, transformation, variants.weighed, self.settings)
        options, fused = self.settings.keyword_evidence, fusion.fused
        items = fused.items[: options.candidates]
        if len(keywords) > 1 or options.weight is not None or len(items) < 2 or not fused.is_merged:
            return before(self, fusion, transformation, variants)
        texts = read_texts([it.item for it in items], options.text_field)
        language = formula.load_language(self.query.language)
        asked = formula.read_question(keywords[0][0], language)
        evidence = formula.weigh_words(asked, formula.find_held(asked, texts, language)) if asked.terms else None
        if evidence is None:
            return fused  # type: ignore[no-any-return]
        numbers = [it.score for it in items]
        spread = max(numbers) - min(numbers) if fused.spread is None else fused.spread
        is_whole = self.request.width is not None and len(items) < self.request.width
        scores = formula.add_words(numbers, spread, evidence, is_whole=is_whole)
        weighed = [FusedItem(it.key, it.item, score, it.sources) for it, score in zip(items, scores, strict=True)]
        weighed.sort(key=lambda it: it.score, reverse=True)
        return replace(fused, items=[*weighed, *fused.items[options.candidates :]])

    with patch.object(_Pipeline, "_weigh_by_keywords", weigh):
        yield
