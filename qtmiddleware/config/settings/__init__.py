"""Every option, with its default, its limits and its meaning, in one place.

Plain frozen dataclasses, so that the pipeline needs no validation library at run time. The limits stand in each field's
metadata; `qtmiddleware.config` reads them to check what users write and to make the JSON schema. Keys are snake_case
here and camelCase in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from qtmiddleware.catalogue import TRANSFORMS
from qtmiddleware.config.settings.option import META, Mark, group, key_of, marked, option
from qtmiddleware.config.settings.own_store import (
    AnswerMode,
    AnswerSettings,
    HybridMethod,
    HybridSettings,
    StoreKind,
    StoreSettings,
)
from qtmiddleware.config.settings.query import (
    ApplyTo,
    BreakerSettings,
    BudgetSettings,
    CacheSettings,
    EscalationMode,
    EscalationSettings,
    FusionMethod,
    FusionSettings,
    FusionWeights,
    KeywordEvidenceSettings,
    Language,
    LimitSettings,
    LlmSettings,
    LogSettings,
    PreprocessSettings,
    ReasoningEffort,
    RerankSettings,
    StructuredOutput,
    SubQueryStyle,
)

__all__ = [
    "META",
    "AnswerMode",
    "AnswerSettings",
    "ApplyTo",
    "BreakerSettings",
    "BudgetSettings",
    "CacheSettings",
    "ChunkBoundary",
    "EscalationMode",
    "EscalationSettings",
    "FusionMethod",
    "FusionSettings",
    "FusionWeights",
    "HybridMethod",
    "HybridSettings",
    "KeywordEvidenceSettings",
    "Language",
    "LimitSettings",
    "LlmSettings",
    "LogSettings",
    "Mark",
    "PreprocessSettings",
    "ReasoningEffort",
    "RerankSettings",
    "Scores",
    "Settings",
    "StoreKind",
    "StoreSettings",
    "StructuredOutput",
    "SubQueryStyle",
    "TransformationType",
    "group",
    "key_of",
    "marked",
    "option",
]

if TYPE_CHECKING:
    TransformationType = str
else:
    TransformationType = Literal[tuple(TRANSFORMS)]
ChunkBoundary = Literal["sentence", "character"]
Scores = Literal["backend", "fused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set."""

    transformation_type: TransformationType = option("none", "What the language model is asked for.", marks="reply")
    transformation_model: str = option("gpt-6-luna", "Model of the transformations.", marks="model", min_length=1)
    max_sub_queries: int = option(4, "Most sub-queries of a decomposition.", marks="reply", ge=2, le=6)
    top_k: int = option(4, "Passages a search of the own store returns.", ge=1, le=10_000)
    scores: Scores = option(
        "backend",
        "The score a passage is returned with: backend, the function's own for the user's question, or fused, our own,"
        " which falls with the order.",
    )
    chunk_size: int = option(800, "Characters a chunk.", ge=1, le=1_000_000)
    chunk_overlap: int = option(200, "Characters neighbouring chunks share.", ge=0, le=1_000_000)
    chunk_boundary: ChunkBoundary = option(
        "sentence", "sentence: a chunk ends at one where one is near; character: windows of exactly chunkSize."
    )
    contextual_chunks: bool = option(False, "Whether the model writes for each chunk where it stands in its document.")
    embedding_model: str = option(
        "all-MiniLM-L6-v2", "Model that embeds passages and queries.", marks="middleware", min_length=1
    )
    embedding_dimensions: int | None = option(
        None,
        "Length of the vectors, for models that can shorten them; null is the model's own.",
        marks="middleware",
        ge=1,
        le=100_000,
    )
    chat_model: str = option("gpt-6-luna", "Model that answers.", min_length=1)
    data_path: str | None = option(None, "Documents to ingest: a file, a folder or a glob.")
    index_path: str = option(
        ".tmp/index/qtmiddleware.sqlite",
        "Where the embedded store lies: a file, or a folder for LanceDB.",
        marks="middleware",
        min_length=1,
    )
    preprocess: PreprocessSettings = group(PreprocessSettings, "Rules without a model.")
    keyword_evidence: KeywordEvidenceSettings = group(KeywordEvidenceSettings, "Keywords over the candidates' text.")
    escalation: EscalationSettings = group(EscalationSettings, "When the model is called.")
    fusion: FusionSettings = group(FusionSettings, "How several lists become one.")
    limits: LimitSettings = group(LimitSettings, "Time, size and concurrency.")
    llm: LlmSettings = group(LlmSettings, "The language model.")
    hybrid: HybridSettings = group(HybridSettings, "Vectors and words together.", marks="middleware")
    rerank: RerankSettings = group(RerankSettings, "Judging candidates once more.")
    store: StoreSettings = group(StoreSettings, "The own store.", marks="middleware")
    answer: AnswerSettings = group(AnswerSettings, "Answers from what was found.")
    cache: CacheSettings = group(CacheSettings, "Remembered transformations.")
    breaker: BreakerSettings = group(BreakerSettings, "Leaving alone what fails.", marks="middleware")
    budget: BudgetSettings = group(BudgetSettings, "What all calls of language models may come to.", marks="middleware")
    log: LogSettings = group(LogSettings, "Records of queries.")
