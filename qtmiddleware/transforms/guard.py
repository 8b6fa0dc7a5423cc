"""What a model's texts must not lose of the query, and what is done where they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.transforms.scripts import is_other_script
from qtmiddleware.transforms.spans import as_written, keeps
from qtmiddleware.transforms.wording import tokens

Spans = Sequence[tuple[str, str]]
SameLanguage = Callable[[str, str], bool]

MAX_REPAIRS: Final = 5
"""A text that lost more spans than this is dropped."""
MAX_CHARS: Final = 1_000
"""A text that would be longer than this with what it lost is dropped."""

_MISMATCH: Final = "language_mismatch"


def guard(
    transformation: Transformation,
    *,
    query: str,
    must_keep: Spans,
    script_of: Callable[[str], str],
    same_language: SameLanguage | None = None,
) -> Transformation:
    """*transformation* without the texts that would search for something else than *query*.

    *must_keep* holds the spans of *query* that carry its meaning, as (kind, text) with a kind of ``quote``,
    ``identifier``, ``number``, ``negation``, ``name`` or ``url``. A standalone form, rewrite or paraphrase that lost
    some gets them appended, or is dropped where that is most of them or a negation. Sub-queries have to hold them
    together. A step-back may generalise and a hypothetical passage may say anything. *script_of* names the script of
    a text, ``""`` if unknown; a text in another script than *query* is dropped, and one in another language where
    *same_language* tells. Every change is a note.
    """
    return _Guard(query, must_keep, script_of, same_language).checked(transformation)


class _Guard:
    """One query with what its variants are held against, and the notes on what was changed."""

    def __init__(
        self, query: str, must_keep: Spans, script_of: Callable[[str], str], same_language: SameLanguage | None
    ) -> None:
        self.query = query
        self.must_keep = [(kind, span) for kind, span in dict.fromkeys(must_keep) if span.strip()]
        self.script_of = script_of
        self.same_language = same_language
        self.notes: dict[tuple[str, str], None] = {}

    def checked(self, given: Transformation) -> Transformation:
        self.notes.update(dict.fromkeys(given.notes))
        kept: dict[str, Any] = {}
        for name, row in TEXT_FIELDS.items():
            texts = self._kept(row, given.texts(name))
            kept[name] = texts if row.shape == "list" else next(iter(texts), None)
        return Transformation(**kept, notes=tuple(self.notes))

    def _kept(self, row: TextField, texts: tuple[str, ...]) -> tuple[str, ...]:
        match row.guard:
            case "each":
                return tuple(kept for text in texts if (kept := self.faithful(row.name, text)) is not None)
            case "together":
                return self.covering(row.name, [text for text in texts if self.is_readable(row.name, text)])
            case "terms":
                return self.terms(row.name, texts)
            case _:
                return tuple(text for text in texts if self.is_readable(row.name, text))

    def is_readable(self, field: str, text: str) -> bool:
        """Whether *text* is in the script and language of the query."""
        is_foreign = is_other_script(text, self.query, self.script_of)
        if is_foreign or (self.same_language is not None and not self.same_language(self.query, text)):
            self.notes[field, _MISMATCH] = None
            return False
        return True

    def faithful(self, field: str, text: str) -> str | None:
        """*text* with every span of the query, or nothing where too much of it is lost."""
        if not self.is_readable(field, text):
            return None
        lost = [(kind, span) for kind, span in self.must_keep if not keeps(kind, span, text, query=self.query)]
        if not lost:
            return text
        what = self._described(lost)
        whole = _with(text, lost)
        if any(kind == "negation" for kind, _ in lost) or self._is_too_much(lost) or len(whole) > MAX_CHARS:
            self.notes[field, f"dropped: {what}"] = None
            return None
        self.notes[field, f"repaired: {what}"] = None
        return whole

    def covering(self, field: str, texts: list[str]) -> tuple[str, ...]:
        """The sub-queries, with what none of them holds appended to the one that is closest to the query."""
        if not texts:
            return ()
        # A part of a question may well be asked without the denial that joins the parts.
        wanted = [(kind, span) for kind, span in self.must_keep if kind != "negation"]
        lost = [one for one in wanted if not any(keeps(*one, text, query=self.query) for text in texts)]
        if lost and len(lost) <= MAX_REPAIRS:
            asked = set(tokens(self.query))
            closest = max(range(len(texts)), key=lambda i: (len(asked & set(tokens(texts[i]))), -i))
            whole = _with(texts[closest], lost)
            if len(whole) <= MAX_CHARS:
                texts[closest] = whole
                self.notes[field, f"repaired: {self._described(lost)}"] = None
        return tuple(texts)

    def terms(self, field: str, terms: tuple[str, ...]) -> tuple[str, ...]:
        """The key terms, if any of them is in the query's script or words; single terms of another are common."""
        asked = self.query.casefold()
        if all(is_other_script(term, self.query, self.script_of) and term.casefold() not in asked for term in terms):
            self.notes.update({(field, _MISMATCH): None} if terms else {})
            return ()
        return terms

    def _described(self, lost: Spans) -> str:
        """Which spans were lost, by kind and place in the query: ``number 12:16``; never their text."""
        shown = [f"{kind} {(at := self.query.find(span))}:{at + len(span)}" for kind, span in lost[:MAX_REPAIRS]]
        return ", ".join(shown) + (f" and {len(lost) - MAX_REPAIRS} more" if len(lost) > MAX_REPAIRS else "")

    def _is_too_much(self, lost: Spans) -> bool:
        spans = [kind for kind, _ in self.must_keep if kind != "negation"]
        return len(lost) > MAX_REPAIRS or (len(lost) > 1 and 2 * len(lost) > len(spans))


def _with(text: str, lost: Spans) -> str:
    """*text* with the lost spans in brackets behind it, where they disturb neither its words nor its grammar."""
    return f"{text} ({', '.join(dict.fromkeys(as_written(kind, span) for kind, span in lost))})"
