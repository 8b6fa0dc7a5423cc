"""Two answers to each question, judged by a language model against a reference answer.

Judges of this kind prefer whichever answer stands first, so each pair is judged in both orders and only what holds in
both is a win (Zheng et al. 2023, "Judging LLM-as-a-Judge with MT-Bench and Chatbot Arena").
"""

from __future__ import annotations

from qtmiddleware.evaluation.judging.judged import CRITERIA, Judged, Outcome, Verdict
from qtmiddleware.evaluation.judging.judging import judge

__all__ = ["CRITERIA", "Judged", "Outcome", "Verdict", "judge"]
