"""What a model's texts must not lose of the query, and what is done where they did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from qtmiddleware.catalogue import TEXT_FIELDS, TextField, Transformation
from qtmiddleware.preprocessing import detect_language, dominant_script
from qtmiddleware.preprocessing.text import split_tokens
from qtmiddleware.transforms.parsing import fill
from qtmiddleware.transforms.prompt import Facts
from qtmiddleware.transforms.span_matching import keeps_span, write_span

Spans = Sequence[tuple[str, str]]

MAX_REPAIRS: Final = 5
"""A text that lost more spans than this is dropped."""
MAX_CHARS: Final = 1_000
"""A text that would be longer than this with what it lost is dropped."""

_MISMATCH: Final = "language_mismatch"
# One language is written in several of these, so they pass for one another.
_KIN: Final = frozenset(["han", "japanese", "hiragana", "katakana"])
_SHARE_OF_TEXT: Final = 0.2
_SHARE_OF_QUERY: Final = 0.1


def guard(
    transformation: Transformation,
    *,
    query: str,
    must_keep: Spans,
    may_be_english: bool = True,
    facts: Facts = (),
) -> Transformation:
    """Returns *transformation* without the texts that would search for something else than *query*.

    *must_keep* holds the spans of *query* that carry its meaning, as (kind, text) with a kind of
    ``quote``, ``identifier``, ``number``, ``negation``, ``name`` or ``url``. A standalone form,
    rewrite or paraphrase that lost some gets them appended, or is dropped where that is most of
    them or a negation. Sub-queries have to hold them together. A step-back may generalise and a
    hypothetical passage may say anything. A text in another script than
    *query* is dropped, and one in English unless it *may_be_english*. A term that a text has in
    another form of the
    *facts* is kept. Every change is a note.
    """
    return _Guard(query, must_keep, may_be_english, facts).check(transformation)


class _Guard:
    """One query with what its variants are held against, and the notes on what was changed."""

    def __init__(self, query: str, must_keep: Spans, may_be_english: bool, facts: Facts) -> None:
        self.query = query
        self.must_keep = [(kind, span) for kind, span in dict.fromkeys(must_keep) if span.strip()]
        self.may_be_english = may_be_english
        self.facts = facts
        self.notes: dict[tuple[str, str], None] = {}

    def check(self, given: Transformation) -> Transformation:
        self.notes.update(dict.fromkeys(given.notes))
        kept = {
            name: self._check_field(row, texts)
            for name, row in TEXT_FIELDS.items()
            if (texts := given.texts(name))
        }
        return fill(kept, self.notes)

    def _check_field(self, row: TextField, texts: tuple[str, ...]) -> tuple[str, ...]:
        match row.guard:
            case "each":
                return tuple(
                    [kept for text in texts if (kept := self._repair(row.name, text)) is not None]
                )
            case "together":
                return self._repair_together(
                    row.name, [text for text in texts if self._is_readable(row.name, text)]
                )
            case "terms":
                return self._check_terms(row.name, texts)
            case _:
                return tuple(text for text in texts if self._is_readable(row.name, text))

    def _is_readable(self, field: str, text: str) -> bool:
        """Whether *text* is in the script and language of the query."""
        if is_other_script(text, self.query) or (
            not self.may_be_english and detect_language(text) == "en"
        ):
            self.notes[field, _MISMATCH] = None
            return False
        return True

    def _repair(self, field: str, text: str) -> str | None:
        """*text* with every span of the query, or nothing where too much of it is lost."""
        if not self._is_readable(field, text):
            return None
        lost = [(kind, span) for kind, span in self.must_keep if not self._keeps(kind, span, text)]
        if not lost:
            return text
        what = self._describe(lost)
        whole = _append_spans(text, lost)
        if (
            any(kind == "negation" for kind, _ in lost)
            or self._is_too_much(lost)
            or len(whole) > MAX_CHARS
        ):
            self.notes[field, f"dropped: {what}"] = None
            return None
        self.notes[field, f"repaired: {what}"] = None
        return whole

    def _keeps(self, kind: str, span: str, text: str) -> bool:
        """Whether *text* holds *span*, or the term that it is, or is part of, in another form."""
        if keeps_span(kind, span, text, query=self.query):
            return True
        plain = span.casefold()
        return kind != "negation" and any(
            (plain in term.casefold() or term.casefold() in plain)
            and _holds_form(term, plain, forms, text)
            for term, forms in self.facts
        )

    def _repair_together(self, field: str, texts: list[str]) -> tuple[str, ...]:
        """The sub-queries, with what none of them holds appended to the one that is closest to the query."""
        if not texts:
            return ()
        # A part of a question may well be asked without the denial that joins the parts.
        wanted = [(kind, span) for kind, span in self.must_keep if kind != "negation"]
        lost = [one for one in wanted if not any(self._keeps(*one, text) for text in texts)]
        if lost and len(lost) <= MAX_REPAIRS:
            asked = set(split_tokens(self.query))
            closest = max(
                range(len(texts)), key=lambda i: (len(asked & set(split_tokens(texts[i]))), -i)
            )
            whole = _append_spans(texts[closest], lost)
            if len(whole) <= MAX_CHARS:
                texts[closest] = whole
                self.notes[field, f"repaired: {self._describe(lost)}"] = None
        return tuple(texts)

    def _check_terms(self, field: str, terms: tuple[str, ...]) -> tuple[str, ...]:
        """The key terms, if any of them is in the query's script or words; single terms of another are common."""
        asked = self.query.casefold()
        if all(
            is_other_script(term, self.query) and term.casefold() not in asked for term in terms
        ):
            self.notes[field, _MISMATCH] = None
            return ()
        return terms

    def _describe(self, lost: Spans) -> str:
        """Which spans were lost, by kind and place in the query: ``number 12:16``; never their text.

        In a conversation the query is the question's standalone form, but for what becomes of that
        form itself.
        """
        places = [
            (kind, _find_place(span, self.query), len(span)) for kind, span in lost[:MAX_REPAIRS]
        ]
        shown = [f"{kind} {at}:{at + length}" for kind, at, length in places]
        return ", ".join(shown) + (
            f" and {len(lost) - MAX_REPAIRS} more" if len(lost) > MAX_REPAIRS else ""
        )

    def _is_too_much(self, lost: Spans) -> bool:
        spans = [kind for kind, _ in self.must_keep if kind != "negation"]
        return len(lost) > MAX_REPAIRS or (len(lost) > 1 and 2 * len(lost) > len(spans))


def _holds_form(term: str, span: str, forms: Sequence[str], text: str) -> bool:
    """Whether *text* holds one of *forms* of *term* with what *span* has beside it."""
    beside = span.replace(term.casefold(), " ").split() if term.casefold() in span else []
    return any(
        keeps_span("identifier", form, text, query=form)
        and all(keeps_span("name", word, text, query=word) for word in beside)
        for form in forms
    )


def _find_place(span: str, query: str) -> int:
    """Where *span* begins in *query*; inside a longer word only where it stands nowhere by itself."""
    match = re.search(rf"(?<!\w){re.escape(span)}(?!\w)", query)
    return match.start() if match else query.find(span)


def _append_spans(text: str, lost: Spans) -> str:
    """*text* with the lost spans in brackets behind it, where they disturb neither its words nor its grammar."""
    return f"{text} ({', '.join(dict.fromkeys(write_span(kind, span) for kind, span in lost))})"


def is_other_script(text: str, query: str) -> bool:
    """Whether *text* is in another script than *query*.

    A text that mixes scripts passes where a fifth of its letters are of the query's script, or any
    if the query mixes the same. A text in a script that is a part of the query passes too, unless
    that part is Latin: there it is the technical terms.
    """
    if text.isascii() and query.isascii():
        return False
    asked, given = _find_script(query), _find_script(text)
    if not asked or not given or asked == given:
        return False
    in_text, in_query = _share_of_script(text, asked), _share_of_script(query, given)
    if in_text >= _SHARE_OF_TEXT or (in_text and in_query):
        return False
    return given == "latin" or in_query < _SHARE_OF_QUERY


def _find_script(text: str) -> str:
    """The script of *text*, where long technical terms in Latin letters do not outvote the words around them."""
    script = _join_kin(dominant_script(text))
    if script != "latin" or text.isascii():
        return script
    others = Counter(
        _join_kin(dominant_script(char)) for char in text if char.isalpha() and not char.isascii()
    )
    del others["latin"]
    likeliest, letters = max(others.items(), key=lambda item: item[1], default=("", 0))
    # A character of Han is about a word; elsewhere a word has some five.
    weight = letters if likeliest in {"han", "hangul"} else letters / 5
    return likeliest if weight and weight >= len(re.findall("[A-Za-z]+", text)) else script


def _join_kin(script: str) -> str:
    return "han" if script in _KIN else script


def _share_of_script(text: str, script: str) -> float:
    letters = [char for char in text if char.isalpha()]
    of_script = {char for char in set(letters) if _join_kin(dominant_script(char)) == script}
    return sum(char in of_script for char in letters) / max(1, len(letters))
