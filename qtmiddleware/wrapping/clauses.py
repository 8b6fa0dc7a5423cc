"""The clauses of a document search: which of them holds the question, and how another text goes there.

Pinecone's ``index.documents.search`` takes the question inside ``score_by``, a list of clauses. A
clause is an object of the SDK or a mapping with the same fields. Nothing here imports the SDK or
changes a clause of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qtmiddleware.errors import WrapError
from qtmiddleware.runtime.fields import read_field
from qtmiddleware.wrapping.nested import put_inside

SCORE_BY: Final = "score_by"
"""The parameter that takes the clauses."""
INCLUDE_FIELDS: Final = "include_fields"
"""The parameter that says which fields of a document are returned."""
EVERY_FIELD: Final = "*"

TEXT: Final = "text"
QUERY_STRING: Final = "query_string"
DENSE: Final = "dense_vector"
SPARSE: Final = "sparse_vector"
PLACES: Final[Mapping[str, str]] = {
    TEXT: "query",
    QUERY_STRING: "query",
    "embed": "query",
    "sparse_embed": "query",
    DENSE: "values",
    SPARSE: "sparse_values",
}
"""Where a clause of each type holds what is searched for."""
VECTORS: Final = frozenset({DENSE, SPARSE})
COMBINED: Final = frozenset({TEXT, QUERY_STRING})
"""The types of which several may stand in one search."""

# A hyphen or a plus inside a word is none.
_SYNTAX: Final = re.compile(r'&&|\|\||[!"\\^~*?:(){}\[\]/]|(?<!\S)[+-]|\b(?:AND|OR|NOT)\b')


class ClauseProblem(WrapError):
    """What keeps the question of some clauses from being worked with; *reason* is one word, *found* what is there."""

    def __init__(self, message: str, reason: str, found: Any = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by their arguments, which are not those of __init__ here.
        return type(self), (str(self), self.reason, self.found)


def are_clauses(value: Any) -> bool:
    """Whether *value* is a list of clauses of known types that may stand together in one search.

    Anything else is for the function itself to refuse. An iterator is none: reading it would use it
    up.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        return False
    types = [read_type(clause) for clause in value]
    return all(it in PLACES for it in types) and (len(types) == 1 or COMBINED.issuperset(types))


def read_type(clause: Any) -> str:
    """Return the type of *clause*, ``""`` if it is none."""
    if isinstance(clause, Mapping):
        kind = clause.get("type")
    else:
        # The SDK's classes are msgspec's, whose tag is no attribute of theirs.
        kind = getattr(getattr(type(clause), "__struct_config__", None), "tag", None) or getattr(
            clause, "type", None
        )
    return kind if isinstance(kind, str) else ""


def list_fields(clauses: Sequence[Any]) -> list[str]:
    """Return the document fields that *clauses* search, each once, in their order."""
    names: list[Any] = []
    for clause in clauses:
        several = read_field(clause, "fields")
        names += several if isinstance(several, list | tuple) else []
        names.append(read_field(clause, "field"))
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name))


def are_vector_clauses(clauses: Any) -> bool:
    """Whether the question of *clauses* is searched as a vector that the caller makes."""
    return are_clauses(clauses) and read_type(clauses[0]) in VECTORS


def can_add_text(clauses: Any) -> bool:
    """Whether a search by words may go beside *clauses*: one that searches by a vector, whoever makes that."""
    return are_clauses(clauses) and read_type(clauses[0]) not in COMBINED


def read_question(clauses: Any) -> Any:
    """Return the question that *clauses* hold: a text, or a list where several questions are passed.

    Raises `ClauseProblem` with the reason ``missing``, ``not_text`` (a vector), ``lucene`` (a query
    string that uses its syntax) or ``several_questions``.
    """
    if not are_clauses(clauses):
        raise ClauseProblem(f"{SCORE_BY} must hold a clause with the question's text", "missing")
    kinds = [read_type(clause) for clause in clauses]
    texts = [read_field(clause, PLACES[kind]) for clause, kind in zip(clauses, kinds, strict=True)]
    question = texts[0]
    if question is None:
        raise ClauseProblem(f"the {kinds[0]} clause has no {PLACES[kinds[0]]!r}", "missing")
    if (
        kinds[0] in VECTORS
        and not isinstance(question, str)
        and not _is_list_of_questions(question)
    ):
        raise ClauseProblem(f"vector in a {kinds[0]} clause", "not_text", question)
    if any(text != question for text in texts[1:]):
        raise ClauseProblem(
            "the clauses hold different texts, so it is not clear which one is the question",
            "several_questions",
        )
    if QUERY_STRING in kinds and isinstance(question, str) and (syntax := find_syntax(question)):
        why = f"the query string uses Lucene syntax ({syntax}), so it is searched unchanged"
        raise ClauseProblem(f"{why}; use a text clause for plain questions", "lucene", question)
    return question


def put_question(clauses: Any, question: Any) -> Any:
    """Return a copy of *clauses* that holds *question*, a text or a vector, where theirs is.

    What are no known clauses is returned as it is.
    """
    if not are_clauses(clauses):
        return clauses
    changed = [_put_question(clause, read_type(clause), question) for clause in clauses]
    return tuple(changed) if isinstance(clauses, tuple) else changed


def build_text_clause(fields: Sequence[str], keywords: str) -> list[dict[str, Any]]:
    """Return clauses that search *fields* for *keywords* by BM25."""
    return [{"type": TEXT, "query": keywords, "fields": list(fields)}]


def find_syntax(text: str) -> str:
    """Return the first piece of Lucene's syntax in *text*, ``""`` if it is plain.

    A question mark at the end is plain, since Lucene's own stands for one more letter of a word.
    """
    found = _SYNTAX.search(text.rstrip().rstrip("?"))
    return "" if found is None else found[0]


def strip_syntax(text: str) -> str:
    """Return *text* so that a query string takes all of it as words."""
    plain, before = text, ""
    while plain != before:  # a piece that goes may leave another at the start of a word, as in "{-"
        before, plain = (
            plain,
            _SYNTAX.sub(lambda found: found[0].lower() if found[0].isalpha() else " ", plain),
        )
    return " ".join(plain.split()) or text


def _put_question(clause: Any, kind: str, question: Any) -> Any:
    if isinstance(question, str):
        if read_field(clause, PLACES[kind]) == question:
            return clause  # the caller's own words stay as they are, a question mark included
        question = strip_syntax(question) if kind == QUERY_STRING else question
    elif kind == SPARSE:
        question = _to_sparse(question)
    return put_inside(clause, (PLACES[kind],), question)


def _to_sparse(vector: Any) -> Any:
    """The *vector* of a sparse model, a number per term of its vocabulary, as Pinecone takes it."""
    if isinstance(vector, Mapping) or hasattr(vector, "indices"):
        return vector
    held = [(index, float(value)) for index, value in enumerate(vector) if value]
    return {"indices": [index for index, _ in held], "values": [value for _, value in held]}


def _is_list_of_questions(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], str | Mapping)
