"""The shipped data set keeps the promises of its README."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files
from typing import Any, Final

DATA: Final = files("qtmiddleware") / "kit" / "demo" / "data"
NUMBER_WORDS: Final = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
# What no rewrite may lose: tokens with a digit, quoted phrases, the names of models and plans,
# spelled-out numbers.
IDENTIFIER: Final = re.compile(r"\w[\w.\-]*\w|\w")
QUOTED: Final = re.compile(r'"[^"]+"')
NAME: Final = re.compile(
    r"Harbor \d|Ridge \d|Drift F|Barge L|\b(?:Flex|Steady|Family|Business|Care)\b"
)
NUMBER_WORD: Final = re.compile(rf"\b(?:{NUMBER_WORDS})\b", re.IGNORECASE)
NEGATION: Final = re.compile(r"\b(?:not|no|never|without|cannot|cant|wont|\w+n't)\b", re.IGNORECASE)
RECORDED_FIELDS: Final = {
    *(
        "_id",
        "query",
        "standalone",
        "rewrite",
        "step_back",
        "sub_queries",
        "hyde",
        "paraphrases",
        "keywords",
    ),
}


def read_lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def read_qrels() -> list[tuple[str, str, int]]:
    header, *rows = (DATA / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()
    assert header == "query-id\tcorpus-id\tscore"
    return [
        (query, passage, int(score)) for query, passage, score in (row.split("\t") for row in rows)
    ]


CORPUS: Final = {row["_id"]: row for row in read_lines("corpus.jsonl")}
QUERIES: Final = {row["_id"]: row for row in read_lines("queries.jsonl")}
RECORDINGS: Final = {row["_id"]: row for row in read_lines("recordings.jsonl")}
QRELS: Final = read_qrels()
README: Final = (DATA / "README.md").read_text(encoding="utf-8")


def history(query_id: str) -> list[dict[str, str]]:
    turns: list[dict[str, str]] = QUERIES[query_id]["metadata"].get("history", [])
    return turns


def tokens(text: str) -> list[str]:
    return [token.lower() for token in IDENTIFIER.findall(text)]


def numbers(text: str) -> set[str]:
    return {token for token in tokens(text) if any(character.isdigit() for character in token)}


def runs(text: str, length: int) -> set[tuple[str, ...]]:
    words = tokens(text)
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def known_before(query_id: str) -> str:
    """All that a model may know when it transforms the question."""
    return " ".join([*(turn["content"] for turn in history(query_id)), QUERIES[query_id]["text"]])


def recorded_texts(query_id: str) -> str:
    recording = RECORDINGS[query_id]
    lists = [*recording["sub_queries"], *recording["paraphrases"], *recording["keywords"]]
    single = [recording[name] or "" for name in ("standalone", "rewrite", "step_back", "hyde")]
    return " . ".join([*single, *lists])


def lost(question: str, variant: str) -> set[str]:
    """What *variant* lost of the parts of *question* that must be kept."""
    kept = numbers(variant)
    phrases = [*QUOTED.findall(question), *NAME.findall(question), *NUMBER_WORD.findall(question)]
    missing = {phrase for phrase in phrases if phrase.lower() not in variant.lower()}
    return missing | {number for number in numbers(question) if number not in kept}


def test_judgements_name_existing_questions_and_passages_once_with_a_grade_of_1_or_2() -> None:
    assert {query for query, _, _ in QRELS} == set(QUERIES)
    assert {passage for _, passage, _ in QRELS} <= set(CORPUS)
    assert {score for _, _, score in QRELS} == {1, 2}
    assert len({(query, passage) for query, passage, _ in QRELS}) == len(QRELS)


def test_every_question_has_a_passage_that_answers_it() -> None:
    assert {query for query, _, score in QRELS if score == 2} == set(QUERIES)


def test_the_readme_tells_the_true_counts() -> None:
    told = {
        kind: int(count)
        for kind, count in re.findall(r"^\| (\w+) \| (\d+) \|", README, re.MULTILINE)
    }
    assert told == Counter(row["metadata"]["type"] for row in QUERIES.values())
    assert f"{len(CORPUS)} passages" in README
    assert f"{len(QUERIES)} questions" in README
    assert f"{len(QRELS)} graded judgements" in README


def test_every_question_has_a_recording_of_its_own_text() -> None:
    assert {key: row["query"] for key, row in RECORDINGS.items()} == {
        key: row["text"] for key, row in QUERIES.items()
    }


def test_every_recording_is_complete() -> None:
    for query_id, recording in RECORDINGS.items():
        assert set(recording) == RECORDED_FIELDS
        assert (recording["standalone"] is not None) == bool(history(query_id)), query_id
        assert 1 <= len(recording["sub_queries"]) <= 4, query_id
        assert len(recording["paraphrases"]) == 3, query_id
        assert 3 <= len(recording["keywords"]) <= 8, query_id
        for name in ("sub_queries", "paraphrases", "keywords"):
            assert len(set(recording[name])) == len(recording[name]), query_id
            assert all(text.strip() for text in recording[name]), query_id
        assert all(recording[name].strip() for name in ("rewrite", "step_back", "hyde")), query_id


def test_no_rewrite_or_paraphrase_loses_an_identifier_a_number_a_quote_or_a_name() -> None:
    missing = {
        variant: lost(QUERIES[query_id]["text"], variant)
        for query_id, recording in RECORDINGS.items()
        for variant in filter(
            None, (recording["rewrite"], recording["standalone"], *recording["paraphrases"])
        )
    }
    assert {variant: parts for variant, parts in missing.items() if parts} == {}


def test_no_recording_knows_a_number_or_a_sentence_that_only_the_relevant_passages_hold() -> None:
    for query_id, passage, _ in QRELS:
        text = CORPUS[passage]["text"]
        recorded, before = recorded_texts(query_id), known_before(query_id)
        assert not (numbers(recorded) - numbers(before)) & numbers(text), query_id
        assert not (runs(recorded, 6) - runs(before, 6)) & runs(text, 6), query_id
