"""Mark keywords in the texts of passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from qtmiddleware.catalogue import TEXT_FIELDS
from qtmiddleware.preprocessing import extract_keywords, preprocess
from qtmiddleware.retrieval.movement import (
    drop_function_words,
    find_question_language,
)
from qtmiddleware.retrieval.question_words import locate_words
from qtmiddleware.types import Retrieval

Segment = tuple[str, str]
"""A piece of a text, and whose keyword it is: ``question``, ``model`` or nobody's (``""``)."""


@dataclass(frozen=True, slots=True)
class Keywords:
    """The keywords to mark on the page.

    Attributes:
        question: The question's keywords, separated by spaces.
        model: The keywords of the model's texts, separated by spaces.
        language: The language whose word forms are recognised; none by default.
    """

    question: str
    model: str = ""
    language: str = ""

    @classmethod
    def of(cls, question: str, retrieval: Retrieval) -> Keywords:
        """Return the keywords of *question* and of the texts that the model wrote for it."""
        texts = [*retrieval.transformation.keywords]
        for name, row in TEXT_FIELDS.items():
            if row.is_evidence:
                texts += retrieval.transformation.texts(name)
        written = " ".join(texts)
        # If a question has too many typos to tell its language, the model's texts tell it.
        language = find_question_language(retrieval) or extract_keywords(written).language

        def list_words(text: str) -> str:
            words = drop_function_words(preprocess(text).split(), language)
            # A single letter, such as the s of "dog's", is not a word.
            return " ".join(word for word in words if len(word) > 1 or not word.isalpha())

        return cls(list_words(question), " ".join(map(list_words, texts)), language)

    def mark(self, text: str) -> list[Segment]:
        """Split *text* into its keywords and what is between them."""
        owners = [""] * len(text)
        # A keyword of both belongs to the question.
        for owner, words in (
            ("model", self.model),
            ("question", self.question),
        ):
            for start, end in self._locate(words, text):
                owners[start:end] = [owner] * (end - start)
        pieces = groupby(zip(text, owners, strict=True), key=lambda pair: pair[1])
        return [("".join(sign for sign, _ in pairs), owner) for owner, pairs in pieces]

    def _locate(self, words: str, text: str) -> Sequence[tuple[int, int]]:
        return locate_words(words, text, self.language) if words.strip() else ()
