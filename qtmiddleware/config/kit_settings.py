"""The options of the kit: documents, chunks, embedding, the own store and hybrid search.

They are data and load nothing of the kit. `Settings` holds them among its own.
"""

from typing import TYPE_CHECKING, Final, Literal

from qtmiddleware.catalogue import STORES
from qtmiddleware.config.options import SettingsGroup, option

HybridMethod = Literal["weighted", "rrf"]
ChunkBoundary = Literal["sentence", "character"]
if TYPE_CHECKING:
    StoreKind = str
else:
    StoreKind = Literal[tuple(STORES)]

CHUNK_SIZE: Final = option(800, "Characters a chunk.", ge=1, le=1_000_000)
CHUNK_OVERLAP: Final = option(200, "Characters neighbouring chunks share.", ge=0, le=1_000_000)
CHUNK_BOUNDARY: Final = option(
    "sentence", "sentence: a chunk ends at one where one is near; character: windows of exactly chunkSize."
)
CONTEXTUAL_CHUNKS: Final = option(False, "Whether the model writes for each chunk where it stands in its document.")
EMBEDDING_MODEL: Final = option(
    "all-MiniLM-L6-v2", "Model that embeds passages and queries.", marks="middleware", min_length=1
)
EMBEDDING_DIMENSIONS: Final = option(
    None,
    "Length of the vectors, for models that can shorten them; null is the model's own.",
    marks="middleware",
    ge=1,
    le=100_000,
)
DATA_PATH: Final = option(None, "Documents to ingest: a file, a folder or a glob.")
INDEX_PATH: Final = option(
    ".tmp/index/qtmiddleware.sqlite",
    "Where the embedded store lies: a file, or a folder for LanceDB.",
    marks="middleware",
    min_length=1,
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
