"""The benchmarks' own set keeps the promises of its README: judged, answered, and in words its replies do not know."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from qtmiddleware.kit.evaluation import Dataset, Question
from tests.support.shared_data import PRIVATE

DATA: Final = Dataset.load(PRIVATE)
README: Final = (PRIVATE / "README.md").read_text(encoding="utf-8")
LINES: Final = (PRIVATE / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
REPLIES: Final[dict[str, dict[str, Any]]] = {row["_id"]: row for row in map(json.loads, LINES)}


def read_coined_words() -> list[str]:
    listed = README.split("## Coined words")[1].split(":", 1)[1].split("##")[0]
    return [word.strip(" .\n") for word in re.split(r"[,;]", " ".join(listed.split()))]


def find_coined(text: str) -> set[str]:
    """The coined words in *text*, also inflected; names only with their capital, as "reach" is anybody's."""
    return {
        word
        for word in read_coined_words()
        if re.search(rf"\b{word}(?:s|ed|ing|es)?\b", text, not word[0].isupper() and re.IGNORECASE)
    }


def test_no_reply_holds_a_coined_word_that_its_question_does_not() -> None:
    texts = " ".join(passage.text for passage in DATA.passages)
    assert len(find_coined(texts)) == len(read_coined_words()) > 80
    for question in DATA.questions:
        assert find_coined(json.dumps(REPLIES[question.id])) <= _known(question), question.id


def _known(question: Question) -> set[str]:
    """What the question and its conversation name, whether or not they write the capital."""
    asked = " ".join([*(turn.content for turn in question.history), question.text]).lower()
    return {word for word in read_coined_words() if word.lower() in asked}
