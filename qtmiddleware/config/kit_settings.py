"""Define the options of the kit: documents, chunks, embedding, the built-in store, hybrid search.

The options are part of `Settings`. Importing this module does not import the kit.
"""

from typing import TYPE_CHECKING, Final, Literal

from qtmiddleware.catalogue import STORES
from qtmiddleware.config.options import SettingsGroup, define_option

HybridMethod = Literal["weighted", "rrf"]
ChunkBoundary = Literal["sentence", "character"]
if TYPE_CHECKING:
    StoreKind = str
else:
    StoreKind = Literal[tuple(STORES)]

CHUNK_SIZE: Final = define_option(800, "Characters per chunk.", ge=1, le=1_000_000)
CHUNK_OVERLAP: Final = define_option(
    200, "Characters that neighbouring chunks share.", ge=0, le=1_000_000
)
CHUNK_BOUNDARY: Final = define_option(
    "sentence",
    "sentence: a chunk ends at the end of a sentence, if one is near; character: every chunk has"
    " exactly chunkSize characters.",
)
CONTEXTUAL_CHUNKS: Final = define_option(
    False, "Whether the model describes each chunk's place in its document."
)
EMBEDDING_MODEL: Final = define_option(
    "all-MiniLM-L6-v2", "Model that embeds passages and queries.", marks="middleware", min_length=1
)
EMBEDDING_DIMENSIONS: Final = define_option(
    None,
    "Length of the vectors, for models that can shorten them; null is the model's own length.",
    marks="middleware",
    ge=1,
    le=100_000,
)
DATA_PATH: Final = define_option(None, "Documents to ingest: a file, a folder or a glob pattern.")
INDEX_PATH: Final = define_option(
    ".tmp/index/qtmiddleware.sqlite",
    "File of the built-in store.",
    marks="middleware",
    min_length=1,
)


class HybridSettings(SettingsGroup):
    """Search by vectors and words together, in the built-in store and in Pinecone's document indexes."""

    enabled: bool = define_option(
        False, "Whether the built-in store is searched by words too.", marks="middleware"
    )
    method: HybridMethod = define_option(
        "weighted",
        "How the built-in store merges both searches. weighted: sum of min-max scores; rrf: by"
        " rank, with fusion.rrfK.",
        marks="middleware",
    )
    vector_weight: float = define_option(
        0.75, "Weight of the vector search.", marks="middleware", ge=0.0, le=1.0
    )
    bm25_weight: float = define_option(
        0.25, "Weight of the word search (BM25).", marks="middleware", ge=0.0, le=1.0
    )
    search_top_k: int = define_option(
        10,
        "Passages that a hybrid search of the built-in store returns if the call gives no number.",
        marks="middleware",
        ge=1,
        le=10_000,
    )
    fusion_top_k: int = define_option(
        50,
        "Candidates from each of the built-in store's two searches.",
        marks="middleware",
        ge=1,
        le=10_000,
    )
    text_fields: tuple[str, ...] = define_option(
        (),
        "Fields of a Pinecone document index that are also searched for the question's keywords,"
        " beside a vector or embed clause.",
    )


class StoreSettings(SettingsGroup):
    """The built-in store. Keys come only from the environment."""

    kind: StoreKind = define_option(
        "sqlite",
        "sqlite keeps a file at indexPath, pinecone uses a Pinecone index, memory keeps nothing.",
    )
    index: str | None = define_option(None, "Name of the Pinecone index.", marks="named")
    host: str | None = define_option(
        None, "Host of the Pinecone index, instead of its name.", marks="named"
    )
    namespace: str = define_option("", "Pinecone namespace.")
    read_price: float | None = define_option(
        None,
        "US dollars per million read units, for the cost of searches, those of wrapped functions"
        " included.",
        ge=0.0,
    )
    text_field: str = define_option(
        "text", "Metadata field of Pinecone records that holds the text.", min_length=1
    )
