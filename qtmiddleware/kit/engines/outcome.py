"""The outcome of a batch, as a worker process sends it back."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from qtmiddleware.errors import EngineError


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one batch: a result, an error, or neither if the batch was done before.

    Attributes:
        number: The batch's number.
        result: The result.
        error: The exception that the work raised.
    """

    number: int
    result: Any = None
    error: Exception | None = None

    def dump(self) -> bytes:
        """Return the outcome pickled.

        An error that cannot be pickled is replaced by one that names its type; its message may
        contain a text, so it is not quoted.
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
