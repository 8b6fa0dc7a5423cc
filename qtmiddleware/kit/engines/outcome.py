"""Define the outcome of a batch, which a worker process sends back."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from qtmiddleware.errors import EngineError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one batch: a result or an error.

    A batch that was already done before has neither a result nor an error.

    Attributes:
        number: The batch's position in a Ray run, from 0. Always 0 in a `LocalEngine`.
        result: The result of the batch function; ``None`` if the function failed.
        error: The exception of the batch function; ``None`` if the function raised none.
    """

    number: int
    result: Any = None
    error: Exception | None = None

    def pickle_outcome(self) -> bytes:
        """Return this outcome as pickled bytes.

        If the outcome cannot be pickled, an outcome with an `EngineError` is pickled instead.
        """
        try:
            data = pickle.dumps(self)
            # Some exceptions can be pickled but not unpickled, which would fail in the parent.
            pickle.loads(data)
        except Exception as error:
            # Only the error's type is sent, because its message may quote a text.
            error_name = type(self.error or error).__name__
            data = pickle.dumps(
                Outcome(self.number, error=EngineError(f"a batch failed with {error_name}"))
            )
        return data
