"""The outcome of a batch: what a worker process sends back."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from qtmiddleware.errors import EngineError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one batch: a result, an error, or neither if the batch was already done.

    Attributes:
        number: The number of the batch.
        result: The value that the batch function returned.
        error: The exception that the batch function raised; ``None`` if it raised none.
    """

    number: int
    result: Any = None
    error: Exception | None = None

    def dump(self) -> bytes:
        """Return the outcome as pickled bytes.

        If the outcome cannot be pickled, an outcome with an `EngineError` is pickled instead. The
        `EngineError` gives only the original error's type, because messages may quote a text.
        """
        try:
            data = pickle.dumps(self)
            pickle.loads(data)
        except Exception as error:
            error_name = type(self.error or error).__name__
            data = pickle.dumps(
                Outcome(self.number, error=EngineError(f"a batch failed with {error_name}"))
            )
        return data
