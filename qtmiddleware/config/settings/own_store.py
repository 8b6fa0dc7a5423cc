"""Options of the own store and of the answers from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qtmiddleware.catalogue import STORES
from qtmiddleware.config.settings.option import option

HybridMethod = Literal["weighted", "rrf"]
if TYPE_CHECKING:
    StoreKind = str
else:
    StoreKind = Literal[tuple(STORES)]
AnswerMode = Literal["plain", "synthesis"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridSettings:
    """Searching the own store by vectors and by words."""

    enabled: bool = option(False, "Whether the own store is searched by words too.")
    method: HybridMethod = option("weighted", "weighted: sum of min-max scores; rrf: by rank.")
    vector_weight: float = option(0.75, "Share of the vector search.", ge=0.0, le=1.0)
    bm25_weight: float = option(0.25, "Share of the word search (BM25).", ge=0.0, le=1.0)
    search_top_k: int = option(10, "Passages a hybrid search returns where none are asked for.", ge=1, le=10_000)
    fusion_top_k: int = option(50, "Candidates each of the two searches brings.", ge=1, le=10_000)
    rrf_k: int = option(60, "The constant of reciprocal rank fusion.", ge=1, le=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The own store. Keys come from the environment alone."""

    kind: StoreKind = option("sqlite", "sqlite and lancedb keep files at indexPath; pinecone; memory keeps nothing.")
    index: str | None = option(None, "Name of the Pinecone index.")
    host: str | None = option(None, "Host of the Pinecone index, in place of its name.")
    namespace: str = option("", "Pinecone namespace.")
    integrated: bool = option(False, "Whether the Pinecone index embeds texts itself; embeddingModel is unused then.")
    text_field: str = option("text", "Metadata field of Pinecone records that holds the text.", min_length=1)
    sparse_index: str | None = option(None, "Name of a second, sparse Pinecone index, for the word search.")
    sparse_host: str | None = option(None, "Host of the sparse index, in place of its name.")
    sparse_model: str = option(
        "pinecone-sparse-english-v0", "Hosted model that makes the sparse vectors.", min_length=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSettings:
    """Answers from what was found."""

    mode: AnswerMode = option("plain", "plain: one answer; synthesis: one for each sub-query, then one of them all.")
    max_tokens: int | None = option(1_000, "Most tokens of an answer; null sends no limit.", ge=1, le=100_000)
    timeout_ms: int = option(60_000, "Longest wait for one answer of the model.", ge=1, le=600_000)
    context_chars: int = option(24_000, "Most characters of passages the model is shown.", ge=100, le=10_000_000)
