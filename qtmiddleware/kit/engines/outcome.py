"""What comes back from a worker in another process."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from qtmiddleware.errors import EngineError


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the batch *number*: a result or an *error*; neither where it was done before."""

    number: int
    result: Any = None
    error: Exception | None = None

    def dump(self) -> bytes:
        """Pickled; an error that cannot travel is named, and not quoted: it may hold a text."""
        try:
            written = pickle.dumps(self)
            pickle.loads(written)
        except Exception as error:
            failed = type(self.error or error).__name__
            written = pickle.dumps(
                Outcome(self.number, error=EngineError(f"a batch failed with {failed}"))
            )
        return written
