"""Define all options, once each: type, limits, meaning and default.

The groups are frozen dataclasses, so the free tier needs no validation library. `checking` checks
users' values against the annotations. A key is snake_case here and camelCase in files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, Literal, dataclass_transform

from qtmiddleware import catalogue
from qtmiddleware.types import FrozenDataclass


class Limit:
    """A limit beside the type of an option: in words, and in terms of pydantic's schema."""

    def __init__(self, words: str, **constraints: Any) -> None:
        self.words = words
        self.constraints = constraints

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        # If null is allowed, the type's own schema is inside.
        schema.get("schema", schema).update(self.constraints)
        return schema


class Range(Limit):
    """The lowest and the highest number that an option allows. Without *high* there is no highest."""

    def __init__(self, low: float, high: float | None = None) -> None:
        if high is None:
            super().__init__(f" of at least {low}", ge=low)
        else:
            super().__init__(f" from {low} to {high}", ge=low, le=high)


class Names(Limit):
    """The names that an option allows. If it *is_open*, names of the user's own too."""

    def __init__(self, names: Iterable[str], *, is_open: bool = False) -> None:
        super().__init__("")
        self.names = tuple(names)
        self.is_open = is_open

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        known: Any = Literal[self.names]
        return handler.generate_schema(known | str if self.is_open else known)


def to_camel_case(name: str) -> str:
    """Convert a snake_case name to camelCase, such as ``rrf_k`` to ``rrfK``."""
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class SettingsGroup(FrozenDataclass):
    """The base class of all groups of settings, which are frozen dataclasses.

    A single value in place of a group sets its first option: ``"fusion": "max"``.
    """

    # Strict, because pydantic would otherwise accept "8" as a number and "yes" as true.
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "alias_generator": to_camel_case,
        "validate_by_name": True,
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        schema = handler(source)
        # An object may stand for a group: only the values in it are strict.
        handler.resolve_ref_schema(schema)["strict"] = False
        return schema


_OTHER_PROMPTS: Final = ("context", "answer", "sub_answer", "synthesis")
PROMPT_NAMES: Final = catalogue.list_prompt_names() + _OTHER_PROMPTS
"""The prompts whose instructions users can replace, by name.

``all`` is missing, because it consists of three of these prompts.
"""

DEFAULT_WEIGHTS: Final[Mapping[str, float]] = {
    "original": 1.0,
    "original_in_conversation": 0.0,
    **{row.name: row.weight for row in catalogue.TEXT_FIELDS.values() if row.variant},
}
"""The default weight of each kind of variant."""

NOT_EMPTY: Final = Limit(" that is not empty", min_length=1)
Text = Annotated[str, NOT_EMPTY]
# Some services expect their keys in the address, but addresses are shown and logged.
_WITHOUT: Final = "without a user name, password or query"
Host = Annotated[str, Limit(f" {_WITHOUT}", pattern="^[^@?#]*$")]
_WEB: Final = f" that begins with http:// or https://, {_WITHOUT}"
Address = Annotated[str, Limit(_WEB, pattern="^[Hh][Tt][Tt][Pp][Ss]?://[^@?#]*$")]
Count = Annotated[int, Range(1, 10_000)]
Tokens = Annotated[int, Range(1, 100_000)]
Milliseconds = Annotated[int, Range(1, 600_000)]
Share = Annotated[float, Range(0, 1)]
Temperature = Annotated[float, Range(0, 2)]
Weight = Annotated[float, Range(0, 100)]
Dollars = Annotated[float, Range(0)]

LogTexts = Literal["none", "questions", "all"]
HybridMethod = Literal["weighted", "rrf"]
ChunkBoundary = Literal["sentence", "character"]


class PreprocessSettings(SettingsGroup):
    """The rules that turn a question into keywords, without a model."""

    enabled: Annotated[bool, "Whether the rules run."] = True
    language: Annotated[
        str,
        Names(["auto", *catalogue.LANGUAGES]),
        "Language of the word list; auto detects it.",
    ] = "auto"
    apply_to: Annotated[
        Literal["keywords", "text", "both"], "Keywords as evidence, as the searched text, or both."
    ] = "keywords"
    keep_words: Annotated[tuple[str, ...], "Words that the rules never remove."] = ()
    extra_words: Annotated[tuple[str, ...], "More words for the rules to remove."] = ()


class KeywordEvidenceSettings(SettingsGroup):
    """Reranking of the candidates by the question's keywords in their texts."""

    enabled: Annotated[bool, "Whether keywords rerank the candidates."] = True
    candidates: Annotated[
        int,
        Range(0, 10_000),
        "Passages requested per search; 0 requests no more than you do.",
    ] = 50
    weight: Annotated[
        Share | None,
        "Fixed share of the keyword score in the total; null decides per list.",
    ] = None
    variants: Annotated[
        float,
        Range(0, 10),
        "How much the variants' words count, as a multiple of their weights.",
    ] = 1.25
    fields: Annotated[
        Mapping[Literal["id", "score", "text"], Text],
        "Fields of a passage's id, score and text, if not the usual.",
    ] = field(default_factory=dict)


class EscalationSettings(SettingsGroup):
    """When the language model is called."""

    mode: Annotated[
        Literal["always", "never", "auto"],
        "When the model is called; auto decides per question.",
    ] = "always"
    target_call_rate: Annotated[
        Share,
        "Share of questions that auto sends to the model.",
    ] = 0.35


class FusionSettings(SettingsGroup):
    """How the result lists of several searches become one."""

    method: Annotated[str, Names(catalogue.FUSION_METHODS), "How the result lists are merged."] = (
        "anchored"
    )
    weights: Annotated[
        Mapping[Annotated[str, Names(DEFAULT_WEIGHTS)], Weight],
        "Weight of each kind of variant; 0 leaves the kind out. originalInConversation weighs the"
        " user's own words beside a search for the standalone form alone.",
    ] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    rrf_k: Annotated[Count, "The constant k of reciprocal rank fusion."] = 60
    sub_query_top_k: Annotated[
        Count | None,
        "Passages per sub-query, if not the usual.",
    ] = None
    min_successes: Annotated[
        int,
        Range(1, 20),
        "Searches for variants that must succeed; otherwise none counts.",
    ] = 2

    @property
    def row(self) -> catalogue.FusionMethod:
        """The description of the fusion method, from the catalogue."""
        return catalogue.FUSION_METHODS[self.method]


class LimitSettings(SettingsGroup):
    """Limits per question: time, size and concurrency."""

    llm_timeout_ms: Annotated[
        Milliseconds,
        "Maximum wait for the language model, in ms.",
    ] = 5_000
    deadline_ms: Annotated[
        Milliseconds,
        "Maximum time per question, in ms, apart from the question's own search.",
    ] = 8_000
    max_searches: Annotated[
        int | None,
        Range(1, 50),
        "Maximum searches; null is 2 for combined, else one per variant.",
    ] = None
    max_concurrency: Annotated[int, Range(1, 256), "Maximum concurrent calls per question."] = 8

    @property
    def model_seconds(self) -> float:
        """The seconds that the language model may take: its timeout or, if shorter, the deadline."""
        return min(self.llm_timeout_ms, self.deadline_ms) / 1e3


class LlmSettings(SettingsGroup):
    """The language model that writes the transformations. Its key comes only from the environment."""

    base_url: Annotated[Address | None, "An OpenAI-compatible service."] = None
    temperature: Annotated[Temperature | None, "Sampling temperature; null sends none."] = 0.0
    temperatures: Annotated[
        Mapping[Annotated[str, Names(catalogue.list_prompt_names())], Temperature],
        "Temperatures by prompt name.",
    ] = field(default_factory=dict)
    max_tokens: Annotated[Tokens | None, "Maximum tokens per reply."] = 800
    reasoning_effort: Annotated[
        Literal["auto", "none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        "How long the model thinks; auto asks OpenAI for none.",
    ] = "auto"
    sub_query_style: Annotated[
        Literal["simple", "aspects", "research"],
        "How questions are split: into parts, aspects too, or five aspects.",
    ] = "simple"
    guard: Annotated[bool, "Whether lost names, numbers and negations are repaired."] = True
    prompts: Annotated[
        Mapping[Annotated[str, Names(PROMPT_NAMES)], str],
        "Your own instructions by prompt name.",
    ] = field(default_factory=dict)
    input_price: Annotated[Dollars | None, "US dollars per million input tokens."] = None
    output_price: Annotated[Dollars | None, "US dollars per million output tokens."] = None


class HybridSettings(SettingsGroup):
    """Search by vectors and words together, in the built-in store and in a Pinecone document index."""

    enabled: Annotated[bool, "Whether the store is searched by words too."] = False
    method: Annotated[
        HybridMethod,
        "How both are merged: by min-max scores, or by rank.",
    ] = "weighted"
    vector_weight: Annotated[Share, "Weight of the vector search."] = 0.75
    bm25_weight: Annotated[Share, "Weight of the word search (BM25)."] = 0.25
    search_top_k: Annotated[Count, "Passages, if the call gives no number."] = 10
    fusion_top_k: Annotated[
        Count,
        "Candidates from each of the two searches.",
    ] = 50


class RerankSettings(SettingsGroup):
    """A model that compares each of the best candidates with the question and orders them anew."""

    enabled: Annotated[bool, "Whether a reranking model scores the best candidates."] = False
    model: Annotated[
        Text,
        "A cross-encoder's name or folder, or a hosted model (pinecone/...).",
    ] = "cross-encoder/ms-marco-MiniLM-L6-v2"
    rerank_top_k: Annotated[int, Range(1, 1_000), "Candidates that the model scores."] = 20


class StoreSettings(SettingsGroup):
    """The built-in store. Its keys come only from the environment."""

    kind: Annotated[
        str,
        Names(catalogue.STORES),
        "sqlite keeps a file at indexPath; memory keeps nothing.",
    ] = "sqlite"
    index: Annotated[str | None, "Name of the Pinecone index."] = None
    host: Annotated[
        Host | None,
        "Host of the Pinecone index, instead of its name.",
    ] = None
    namespace: Annotated[str, "Pinecone namespace."] = ""
    text_field: Annotated[
        Text,
        "Metadata field of Pinecone records that holds the text.",
    ] = "text"


class AnswerSettings(SettingsGroup):
    """Answers from the retrieved passages."""

    mode: Annotated[
        Literal["plain", "synthesis"], "synthesis makes an answer per sub-query first."
    ] = "plain"
    max_tokens: Annotated[
        Tokens | None,
        "Maximum tokens per answer; null sends no limit.",
    ] = 1_000
    timeout_ms: Annotated[Milliseconds, "Maximum wait for one answer, in ms."] = 60_000
    context_chars: Annotated[int, Range(100, 10_000_000), "Characters the model sees."] = 24_000
    if_unsure: Annotated[Literal["answer", "decline"], "What to do if the retrieval is unsure."] = (
        "answer"
    )


class CacheSettings(SettingsGroup):
    """The cache of transformations. Search results are never cached."""

    enabled: Annotated[bool, "Whether equal questions share one transformation."] = True
    ttl_seconds: Annotated[int, Range(1, 31_536_000), "Seconds each is kept."] = 3_600


class BreakerSettings(SettingsGroup):
    """The circuit breaker: when qtmiddleware stops asking a failing language model for a while."""

    failures: Annotated[
        int,
        Range(0, 1_000),
        "Failed or late calls in a row that open the breaker; 0 never does.",
    ] = 5
    seconds: Annotated[float, Range(0.001, 86_400), "Seconds the breaker stays open."] = 30.0


class BudgetSettings(SettingsGroup):
    """What all model calls in this process may cost together; beyond it, only the rules run."""

    max_llm_calls_per_minute: Annotated[int | None, Range(0), "Maximum model calls."] = None
    max_tokens: Annotated[int | None, Range(0), "Maximum tokens in 24 hours."] = None
    max_usd: Annotated[Dollars | None, "Maximum US dollars within 24 hours."] = None


class LogSettings(SettingsGroup):
    """The query log: a record of what happened to each question."""

    path: Annotated[str | None, "JSON-lines file in a folder that exists."] = None
    texts: Annotated[LogTexts, "Whose texts the log holds; none writes hashes."] = "questions"


class GlossarySettings(SettingsGroup):
    """Your own terms and their other forms: a passage that holds one form counts as holding the other."""

    path: Annotated[Text | None, "File of terms, in Solr's synonym format."] = None
    terms: Annotated[
        Mapping[str, str],
        "Terms with their other forms, separated by commas.",
    ] = field(default_factory=dict)


class OwnTransform(SettingsGroup):
    """A transformation that a config defines."""

    __pydantic_config__ = SettingsGroup.__pydantic_config__ | {"str_strip_whitespace": True}

    prompt: Annotated[Text, "The instructions for the model."]
    fields: Annotated[
        Mapping[Annotated[str, Names(catalogue.FILLED_BY)], Weight | None],
        NOT_EMPTY,
        "The texts that it writes, with weights.",
    ]


class Settings(SettingsGroup):
    """Everything that can be set."""

    transformation_type: Annotated[
        str,
        Names(catalogue.TRANSFORMS, is_open=True),
        "What the model writes.",
    ] = "none"
    transformation_model: Annotated[
        Text,
        "Model that transforms questions.",
    ] = "gpt-6-luna"
    max_sub_queries: Annotated[int, Range(2, 6), "Maximum sub-queries per question."] = 4
    top_k: Annotated[Count, "Passages that a search of the built-in store returns."] = 4
    shadow: Annotated[
        Share | None,
        "Share of the calls that shadow mode also retrieves.",
    ] = None
    scores: Annotated[
        Literal["backend", "fused"], "Whose scores passages have; qtmiddleware's fall."
    ] = "backend"
    chunk_size: Annotated[int, Range(1, 1_000_000), "Characters per chunk."] = 800
    chunk_overlap: Annotated[int, Range(0, 1_000_000), "Characters that chunks share."] = 200
    chunk_boundary: Annotated[
        ChunkBoundary,
        "Where a chunk ends: after a sentence, or at exactly chunkSize.",
    ] = "sentence"
    contextual_chunks: Annotated[
        bool,
        "Whether the model describes each chunk's place.",
    ] = False
    embedding_model: Annotated[
        Text,
        "Model that embeds texts.",
    ] = "all-MiniLM-L6-v2"
    embedding_dimensions: Annotated[
        int | None,
        Range(1, 100_000),
        "Length of the vectors, if not the usual.",
    ] = None
    chat_model: Annotated[Text, "Model that writes answers."] = "gpt-6-luna"
    data_path: Annotated[str | None, "Documents to ingest: a file, folder or pattern."] = None
    index_path: Annotated[
        Text,
        "File of the store.",
    ] = ".tmp/index/qtmiddleware.sqlite"
    preprocess: PreprocessSettings = PreprocessSettings()
    keyword_evidence: KeywordEvidenceSettings = KeywordEvidenceSettings()
    escalation: EscalationSettings = EscalationSettings()
    fusion: FusionSettings = FusionSettings()
    limits: LimitSettings = LimitSettings()
    llm: LlmSettings = LlmSettings()
    hybrid: HybridSettings = HybridSettings()
    rerank: RerankSettings = RerankSettings()
    store: StoreSettings = StoreSettings()
    answer: AnswerSettings = AnswerSettings()
    cache: CacheSettings = CacheSettings()
    breaker: BreakerSettings = BreakerSettings()
    budget: BudgetSettings = BudgetSettings()
    log: LogSettings = LogSettings()
    transforms: Annotated[
        Mapping[str, OwnTransform],
        "Your own transformations by name.",
    ] = field(default_factory=dict)
    glossary: GlossarySettings = GlossarySettings()

    @property
    def reply_values(self) -> str:
        """The values that change the texts in a model's reply, for cache keys."""
        values = (
            self.transformation_type,
            self.max_sub_queries,
            self.preprocess.enabled,
            self.preprocess.language,
            self.llm,
            self.transforms,
        )
        return repr(values)

    @property
    def uses_keywords(self) -> bool:
        """Whether keywords count as evidence."""
        return self.keyword_evidence.enabled and self.preprocess.apply_to != "text"

    @property
    def transform(self) -> catalogue.TransformRow:
        """The description of the transformation, from the catalogue or `transforms`."""
        name = self.transformation_type
        if own := self.transforms.get(name):
            return catalogue.describe_transform(name, own.prompt, tuple(own.fields.items()))
        return catalogue.TRANSFORMS[name]
