"""Find the question in the clauses of a document search, and replace it in copies.

Pinecone's ``index.documents.search`` takes the question inside ``score_by``, a list of clauses. A
clause is an object of the SDK, which is not imported here, or a mapping with the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import WrapError
from qtmiddleware.retrieval.fields import read_field, replace_value_at_path

SCORE_BY: Final = "score_by"
"""The parameter that takes the clauses."""
TEXT: Final = "text"
QUERY_STRING: Final = "query_string"
PLACES: Final[Mapping[str, str]] = {
    TEXT: "query",
    QUERY_STRING: "query",
    "embed": "query",
    "sparse_embed": "query",
    "dense_vector": "values",
    "sparse_vector": "sparse_values",
}
"""For each type of clause, the name of the field that holds the text or vector to search for."""
VECTOR_CLAUSES: Final = frozenset({"dense_vector", "sparse_vector"})
COMBINED: Final = frozenset({TEXT, QUERY_STRING})
"""The types of clauses that may be combined with others in one search."""

# A hyphen or a plus inside a word is not syntax.
_SYNTAX: Final = re.compile(r'&&|\|\||[!"\\^~*?:(){}\[\]/]|(?<!\S)[+-]|\b(?:AND|OR|NOT)\b')


class NoQuestion(WrapError):
    """A call holds no question that qtmiddleware can improve, but *value*; *reason* is one word."""

    # The defaults serve pickle, which passes only the message here and then sets the attributes.
    def __init__(self, message: str, reason: str = "missing", value: Any = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.value = value


def are_clauses(value: Any) -> bool:
    """Return whether *value* is a list of ``score_by`` clauses that one search may combine."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    types = {read_clause_type(clause) for clause in value}
    if not types <= PLACES.keys():
        return False
    return len(value) == 1 or types <= COMBINED


def read_clause_type(clause: Any) -> str:
    """Return the type of *clause*, or ``""`` if it is not a clause."""
    # The SDK's classes are msgspec structs, which do not have their tag as an attribute.
    tag = getattr(getattr(type(clause), "__struct_config__", None), "tag", None)
    clause_type = tag or read_field(clause, "type")
    return clause_type if isinstance(clause_type, str) else ""


def list_searched_fields(clauses: Sequence[Any]) -> list[str]:
    """Return the names of the document fields that *clauses* search, without duplicates."""
    names: list[Any] = []
    for clause in clauses:
        clause_fields = read_field(clause, "fields")
        if isinstance(clause_fields, list | tuple):
            names += clause_fields
        names.append(read_field(clause, "field"))
    given_names = (name for name in names if isinstance(name, str) and name)
    return list(dict.fromkeys(given_names))


def read_question(clauses: Any) -> Any:
    """Return the question in *clauses*. If a clause holds a list of questions, return the list.

    Raises `NoQuestion`: ``missing``, ``not_text`` (a vector), ``lucene`` (a query string in
    Lucene's syntax) or ``several_questions``.
    """
    if not are_clauses(clauses):
        raise NoQuestion(f"{SCORE_BY} must hold a clause with the question's text")
    types = [read_clause_type(clause) for clause in clauses]
    question, *others = (
        read_field(clause, PLACES[clause_type])
        for clause, clause_type in zip(clauses, types, strict=True)
    )
    if question is None:
        raise NoQuestion(f"the {types[0]} clause has no {PLACES[types[0]]!r}")
    is_question = isinstance(question, str)
    if isinstance(question, list | tuple) and len(question):
        is_question = isinstance(question[0], str | Mapping)
    if types[0] in VECTOR_CLAUSES and not is_question:
        raise NoQuestion(f"vector in a {types[0]} clause", "not_text", question)
    if any(text != question for text in others):
        raise NoQuestion(
            "the clauses hold different texts, so it is not clear which one is the question",
            "several_questions",
        )
    if QUERY_STRING in types and (syntax := find_lucene_operator(question)):
        raise NoQuestion(
            f"the query string uses Lucene syntax ({syntax}), so it is searched unchanged; use a"
            " text clause for plain questions",
            "lucene",
            question,
        )
    return question


def replace_question(clauses: Any, question: Any) -> Any:
    """Return a copy of *clauses* that searches for *question*, a text or a vector."""
    changed = [_replace_in_clause(clause, question) for clause in clauses]
    return tuple(changed) if isinstance(clauses, tuple) else changed


def _replace_in_clause(clause: Any, question: Any) -> Any:
    clause_type = read_clause_type(clause)
    place = PLACES[clause_type]
    if isinstance(question, str):
        if read_field(clause, place) == question:
            return clause  # keep the caller's own text unchanged, a question mark included
        if clause_type == QUERY_STRING:
            question = strip_lucene_syntax(question)
    return replace_value_at_path(clause, (place,), question)


def find_lucene_operator(query_string: Any) -> str:
    """Return the first Lucene operator, or ``""``. A final question mark is none."""
    match = isinstance(query_string, str) and _SYNTAX.search(query_string.rstrip().rstrip("?"))
    return match[0] if match else ""


def strip_lucene_syntax(query_string: str) -> str:
    """Return *query_string* without Lucene syntax; unchanged if there is nothing else."""
    plain = re.sub(r"\b(?:AND|OR|NOT)\b", lambda match: match[0].lower(), query_string)
    # Removing one piece may leave another at the start of a word, as in "{-".
    while _SYNTAX.search(plain):
        plain = _SYNTAX.sub(" ", plain)
    return " ".join(plain.split()) or query_string
