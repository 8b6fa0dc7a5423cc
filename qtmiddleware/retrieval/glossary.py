"""Find a team's glossary terms in questions, and other forms of these terms in passages.

If the question contains "CR", a passage with "change request" counts like a passage with "CR". The
question is not changed. Terms come from the config, or from a file in Solr's synonym format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from qtmiddleware.config.errors import format_value, hide_secrets
from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.preprocessing.text import fold_text
from qtmiddleware.retrieval.question_words import load_word_rules, strip_plural

MOST_OTHERS: Final = 16
"""The maximum number of other forms of a term that are searched."""

_WORD: Final = re.compile(r"\w+")
# Next to one of these characters, a term is part of a code, an address or a file name.
_BEFORE: Final = r"(?<![\w@#/\\.-])"
_AFTER: Final = r"(?![\w@#/\\+]|[-.]\w)"
_GAP: Final = re.compile(r"[\s'’‐-―-]+")
_ANY_GAP: Final = r"[\s'’‐-―-]{1,3}"
# A form in capitals counts as an abbreviation. Exception: it has several words, and one of them has
# more letters than this.
_LONGEST_PART: Final = 5

# In Solr's format, a backslash before a comma or a backslash makes it part of the term.
_COMMA: Final = re.compile(r"(?<!\\),")
_ARROW: Final = re.compile(r"(?<!\\)=>")
_ESCAPED: Final = re.compile(r"\\(.)")

Row = tuple[Sequence[str], Sequence[str]]
"""A glossary entry: the forms to find in questions, and the forms to find in passages."""


class Term(NamedTuple):
    """A glossary term that occurs in a question.

    Attributes:
        written: The term as written in the question.
        form: The term as written in the glossary.
        others: The other forms of the term, to find in passages.
    """

    written: str
    form: str
    others: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.form} = {', '.join(self.others)}"


class Glossary:
    """A team's glossary, indexed by the words of its terms. It is immutable and thread-safe."""

    def __init__(self, rows: Iterable[Row]) -> None:
        # Several forms may have the same words: CR and cr, C and C++.
        self._others: dict[str, dict[str, list[str]]] = {}
        self._lengths: dict[str, set[int]] = {}
        for forms, other_forms in rows:
            for form in forms:
                words = _list_folded_words(form)
                others = self._others.setdefault(" ".join(words), {}).setdefault(form, [])
                others += islice(
                    (other for other in other_forms if other != form), MOST_OTHERS - len(others)
                )
                self._lengths.setdefault(words[0], set()).add(len(words))

    def find_terms(self, question: str, language: str = "") -> tuple[Term, ...]:
        """Return the glossary's terms in *question*. Where they overlap, the first wins."""
        words = list(_WORD.finditer(question))
        folded = [_fold_word(word.group()) for word in words]
        terms: dict[str, Term] = {}
        # In "HOW do I ...", the first word is a question word and not a term.
        function_words = load_word_rules(language or "en").function_words
        opens_with_function_word = bool(folded) and folded[0] in function_words
        position = 0
        while position < len(words):
            size = 1
            for count in sorted(self._lengths.get(folded[position], ()), reverse=True):
                forms = self._others.get(" ".join(folded[position : position + count]), {})
                term = _choose_form(forms, question, words[position].start())
                if term is not None and not (
                    opens_with_function_word and position == 0 and count == 1
                ):
                    terms.setdefault(term.form, term)
                    size = count
                    break
            position += size
        return tuple(term for term in terms.values() if term.others)


def _choose_form(
    forms: dict[str, list[str]],
    question: str,
    word_start: int,
) -> Term | None:
    """Return the term of the first of *forms* that has its first word at *word_start*."""
    for form, others in forms.items():
        # A form may begin with a sign, as .NET does.
        start = word_start - len(_WORD.split(form, maxsplit=1)[0])
        if start >= 0 and (match := _compile_form(form)[1].match(question, start)):
            return Term(match.group(), form, tuple(dict.fromkeys(others)))
    return None


def add_glossary_terms(terms: Sequence[Term], texts: Sequence[str | None]) -> list[str | None]:
    """Insert each term, as the question writes it, after its other forms in *texts*.

    For example, if the question contains "CR", "change request" becomes "change request CR".
    """
    new_texts = list(texts)
    for term in terms:
        written = term.written.replace("\\", r"\\")
        for form in term.others:
            beginning, pattern = _compile_form(form)
            for index, text in enumerate(new_texts):
                # This check rejects most texts, and is much faster than the pattern.
                if text and beginning in text.lower():
                    new_texts[index] = pattern.sub(rf"\g<0> {written}", text)
    return new_texts


@lru_cache(maxsize=1_024)
def _compile_form(form: str) -> tuple[str, re.Pattern[str]]:
    """Return the beginning of *form* in lower case, and a pattern for the whole form."""
    exact = _find_abbreviations(form)
    pieces = re.split(r"(\w+)", form)
    gaps, words = pieces[::2], pieces[1::2]
    patterns = [f"(?-i:{re.escape(word)})" if word in exact else re.escape(word) for word in words]
    last = words[-1]
    if not gaps[-1] and last[-1].isalpha():
        if last in exact:
            patterns[-1] = f"(?-i:{re.escape(last)}s?)"
        elif (singular := _strip_plural_ending(last)).endswith("y"):
            patterns[-1] = f"{re.escape(singular[:-1])}(?:ys?|ies)"
        else:
            patterns[-1] = f"{re.escape(singular)}(?:e?s)?"
    body = "".join(
        _ANY_GAP.join(map(re.escape, _GAP.split(gap))) + pattern
        for gap, pattern in zip(gaps, [*patterns, ""], strict=True)
    )
    beginning = _strip_plural_ending(words[0].lower()).rstrip("y")
    return beginning, re.compile(_BEFORE + body + _AFTER, re.IGNORECASE)


def _find_abbreviations(form: str) -> Set[str]:
    """Return the words of *form* that are written like abbreviations, such as CR, PhD, S3 or K."""
    words = _WORD.findall(form)
    if len(words) > 1 and form.isupper() and max(map(len, words)) > _LONGEST_PART:
        return frozenset()
    return {
        word
        for word in words
        if (capitals := sum(map(str.isupper, word))) > 1
        or (capitals == 1 and (len(word) == 1 or not word.isalpha()))
    }


def _list_folded_words(form: str) -> list[str]:
    return [_fold_word(word) for word in _WORD.findall(form)]


def _fold_word(word: str) -> str:
    """Return *word* in lower case, without accents and without a plural ending."""
    is_plural = len(word) > 2 and word[-1] == "s" and word[:-1].isupper()
    return _strip_plural_ending(fold_text(word[:-1] if is_plural else word))


def _strip_plural_ending(word: str) -> str:
    """Return *word* without a plural ending: ``replies`` becomes ``reply``."""
    is_long = len(word) > _LONGEST_PART
    return f"{word[:-3]}y" if is_long and word.endswith("ies") else strip_plural(word)


# --- loading --------------------------------------------------------------------------------------


def load_glossary(options: GlossarySettings) -> Glossary:
    """Load the glossary that *options* describe.

    Raises:
        ConfigError: The glossary cannot be read. The error names the invalid line or entry.
    """
    rows: list[Row] = []
    for term, others in options.terms.items():
        location = f"glossary.terms.{hide_secrets(format_value(term))}"
        forms = [_read_form(term, location), *_split_forms(others, location)]
        rows.append((forms, forms))
    if options.path is not None:
        rows += _read_solr_synonyms(options.path)
    return Glossary(rows)


def _read_solr_synonyms(path: str) -> Iterator[Row]:
    source = f"glossary file {path if path.isprintable() else ascii(path)}"
    example = "write a line for each term, such as: CR, change request"
    try:
        text = Path(path).expanduser().read_text("utf-8-sig")
    # An OSError, a path with a null character, an unknown home folder, or a text that is not UTF-8.
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _build_config_error(
            source, f"cannot be read: {reason} (looked from {Path.cwd()})", "set glossary.path"
        ) from None
    if not text.strip() or "\0" in text or text.lstrip().startswith(("{", "[")):
        raise _build_config_error(source, "is empty or has another format", example)
    for number, line in enumerate(text.splitlines(), 1):
        entry, location = line.strip(), f"{source}, line {number},"
        if not entry or entry.startswith("#"):
            continue
        sides = [_split_forms(side, location) for side in _ARROW.split(entry)]
        if len(sides) > 2 or (len(sides) == 1 and len(sides[0]) < 2):
            raise _build_config_error(
                location, "must hold two forms or one =>", "write: CR, change request"
            )
        yield sides[0], sides[-1]


def _split_forms(form_list: str, location: str) -> list[str]:
    return [_read_form(form, location) for form in _COMMA.split(form_list)]


def _read_form(form: str, location: str) -> str:
    """Return *form* with single spaces between words, and without backslashes."""
    plain = " ".join(_ESCAPED.sub(r"\1", form).split())
    if not _WORD.search(plain):
        raise _build_config_error(
            location,
            f"must have a letter or digit in each form, not {hide_secrets(format_value(plain))}",
        )
    return plain


def _build_config_error(location: str, problem: str, advice: str = "") -> ConfigError:
    return ConfigError(
        f"{location} {problem}" + (f"; {advice}" if advice else ""),
        path="glossary.path",
        source=location,
    )
