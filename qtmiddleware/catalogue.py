"""The choices, as data: a model's texts, transforms, fusion methods, stores and providers.

Settings, schema, documentation, command line, weights, labels, guard and cache are derived from
these rows.

- A new transform is a row of `TRANSFORMS` and a prompt file of its name in `transforms/prompts/`.
  If it needs a text of its own, add a field to `Transformation`.
- A new fusion method is a row of `FUSION_METHODS` and a function of its name in `fusion`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

FieldShape = Literal["line", "passage", "list"]
"""The content of one field of a model's reply: one line, one longer passage, or a list of lines."""

Guard = Literal["each", "together", "language", "terms"]
"""What a text must keep of the question:

- ``each``: every text must keep every name, number, quote and negation.
- ``together``: all texts together must keep them. The texts are the parts of the question; a reply
  may have none, and each must make sense alone.
- ``language``: the text must be in the question's language.
- ``terms``: all texts together must be in the question's script. They are key terms: at most 100
  characters each. They may be separated by commas, and may be words of the question.
"""

_ROW: Final = "row"
Row = TypeVar("Row", "TransformRow", "FusionMethod", "StoreRow")


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TextField:
    """One kind of text that a model may write: a field of `Transformation`.

    Attributes:
        name: the field's name.
        shape: the form of the text.
        label: the text's name for people.
        variant: the kind of `Variant` that it is searched as; ``""`` if it is not searched.
        weight: its default weight in the fusion.
        meaning: the description of the weight.
        is_evidence: whether its words count as keyword evidence.
        guard: what it must keep of the question.
        is_pairs: whether a text is a label and its value, such as ``region: Germany``; an object is
            read as such pairs.
        aliases: a pattern for other keys and labels under which models return it, in lower case
            without marks.
    """

    name: str
    shape: FieldShape
    label: str
    variant: str = ""
    weight: float = 0.0
    meaning: str = ""
    is_evidence: bool = False
    guard: Guard = "language"
    is_pairs: bool = False
    aliases: str = ""


def _text(default: str | tuple[str, ...] | None, **row: Any) -> Any:
    return field(default=default, repr=False, metadata={_ROW: row})


@dataclass(frozen=True, slots=True)
class Transformation:
    """The texts that the model wrote for a question.

    A field is empty if it was not asked for, or if nothing usable came. Variants are searched in
    the order of the fields.

    Attributes:
        standalone: the question made independent of the conversation.
        rewrite: the rewritten question.
        hyde: a hypothetical passage that answers the question.
        sub_queries: the parts of the question.
        paraphrases: the question in other words.
        step_back: a broader question.
        keywords: words that the answer may hold.
        notes: what was repaired, dropped or merged, as ``(field, detail)``, without any query text.
        constraints: what the question limits its answer to, as ``label: value``.
    """

    standalone: str | None = _text(
        None,
        shape="line",
        label="standalone",
        variant="standalone",
        weight=1.0,
        meaning="The question made independent of the conversation.",
        guard="each",
        aliases="standalone|contextuali[sz]|selfcontained|resolvedq|condensedq|decontextuali[sz]",
    )
    rewrite: str | None = _text(
        None,
        shape="line",
        label="rewrite",
        variant="rewrite",
        weight=0.6,
        meaning="The rewritten question.",
        is_evidence=True,
        guard="each",
        aliases=(
            "rewrit|reformul|rephras|reword|improved|refined|optimi[sz]ed|enhanced|expanded|revised|clarified|paraphrased"
            "|改写|重写|改寫|重寫|書き換え|reecrit|umformul|reescrit|riscritt"
        ),
    )
    hyde: str | None = _text(
        None,
        shape="passage",
        label="hypothetical passage",
        variant="hyde",
        weight=0.8,
        meaning="The hypothetical passage.",
        is_evidence=True,
        aliases="hyde|hypothetical|passage|document",
    )
    sub_queries: tuple[str, ...] = _text(
        (),
        shape="list",
        label="sub-query",
        variant="sub_query",
        weight=0.8,
        meaning="All sub-queries together.",
        is_evidence=True,
        guard="together",
        aliases="subq|decompos|subtopic|subproblem",
    )
    paraphrases: tuple[str, ...] = _text(
        (),
        shape="list",
        label="paraphrase",
        variant="paraphrase",
        weight=0.8,
        meaning="All paraphrases together.",
        is_evidence=True,
        guard="each",
        aliases=(
            "paraphras|varia(nt|tion)|alternative|rephras|reword|reformulation|version|perspective"
        ),
    )
    step_back: str | None = _text(
        None,
        shape="line",
        label="step-back",
        variant="step_back",
        weight=0.25,
        meaning="The broader question.",
        aliases="stepback|broader|general|abstract|zoomout|higherlevel|backgroundq",
    )
    keywords: tuple[str, ...] = _text(
        (),
        shape="list",
        label="keyword",
        guard="terms",
        aliases="keyword|keyterm|keyphrase|synonym|searchterm|^terms?$|ключев|关键词|關鍵詞|キーワード|motscl|palabrasclave",
    )
    notes: tuple[tuple[str, str], ...] = ()
    constraints: tuple[str, ...] = _text(
        (),
        shape="list",
        label="constraint",
        guard="terms",
        is_pairs=True,
        aliases="constrain|filter|facet|metadata",
    )

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of field *name*: none if it is empty, one if it holds a single text."""
        value: str | tuple[str, ...] | None = getattr(self, name)
        return (value,) if isinstance(value, str) else value or ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no usable text."""
        return not any(_read_texts(self))


TEXT_FIELDS: Final[Mapping[str, TextField]] = MappingProxyType(
    {
        text_field.name: TextField(name=text_field.name, **text_field.metadata[_ROW])
        for text_field in fields(Transformation)
        if _ROW in text_field.metadata
    }
)
"""The fields of `Transformation` that hold texts, by name."""

_read_texts: Final = attrgetter(*TEXT_FIELDS)

NOTHING: Final = Transformation()
"""The transformation of a question that no model was asked about."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TransformRow:
    """One way to transform a question.

    Attributes:
        name: the value of ``transformationType``.
        label: what the transform does.
        fields: the texts that its prompt asks for.
        parts: other transforms whose prompts are asked instead, if it has no prompt of its own.
        max_searches: how many searches a question may cost, its own included, if the settings do
            not say; ``None`` for one search per variant.
        prompt: the instructions of a user's own transform, which has no prompt file.
        weights: a user's own weights by field, which replace those of the settings.
    """

    name: str
    label: str
    fields: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    max_searches: int | None = None
    prompt: str = ""
    weights: tuple[tuple[str, float], ...] = ()


def _index_rows(*rows: Row) -> Mapping[str, Row]:
    return MappingProxyType({row.name: row for row in rows})


TRANSFORMS: Final[Mapping[str, TransformRow]] = _index_rows(
    TransformRow(
        name="rewrite", label="Query rewriting (makes queries more specific)", fields=("rewrite",)
    ),
    TransformRow(
        name="stepback", label="Step-back prompting (adds a broader query)", fields=("step_back",)
    ),
    TransformRow(
        name="decompose",
        label="Sub-query decomposition (breaks complex queries into simpler ones)",
        fields=("sub_queries",),
    ),
    TransformRow(
        name="all",
        label="Rewrite, step-back and sub-queries (a model call each)",
        parts=("rewrite", "stepback", "decompose"),
    ),
    TransformRow(
        name="combined",
        label="Rewrite, step-back, sub-queries and hypothetical passage (one model call)",
        fields=("rewrite", "step_back", "sub_queries", "hyde"),
        max_searches=2,
    ),
    TransformRow(
        name="multi_query",
        label="Paraphrases (asks the same in other words)",
        fields=("paraphrases",),
    ),
    TransformRow(
        name="hyde",
        label="Hypothetical passage (searches with an imagined answer)",
        fields=("hyde",),
    ),
    TransformRow(
        name="keywords",
        label="Keywords (adds words that the answer may hold)",
        fields=("keywords",),
    ),
    TransformRow(name="none", label="The rules alone (no model call before the search)"),
)
"""All values of ``transformationType``, in the order of their numbers on the command line."""

FILLED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {row.fields[0]: row.name for row in reversed([*TRANSFORMS.values()]) if len(row.fields) == 1}
)
"""For each field, the first transform that asks for it alone.

These are the fields that a user's own transform may fill.
"""

STANDALONE: Final = "standalone"
"""The prompt that makes a follow-up question independent of the conversation.

It is asked if a conversation needs it, and is never chosen by a setting.
"""

JOINED: Final = "joined"
"""The kind of the variant that joins the question and all texts without a search of their own."""

TEXT_CLAUSE: Final = "text_clause"
"""The kind of the variant that searches a document index's fields for the question's keywords."""

GLOSSARY: Final = "glossary"
"""The kind of the variant that adds the other forms of the question's glossary terms.

It is searched if ``glossary.search`` is on.
"""


def prompt_names() -> tuple[str, ...]:
    """Return the names of the prompts: the standalone prompt, and each transform with a prompt."""
    return (STANDALONE, *(row.name for row in TRANSFORMS.values() if row.fields))


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class FusionMethod:
    """One way to merge several rankings into one.

    Attributes:
        name: the value of ``fusion.method``.
        weighs: whether the weights of the variants count.
        needs_scores: whether it falls back to ``weighted_rrf`` if there are no usable scores.
        merges: false if every list stays as it is, so that nothing is scored or reranked.
    """

    name: str
    weighs: bool = False
    needs_scores: bool = False
    merges: bool = True


FUSION_METHODS: Final[Mapping[str, FusionMethod]] = _index_rows(
    FusionMethod(name="anchored", weighs=True, needs_scores=True),
    FusionMethod(name="rrf"),
    FusionMethod(name="weighted_rrf", weighs=True),
    FusionMethod(name="max", needs_scores=True),
    FusionMethod(name="concat", merges=False),
)
"""All values of ``fusion.method``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class StoreRow:
    """One kind of store.

    Attributes:
        name: the value of ``store.kind``, and the name of its module in `stores`, which has an
            ``open_store``.
        keeps_files: whether it keeps files at ``indexPath``.
    """

    name: str
    keeps_files: bool = False


STORES: Final[Mapping[str, StoreRow]] = _index_rows(
    StoreRow(name="sqlite", keeps_files=True),
    StoreRow(name="lancedb", keeps_files=True),
    StoreRow(name="pinecone"),
    StoreRow(name="memory"),
)
"""All values of ``store.kind``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ModelProvider:
    """One way to reach a language model.

    Attributes:
        name: the name of its module in `llms`. The module has ``accepts(client)``, which returns
            whether it can use a client, and ``make_model(client, settings)``.
        clients: the clients that it accepts, for messages.
    """

    name: str
    clients: str


MODEL_PROVIDERS: Final = (
    ModelProvider(
        name="openai",
        clients="an openai.OpenAI or openai.AsyncOpenAI client (Azure's too), a pair of both",
    ),
    ModelProvider(
        name="anthropic",
        clients="an anthropic.Anthropic or AsyncAnthropic client (Bedrock's and Vertex' too)",
    ),
    ModelProvider(name="mistral", clients="a mistralai Mistral client"),
    ModelProvider(name="google", clients="a google.genai.Client"),
    ModelProvider(
        name="callable",
        clients=(
            "a chat model or chain of LangChain or an LLM of LlamaIndex, a function (plain or"
            " async) from messages or a prompt to text or a completion, such as litellm.completion"
        ),
    ),
)
"""The providers, in the order in which they are asked whether they accept a client.

The first one is used if no client is given.
"""


def _find_languages() -> tuple[str, ...]:
    folder = os.path.join(os.path.dirname(__file__), "preprocessing", "lexicons")  # noqa: PTH118, PTH120
    names = os.listdir(folder)  # noqa: PTH208
    return tuple(
        sorted(name.removesuffix(".json") for name in names if len(name) == len("en.json"))
    )


LANGUAGES: Final = _find_languages()
"""The codes of the languages that have a word list in `preprocessing/lexicons`, sorted."""

PLACES: Final = ("page", "slide", "sheet", "row", "record", "heading")
"""The metadata that says where in a document a chunk comes from.

A chunk has the first value of each and, if it differs, the last.
"""
