"""The benchmarks' own set keeps the promises of its README: judged, answered, and in words its replies do not know."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import Dataset, Question
from qtmiddleware.kit.evaluation.recorded import RecordedModel
from tests.support.shared_data import PRIVATE

DATA: Final = Dataset.load(PRIVATE)
README: Final = (PRIVATE / "README.md").read_text(encoding="utf-8")
REPLIES: Final[dict[str, dict[str, Any]]] = {
    row["_id"]: row
    for row in map(
        json.loads, (PRIVATE / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
    )
}
FIELDS: Final = {"_id", "standalone", "rewrite", "step_back", "sub_queries", "hyde"}


def tokens(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def runs(text: str, length: int = 6) -> set[tuple[str, ...]]:
    words = tokens(text)
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def asked(question: Question) -> str:
    """All that a model may know when it transforms the question."""
    return " ".join([*(turn.content for turn in question.history), question.text])


def replied(question: Question) -> str:
    reply = REPLIES[question.id]
    return " . ".join(
        [*reply["sub_queries"], *(reply[name] or "" for name in FIELDS - {"_id", "sub_queries"})]
    )


def relevant(question: Question) -> list[str]:
    texts = {passage.id: passage.text for passage in DATA.passages}
    return [texts[id_] for id_ in DATA.qrels[question.id]]


def coined_words() -> list[str]:
    listed = README.split("## Coined words")[1].split(":", 1)[1].split("##")[0]
    return [word.strip(" .\n") for word in re.split(r"[,;]", " ".join(listed.split()))]


def find_coined(text: str) -> set[str]:
    """The coined words in *text*, also inflected; names only with their capital, as "reach" is anybody's."""
    found = set()
    for word in coined_words():
        written = re.compile(
            rf"\b{word}(?:s|ed|ing|es)?\b", re.NOFLAG if word[0].isupper() else re.IGNORECASE
        )
        found |= {word} if written.search(text) else set()
    return found


def test_the_readme_tells_the_true_counts() -> None:
    told = {
        kind: int(count)
        for kind, count in re.findall(r"^\| (\w+) \| (\d+) \|", README, re.MULTILINE)
    }
    assert told == Counter(question.metadata["type"] for question in DATA.questions)
    lengths = [len(passage.text.split("\n", 1)[1].split()) for passage in DATA.passages]
    assert (
        f"{len(DATA.passages)} passages: `_id`, `title`, `text` ({min(lengths)} to {max(lengths)} words)"
        in README
    )
    assert f"{len(DATA.questions)} questions" in README
    assert f"{sum(map(len, DATA.qrels.values()))} graded judgements" in README


def test_every_question_is_judged_and_has_a_passage_that_answers_it() -> None:
    lines = (PRIVATE / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["_id"] for line in lines] == [
        question.id for question in DATA.questions
    ]
    assert {id_ for id_, grades in DATA.qrels.items() if max(grades.values()) < 2} == set()
    assert {grade for grades in DATA.qrels.values() for grade in grades.values()} == {1, 2}


def test_every_question_has_a_whole_reply_that_is_taken_as_it_is() -> None:
    assert list(REPLIES) == [question.id for question in DATA.questions]
    assert all(set(reply) == FIELDS for reply in REPLIES.values())
    model = RecordedModel(REPLIES.values(), [question.to_record() for question in DATA.questions])
    middleware = qtm.QueryMiddleware({"transformationType": "combined"}, client=model)
    for question in DATA.questions:
        found = middleware.transform(question.text, history=question.history)
        reply = REPLIES[question.id]
        assert (found.standalone is None) == (not question.history)
        assert (found.rewrite, found.hyde) == (reply["rewrite"], reply["hyde"])
        assert list(found.sub_queries) == reply["sub_queries"]


def test_no_reply_holds_a_coined_word_that_its_question_does_not() -> None:
    assert (
        len(find_coined(" ".join(passage.text for passage in DATA.passages)))
        == len(coined_words())
        > 80
    )
    told = {
        question.id: find_coined(replied(question)) - _known(question)
        for question in DATA.questions
    }
    assert {id_: words for id_, words in told.items() if words} == {}


def _known(question: Question) -> set[str]:
    """What the question names, whether or not it writes the capital."""
    text = asked(question).lower()
    return {word for word in coined_words() if word.lower() in text}


def test_no_reply_knows_a_number_or_a_sentence_of_a_relevant_passage() -> None:
    for question in DATA.questions:
        new = runs(replied(question)) - runs(asked(question))
        numbers = {token for token in tokens(replied(question)) if token.isdigit()} - set(
            tokens(asked(question))
        )
        for text in relevant(question):
            assert not new & runs(text), question.id
            assert not numbers & set(tokens(text)), question.id


def test_no_question_is_copied_from_a_passage_that_answers_it() -> None:
    copied = {
        one.id
        for one in DATA.questions
        if any(runs(one.text, 5) & runs(text, 5) for text in relevant(one))
    }
    assert copied == set()
