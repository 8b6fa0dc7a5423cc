"""Answer questions from the passages found, with citations.

An answer is returned as a whole or streamed in pieces. The model writes it in one call, or combines
the answers to several sub-queries.
"""

from qtmiddleware.answering.flow import AnswerFlow
from qtmiddleware.answering.streams import AnswerStream

__all__ = ["AnswerFlow", "AnswerStream"]
