"""Define the names of all OpenTelemetry attributes, spans and metrics.

The names come from the GenAI semantic conventions, v0.1.0
(open-telemetry/semantic-conventions-genai, November 2026, status Development). Names that the
conventions do not define begin with ``qtmiddleware.``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qtmiddleware.integrations import require_package

with require_package("opentelemetry-api", "1.30", extra="otel"):
    from opentelemetry.trace import SpanKind


SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai/0.1.0"
"""The schema URL of each span and metric. It identifies the conventions that the names follow."""
UNKNOWN_PROVIDER: Final = "_OTHER"
"""The ``gen_ai.provider.name`` of a model with an unknown provider, such as a user's function.

The conventions require a name.
"""


class Names:
    """The names of all span and metric attributes, as constants."""

    OPERATION: Final = "gen_ai.operation.name"
    PROVIDER: Final = "gen_ai.provider.name"
    DATA_SOURCE: Final = "gen_ai.data_source.id"
    TOP_K: Final = "gen_ai.retrieval.top_k"
    MODEL: Final = "gen_ai.request.model"
    MAX_TOKENS: Final = "gen_ai.request.max_tokens"
    OUTPUT_TYPE: Final = "gen_ai.output.type"
    PROMPT: Final = "gen_ai.prompt.name"
    PROMPT_VERSION: Final = "gen_ai.prompt.version"
    RESPONSE_MODEL: Final = "gen_ai.response.model"
    RESPONSE_ID: Final = "gen_ai.response.id"
    FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
    INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
    OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
    DIMENSIONS: Final = "gen_ai.embeddings.dimension.count"
    MODALITY: Final = "gen_ai.token.modality"
    SERVER_ADDRESS: Final = "server.address"
    SERVER_PORT: Final = "server.port"
    ERROR: Final = "error.type"

    KIND: Final = "qtmiddleware.operation"
    OUTCOME: Final = "qtmiddleware.outcome"
    STATUS: Final = "qtmiddleware.status"
    DEGRADATIONS: Final = "qtmiddleware.degradations"
    STAGE: Final = "qtmiddleware.stage"
    REASON: Final = "qtmiddleware.reason"
    VARIANT: Final = "qtmiddleware.variant.kind"
    WEIGHT: Final = "qtmiddleware.variant.weight"
    QUERY_ID: Final = "qtmiddleware.query_id"
    DECISION: Final = "qtmiddleware.decision"
    PASSAGES: Final = "qtmiddleware.passages"
    TEXTS: Final = "qtmiddleware.texts"
    SEARCHES: Final = "qtmiddleware.searches"
    MODEL_CALLS: Final = "qtmiddleware.model_calls"
    CACHE_HITS: Final = "qtmiddleware.cache_hits"
    CITATIONS: Final = "qtmiddleware.citations"
    FOUND: Final = "qtmiddleware.found"
    CONFIDENCE: Final = "qtmiddleware.confidence"
    IS_UNSURE: Final = "qtmiddleware.is_unsure"
    READ_UNITS: Final = "qtmiddleware.read_units"
    COST: Final = "qtmiddleware.cost"
    READ_COST: Final = "qtmiddleware.read_cost"
    COST_OF: Final = "qtmiddleware.cost.of"

    # Texts of users, passages and models: emitted only if `CAPTURE_CONTENT` asks for them.
    QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
    DOCUMENTS: Final = "gen_ai.retrieval.documents"
    INSTRUCTIONS: Final = "gen_ai.system_instructions"
    INPUT: Final = "gen_ai.input.messages"
    OUTPUT: Final = "gen_ai.output.messages"


CONTENT: Final = frozenset(
    {Names.QUERY_TEXT, Names.DOCUMENTS, Names.INSTRUCTIONS, Names.INPUT, Names.OUTPUT}
)


@dataclass(frozen=True, eq=False, slots=True)
class Metric:
    """The definition of one metric.

    Attributes:
        name: The name of the metric in OpenTelemetry.
        unit: The unit of the values, such as ``s`` for seconds.
        description: A phrase that says what the metric measures.
        boundaries: The bucket boundaries of a histogram; empty for a counter.
    """

    name: str
    unit: str
    description: str
    boundaries: tuple[float, ...] = ()


_MODEL_SECONDS: Final = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
)
_TOKENS: Final = tuple(float(4**power) for power in range(14))
_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)

REQUESTS: Final = Metric(
    "qtmiddleware.request.duration", "s", "Retrievals, answers and transformations.", _SECONDS
)
STAGES: Final = Metric(
    "qtmiddleware.stage.duration", "s", "Stages of retrievals, as in their traces.", _SECONDS
)
SEARCHES: Final = Metric(
    "qtmiddleware.search.duration", "s", "Searches by the wrapped function.", _SECONDS
)
RERANKS: Final = Metric("qtmiddleware.rerank.duration", "s", "Calls of the reranker.", _SECONDS)
INFERENCES: Final = Metric(
    "gen_ai.client.inference.duration", "s", "Calls of a language model.", _MODEL_SECONDS
)
EMBEDDINGS: Final = Metric(
    "gen_ai.client.embeddings.duration", "s", "Calls of the embedder.", _MODEL_SECONDS
)
INPUT_TOKENS: Final = Metric(
    "gen_ai.client.inference.usage.input_tokens", "{token}", "Input tokens of models."
)
OUTPUT_TOKENS: Final = Metric(
    "gen_ai.client.inference.usage.output_tokens", "{token}", "Output tokens of models."
)
CALL_INPUT_TOKENS: Final = Metric(
    "gen_ai.client.inference.operation.input_tokens",
    "{token}",
    "Input tokens of one model call.",
    _TOKENS,
)
CALL_OUTPUT_TOKENS: Final = Metric(
    "gen_ai.client.inference.operation.output_tokens",
    "{token}",
    "Output tokens of one model call.",
    _TOKENS,
)
DEGRADATIONS: Final = Metric(
    "qtmiddleware.degradations", "{degradation}", "Degradations, by stage and reason."
)
READ_UNITS: Final = Metric(
    "qtmiddleware.read_units", "{unit}", "Read units of searches, as reported by the responses."
)
COST: Final = Metric(
    "qtmiddleware.cost", "{USD}", "Cost of models and searches in US dollars, if prices are known."
)

METRICS: Final = (
    *(REQUESTS, STAGES, SEARCHES, RERANKS, INFERENCES, EMBEDDINGS),
    *(
        INPUT_TOKENS,
        OUTPUT_TOKENS,
        CALL_INPUT_TOKENS,
        CALL_OUTPUT_TOKENS,
        DEGRADATIONS,
        READ_UNITS,
        COST,
    ),
)


@dataclass(frozen=True, slots=True)
class SpanRow:
    """The definition of the span for one type of operation.

    Attributes:
        title: The first word of the span's name.
        metric: The metric for the operation's duration.
        subject: The name of the operation's field that contains the second word of the span's name;
            empty if there is no such field.
        kind: The span's kind in OpenTelemetry.
        operation: The span's ``gen_ai.operation.name``; empty if the conventions define no name.
        is_current: Whether the span is the current span during the operation, so that external
            code, such as a client, adds its spans below it. If false, the span only groups other
            spans. The span of a streamed answer must not stay current in the code that reads the
            stream.
    """

    title: str
    metric: Metric
    subject: str = ""
    kind: SpanKind = SpanKind.INTERNAL
    operation: str = ""
    is_current: bool = True


SPANS: Final[Mapping[str, SpanRow]] = {
    "retrieval": SpanRow("retrieval", REQUESTS, "", SpanKind.CLIENT, "retrieval", is_current=False),
    "answer": SpanRow("answer", REQUESTS, is_current=False),
    "transform": SpanRow("transform", REQUESTS, is_current=False),
    "search": SpanRow("search", SEARCHES, "name"),
    "embedding": SpanRow("embeddings", EMBEDDINGS, "model", SpanKind.CLIENT, "embeddings"),
    "model": SpanRow("chat", INFERENCES, "model", SpanKind.CLIENT, "chat"),
    "rerank": SpanRow("rerank", RERANKS, "model"),
}
