"""Judges of answers, and what they are shown."""

from __future__ import annotations

import json
from typing import Any

from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel


def shown(prompt: Prompt) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(prompt.user)
    return given


def judge_of(script: Any) -> ScriptedModel:
    return ScriptedModel(script, name="judge-1")
