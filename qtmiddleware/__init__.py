"""Better retrieval from the function you already have.

    import qtmiddleware as qtm

    @qtm.middleware
    def retrieve(query: str, top_k: int = 4): ...

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtmiddleware import evaluation as evaluation
    from qtmiddleware.config import Config, override
    from qtmiddleware.errors import (
        ConfigError,
        EmbeddingError,
        InvalidQuery,
        MissingExtra,
        ModelError,
        QtMiddlewareError,
        ResponseShapeError,
        StoreError,
        UnreadableDocument,
        WrapError,
    )
    from qtmiddleware.evaluation import judging as judging
    from qtmiddleware.evaluation import reporting as reporting
    from qtmiddleware.evaluation import testsets as testsets
    from qtmiddleware.evaluation import tuning as tuning
    from qtmiddleware.preprocessing import preprocess
    from qtmiddleware.rag.answering import AnswerStream, AsyncAnswerStream
    from qtmiddleware.rag.hybrid import Hybrid
    from qtmiddleware.rag.ingestion import IngestReport, ingest
    from qtmiddleware.types import (
        Answer,
        Citation,
        Degradation,
        Match,
        Message,
        Retrieval,
        SubAnswer,
        Transformation,
        Variant,
    )
    from qtmiddleware.wrapping.decorator import middleware
    from qtmiddleware.wrapping.health import Health, Readiness
    from qtmiddleware.wrapping.query_middleware import QueryMiddleware

__version__ = "0.1.0"

# A library does not decide where log records go; without this Python would write warnings to stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswerStream",
    "Citation",
    "Config",
    "ConfigError",
    "Degradation",
    "EmbeddingError",
    "Health",
    "Hybrid",
    "IngestReport",
    "InvalidQuery",
    "Match",
    "Message",
    "MissingExtra",
    "ModelError",
    "QtMiddlewareError",
    "QueryMiddleware",
    "Readiness",
    "ResponseShapeError",
    "Retrieval",
    "StoreError",
    "SubAnswer",
    "Transformation",
    "UnreadableDocument",
    "Variant",
    "WrapError",
    "ingest",
    "middleware",
    "override",
    "preprocess",
]

_HOMES = {
    "rag.answering": ("AnswerStream", "AsyncAnswerStream"),
    "config": ("Config", "override"),
    "errors": (
        "ConfigError",
        "EmbeddingError",
        "InvalidQuery",
        "MissingExtra",
        "ModelError",
        "QtMiddlewareError",
        "ResponseShapeError",
        "StoreError",
        "UnreadableDocument",
        "WrapError",
    ),
    "preprocessing": ("preprocess",),
    "wrapping.decorator": ("middleware",),
    "wrapping.health": ("Health", "Readiness"),
    "rag.hybrid": ("Hybrid",),
    "rag.ingestion": ("IngestReport", "ingest"),
    "wrapping.query_middleware": ("QueryMiddleware",),
    "types": (
        "Answer",
        "Citation",
        "Degradation",
        "Match",
        "Message",
        "Retrieval",
        "SubAnswer",
        "Transformation",
        "Variant",
    ),
}
# Rooms that are used by name: qtm.evaluation.compare(...).
_ROOMS = {
    "evaluation": "evaluation",
    **{name: f"evaluation.{name}" for name in ("judging", "reporting", "testsets", "tuning")},
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{_ROOMS[name]}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
