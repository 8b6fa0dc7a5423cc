"""Read a glossary from the config, a JSON file, or a file in Solr's synonym format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.errors import format_value, hide_secrets
from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.glossary import Glossary, Row

MOST_BYTES: Final = 50_000_000
"""The maximum size of a glossary file, in bytes."""
MOST_ENTRIES: Final = 200_000
"""The maximum number of entries in a glossary."""
MOST_FORMS: Final = 100
"""The maximum number of forms in one entry."""
LONGEST_FORM: Final = 200
"""The maximum number of characters in one form."""

# In Solr's format, a backslash before a comma or a backslash makes it part of the term.
_COMMA: Final = re.compile(r"(?<!\\),")
_ESCAPED: Final = re.compile(r"\\(.)")
_ARROW: Final = re.compile(r"(?<!\\)=>")


def load_glossary(options: GlossarySettings) -> Glossary | None:
    """Load the glossary that *options* describe.

    Returns ``None`` if *options* name neither a file nor terms.

    Raises:
        ConfigError: The glossary cannot be read. The error names the invalid line or entry.
    """
    if options.path is None and not options.terms:
        return None
    rows = list(_read_configured_terms(options.terms, "glossary.terms"))
    if options.path is not None:
        rows += _read_glossary_file(options.path)
    return Glossary(rows)


def _read_glossary_file(path: str) -> list[Row]:
    """Return the entries of the file at *path*, in JSON or in Solr's synonym format."""
    source = f"glossary file {path if path.isprintable() else ascii(path)}"
    text = _read_file_text(path, source)
    if not text.strip():
        raise _build_config_error(
            source,
            "is empty",
            'write {"CR": "change request"} or lines such as: CR, change request',
        )
    # No line of the other format begins with a bracket. Even broken JSON is read as JSON, so that
    # the error names its line.
    if text.lstrip().startswith(("{", "[")):
        return list(_parse_json_glossary(text, source))
    return list(_parse_solr_synonyms(text, source))


def _read_file_text(path: str, source: str) -> str:
    """Return the text of the file at *path*. Error messages call the file *source*.

    Raises:
        ConfigError: The file cannot be read, is too large, or is not UTF-8 text.
    """
    try:
        with Path(os.path.expanduser(path)).open("rb") as file:  # noqa: PTH111 - pathlib's own fails without a home
            # The size is checked while reading, because a device may have no end.
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise _build_config_error(
            source, f"does not exist (looked from {Path.cwd()})", "set glossary.path to a file"
        ) from None
    except IsADirectoryError:
        raise _build_config_error(source, "is a folder", "name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _build_config_error(
            source, f"cannot be read: {reason}", "set glossary.path to a file"
        ) from None
    if len(content) > MOST_BYTES:
        raise _build_config_error(
            source,
            f"is larger than {MOST_BYTES:,} bytes, the limit",
            "split it or leave entries out",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _build_config_error(
            source, f"is not UTF-8 (line {line})", "save it as UTF-8 text"
        ) from None
    if "\0" in text:
        raise _build_config_error(
            source,
            "is not a text file",
            "name a JSON file or one of lines such as: CR, change request",
        )
    return text


def _parse_json_glossary(file_text: str, source: str) -> Iterator[Row]:
    """Yield the glossary entries in *file_text*, a JSON object.

    The object maps each term to one form, or to a list of forms.

    *source* is the file's name in error messages.
    """
    try:
        # The object is read as pairs. As a dict, it would lose the first of two entries for a term.
        pairs = json.loads(file_text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise _build_config_error(
            source,
            f"is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}",
            "mend that line",
        ) from None
    except (RecursionError, ValueError):
        raise _build_config_error(
            source, "is not JSON that can be read", "write one object of texts and lists"
        ) from None
    if not isinstance(pairs, _Pairs):
        raise _build_config_error(
            source, "must hold one JSON object, not a list", 'write {"CR": "change request"}'
        )
    _check_entry_count(len(pairs), source)
    for term, value in pairs:
        forms = [value] if isinstance(value, str) else value
        if (
            not isinstance(forms, list)
            or isinstance(value, _Pairs)
            or not all(isinstance(form, str) for form in forms)
        ):
            raise _build_config_error(
                f"{_describe_term_location(file_text, term, source)}",
                f"must be a text or a list of texts for {_quote_text(term)}",
            )
        yield _build_row(term, forms, _LazyLocation(file_text, term, source))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of its (key, value) pairs, with repeated keys."""


class _LazyLocation:
    """The file and the line of a term, for error messages.

    The line is searched only if an error is printed, because a file may have many terms.
    """

    def __init__(self, text: str, term: str, source: str) -> None:
        self._location = (text, term, source)

    def __str__(self) -> str:
        return _describe_term_location(*self._location)


def _describe_term_location(text: str, term: str, source: str) -> str:
    """Return *source* and the line number of *term* in *text*, for error messages.

    Returns *source* alone if the term is not found.
    """
    offset = max(text.find(json.dumps(term)), text.find(json.dumps(term, ensure_ascii=False)))
    return source if offset < 0 else f"{source}, line {text.count(chr(10), 0, offset) + 1},"


def _build_row(term: str, other_forms: list[str], location: object) -> Row:
    """Return the glossary entry for *term* and *other_forms*. All forms match each other.

    *location* is the file and line, or the config key, for error messages.
    """
    forms = [_normalise_form(form, location) for form in (term, *other_forms)]
    _check_form_count(len(forms), location)
    if len(forms) < 2:
        raise _build_config_error(
            str(location),
            f"must give another form for {_quote_text(term)}",
            "add one or remove the entry",
        )
    return forms, forms


def _parse_solr_synonyms(text: str, source: str) -> Iterator[Row]:
    """Yield the entries of *text*, a file in Solr's synonym format.

    - A line ``a, b, c`` lists forms of one term.
    - A line ``a => b`` works in one direction: a question with a finds passages with b, but not the
      reverse.

    *source* is the file's name in error messages.
    """
    lines = text.splitlines()
    count = 0
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        location = f"{source}, line {number},"
        if not entry or entry.startswith("#"):
            continue
        count += 1
        _check_entry_count(count, source)
        sides = [_split_forms(side, location) for side in _ARROW.split(entry)]
        if len(sides) > 2:
            raise _build_config_error(
                location, "must hold one => at most", "write each mapping in a line of its own"
            )
        if len(sides) == 1 and len(sides[0]) < 2:
            raise _build_config_error(
                location,
                f"must hold at least two forms, not {_quote_text(entry)} alone",
                "write: CR, change request",
            )
        yield sides[0], sides[-1]


def _split_forms(form_list: str, location: str) -> list[str]:
    """Return the forms in *form_list*, a string of forms separated by commas.

    *location* is the file and line, or the config key, for error messages.
    """
    forms = [
        _normalise_form(_ESCAPED.sub(r"\1", form), location) for form in _COMMA.split(form_list)
    ]
    _check_form_count(len(forms), location)
    return forms


def _read_configured_terms(terms: Mapping[str, str], source: str) -> Iterator[Row]:
    """Yield one glossary entry per term in *terms*, the terms from the config.

    *source* is the config key for error messages.
    """
    for term, forms in terms.items():
        location = f"{source}.{_quote_text(term)}"
        yield _build_row(term, _split_forms(forms, location), location)


def _normalise_form(form: str, location: object) -> str:
    """Return *form* with single spaces between words.

    Raises:
        ConfigError: The form is empty, too long or without any letter or digit.
    """
    plain = " ".join(form.split())
    if not plain:
        raise _build_config_error(
            str(location), "must not have an empty side", "write both forms or remove the entry"
        )
    if len(plain) > LONGEST_FORM:
        raise _build_config_error(
            str(location),
            f"must have forms of at most {LONGEST_FORM} characters, not {len(plain):,}",
        )
    if not re.search(r"\w", plain):
        raise _build_config_error(
            str(location), f"must have a letter or digit in each form, not {_quote_text(plain)}"
        )
    return plain


def _check_form_count(form_count: int, location: object) -> None:
    """Raise `ConfigError` if *form_count*, the number of forms of an entry, is too large."""
    if form_count > MOST_FORMS:
        raise _build_config_error(
            str(location),
            f"must have at most {MOST_FORMS} forms, not {form_count:,}",
            "split it into several",
        )


def _check_entry_count(entry_count: int, source: str) -> None:
    """Raise `ConfigError` if *entry_count*, the number of entries of a glossary, is too large."""
    if entry_count > MOST_ENTRIES:
        raise _build_config_error(
            source, f"must have at most {MOST_ENTRIES:,} entries", "leave out what nobody asks for"
        )


def _quote_text(text: str) -> str:
    """Return *text* in quotes for an error message. Secrets are hidden."""
    return hide_secrets(format_value(text))


def _build_config_error(location: str, problem: str, advice: str = "") -> ConfigError:
    """Return a `ConfigError` that says where the *problem* is and how to fix it."""
    return ConfigError(
        f"{location} {problem}" + (f"; {advice}" if advice else ""),
        path="glossary.path",
        source=location,
    )
