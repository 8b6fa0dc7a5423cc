"""Every option, with its default, its limits and its meaning, in one place.

Plain frozen dataclasses, so that the pipeline needs no validation library at run time. The limits stand in each field's
metadata; `qtmiddleware.config` reads them to check what users write and to make the JSON schema. Keys are snake_case
here and camelCase in files. Annotations are evaluated here, not kept as texts: the keys are derived from them.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, dataclass_transform

from qtmiddleware.catalogue import (
    FUSION_METHODS,
    LANGUAGES,
    STORES,
    TEXT_FIELDS,
    TRANSFORMS,
    TransformRow,
    prompt_names,
)
from qtmiddleware.catalogue import FusionMethod as FusionRow

META: Final = "option"
"""The metadata key under which a field keeps its meaning and limits."""

MARKS: Final = "marks"
"""The metadata key under which a field keeps what depends on it."""

Mark = Literal["reply", "model", "middleware", "named"]
"""What depends on an option: the texts a model replies with (their cache key), the model object that is made, or what
belongs to the whole middleware and cannot be changed by one call. One that is ``named`` decides where texts and keys
go, what is run or written, or what a model is told: the command line takes it from no file that nobody named."""

ApplyTo = Literal["keywords", "text", "both"]
EscalationMode = Literal["always", "never", "auto"]
StructuredOutput = Literal["auto", "json_schema", "json_object", "text"]
ReasoningEffort = Literal["auto", "none", "minimal", "low", "medium", "high", "xhigh", "max"]
SubQueryStyle = Literal["simple", "aspects", "research"]
HybridMethod = Literal["weighted", "rrf"]
AnswerMode = Literal["plain", "synthesis"]
ChunkBoundary = Literal["sentence", "character"]
Scores = Literal["backend", "fused"]
if TYPE_CHECKING:
    Language = str
    FusionMethod = str
    StoreKind = str
    TransformationType = str
else:
    Language = Literal[("auto", *LANGUAGES)]
    StoreKind = Literal[tuple(STORES)]
    # Users add to these two, so the rows of the catalogue are not all there is.
    FusionMethod = Annotated[str, tuple(FUSION_METHODS)]
    TransformationType = Annotated[str, tuple(TRANSFORMS)]


def option(default: Any, doc: str, *, marks: str = "", **limits: Any) -> Any:
    """Returns a field with its *default*, its meaning and the limits pydantic knows (``ge``, ``le``, ``min_length``).

    *marks* are `Mark` words with blanks between them.
    """
    meta = {META: {"description": doc, **limits}, MARKS: frozenset(marks.split())}
    if isinstance(default, Mapping):
        frozen = dict(default)
        return field(default_factory=lambda: dict(frozen), metadata=meta)
    return field(default=default, metadata=meta)


def group(cls: type[Any], doc: str, *, marks: str = "") -> Any:
    """Returns a field that holds a group of options; its *marks* are those of all of them."""
    return field(default_factory=cls, metadata={META: {"description": doc}, MARKS: frozenset(marks.split())})


@dataclass_transform(kw_only_default=True, frozen_default=True)
class SettingsGroup:
    """What every group of settings is: a dataclass of keyword arguments whose values stay as they are.

    Its methods are written here once. A frozen dataclass would generate and compile six for each of the twenty groups
    whenever a process starts, which takes as long as the imports of half the package.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False)(cls)

    def __init__(self, **values: Any) -> None:
        for name in values.keys() - self.__dataclass_fields__.keys():
            raise TypeError(f"{type(self).__name__} has no option {name!r}")
        self.__setstate__(values)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __setattr__(self, name: str, _: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: every value by its name, so that another version with other options can read it."""
        return dict(vars(self))

    def __setstate__(self, values: Mapping[str, Any] | list[Any]) -> None:
        """Take *values*, as of a pickle; an option that they lack gets its default.

        The first pickles hold a list in the order of the fields, so a new option belongs at the end of its group.
        """
        known = fields(self)
        if not isinstance(values, Mapping):
            values = {it.name: value for it, value in zip(known, values, strict=False)}
        vars(self).update((it.name, values[it.name] if it.name in values else default_of(it)) for it in known)


def default_of(field: Field[Any]) -> Any:
    """Return the default of a settings field."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _make_group(name: str, doc: str, options: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a group whose *options*, each a type and a field, are derived from rows of the catalogue."""
    kinds = {option: kind for option, (kind, _) in options.items()}
    defaults = {option: default for option, (_, default) in options.items()}
    return type(name, (SettingsGroup,), {"__module__": __name__, "__doc__": doc, "__annotations__": kinds, **defaults})


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
    FusionWeights = _make_group(
        "FusionWeights",
        "The weight of each kind of variant; sub-queries and paraphrases share theirs among themselves.",
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
    TemperatureSettings = _make_group(
        "TemperatureSettings",
        "The sampling temperature of single prompts.",
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


class HybridSettings(SettingsGroup):
    """Searching by vectors and by words: the own store, and Pinecone's document indexes."""

    enabled: bool = option(False, "Whether the own store is searched by words too.", marks="middleware")
    method: HybridMethod = option(
        "weighted", "weighted: sum of min-max scores; rrf: by rank. For the own store.", marks="middleware"
    )
    vector_weight: float = option(0.75, "Share of the vector search.", marks="middleware", ge=0.0, le=1.0)
    bm25_weight: float = option(0.25, "Share of the word search (BM25).", marks="middleware", ge=0.0, le=1.0)
    search_top_k: int = option(
        10,
        "Passages a hybrid search of the own store returns where none are asked for.",
        marks="middleware",
        ge=1,
        le=10_000,
    )
    fusion_top_k: int = option(
        50, "Candidates each of the two searches of the own store brings.", marks="middleware", ge=1, le=10_000
    )
    rrf_k: int = option(60, "The constant of reciprocal rank fusion.", marks="middleware", ge=1, le=10_000)
    text_fields: tuple[str, ...] = option(
        (),
        "Fields of a Pinecone document index that are searched by the question's keywords too, beside a vector or embed"
        " clause.",
    )


class StoreSettings(SettingsGroup):
    """The own store. Keys come from the environment alone."""

    kind: StoreKind = option("sqlite", "sqlite and lancedb keep files at indexPath; pinecone; memory keeps nothing.")
    index: str | None = option(None, "Name of the Pinecone index.", marks="named")
    host: str | None = option(None, "Host of the Pinecone index, in place of its name.", marks="named")
    namespace: str = option("", "Pinecone namespace.")
    read_price: float | None = option(
        None, "US dollars for a million read units, for the cost of searches; of wrapped functions too.", ge=0.0
    )
    integrated: bool = option(False, "Whether the Pinecone index embeds texts itself; embeddingModel is unused then.")
    text_field: str = option("text", "Metadata field of Pinecone records that holds the text.", min_length=1)
    sparse_index: str | None = option(
        None, "Name of a second, sparse Pinecone index, for the word search.", marks="named"
    )
    sparse_host: str | None = option(None, "Host of the sparse index, in place of its name.", marks="named")
    sparse_model: str = option(
        "pinecone-sparse-english-v0", "Hosted model that makes the sparse vectors.", min_length=1
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
