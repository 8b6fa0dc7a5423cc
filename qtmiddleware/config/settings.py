"""Define all options of the core, with their defaults, limits and meanings.

The options of the kit are in `kit_settings`. The groups are immutable dataclasses, so the pipeline
needs no validation library. `qtmiddleware.config` uses the limits in the metadata of the fields to
check users' settings and to build the JSON schema. Keys are snake_case here and camelCase in files.
Annotations are evaluated at import, because the keys are derived from them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from qtmiddleware.catalogue import (
    FUSION_METHODS,
    LANGUAGES,
    TEXT_FIELDS,
    TRANSFORMS,
    TransformRow,
    list_prompt_names,
)
from qtmiddleware.catalogue import FusionMethod as FusionRow
from qtmiddleware.config import kit_settings as kit
from qtmiddleware.config.kit_settings import HybridSettings, StoreSettings
from qtmiddleware.config.options import SettingsGroup, define_group, define_option

PROMPT_NAMES: Final = (*list_prompt_names(), "context", "answer", "sub_answer", "synthesis")
"""The prompts whose instructions users can replace, by name.

``all`` is missing, because it consists of three of these prompts.
"""

DEFAULT_WEIGHTS: Final[Mapping[str, float]] = {
    "original": 1.0,
    "original_in_conversation": 0.0,
    **{row.name: row.weight for row in TEXT_FIELDS.values() if row.variant},
}
"""The default weight of each kind of variant."""

ApplyTo = Literal["keywords", "text", "both"]
EscalationMode = Literal["always", "never", "auto"]
StructuredOutput = Literal["auto", "json_schema", "json_object", "text"]
ReasoningEffort = Literal["auto", "none", "minimal", "low", "medium", "high", "xhigh", "max"]
SubQueryStyle = Literal["simple", "aspects", "research"]
AnswerMode = Literal["plain", "synthesis"]
IfUnsure = Literal["answer", "decline"]
Scores = Literal["backend", "fused"]
LogTexts = Literal["none", "questions", "all"]
if TYPE_CHECKING:
    Language = str
    FusionMethod = str
    TransformationType = str
else:
    Language = Literal[("auto", *LANGUAGES)]
    FusionMethod = Literal[tuple(FUSION_METHODS)]
    # Users can define more, so the catalogue's rows are not all there is.
    TransformationType = Annotated[str, tuple(TRANSFORMS)]


class PreprocessSettings(SettingsGroup):
    """The rules that turn a question into keywords."""

    enabled: bool = define_option(True, "Whether the rules run.", marks="reply")
    language: Language = define_option(
        "auto",
        "Language of the word list; auto detects the language of the question.",
        marks="reply",
    )
    apply_to: ApplyTo = define_option(
        "keywords",
        "Use of the stripped question: as keyword evidence (keywords), as the searched text (text),"
        " or both.",
    )
    keep_words: tuple[str, ...] = define_option((), "Words that the rules never remove.")
    extra_words: tuple[str, ...] = define_option((), "More words for the rules to remove.")


class KeywordEvidenceSettings(SettingsGroup):
    """Reranking of the candidates by the question's keywords in their texts."""

    enabled: bool = define_option(True, "Whether keywords rerank the candidates.")
    candidates: int = define_option(
        50,
        "Passages requested per search if your function has a top_k. 0 requests no more than you"
        " do: keywords then only reorder the passages of the plain call.",
        ge=0,
        le=10_000,
    )
    weight: float | None = define_option(
        None,
        "Fixed share of the keyword score in the total; your function's score has the rest. null"
        " decides per list: the question's own words count only if a passage holds clearly more of"
        " them than the first passage, and the model's words count 0.4.",
        ge=0.0,
        le=1.0,
    )
    variants: float = define_option(
        1.25,
        "How much the words of variants count, as a multiple of the variants' fusion weights.",
        ge=0.0,
        le=10.0,
    )
    fields: Mapping[str, str] = define_option(
        {},
        'Fields that hold a passage\'s id, score and text, such as {"id": "uid", "text": "body"}; for'
        " names that are missing, the usual fields are tried.",
        names=("id", "score", "text"),
        min_length=1,
    )

    @property
    def id_field(self) -> str | None:
        """The field that holds a passage's id; ``None`` for the usual names."""
        return self.fields.get("id")

    @property
    def score_field(self) -> str | None:
        """The field that holds a passage's score; ``None`` for the usual names."""
        return self.fields.get("score")

    @property
    def text_field(self) -> str | None:
        """The field that holds a passage's text; ``None`` for the usual names."""
        return self.fields.get("text")


class GlossarySettings(SettingsGroup):
    """Your own terms and their other forms: a passage that holds one form counts as holding the other."""

    path: str | None = define_option(
        None,
        'File of terms and their other forms, as JSON ({"CR": "change request"}) or in Solr\'s'
        " synonym format; null reads none.",
        marks="named",
        min_length=1,
    )
    terms: Mapping[str, str] = define_option(
        {},
        "Terms with their other forms, separated by commas; they are used beside those of the"
        " file.",
        marks="named",
    )


class EscalationSettings(SettingsGroup):
    """When the language model is called."""

    mode: EscalationMode = define_option(
        "always",
        "When the model is called: always, never, or auto, which decides from the first results.",
    )
    target_call_rate: float = define_option(
        0.35, "Share of the questions for which auto may call the model.", ge=0.0, le=1.0
    )


class FusionSettings(SettingsGroup):
    """How the result lists of several searches become one."""

    method: FusionMethod = define_option(
        "anchored",
        "How result lists are merged: anchored, rrf, weighted_rrf, max, or concat, which keeps them"
        " one after the other.",
    )
    weights: Mapping[str, float] = define_option(
        DEFAULT_WEIGHTS,
        "The weight of each kind of variant (anchored, weighted_rrf). All sub-queries share one"
        " weight, and all paraphrases share one. originalInConversation is the weight of the user's"
        " own words if a standalone form of the question is searched too. 0 leaves a kind out;"
        " combined then does not request a hypothetical passage for hyde.",
        names=DEFAULT_WEIGHTS,
        ge=0.0,
        le=100.0,
    )
    rrf_k: int = define_option(60, "The constant k of reciprocal rank fusion.", ge=1, le=10_000)
    sub_query_top_k: int | None = define_option(
        None,
        "Passages requested per sub-query search; null requests as many as for the other searches.",
        ge=1,
        le=10_000,
    )
    min_successes: int = define_option(
        2,
        "How many variant searches must succeed; with fewer, only the results of the question"
        " itself are used.",
        ge=1,
        le=20,
    )

    @property
    def row(self) -> FusionRow:
        """The description of the fusion method, from the catalogue."""
        return FUSION_METHODS[self.method]


class LimitSettings(SettingsGroup):
    """Limits per question: time, size and concurrency."""

    llm_timeout_ms: int = define_option(
        5_000, "Maximum wait for the language model, in milliseconds.", ge=1, le=600_000
    )
    deadline_ms: int = define_option(
        8_000,
        "Maximum time per question, in milliseconds; after it, only the search for the question"
        " itself is waited for.",
        ge=1,
        le=600_000,
    )
    max_searches: int | None = define_option(
        None,
        "Maximum searches per question, including the search for the question itself; null is"
        f" {TRANSFORMS['combined'].max_searches} for combined, and one search per variant for the"
        " others.",
        ge=1,
        le=50,
    )
    max_concurrency: int = define_option(8, "Maximum concurrent calls per question.", ge=1, le=256)

    @property
    def model_seconds(self) -> float:
        """The seconds that the language model may take: its timeout or, if shorter, the deadline."""
        return min(self.llm_timeout_ms, self.deadline_ms) / 1e3


class LlmSettings(SettingsGroup):
    """The language model that writes the transformations. Its key comes only from the environment."""

    base_url: str | None = define_option(
        None,
        "Address of an OpenAI-compatible service; null uses the client's default.",
        marks="reply model named",
    )
    temperature: float | None = define_option(
        0.0, "Sampling temperature; null sends none.", marks="reply model", ge=0.0, le=2.0
    )
    temperatures: Mapping[str, float] = define_option(
        {},
        "Sampling temperatures by prompt name; other prompts use llm.temperature.",
        marks="reply model",
        names=list_prompt_names(),
        ge=0.0,
        le=2.0,
    )
    max_tokens: int | None = define_option(
        800, "Maximum tokens per reply; null sends no limit.", marks="reply model", ge=1, le=100_000
    )
    structured_output: StructuredOutput = define_option(
        "auto",
        "How JSON is requested; auto starts with json_schema and steps down if the service"
        " rejects it.",
        marks="reply model",
    )
    reasoning_effort: ReasoningEffort | None = define_option(
        "auto",
        "How long the model thinks; auto requests the least that OpenAI's models accept (none) and"
        " sends nothing to other models; null sends nothing.",
        marks="reply model",
    )
    sub_query_style: SubQueryStyle = define_option(
        "simple",
        "How questions are split. simple: into their parts, if there are several; aspects: broad"
        " questions also into aspects; research: always into definition, method, results,"
        " comparison, application.",
        marks="reply",
    )
    paraphrases: int = define_option(
        3, "Paraphrases that multi_query requests.", marks="reply", ge=1, le=10
    )
    history_messages: int = define_option(
        6,
        "How many of the last messages of a conversation the model sees.",
        marks="reply",
        ge=0,
        le=100,
    )
    guard: bool = define_option(
        True,
        "Whether variants that lost a name, number, code, quote or negation are repaired or"
        " dropped.",
        marks="reply",
    )
    prompts: Mapping[str, str] = define_option(
        {},
        "Your own instructions by prompt name; they replace the built-in ones.",
        marks="reply named",
        names=PROMPT_NAMES,
    )
    input_price: float | None = define_option(
        None,
        "US dollars per million input tokens; replaces the known price.",
        marks="model",
        ge=0.0,
    )
    output_price: float | None = define_option(
        None,
        "US dollars per million output tokens; replaces the known price.",
        marks="model",
        ge=0.0,
    )


class RerankSettings(SettingsGroup):
    """A model that compares each of the best candidates with the question and orders them anew."""

    enabled: bool = define_option(False, "Whether a reranking model scores the best candidates.")
    model: str = define_option(
        "cross-encoder/ms-marco-MiniLM-L6-v2",
        "Name or folder of a cross-encoder (sentence-transformers), or a model hosted by Pinecone"
        " (pinecone/...).",
        marks="named",
        min_length=1,
    )
    rerank_top_k: int = define_option(
        20, "How many of the best candidates the model scores.", ge=1, le=1_000
    )
    trust_remote_code: bool = define_option(
        False, "Whether code that comes with the model may run; some models need it.", marks="named"
    )


class CacheSettings(SettingsGroup):
    """The cache of transformations. Search results are never cached."""

    enabled: bool = define_option(True, "Whether equal questions share one transformation.")
    max_entries: int = define_option(
        1_024, "Maximum number of transformations kept.", marks="middleware", ge=1, le=1_000_000
    )
    ttl_seconds: int = define_option(
        3_600,
        "How long a transformation is kept, in seconds.",
        marks="middleware",
        ge=1,
        le=31_536_000,
    )
    tenant: str = define_option(
        "",
        "Part of every cache key; give each customer a value of their own to keep customers apart.",
        marks="reply",
    )


class BreakerSettings(SettingsGroup):
    """The circuit breaker: when qtmiddleware stops asking a failing language model for a while."""

    failures: int = define_option(
        5,
        "Calls in a row that must fail or be late before the breaker opens; 0 switches it off.",
        ge=0,
        le=1_000,
    )
    seconds: float = define_option(
        30.0, "Seconds the breaker stays open before one call tries again.", ge=0.001, le=86_400.0
    )


class BudgetSettings(SettingsGroup):
    """What all model calls in this process may cost together; beyond it, only the rules run."""

    max_llm_calls_per_minute: int | None = define_option(
        None, "Maximum model calls within 60 seconds.", ge=0, le=1_000_000
    )
    max_tokens: int | None = define_option(
        None, "Maximum input and output tokens within 24 hours.", ge=0
    )
    max_usd: float | None = define_option(None, "Maximum US dollars within 24 hours.", ge=0.0)


class LogSettings(SettingsGroup):
    """The query log: a record of what happened to each question."""

    path: str | None = define_option(
        None,
        "JSON-lines file with one record per query, in a folder that exists; null writes no file.",
        marks="named",
    )
    texts: LogTexts = define_option(
        "questions",
        "Which texts the log holds. none: only hashes of the searched texts; questions: the searched"
        " texts; all: also the passages' texts, which a judge of shadow mode reads.",
    )


class AnswerSettings(SettingsGroup):
    """Answers from the retrieved passages."""

    mode: AnswerMode = define_option(
        "plain",
        "plain: one answer; synthesis: one answer per sub-query, then one answer made from them.",
    )
    max_tokens: int | None = define_option(
        1_000, "Maximum tokens per answer; null sends no limit.", ge=1, le=100_000
    )
    timeout_ms: int = define_option(
        60_000, "Maximum wait for one model answer, in milliseconds.", ge=1, le=600_000
    )
    context_chars: int = define_option(
        24_000, "Maximum characters of passages that the model sees.", ge=100, le=10_000_000
    )
    if_unsure: IfUnsure = define_option(
        "answer",
        "What an answer does if the retrieval is unsure (r.is_unsure): answer asks the model all"
        " the same; decline says that nothing was found, without a model call.",
    )


class Settings(SettingsGroup):
    """Everything that can be set."""

    transformation_type: TransformationType = define_option(
        "none", "What the language model is asked to write.", marks="reply"
    )
    transformation_model: str = define_option(
        "gpt-6-luna", "Model that writes the transformations.", marks="model", min_length=1
    )
    max_sub_queries: int = define_option(
        4, "Maximum sub-queries per question.", marks="reply", ge=2, le=6
    )
    top_k: int = define_option(
        4, "Passages that a search of the built-in store returns.", ge=1, le=10_000
    )
    shadow: float | None = define_option(
        None,
        "Shadow mode: callers get the plain function's results; for this share of the calls,"
        " qtmiddleware also retrieves afterwards and logs the result. null is off.",
        ge=0.0,
        le=1.0,
    )
    scores: Scores = define_option(
        "backend",
        "Score of a returned passage: backend, your function's score for the user's question; or"
        " fused, qtmiddleware's score, which falls with the order.",
    )
    chunk_size: int = kit.CHUNK_SIZE
    chunk_overlap: int = kit.CHUNK_OVERLAP
    chunk_boundary: kit.ChunkBoundary = kit.CHUNK_BOUNDARY
    contextual_chunks: bool = kit.CONTEXTUAL_CHUNKS
    embedding_model: str = kit.EMBEDDING_MODEL
    embedding_dimensions: int | None = kit.EMBEDDING_DIMENSIONS
    chat_model: str = define_option("gpt-6-luna", "Model that writes answers.", min_length=1)
    data_path: str | None = kit.DATA_PATH
    index_path: str = kit.INDEX_PATH
    preprocess: PreprocessSettings = define_group(
        PreprocessSettings, "The rules, which need no model."
    )
    keyword_evidence: KeywordEvidenceSettings = define_group(
        KeywordEvidenceSettings, "Reranking by keywords in the candidates' texts."
    )
    escalation: EscalationSettings = define_group(EscalationSettings, "When the model is called.")
    fusion: FusionSettings = define_group(FusionSettings, "How several result lists become one.")
    limits: LimitSettings = define_group(LimitSettings, "Time, size and concurrency.")
    llm: LlmSettings = define_group(LlmSettings, "The language model.")
    hybrid: HybridSettings = define_group(HybridSettings, "Search by vectors and words together.")
    rerank: RerankSettings = define_group(
        RerankSettings, "A model that scores the best candidates again."
    )
    store: StoreSettings = define_group(StoreSettings, "The built-in store.", marks="middleware")
    answer: AnswerSettings = define_group(AnswerSettings, "Answers from the retrieved passages.")
    cache: CacheSettings = define_group(CacheSettings, "The cache of transformations.")
    breaker: BreakerSettings = define_group(
        BreakerSettings, "The circuit breaker.", marks="middleware"
    )
    budget: BudgetSettings = define_group(
        BudgetSettings, "What all model calls together may cost.", marks="middleware"
    )
    log: LogSettings = define_group(LogSettings, "The query log.")
    transforms: Mapping[str, Any] = define_option(
        {},
        "Your own transformations by name, each with its prompt and the fields that it fills.",
        marks="reply named",
    )
    glossary: GlossarySettings = define_group(
        GlossarySettings, "Your own terms and their other forms."
    )

    @property
    def transform(self) -> TransformRow:
        """The description of the transformation, from the catalogue or `transforms`."""
        row = TRANSFORMS.get(self.transformation_type)
        if row is None:
            # Imported here, so that only users of such a transform pay for it.
            from qtmiddleware.config.own_transforms import describe_transform

            name = self.transformation_type
            return describe_transform(name, self.transforms[name])
        return row
