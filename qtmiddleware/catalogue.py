"""The transforms, fusion methods and stores that there are to choose from, in tables.

Settings, schema, documentation and command line are derived from the rows.

- A new transform needs a row in `TRANSFORMS` and a prompt file of the same name in
  `transforms/prompts/`; for a new kind of text, also a field of `Transformation`.
- A new fusion method needs a row in `FUSION_METHODS` and a function that `fuse_rankings` calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

FieldShape = Literal["line", "passage", "list"]
"""The format of one field of a model's reply: one line, a longer passage, or a list of lines."""

Guard = Literal["each", "together", "language", "terms"]
"""The rule that a model's texts must follow:

- ``each``: every text must keep every name, number, quote and negation of the question.
- ``together``: the texts are sub-questions. Together they must keep every name, number, quote and
  negation of the question, and each text must make sense alone. A reply without texts is allowed.
- ``language``: the text must be in the question's language.
- ``terms``: the texts are key terms of at most 100 characters each. They must be in the question's
  script. They may be separated by commas, and may be words of the question.
"""


class TextField(NamedTuple):
    """One kind of text that a model may write: a field of `Transformation`.

    Attributes:
        name: The name of the field in `Transformation`.
        shape: ``line``, ``passage`` or ``list``.
        label: The name of the text in messages to users.
        variant: The kind of the `Variant` that searches for the text; ``""`` if no search uses it.
        weight, meaning: The variant's default weight in the fusion, and what it weighs.
        is_evidence: Whether the text's words count as keyword evidence.
        guard: The rule that the text must follow.
        aliases: A pattern for other keys under which models return the field, in lower case and
            without punctuation.
    """

    name: str
    shape: FieldShape
    label: str
    variant: str = ""
    weight: float = 0.0
    meaning: str = ""
    is_evidence: bool = False
    guard: Guard = "language"
    aliases: str = ""


def _make_text_field(default_text: str | tuple[str, ...] | None, **attributes: Any) -> Any:
    return field(default=default_text, repr=False, metadata=attributes)


@dataclass(frozen=True, slots=True)
class Transformation:
    """The texts that the model wrote for a question, in the order in which they are searched.

    A field is empty if the model was not asked for the text, or if the text was not usable.

    Attributes:
        standalone: The question made independent of the conversation.
        rewrite: The rewritten question.
        hyde: A hypothetical passage that answers the question.
        sub_queries: The parts of the question.
        paraphrases: The question in other words.
        step_back: A broader question.
        keywords: Words that the answer may contain.
        notes: One ``(field, detail)``, without query text, per text that was repaired, dropped or
            merged.
    """

    standalone: str | None = _make_text_field(
        None,
        shape="line",
        label="standalone",
        variant="standalone",
        weight=1.0,
        meaning="The question made independent of the conversation.",
        guard="each",
        aliases="standalone|contextuali[sz]|selfcontained",
    )
    rewrite: str | None = _make_text_field(
        None,
        shape="line",
        label="rewrite",
        variant="rewrite",
        weight=0.6,
        meaning="The rewritten question.",
        is_evidence=True,
        guard="each",
        aliases="rewrit|reformul|rephras|improved|refined|optimi[sz]ed|revised|umformul|reescrit",
    )
    hyde: str | None = _make_text_field(
        None,
        shape="passage",
        label="hypothetical passage",
        variant="hyde",
        weight=0.8,
        meaning="The hypothetical passage.",
        is_evidence=True,
        aliases="hyde|hypothetical|passage|document",
    )
    sub_queries: tuple[str, ...] = _make_text_field(
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
    paraphrases: tuple[str, ...] = _make_text_field(
        (),
        shape="list",
        label="paraphrase",
        variant="paraphrase",
        weight=0.8,
        meaning="All paraphrases together.",
        is_evidence=True,
        guard="each",
        aliases="paraphras|varia(nt|tion)|alternative|rephras|reformulation|version",
    )
    step_back: str | None = _make_text_field(
        None,
        shape="line",
        label="step-back",
        variant="step_back",
        weight=0.25,
        meaning="The broader question.",
        aliases="stepback|broader|general|abstract",
    )
    keywords: tuple[str, ...] = _make_text_field(
        (),
        shape="list",
        label="keyword",
        guard="terms",
        aliases="keyword|keyterm|keyphrase|synonym|searchterm|^terms?$",
    )
    notes: tuple[tuple[str, str], ...] = ()

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts of the field *name* as a tuple, which may be empty."""
        value: str | tuple[str, ...] | None = getattr(self, name)
        return (value,) if isinstance(value, str) else value or ()

    @property
    def is_empty(self) -> bool:
        """Whether all fields are empty."""
        return not any(_read_texts(self))


TEXT_FIELDS: Final[Mapping[str, TextField]] = {
    text_field.name: TextField(name=text_field.name, **text_field.metadata)
    for text_field in fields(Transformation)
    if text_field.metadata
}
"""The fields of `Transformation` that hold texts, by name."""

_read_texts: Final = attrgetter(*TEXT_FIELDS)

NOTHING: Final = Transformation()
"""An empty transformation, used if no model was asked about the question."""


class TransformRow(NamedTuple):
    """One transform of questions, such as ``rewrite``.

    Attributes:
        name: The value of ``transformationType``.
        label: The transform's name and a short description for users.
        fields: The names of the texts that the transform's prompt asks for.
        parts: For a transform without a prompt, the transforms whose prompts it uses.
        max_searches: How many searches a question may make, its own included, unless the settings
            say so; ``None`` for one per variant.
        prompt, weights: The instructions of a user-defined transform, and its weights by field.
    """

    name: str
    label: str
    fields: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    max_searches: int | None = None
    prompt: str = ""
    weights: tuple[tuple[str, float], ...] = ()


_TRANSFORM_ROWS: Final = (
    TransformRow(
        "rewrite",
        "Query rewriting (makes queries more specific)",
        ("rewrite",),
    ),
    TransformRow(
        "stepback",
        "Step-back prompting (adds a broader query)",
        ("step_back",),
    ),
    TransformRow(
        "decompose",
        "Sub-query decomposition (breaks complex queries into simpler ones)",
        ("sub_queries",),
    ),
    TransformRow(
        "all",
        "Rewrite, step-back and sub-queries (a model call each)",
        parts=("rewrite", "stepback", "decompose"),
    ),
    TransformRow(
        "combined",
        "Rewrite, step-back, sub-queries and hypothetical passage (one model call)",
        ("rewrite", "step_back", "sub_queries", "hyde"),
        max_searches=2,
    ),
    TransformRow(
        "multi_query",
        "Paraphrases (asks the same in other words)",
        ("paraphrases",),
    ),
    TransformRow(
        "hyde",
        "Hypothetical passage (searches with an imagined answer)",
        ("hyde",),
    ),
    TransformRow(
        "keywords",
        "Keywords (adds words that the answer may hold)",
        ("keywords",),
    ),
    TransformRow("none", "The rules alone (no model call before the search)"),
)
TRANSFORMS: Final = {row.name: row for row in _TRANSFORM_ROWS}
"""All values of ``transformationType``, in the order of their numbers on the command line."""

FILLED_BY: Final[Mapping[str, str]] = {
    row.fields[0]: row.name for row in reversed(TRANSFORMS.values()) if len(row.fields) == 1
}
"""For each field, the first transform whose prompt asks for this field only.

A user-defined transform may fill only these fields.
"""

STANDALONE: Final = "standalone"
"""The field in which a model makes a follow-up question independent of the conversation.

Every prompt with earlier messages asks for it.
"""

JOINED: Final = "joined"
"""The kind of the variant that joins the question and the texts that have no search of their own.

This joined text is one search.
"""


def list_prompt_names() -> tuple[str, ...]:
    """Return the names of the transforms that have a prompt."""
    return tuple(row.name for row in TRANSFORMS.values() if row.fields)


class FusionMethod(NamedTuple):
    """One method to merge several rankings into one, such as ``rrf``.

    Attributes:
        name: The value of ``fusion.method``.
        weighs: Whether it uses the weights of the variants.
        needs_scores: Whether it needs usable scores; ``weighted_rrf`` takes its place without.
        merges: Whether it merges the scores. If not, the rankings take turns, and nothing is
            reranked.
    """

    name: str
    weighs: bool = False
    needs_scores: bool = False
    merges: bool = True


_FUSION_METHODS: Final = (
    FusionMethod(name="anchored", weighs=True, needs_scores=True),
    FusionMethod(name="rrf"),
    FusionMethod(name="weighted_rrf", weighs=True),
    FusionMethod(name="max", needs_scores=True),
    FusionMethod(name="concat", merges=False),
)
FUSION_METHODS: Final = {row.name: row for row in _FUSION_METHODS}
"""All values of ``fusion.method``."""

OWN_FUSION: Final = FusionMethod(name="fuse=")
"""The description of a function that the user passes as ``fuse=``."""


STORES: Final = ("sqlite", "pinecone", "memory")
"""All values of ``store.kind``. Of these stores, only ``sqlite`` keeps a file at ``indexPath``."""


_LEXICONS: Final = Path(__file__).parent / "preprocessing" / "lexicons"
# A word list has the name of a two-letter language code. Other files in the folder do not.
LANGUAGES: Final = tuple(sorted(path.stem for path in _LEXICONS.glob("??.json")))
"""The codes of the languages that have a word list in `preprocessing/lexicons`, sorted."""

PLACES: Final = ("page", "slide", "sheet", "row", "record", "heading")
"""The metadata fields for the position of a chunk in its document.

A chunk has the first value of each field, and also the last value if it is different.
"""


@lru_cache(64)
def describe_transform(
    name: str, prompt: str, fields: tuple[tuple[str, float | None], ...]
) -> TransformRow:
    """Return the row of a transform that a config defines by a prompt and fields with weights."""
    filled = {field for field, _ in fields}
    return TransformRow(
        name=name,
        label=f"{name} (a transformation of your own)",
        # Variants are searched in the catalogue's order.
        fields=tuple(field for field in TEXT_FIELDS if field in filled),
        prompt=prompt,
        weights=tuple((field, float(weight)) for field, weight in fields if weight is not None),
    )
