"""Answers from the passages found, with citations.

An answer comes as a whole or in pieces. It is written in one call of the model, or put together
from the answers to sub-queries.
"""

from qtmiddleware.answering.flow import AnswerFlow
from qtmiddleware.answering.streams import AnswerStream, AsyncAnswerStream

__all__ = ["AnswerFlow", "AnswerStream", "AsyncAnswerStream"]
