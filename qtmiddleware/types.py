"""The frozen nouns that flow through the pipeline, each printed without the texts it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from qtmiddleware.catalogue import NOTHING
from qtmiddleware.catalogue import Transformation as Transformation  # one of these nouns, with its fields' catalogue
from qtmiddleware.trace import Trace

VariantKind = str
"""What a searched text is to the question: ``original``, or what a row of the catalogue says."""

DEFAULT_NAMESPACE = "__default__"
"""The name Pinecone gives the namespace that callers write as ``""`` or ``None``."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; *role* is ``user``, ``assistant`` or ``system``."""

    role: str
    content: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Query:
    """A question in its two faces: *text* for the embedding, *keywords* for lexical evidence.

    *original* is what the user wrote, byte for byte. *language* is the code of the word list that was used, or ``""``
    where none was.
    """

    original: str = field(repr=False)
    text: str = field(repr=False)
    keywords: str = field(repr=False)
    language: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One text that is searched, with its *weight* in the fusion."""

    kind: VariantKind
    text: str = field(repr=False)
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Match:
    """One passage that was found.

    *score* is the backend's own number for the user's question (in a conversation for its standalone form), ``None``
    where only variants found the passage, which have numbers of their own; with the ``concat`` fusion it is that of the
    list the passage stands in. *fused_score* is ours: higher is better, and it falls with the order. *found_by* names
    the kinds of variant that found it, in the order they were searched. *rerank_score* is the reranker's, where it
    judged this one. *raw* is the very object the wrapped function returned for it.
    """

    id: str | None
    namespace: str
    score: float | None
    fused_score: float | None = None
    text: str | None = field(default=None, repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    found_by: tuple[str, ...] = ()
    rerank_score: float | None = None
    raw: Any = field(default=None, repr=False, compare=False)


Key = tuple[str, str]
"""What makes two matches the same passage: namespace and id; the text stands in only where there is no id."""


@dataclass(frozen=True, slots=True)
class Ranking:
    """What one variant found, best first, as three lists of one length.

    *keys* say which passage, *scores* hold the backend's own numbers (``None`` where it gave none) and *items* the
    very objects it returned. Columns, because most of what is found is weighed and never shown.
    """

    variant: Variant
    keys: Sequence[Key] = field(repr=False)
    scores: Sequence[float | None]
    items: Sequence[Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Degradation:
    """Something that did not go as asked: the *stage*, a one-word *reason* and a *detail* without any query text."""

    stage: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The outcome of one retrieval.

    *original_query* is the query as it was passed, byte for byte; where that was no text, the very object, and ``""``
    where there was none. *response* has the wrapped function's own shape; *matches* is the same result, read.
    *rankings* and *fused* are what it was made of: each variant's own list, and their keys after fusion, before any
    evidence; *reranked* holds the candidates a reranker judged, in its order. *offsets* holds, with the ``concat``
    fusion, where each list begins in *matches*, in the order of *rankings*.
    """

    original_query: str = field(repr=False)
    matches: tuple[Match, ...]
    response: Any = field(repr=False)
    variants: tuple[Variant, ...]
    status: Literal["full", "degraded"]
    degradations: tuple[Degradation, ...]
    trace: Trace
    transformation: Transformation = NOTHING
    offsets: tuple[int, ...] = ()
    rankings: tuple[Ranking, ...] = field(default=(), repr=False)
    fused: tuple[Key, ...] = field(default=(), repr=False)
    reranked: tuple[Key, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Citation:
    """One place of an answer that rests on a passage.

    *number* is what stands in the answer's text in brackets, counted from 1; ``text[start:end]`` is that mark, and
    *match* the passage it means.
    """

    number: int
    start: int
    end: int
    match: Match


@dataclass(frozen=True, slots=True)
class SubAnswer:
    """The answer to one sub-query from its own passages; its citations count within *matches*, what it was shown.

    *found* is false where the passages do not hold the answer or none came; *reason* then says why.
    """

    question: str = field(repr=False)
    text: str = field(repr=False)
    citations: tuple[Citation, ...] = ()
    matches: tuple[Match, ...] = field(default=(), repr=False)
    found: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question, with the passages it rests on.

    *found* is false where the passages do not hold the answer; *text* then says so. *matches* are the passages the
    model was shown; the number n in *text* and *citations* means ``matches[n - 1]``. *retrieval* tells how they were
    found, and its trace counts every model call of the answer too. *sub_answers* are those of the ``synthesis`` mode.
    """

    text: str = field(repr=False)
    citations: tuple[Citation, ...]
    matches: tuple[Match, ...] = field(repr=False)
    retrieval: Retrieval
    found: bool = True
    sub_answers: tuple[SubAnswer, ...] = ()
    status: Literal["full", "degraded"] = "full"
    degradations: tuple[Degradation, ...] = ()
