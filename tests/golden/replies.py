"""A language model that repeats the recorded replies of one collection."""

from __future__ import annotations

import json

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.types import Deadline
from tests.golden.cases import Collection


class RecordedReplies:
    """Replies with the fields that a prompt asks for, as far as they were recorded for its question."""

    name = "recorded"

    def __init__(self, collection: Collection) -> None:
        self._by_text = {
            question.text: collection.replies[question.id] for question in collection.questions
        }
        # Two questions of one text would need their histories to be told apart.
        assert len(self._by_text) == len(collection.questions)

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        recorded = self._by_text.get(prompt.query)
        if recorded is None:
            raise ModelError("unrecorded")
        reply = {}
        for field in prompt.fields:
            value = recorded.get(field.name)
            # Recordings of a conversation hold the whole question, which a first question has no use for.
            if field.name == "standalone" and not prompt.history:
                continue
            if value:
                is_limited = field.shape == "list" and field.max_items
                reply[field.name] = value[: field.max_items] if is_limited else value
        return Reply(json.dumps(reply, ensure_ascii=False), cost_usd=0.0)

    async def acomplete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return self.complete(prompt, deadline)
