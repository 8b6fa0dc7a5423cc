"""Answers from what was found, with citations: whole or piece by piece, plain or put together from sub-answers."""

from qtmiddleware.answering.flow import AnswerFlow
from qtmiddleware.answering.streams import AnswerStream, AsyncAnswerStream

__all__ = ["AnswerFlow", "AnswerStream", "AsyncAnswerStream"]
