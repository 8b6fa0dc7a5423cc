"""Every option of the core, with its default, its limits and its meaning; those of the kit are in `kit_settings`.

Plain frozen dataclasses, so that the pipeline needs no validation library at run time. The limits stand in each field's
metadata; `qtmiddleware.config` reads them to check what users write and to make the JSON schema. Keys are snake_case
here and camelCase in files. Annotations are evaluated here, not kept as texts: the keys are derived from them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from qtmiddleware.catalogue import FUSION_METHODS, LANGUAGES, TEXT_FIELDS, TRANSFORMS, TransformRow, prompt_names
from qtmiddleware.catalogue import FusionMethod as FusionRow
from qtmiddleware.config import kit_settings as kit
from qtmiddleware.config.kit_settings import HybridSettings, StoreSettings
from qtmiddleware.config.options import SettingsGroup, group, make_group, option

ApplyTo = Literal["keywords", "text", "both"]
EscalationMode = Literal["always", "never", "auto"]
StructuredOutput = Literal["auto", "json_schema", "json_object", "text"]
ReasoningEffort = Literal["auto", "none", "minimal", "low", "medium", "high", "xhigh", "max"]
SubQueryStyle = Literal["simple", "aspects", "research"]
AnswerMode = Literal["plain", "synthesis"]
Scores = Literal["backend", "fused"]
if TYPE_CHECKING:
    Language = str
    FusionMethod = str
    TransformationType = str
else:
    Language = Literal[("auto", *LANGUAGES)]
    # Users add to these two, so the rows of the catalogue are not all there is.
    FusionMethod = Annotated[str, tuple(FUSION_METHODS)]
    TransformationType = Annotated[str, tuple(TRANSFORMS)]


class PreprocessSettings(SettingsGroup):
    """The rules that turn a question into keywords."""

    enabled: bool = option(True, "Whether the rules run at all.", marks="reply")
    language: Language = option("auto", "Which word list is used; auto detects the query's language.", marks="reply")
    apply_to: ApplyTo = option(
        "keywords",
        "What the stripped query is used for: keyword evidence, the searched text itself, or both.",
    )
    keep_words: tuple[str, ...] = option((), "Words the rules must never remove.")
    extra_words: tuple[str, ...] = option((), "Further words to remove.")


class KeywordEvidenceSettings(SettingsGroup):
    """Scoring the candidates by the query's keywords over their text."""

    enabled: bool = option(True, "Whether candidates are weighed by keywords.")
    candidates: int = option(
        50,
        "How many passages each search asks for if your function has a top_k. 0 asks for no more than you do: words "
        "alone then reorder the passages of the plain call and exchange none.",
        ge=0,
        le=10_000,
    )
    max_chars: int = option(
        1_000_000,
        "Most characters of candidates a search brings: of longer passages fewer are asked for, never fewer than by you.",
        ge=1,
        le=1_000_000_000,
    )
    weight: float | None = option(
        None,
        "A fixed share of the keyword score in the sum; the rest is your function's score. null lets the list decide: "
        "the question's own words count only if a passage holds clearly more of them than the first one, and a "
        "model's words count 0.4.",
        ge=0.0,
        le=1.0,
    )
    variants: float = option(
        1.25,
        "How much the words of searched variants count, as a share of their weight in the fusion.",
        ge=0.0,
        le=10.0,
    )
    text_field: str | None = option(None, "Metadata field that holds the text; null finds the usual names.")
    id_field: str | None = option(None, "Field that holds a passage's id; null finds the usual names.", min_length=1)
    score_field: str | None = option(
        None, "Field that holds a passage's score; null finds the usual names.", min_length=1
    )


class EscalationSettings(SettingsGroup):
    """When a question is worth a call to the language model."""

    mode: EscalationMode = option("always", "always, never, or auto: decide from the first result.")
    target_call_rate: float = option(0.35, "Share of the queries that auto may send to the model.", ge=0.0, le=1.0)
    max_llm_calls_per_query: int = option(4, "Most model calls one query may cost.", marks="reply", ge=0, le=20)


def _weight(default: float, doc: str) -> Any:
    return option(default, doc, ge=0.0, le=100.0)


if TYPE_CHECKING:
    FusionWeights = Any
else:
    FusionWeights = make_group(
        "FusionWeights",
        "The weight of each kind of variant; sub-queries and paraphrases share theirs among themselves.",
        __name__,
        {
            "original": (float, _weight(1.0, "The user's own question.")),
            "original_in_conversation": (
                float,
                _weight(0.0, "The user's own words where a standalone form of them is searched too."),
            ),
            **{row.name: (float, _weight(row.weight, row.meaning)) for row in TEXT_FIELDS.values() if row.variant},
        },
    )


class FusionSettings(SettingsGroup):
    """How the lists of several searches become one."""

    method: FusionMethod = option("anchored", "anchored, rrf, weighted_rrf, max or concat.")
    weights: FusionWeights = group(FusionWeights, "The weight of each kind of variant (anchored, weighted_rrf).")
    rrf_k: int = option(60, "The constant of reciprocal rank fusion.", ge=1, le=10_000)
    include_original: bool = option(True, "Whether the question itself takes part in the fusion.")
    sub_query_top_k: int | None = option(
        None, "Passages the search of each sub-query brings; null is as many as the others.", ge=1, le=10_000
    )
    min_successes: int = option(
        2, "How many variants must be searched successfully; with fewer, the original stands alone.", ge=1, le=20
    )

    @property
    def row(self) -> FusionRow:
        """What the catalogue, or an installed package, says of the method; raises `ConfigError`."""
        row = FUSION_METHODS.get(self.method)
        if row is None:
            # Only whoever uses a method from outside waits for the module.
            from qtmiddleware.plugins import find_fusion

            return find_fusion(self.method).row
        return row


class LimitSettings(SettingsGroup):
    """What one query may take: time, size and concurrency."""

    llm_timeout_ms: int = option(5_000, "Longest wait for the language model.", ge=1, le=600_000)
    deadline_ms: int = option(
        8_000, "After this nothing is waited for but the original's own search.", ge=1, le=600_000
    )
    max_searches: int | None = option(
        None,
        "Most searches one question may cost, its own counted; null is "
        f"{TRANSFORMS['combined'].max_searches} for combined and one for every variant of the others.",
        ge=1,
        le=50,
    )
    max_concurrency: int = option(8, "Most calls one query has in flight.", ge=1, le=256)
    max_threads: int = option(
        256,
        "Most threads one middleware holds beside the original's own searches.",
        marks="middleware",
        ge=1,
        le=10_000,
    )
    max_query_chars: int = option(8_000, "Longer queries are passed on as they are.", ge=1, le=1_000_000)

    @property
    def model_seconds(self) -> float:
        """How long the language model may take: until its own timeout or the query's deadline, whichever is first."""
        return min(self.llm_timeout_ms, self.deadline_ms) / 1e3


if TYPE_CHECKING:
    TemperatureSettings = Any
else:
    TemperatureSettings = make_group(
        "TemperatureSettings",
        "The sampling temperature of single prompts.",
        __name__,
        {
            name: (float | None, option(None, "Its own temperature; null is llm.temperature.", ge=0.0, le=2.0))
            for name in prompt_names()
        },
    )


class LlmSettings(SettingsGroup):
    """The language model behind the transformations. The key comes from the environment alone."""

    base_url: str | None = option(
        None, "Address of an OpenAI-compatible service; null is the client's default.", marks="reply model named"
    )
    temperature: float | None = option(
        0.0, "Sampling temperature; null sends none.", marks="reply model", ge=0.0, le=2.0
    )
    temperatures: TemperatureSettings = group(
        TemperatureSettings, "Temperatures of single transformations.", marks="reply model"
    )
    max_tokens: int | None = option(
        800, "Most tokens of a reply; null sends no limit.", marks="reply model", ge=1, le=100_000
    )
    structured_output: StructuredOutput = option(
        "auto",
        "How JSON is asked for; auto starts at json_schema and steps down where it is refused.",
        marks="reply model",
    )
    reasoning_effort: ReasoningEffort | None = option(
        "auto",
        "How long the model thinks before it answers; auto asks OpenAI's models for the least they take (none) and sends"
        " others nothing; null sends nothing.",
        marks="reply model",
    )
    sub_query_style: SubQueryStyle = option(
        "simple",
        "simple: the parts a question has; aspects: also those of one that asks for breadth; research: definition,"
        " method, results, comparison, application.",
        marks="reply",
    )
    paraphrases: int = option(3, "How many paraphrases multi_query asks for.", marks="reply", ge=1, le=10)
    history_messages: int = option(6, "How many of the last messages the model sees.", marks="reply", ge=0, le=100)
    guard: bool = option(
        True, "Whether variants that lost a name, number, code, quote or denial are repaired or dropped.", marks="reply"
    )
    hyde_in_combined: bool = option(True, "Whether combined also asks for a hypothetical passage.", marks="reply")
    prompts: Mapping[str, str] = option(
        {}, "Own instructions by their name, in place of the built-in ones.", marks="reply named"
    )
    input_price: float | None = option(
        None, "US dollars for a million input tokens, where not known.", marks="model", ge=0.0
    )
    output_price: float | None = option(
        None, "US dollars for a million output tokens, where not known.", marks="model", ge=0.0
    )


class RerankSettings(SettingsGroup):
    """Reranking: the best candidates are judged once more, each beside the question."""

    enabled: bool = option(False, "Whether candidates are reranked.")
    model: str = option(
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "A cross-encoder's name or folder (sentence-transformers), or a model hosted by Pinecone (pinecone/...).",
        marks="named",
        min_length=1,
    )
    rerank_top_k: int = option(20, "How many of the best candidates are judged.", ge=1, le=1_000)
    timeout_ms: int = option(
        5_000, "Longest wait for the reranker, reading its model apart; after it the order stays.", ge=1, le=600_000
    )
    trust_remote_code: bool = option(
        False, "Whether code that comes with a model may run; some models need it.", marks="named"
    )


class CacheSettings(SettingsGroup):
    """The cache of transformations; results are never kept."""

    enabled: bool = option(True, "Whether equal questions share one transformation.")
    max_entries: int = option(1_024, "Most transformations kept.", marks="middleware", ge=1, le=1_000_000)
    ttl_seconds: int = option(3_600, "How long one is kept.", marks="middleware", ge=1, le=31_536_000)
    tenant: str = option("", "Part of every key; give each customer an own one to keep them apart.", marks="reply")
    redis_url: str | None = option(
        None,
        "Redis that several processes share transformations in (redis://host:6379/0); the password comes from"
        " REDIS_PASSWORD. Null keeps them in the process.",
        marks="middleware named",
    )
    redis_timeout_ms: int = option(
        50, "Longest wait for Redis; then it is not asked for a while.", marks="middleware", ge=1, le=10_000
    )


class BreakerSettings(SettingsGroup):
    """The circuit breaker: when a language model that fails, or Redis, is not asked for a while."""

    enabled: bool = option(True, "Whether there is a circuit breaker.")
    failures: int = option(5, "How many calls in a row must fail or be late before it opens.", ge=1, le=1_000)
    seconds: float = option(30.0, "How long it stays open before one call tries again.", ge=0.001, le=86_400.0)


class BudgetSettings(SettingsGroup):
    """The most that all calls of language models in this process may cost; beyond it the rules alone are used."""

    max_llm_calls_per_minute: int | None = option(None, "Most calls within 60 seconds.", ge=0, le=1_000_000)
    max_tokens: int | None = option(None, "Most tokens, read and written, within budget.hours.", ge=0)
    max_usd: float | None = option(None, "Most US dollars within budget.hours.", ge=0.0)
    hours: float = option(24.0, "Over how many hours tokens and money are counted.", ge=0.01, le=8_784.0)


class LogSettings(SettingsGroup):
    """The record of what happened to each query."""

    path: str | None = option(
        None, "JSON-lines file with one record a query, in a folder that is there; null writes none.", marks="named"
    )
    query_text: bool = option(True, "Whether that file holds the texts that were searched, or only their hashes.")
    passage_text: bool = option(
        False, "Whether it holds the texts of the passages, too; a judge of shadow mode reads them."
    )


class AnswerSettings(SettingsGroup):
    """Answers from what was found."""

    mode: AnswerMode = option("plain", "plain: one answer; synthesis: one for each sub-query, then one of them all.")
    max_tokens: int | None = option(1_000, "Most tokens of an answer; null sends no limit.", ge=1, le=100_000)
    timeout_ms: int = option(60_000, "Longest wait for one answer of the model.", ge=1, le=600_000)
    context_chars: int = option(24_000, "Most characters of passages the model is shown.", ge=100, le=10_000_000)


class Settings(SettingsGroup):
    """Everything that can be set."""

    transformation_type: TransformationType = option("none", "What the language model is asked for.", marks="reply")
    transformation_model: str = option("gpt-6-luna", "Model of the transformations.", marks="model", min_length=1)
    max_sub_queries: int = option(4, "Most sub-queries of a decomposition.", marks="reply", ge=2, le=6)
    top_k: int = option(4, "Passages a search of the own store returns.", ge=1, le=10_000)
    shadow: float | None = option(
        None,
        "Shadow mode: callers get what the plain function returns, and this share of the calls, 0 to 1, is retrieved by us"
        " afterwards and logged; null is off.",
        ge=0.0,
        le=1.0,
    )
    scores: Scores = option(
        "backend",
        "The score a passage is returned with: backend, the function's own for the user's question, or fused, our own,"
        " which falls with the order.",
    )
    chunk_size: int = kit.CHUNK_SIZE
    chunk_overlap: int = kit.CHUNK_OVERLAP
    chunk_boundary: kit.ChunkBoundary = kit.CHUNK_BOUNDARY
    contextual_chunks: bool = kit.CONTEXTUAL_CHUNKS
    embedding_model: str = kit.EMBEDDING_MODEL
    embedding_dimensions: int | None = kit.EMBEDDING_DIMENSIONS
    chat_model: str = option("gpt-6-luna", "Model that answers.", min_length=1)
    data_path: str | None = kit.DATA_PATH
    index_path: str = kit.INDEX_PATH
    preprocess: PreprocessSettings = group(PreprocessSettings, "Rules without a model.")
    keyword_evidence: KeywordEvidenceSettings = group(KeywordEvidenceSettings, "Keywords over the candidates' text.")
    escalation: EscalationSettings = group(EscalationSettings, "When the model is called.")
    fusion: FusionSettings = group(FusionSettings, "How several lists become one.")
    limits: LimitSettings = group(LimitSettings, "Time, size and concurrency.")
    llm: LlmSettings = group(LlmSettings, "The language model.")
    hybrid: HybridSettings = group(HybridSettings, "Vectors and words together.")
    rerank: RerankSettings = group(RerankSettings, "Judging candidates once more.")
    store: StoreSettings = group(StoreSettings, "The own store.", marks="middleware")
    answer: AnswerSettings = group(AnswerSettings, "Answers from what was found.")
    cache: CacheSettings = group(CacheSettings, "The cache of transformations.")
    breaker: BreakerSettings = group(BreakerSettings, "The circuit breaker.", marks="middleware")
    budget: BudgetSettings = group(
        BudgetSettings, "The most that all calls of language models may cost.", marks="middleware"
    )
    log: LogSettings = group(LogSettings, "Records of queries.")
    transforms: Mapping[str, Any] = option(
        {},
        "Your own transformations by their name, each with its prompt and the fields that it fills.",
        marks="reply named",
    )

    @property
    def transform(self) -> TransformRow:
        """What the catalogue, `transforms` or an installed package says of the type; raises `ConfigError`."""
        row = TRANSFORMS.get(self.transformation_type)
        if row is None:
            # Only whoever uses a transform from outside waits for the module.
            from qtmiddleware.plugins import find_transform

            return find_transform(self.transformation_type, self.transforms)
        return row
