"""A transformation out of the texts that were found for its fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from qtmiddleware.types import Transformation


def filled(texts: Mapping[str, Sequence[str]], notes: Iterable[tuple[str, str]]) -> Transformation:
    """The transformation that holds *texts*, by field; of those for a single text, the first."""

    def one(name: str) -> str | None:
        found = texts.get(name)
        return found[0] if found else None

    return Transformation(
        standalone=one("standalone"),
        rewrite=one("rewrite"),
        step_back=one("step_back"),
        sub_queries=tuple(texts.get("sub_queries", ())),
        paraphrases=tuple(texts.get("paraphrases", ())),
        hyde=one("hyde"),
        keywords=tuple(texts.get("keywords", ())),
        notes=tuple(notes),
    )
