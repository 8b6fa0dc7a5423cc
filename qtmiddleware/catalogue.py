"""What there is to choose from, as data: the texts a model may be asked for, the transforms, the fusion methods.

Settings, schema, documentation, command line, weights, labels, guard and cache are derived from
these rows. A new transform is a row of `TRANSFORMS` and a prompt file of its name in
`transforms/prompts/`, and a text of its own one more field of `Transformation`. A new fusion method
is a row of `FUSION_METHODS` and a function of its name in `fusion`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

FieldShape = Literal["line", "passage", "list"]
"""What one field of a model's reply holds: one line, one longer passage, or a list of lines."""

Guard = Literal["each", "together", "language", "terms"]
"""What a text must keep of the question, and what it may be:

- ``each``: every name, number, quote and negation, in each text;
- ``together``: the same in all texts together. They are the parts of the question: a reply may have
  none, and each must
  make sense alone;
- ``language``: its language alone;
- ``terms``: its script, all together. They are key terms: at most 100 characters each, may be given
  with commas between
  them, and may be words of the question.
"""

_ROW: Final = "row"
Row = TypeVar("Row", "TransformRow", "FusionMethod", "StoreRow")


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TextField:
    """One kind of text a model may be asked for, a field of `Transformation` by its *name*.

    *variant* is the kind of `Variant` it is searched as (``""``: not searched) and *weight* its
    default weight in the fusion, described by *meaning*. With *is_evidence* its words count as
    keyword evidence. *label* is what people read.
    With *is_pairs* a text is a label and its value, ``region: Germany``, and an object is read as
    such pairs. *aliases* is a pattern for other keys and labels under which models give it, in lower case
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
    """What the model made of a question; every field is empty where it was not asked for or nothing usable came.

    *notes* tells what was repaired, dropped or merged on the way, as ``(field, what happened)``,
    without any text. The order of the fields is the order in which variants are searched.
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
        """The texts of the field *name*, none where it is empty; of a field for one text, that one."""
        value: str | tuple[str, ...] | None = getattr(self, name)
        return (value,) if isinstance(value, str) else value or ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing usable is held."""
        return not any(_read_texts(self))


TEXT_FIELDS: Final[Mapping[str, TextField]] = MappingProxyType(
    {
        it.name: TextField(name=it.name, **it.metadata[_ROW])
        for it in fields(Transformation)
        if _ROW in it.metadata
    }
)
"""The fields of `Transformation` that hold texts, by name."""

_read_texts: Final = attrgetter(*TEXT_FIELDS)

NOTHING: Final = Transformation()
"""What a model makes of a question that it is not asked about."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class TransformRow:
    """One way to transform a question: its *name* in the settings, and *label*, what it does.

    *fields* are the texts its prompt asks for. One with *parts* asks several prompts of other
    transforms instead.
    *max_searches* is how many searches a question may cost, its own counted, where the settings do
    not say;
    ``None``: one for every variant. A transform of a user's own has no prompt file: its
    instructions are *prompt*, and *weights* are used instead of those of the settings, by field.
    """

    name: str
    label: str
    fields: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    max_searches: int | None = None
    prompt: str = ""
    weights: tuple[tuple[str, float], ...] = ()


def _by_name(*rows: Row) -> Mapping[str, Row]:
    return MappingProxyType({row.name: row for row in rows})


TRANSFORMS: Final[Mapping[str, TransformRow]] = _by_name(
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
"""Every value of ``transformationType``, in the order they are numbered on the command line."""

FILLED_BY: Final[Mapping[str, str]] = MappingProxyType(
    {row.fields[0]: row.name for row in reversed([*TRANSFORMS.values()]) if len(row.fields) == 1}
)
"""The first transform that asks for a field alone, by the field: the fields that a user's own transform may fill."""

STANDALONE: Final = "standalone"
"""The prompt that makes a follow-up question stand alone; asked where a conversation needs it, never chosen."""

JOINED: Final = "joined"
"""The kind of the variant that is the question and all texts without a search of their own, as one text."""

TEXT_CLAUSE: Final = "text_clause"
"""The kind of the variant that is the question's keywords, searched by words in the fields of a document index."""

GLOSSARY: Final = "glossary"
"""The kind of the variant that is the question with the other forms of its terms (``glossary.search``)."""


def prompt_names() -> tuple[str, ...]:
    """The transforms that have a prompt of their own."""
    return (STANDALONE, *(row.name for row in TRANSFORMS.values() if row.fields))


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class FusionMethod:
    """One way to make several rankings one: its *name* in the settings.

    *weighs*: the weights of variants count. *needs_scores*: without usable scores it falls back on
    ``weighted_rrf``.
    *merges* is false where every list stays as it is, so that nothing is weighed or reranked.
    """

    name: str
    weighs: bool = False
    needs_scores: bool = False
    merges: bool = True


FUSION_METHODS: Final[Mapping[str, FusionMethod]] = _by_name(
    FusionMethod(name="anchored", weighs=True, needs_scores=True),
    FusionMethod(name="rrf"),
    FusionMethod(name="weighted_rrf", weighs=True),
    FusionMethod(name="max", needs_scores=True),
    FusionMethod(name="concat", merges=False),
)
"""Every value of ``fusion.method``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class StoreRow:
    """One kind of store: its module is the one of its *name* in `stores`, which has an ``open_store``.

    One that *keeps_files* has them at ``indexPath``.
    """

    name: str
    keeps_files: bool = False


STORES: Final[Mapping[str, StoreRow]] = _by_name(
    StoreRow(name="sqlite", keeps_files=True),
    StoreRow(name="lancedb", keeps_files=True),
    StoreRow(name="pinecone"),
    StoreRow(name="memory"),
)
"""Every value of ``store.kind``."""


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class ModelProvider:
    """One way to reach a language model: its module is the one of its *name* in `llms`.

    It has ``accepts(client)``, whether what a user gave is for it, and ``make_model(client,
    settings)``. *clients* says what may be given, for messages.
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
"""Who is asked, in this order, whether a client is theirs; the first is taken where none is given."""


def _find_languages() -> tuple[str, ...]:
    folder = os.path.join(os.path.dirname(__file__), "preprocessing", "lexicons")  # noqa: PTH118, PTH120
    names = os.listdir(folder)  # noqa: PTH208
    return tuple(
        sorted(name.removesuffix(".json") for name in names if len(name) == len("en.json"))
    )


LANGUAGES: Final = _find_languages()
"""The codes of the languages that have a word list, sorted: one file each in `preprocessing/lexicons`."""

PLACES: Final = ("page", "slide", "sheet", "row", "record", "heading")
"""What pieces of documents are counted or named by; a chunk has the first of it and, where that differs, the last."""
