"""Better retrieval from the function you already have.

    import qtmiddleware as qtm

    @qtm.middleware
    def retrieve(query: str, top_k: int = 4): ...

Names are loaded when they are first used, so importing the package costs very little.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qtmiddleware.answering import AnswerStream as AnswerStream
    from qtmiddleware.config import Config as Config
    from qtmiddleware.errors import ConfigError as ConfigError
    from qtmiddleware.errors import EmbeddingError as EmbeddingError
    from qtmiddleware.errors import EngineError as EngineError
    from qtmiddleware.errors import InvalidQuery as InvalidQuery
    from qtmiddleware.errors import MissingExtra as MissingExtra
    from qtmiddleware.errors import ModelError as ModelError
    from qtmiddleware.errors import QtMiddlewareError as QtMiddlewareError
    from qtmiddleware.errors import ResponseShapeError as ResponseShapeError
    from qtmiddleware.errors import SetupWarning as SetupWarning
    from qtmiddleware.errors import StoreError as StoreError
    from qtmiddleware.errors import UnreadableDocument as UnreadableDocument
    from qtmiddleware.errors import WrapError as WrapError
    from qtmiddleware.kit import evaluation as evaluation
    from qtmiddleware.kit.check import Check as Check
    from qtmiddleware.kit.check import CheckState as CheckState
    from qtmiddleware.kit.check import Finding as Finding
    from qtmiddleware.kit.index.hybrid import Hybrid as Hybrid
    from qtmiddleware.kit.index.ingestion import IngestReport as IngestReport
    from qtmiddleware.kit.index.ingestion import ingest as ingest
    from qtmiddleware.kit.index.retriever import open_retriever as open_retriever
    from qtmiddleware.preprocessing import preprocess as preprocess
    from qtmiddleware.types import Answer as Answer
    from qtmiddleware.types import Citation as Citation
    from qtmiddleware.types import Degradation as Degradation
    from qtmiddleware.types import Match as Match
    from qtmiddleware.types import Message as Message
    from qtmiddleware.types import Retrieval as Retrieval
    from qtmiddleware.types import SubAnswer as SubAnswer
    from qtmiddleware.types import Transformation as Transformation
    from qtmiddleware.types import Variant as Variant
    from qtmiddleware.wrapping.query_middleware import QueryMiddleware as QueryMiddleware
    from qtmiddleware.wrapping.query_middleware import middleware as middleware

__version__ = "0.1.0"

# The application decides where log records go. Without this handler, Python would write warnings to
# stderr.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "answering": ("AnswerStream",),
    "config": ("Config",),
    "errors": (
        "ConfigError",
        "EmbeddingError",
        "EngineError",
        "InvalidQuery",
        "MissingExtra",
        "ModelError",
        "QtMiddlewareError",
        "ResponseShapeError",
        "SetupWarning",
        "StoreError",
        "UnreadableDocument",
        "WrapError",
    ),
    "preprocessing": ("preprocess",),
    "kit.check": ("Check", "CheckState", "Finding"),
    "kit.index.hybrid": ("Hybrid",),
    "kit.index.ingestion": ("IngestReport", "ingest"),
    "kit.index.retriever": ("open_retriever",),
    "wrapping.query_middleware": ("QueryMiddleware", "middleware"),
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
# Modules that are used by name, such as qtm.evaluation.compare(...).
_ROOMS = {
    "evaluation": "kit.evaluation",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # Type checkers use the imports above.
    __all__ = list(_HOME_OF)


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
    return sorted([*_HOME_OF, *_ROOMS, "__version__"])
