"""Build prompts for answers that keep the instructions separate from the passages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import get_data
from typing import Any, Final, Literal

from qtmiddleware.catalogue import PLACES
from qtmiddleware.config.settings import Settings
from qtmiddleware.protocols import Prompt
from qtmiddleware.transforms.prompt import (
    append_digest,
    find_user_instruction,
    format_json_message,
    select_recent_messages,
)
from qtmiddleware.types import Match, Message

PromptMode = Literal["answer", "sub_answer", "synthesis"]

_LABELS: Final = ("title", "source", "url", *PLACES, "context")
_LABEL_CHARS: Final = 200
_CONTEXT_CHARS: Final = 1_000
MAX_TOKENS: Final = 1_000
"""The token limit of a reply, unless the settings set another."""
_WORDS: Final = json.loads(get_data("qtmiddleware.answering", "prompts.json") or b"{}")


@dataclass(frozen=True, slots=True)
class PromptPassages:
    """The passages to show to the model, numbered from 1.

    Attributes:
        matches: the passages, in the order of their numbers.
        entries: each passage as a mapping for the prompt: its number, labels and text.
    """

    matches: tuple[Match, ...] = ()
    entries: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)

    @property
    def context(self) -> str:
        """The texts of the passages, each under a heading such as ``PASSAGE 1:``."""
        return "\n\n".join(
            f"PASSAGE {number}:\n{entry['text']}"
            for number, entry in enumerate(self.entries, start=1)
        )


def select_passages(
    matches: Sequence[Match],
    max_chars: int,
) -> PromptPassages:
    """Return the first passages of *matches* that fit into *max_chars* characters.

    Matches without a text are skipped. The entry of each passage also holds labels from its
    metadata: title, source, URL, location (such as the page), and the ``context`` that ingestion
    may have added. If the first passage alone is too long, its text is cut and has no labels.
    """
    kept_matches: list[Match] = []
    entries: list[dict[str, Any]] = []
    remaining_chars = max_chars
    for match in matches:
        text = (match.text or "").strip()
        if not text:
            continue
        labels = _collect_labels(match.metadata)
        size = len(text) + sum(len(str(value)) for value in labels.values())
        if size > remaining_chars:
            if not entries:
                cut = text[: max_chars - 1].rstrip() + "…"
                return PromptPassages((match,), ({"passage": 1, "text": cut},))
            break
        kept_matches.append(match)
        entries.append({"passage": len(kept_matches), **labels, "text": text})
        remaining_chars -= size
    return PromptPassages(tuple(kept_matches), tuple(entries))


def _collect_labels(metadata: Mapping[str, Any]) -> dict[str, Any]:
    labels: dict[str, Any] = {}
    for label in _LABELS:
        value = metadata.get(label)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # Pinecone stores every number as a float.
        if isinstance(value, str):
            value = value.strip()[: _CONTEXT_CHARS if label == "context" else _LABEL_CHARS]
        if isinstance(value, str | int) and value != "":
            labels[label] = value
    return labels


def build_prompt(
    mode: PromptMode,
    settings: Settings,
    question: str,
    history: Sequence[Message],
    data: Sequence[Mapping[str, Any]],
) -> Prompt:
    """Return the prompt for *question*; *data* holds the passages or the sub-answers.

    The settings may replace the instruction, but not the rules. The system message holds only
    instructions and rules, so that the model does not take a passage's text for an instruction.
    """
    own_instruction = find_user_instruction(settings, mode)
    turns = select_recent_messages(history, question, settings.llm.history_messages)
    material = "sub_answers" if mode == "synthesis" else "passages"
    content: dict[str, Any] = {material: data}
    if turns:
        content["history"] = [{"role": turn.role, "content": turn.content} for turn in turns]
    words = _WORDS[material]
    data_description = _WORDS["data"].format(
        material=words["description"],
        history=_WORDS["history"] if turns else "",
    )
    rules = "\n".join(f"- {rule}" for rule in words["rules"])
    instruction = own_instruction or _WORDS["instructions"][mode]
    return Prompt(
        mode=mode,
        version=append_digest(f"{mode}/1", own_instruction),
        system=f"{instruction}\n\n{data_description}\n\n{rules}",
        user=format_json_message({**content, "question": question}),
        fields=(),
        query=question,
        history=turns,
        max_tokens=settings.answer.max_tokens or MAX_TOKENS,
    )
