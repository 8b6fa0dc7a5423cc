"""Recorded replies: a model that replays them and a wrapper that writes them.

A recording is JSON lines, one object a query: ``_id``, ``standalone`` (only where there is history), ``rewrite``,
``step_back``, ``sub_queries``, ``hyde``, ``paraphrases``, ``keywords``, each of them optional. ``query`` and
``history`` may stand in the line; where they do not, the query set the recording belongs to has to be given. ``mode``
names the prompt a line answers; without it the line answers every prompt.
"""

from __future__ import annotations

from qtmiddleware.providers.llms.recorded.recording import RecordingModel
from qtmiddleware.providers.llms.recorded.replay import RecordedModel

__all__ = ["RecordedModel", "RecordingModel"]
