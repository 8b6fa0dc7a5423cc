"""What an ingest tells while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Stage = Literal["reading", "contexts", "embedding", "publishing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: *done* of *total* documents (``reading``) or chunks; *path* is the document being read."""

    stage: Stage
    done: int
    total: int
    path: str = ""


Listener = Callable[[Progress], object]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A document that could not be read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What an ingest did.

    *documents* and *chunks* are what the index holds of the data path now. *added*, *changed*, *unchanged*, *removed*
    and *skipped* are documents; one that is skipped and was indexed before keeps its old chunks. *written* are the
    passages the store was given, *embedded* the texts that were, *reused* the passages whose vector was known.
    *contexts* came from the model in this run, *contexts_failed* are chunks that stand without one. Times are seconds.
    """

    documents: int = 0
    chunks: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: tuple[Skipped, ...] = ()
    written: int = 0
    embedded: int = 0
    reused: int = 0
    contexts: int = 0
    contexts_failed: int = 0
    seconds: float = 0.0
    embed_seconds: float = 0.0
    context_seconds: float = 0.0

    @property
    def all_skipped(self) -> bool:
        """Whether there were documents and none could be read."""
        return bool(self.skipped) and not (self.added or self.changed or self.unchanged)

    def to_dict(self) -> dict[str, Any]:
        """Everything, by name, ready for JSON."""
        return asdict(self)
