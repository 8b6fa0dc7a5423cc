"""A language model that repeats the recorded replies of one collection."""

from __future__ import annotations

from typing import Any

from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.golden.cases import Collection


def replay(collection: Collection) -> ScriptedModel:
    """A model whose replies have the fields that a prompt asks for, as far as they were recorded for its question."""
    by_text = {question.text: collection.replies[question.id] for question in collection.questions}
    # Two questions of one text would need their histories to be told apart.
    assert len(by_text) == len(collection.questions)

    def reply(prompt: Prompt) -> Any:
        if prompt.query not in by_text:
            return ModelError("unrecorded")
        recorded = by_text[prompt.query]
        said = {}
        for field in prompt.fields:
            value = recorded.get(field.name)
            # Recordings of a conversation hold the whole question, which a first question has no use for.
            if value and (field.name != "standalone" or prompt.history):
                is_list = field.shape == "list"
                said[field.name] = value[: field.max_items or None] if is_list else value
        return said

    return ScriptedModel(reply, name="recorded")
