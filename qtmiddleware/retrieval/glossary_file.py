"""Reading a glossary: a mapping of the config, a JSON file, or a file in Solr's synonym format."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qtmiddleware.config.errors import display, hide_secrets
from qtmiddleware.config.settings import GlossarySettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.glossary import Glossary, Row

MOST_BYTES: Final = 50_000_000
MOST_ENTRIES: Final = 200_000
MOST_FORMS: Final = 100
LONGEST_FORM: Final = 200
"""The limits of a glossary: bytes of the file, entries, forms of one entry, and characters of one form."""

# A comma or a backslash that belongs to a term has a backslash before it.
_COMMA: Final = re.compile(r"(?<!\\),")
_ESCAPED: Final = re.compile(r"\\(.)")
_ARROW: Final = re.compile(r"(?<!\\)=>")


def load_glossary(options: GlossarySettings) -> Glossary | None:
    """Return the glossary that *options* name, ``None`` without one; raises `ConfigError` that says where it is wrong.

    An entry has the same form in the file and the mapping: a term and its other forms.
    """
    if options.path is None and not options.terms:
        return None
    rows = list(_read_mapping(options.terms, "glossary.terms"))
    if options.path is not None:
        rows += _read_path(options.path)
    return Glossary(rows)


def _read_path(path: str) -> list[Row]:
    source = f"glossary file {path if path.isprintable() else ascii(path)}"
    text = _read_text(path, source)
    if not text.strip():
        raise _error(
            source,
            "is empty",
            'write {"CR": "change request"} or lines such as: CR, change request',
        )
    # No term of the other format begins so, and what is cut or broken is told by the line.
    if text.lstrip().startswith(("{", "[")):
        return list(_read_json(text, source))
    return list(_read_lines(text, source))


def _read_text(path: str, source: str) -> str:
    try:
        with Path(os.path.expanduser(path)).open("rb") as file:  # noqa: PTH111 - pathlib's own fails without a home
            # A device may have no end.
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise _error(
            source, f"does not exist (looked from {Path.cwd()})", "set glossary.path to a file"
        ) from None
    except IsADirectoryError:
        raise _error(source, "is a folder", "name a file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(source, f"cannot be read: {reason}", "set glossary.path to a file") from None
    if len(content) > MOST_BYTES:
        raise _error(
            source,
            f"is larger than {MOST_BYTES:,} bytes, the limit",
            "split it or leave entries out",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _error(source, f"is not UTF-8 (line {line})", "save it as UTF-8 text") from None
    if "\0" in text:
        raise _error(
            source,
            "is not a text file",
            "name a JSON file or one of lines such as: CR, change request",
        )
    return text


def _read_json(text: str, source: str) -> Iterator[Row]:
    try:
        # As pairs, so that a term that is written twice keeps both.
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise _error(
            source,
            f"is not JSON: {error.msg.removesuffix(' at')} at line {error.lineno}",
            "mend that line",
        ) from None
    except (RecursionError, ValueError):
        raise _error(
            source, "is not JSON that can be read", "write one object of texts and lists"
        ) from None
    if not isinstance(pairs, _Pairs):
        raise _error(
            source, "must hold one JSON object, not a list", 'write {"CR": "change request"}'
        )
    _check_count(len(pairs), source)
    for term, value in pairs:
        forms = [value] if isinstance(value, str) else value
        if (
            not isinstance(forms, list)
            or isinstance(value, _Pairs)
            or not all(isinstance(it, str) for it in forms)
        ):
            raise _error(
                f"{_find_line(text, term, source)}",
                f"must be a text or a list of texts for {_show(term)}",
            )
        yield _build_row(term, forms, _Lazy(text, term, source))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it is written."""


class _Lazy:
    """Where a term of a JSON file stands, looked up only for an error."""

    def __init__(self, text: str, term: str, source: str) -> None:
        self._place = (text, term, source)

    def __str__(self) -> str:
        return _find_line(*self._place)


def _find_line(text: str, term: str, source: str) -> str:
    at = max(text.find(json.dumps(term)), text.find(json.dumps(term, ensure_ascii=False)))
    return source if at < 0 else f"{source}, line {text.count(chr(10), 0, at) + 1},"


def _build_row(term: str, others: list[str], where: object) -> Row:
    forms = [_check_form(form, where) for form in (term, *others)]
    _check_forms(len(forms), where)
    if len(forms) < 2:
        raise _error(
            str(where), f"must give another form for {_show(term)}", "add one or remove the entry"
        )
    return forms, forms


def _read_lines(text: str, source: str) -> Iterator[Row]:
    """The rows of Solr's synonym format: ``a, b, c`` are forms of one term; ``a => b`` counts b for a, one way."""
    lines = text.splitlines()
    count = 0
    for number, line in enumerate(lines, 1):
        written, where = line.strip(), f"{source}, line {number},"
        if not written or written.startswith("#"):
            continue
        count += 1
        _check_count(count, source)
        sides = [_split_forms(side, where) for side in _ARROW.split(written)]
        if len(sides) > 2:
            raise _error(
                where, "must hold one => at most", "write each mapping in a line of its own"
            )
        if len(sides) == 1 and len(sides[0]) < 2:
            raise _error(
                where,
                f"must hold at least two forms, not {_show(written)} alone",
                "write: CR, change request",
            )
        yield sides[0], sides[-1]


def _split_forms(side: str, where: str) -> list[str]:
    forms = [_check_form(_ESCAPED.sub(r"\1", form), where) for form in _COMMA.split(side)]
    _check_forms(len(forms), where)
    return forms


def _read_mapping(terms: Mapping[str, str], source: str) -> Iterator[Row]:
    for term, forms in terms.items():
        where = f"{source}.{_show(term)}"
        yield _build_row(term, _split_forms(forms, where), where)


def _check_form(form: str, where: object) -> str:
    """Return *form* on one line; an empty one, one without a word and one that is too long are errors."""
    plain = " ".join(form.split())
    if not plain:
        raise _error(
            str(where), "must not have an empty side", "write both forms or remove the entry"
        )
    if len(plain) > LONGEST_FORM:
        raise _error(
            str(where), f"must have forms of at most {LONGEST_FORM} characters, not {len(plain):,}"
        )
    if not re.search(r"\w", plain):
        raise _error(str(where), f"must have a letter or digit in each form, not {_show(plain)}")
    return plain


def _check_forms(count: int, where: object) -> None:
    if count > MOST_FORMS:
        raise _error(
            str(where),
            f"must have at most {MOST_FORMS} forms, not {count:,}",
            "split it into several",
        )


def _check_count(count: int, source: str) -> None:
    if count > MOST_ENTRIES:
        raise _error(
            source, f"must have at most {MOST_ENTRIES:,} entries", "leave out what nobody asks for"
        )


def _show(text: str) -> str:
    return hide_secrets(display(text))


def _error(where: str, what: str, advice: str = "") -> ConfigError:
    return ConfigError(
        f"{where} {what}" + (f"; {advice}" if advice else ""), path="glossary.path", source=where
    )
