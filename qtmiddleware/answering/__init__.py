"""Answer questions from the passages found, with citations, as a whole or in pieces."""

from qtmiddleware.answering.flow import AnswerFlow, AnswerStream

__all__ = ["AnswerFlow", "AnswerStream"]
