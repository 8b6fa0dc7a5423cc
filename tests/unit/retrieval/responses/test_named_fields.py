"""Scores under the usual names, and ids and scores under names that the user gives."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import qtmiddleware as qtm
from qtmiddleware.config.settings import KeywordEvidenceSettings
from qtmiddleware.errors import ConfigError
from qtmiddleware.retrieval.responses import (
    get_raw_item,
    read_id,
    read_response,
    read_score,
    replace_score,
)
from qtmiddleware.retrieval.responses.items import SCORES
from qtmiddleware.types import DEFAULT_NAMESPACE as DEFAULT
from qtmiddleware.types import Variant
from tests.support.retrieval_world import transforming
from tests.support.shapes_world import NodeWithScore, TextNode

QUESTION = "Does Jaco have any health concerns?"
TEXTS = ["Cats sleep most of the day", "Jaco has no health concerns", "The fee is due in May"]
NEW = (
    *(
        "relevance",
        "cosine_similarity",
        "cosine_distance",
        "dist",
        "sim",
        "rrf_score",
        "search_score",
    ),
    *("@search.score", "vector_score"),
)


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("rising", [False, True], ids=["higher is better", "lower is better"])
def test_scores_have_many_names_and_the_order_says_which_way_they_run(
    name: str, rising: bool
) -> None:
    numbers = [0.25, 0.28125, 0.75] if rising else [0.75, 0.71875, 0.25]
    rows = [
        {"id": str(place), "text": text, name: numbers[place]} for place, text in enumerate(TEXTS)
    ]
    for response in (rows, [SimpleNamespace(**row) for row in rows]):
        search = qtm.middleware(lambda query, found=response: found)
        found = search.retrieve(QUESTION)
        assert [match.score for match in found.matches] == [numbers[place] for place in (1, 0, 2)]
        assert found.response[0] is response[1]
        (scores,) = [it for it in search.check(QUESTION).findings if it.subject == "scores"]
        assert scores.values["direction"] == ("lower_is_better" if rising else "higher_is_better")


def test_a_merged_score_goes_before_those_it_was_merged_from() -> None:
    item = {"id": "a", "vector_score": 0.5, "sim": 0.25, "rrf_score": 0.125}
    assert read_score(item) == 0.125
    assert read_score({**item, "score": 0.75}) == 0.75


@given(
    st.sampled_from(SCORES),
    st.one_of(st.none(), st.text(), st.booleans(), st.lists(st.integers()), st.binary()),
)
def test_what_is_no_number_is_no_score_whatever_its_name(name: str, value: Any) -> None:
    assert read_score({"id": "a", name: value}) is None
    assert read_score({"id": "a", "score": 0.5} | ({} if name == "score" else {name: value})) == 0.5
    if name != SCORES[-1]:
        assert read_score({"id": "a", name: value, SCORES[-1]: 0.5}) == 0.5


# --- names that the user gives --------------------------------------------------------------------


@dataclass
class Legacy:
    uid: int
    blurb: str
    closeness: float


@dataclass
class Wrapped:
    near: float
    payload: dict[str, Any] = field(default_factory=dict)


class Hit(BaseModel):
    key: str
    blurb: str
    rank: dict[str, Any]


class Found(NamedTuple):
    key: str
    blurb: str
    near: float


NUMBERS = [0.75, 0.71875, 0.25]
ROWS = list(zip("abc", TEXTS, NUMBERS, strict=True))
USUAL = {"id": "key", "text": "blurb", "score": "near"}
NAMED: dict[str, tuple[Any, dict[str, str]]] = {
    "dicts": ([{"key": i, "blurb": t, "near": s} for i, t, s in ROWS], USUAL),
    "metadata": ([{"metadata": {"key": i, "blurb": t, "near": s}} for i, t, s in ROWS], USUAL),
    "dots": (
        [
            {"about": {"key": i, "text": {"blurb": t}}, "ranks": {"near": {"all": s}}}
            for i, t, s in ROWS
        ],
        {"id": "about.key", "text": "about.text.blurb", "score": "ranks.near.all"},
    ),
    "dots in a name": (
        [{"@x.key": i, "blurb": t, "@x.near": s} for i, t, s in ROWS],
        {"id": "@x.key", "text": "blurb", "score": "@x.near"},
    ),
    "beside usual names": (
        [{"id": 7, "key": i, "blurb": t, "score": 0.5, "near": s} for i, t, s in ROWS],
        USUAL,
    ),
    "data classes": (
        [Legacy(ord(i), t, s) for i, t, s in ROWS],
        {"id": "uid", "text": "blurb", "score": "closeness"},
    ),
    "payloads": ([Wrapped(s, {"key": i, "blurb": t}) for i, t, s in ROWS], USUAL),
    "models": (
        [Hit(key=i, blurb=t, rank={"near": s}) for i, t, s in ROWS],
        {**USUAL, "score": "rank.near"},
    ),
    "named tuples": ([Found(*row) for row in ROWS], USUAL),
    "nodes": (
        [
            NodeWithScore(
                node=TextNode(id_="n", text="x", metadata={"key": i, "blurb": t, "near": s})
            )
            for i, t, s in ROWS
        ],
        USUAL,
    ),
    "documents and a number": (
        [({"key": i, "blurb": t, "near": s}, 0.5) for i, t, s in ROWS],
        USUAL,
    ),
    "plain tuples": ([(i, t, 7.5, None, s) for i, t, s in ROWS], {"score": "4"}),
    "columns": (
        {"ids": [1, 2, 3], "key": list("abc"), "blurb": TEXTS, "near": NUMBERS},
        USUAL,
    ),
}


def read_ranking(response: Any, named: dict[str, str]) -> tuple[Any, KeywordEvidenceSettings]:
    options = qtm.Config.load({"keywordEvidence": {"fields": named}}).settings.keyword_evidence
    return read_response(Variant("original", "q"), response, options=options).ranking, options


@pytest.mark.parametrize(("response", "named"), NAMED.values(), ids=NAMED)
def test_the_fields_that_the_user_names_hold_the_id_the_text_and_the_score(
    response: Any, named: Any
) -> None:
    ranking, options = read_ranking(response, named)
    ids = [str(ord(it)) for it in "abc"] if named.get("id") == "uid" else list("abc")
    assert [read_id(item, options.id_field) for item in ranking.items] == ids
    assert list(ranking.scores) == NUMBERS
    if options.id_field is not None:
        assert ranking.keys == [(DEFAULT, id_) for id_ in ids]
    found = qtm.middleware(
        lambda query: response, config={"keywordEvidence": {"fields": named}}
    ).retrieve(QUESTION)
    assert found.status == "full"
    assert [match.id for match in found.matches] == [ids[place] for place in (1, 0, 2)]
    assert [match.score for match in found.matches] == [NUMBERS[place] for place in (1, 0, 2)]
    assert [match.text for match in found.matches] == [TEXTS[place] for place in (1, 0, 2)]


@pytest.mark.parametrize(("response", "named"), NAMED.values(), ids=NAMED)
def test_a_copy_with_another_score_has_it_in_the_field_that_the_user_names(
    response: Any, named: Any
) -> None:
    ranking, options = read_ranking(response, named)
    item = ranking.items[0]
    before = copy.deepcopy(item)
    copied = replace_score(item, 0.125, options.score_field)
    assert read_score(copied, options.score_field) == 0.125
    assert type(get_raw_item(copied)) is type(get_raw_item(item))
    assert repr(item) == repr(before)


@pytest.mark.parametrize("name", ["dicts", "columns"])
def test_fused_scores_stand_in_the_field_that_the_user_names(name: str) -> None:
    response, named = NAMED[name]
    before = copy.deepcopy(response)
    search = qtm.middleware(
        lambda query: response, config={"keywordEvidence": {"fields": named}, "scores": "fused"}
    )
    scores = read_ranking(search(QUESTION), named)[0].scores
    assert sorted(scores, reverse=True) == list(scores) != NUMBERS
    assert repr(response) == repr(before)


def test_a_field_that_is_not_there_gives_no_id_and_no_score() -> None:
    item = {"id": "a", "text": "the text", "score": 0.5}
    assert read_id(item, "uid") is None
    assert read_score(item, "near") is None
    ranking, _ = read_ranking([item], {"id": "uid", "score": "near"})
    assert (ranking.keys, list(ranking.scores)) == ([(DEFAULT, "\0the text")], [None])


def test_ids_that_the_user_names_tell_apart_what_several_searches_found() -> None:
    def search(query: str, top_k: int = 4) -> list[dict[str, Any]]:
        near = 0.5 + len(query) / 1_000
        return [
            {"uid": place, "blurb": text, "near": near - place / 100}
            for place, text in enumerate(TEXTS)
        ][:top_k]

    named = {"id": "uid", "text": "blurb", "score": "near"}
    reply = {"rewrite": "Is the dog Jaco ill?", "step_back": "", "sub_queries": [], "hyde": ""}
    config = transforming("combined", keywordEvidence={"fields": named})
    model = qtm.testing.ScriptedModel(reply)
    found = qtm.QueryMiddleware(config, client=model).wrap(search).retrieve(QUESTION)
    assert len(found.variants) > 1
    assert sorted(match.id for match in found.matches) == ["0", "1", "2"]  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["id", "score"])
@pytest.mark.parametrize("value", ["", 3, ["id"]])
def test_a_field_is_named_by_a_text(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"keywordEvidence.fields.{name}"):
        qtm.Config.load({"keywordEvidence": {"fields": {name: value}}})


# --- what check says of them ----------------------------------------------------------------------


def say(rows: list[Any]) -> tuple[str, str]:
    """What a check advises of ids and scores."""
    search = qtm.middleware(
        lambda query: rows, config={"keywordEvidence": {"fields": {"text": "blurb"}}}
    )
    check = search.check(QUESTION)
    ids, scores = (
        next(it for it in check.findings if it.subject == name) for name in ("ids", "scores")
    )
    for finding in (ids, scores):
        assert not finding.mend or f"-> {finding.mend}" in " ".join(str(check).split())
    return ids.mend, scores.mend


@given(
    st.sampled_from(["chunk_key", "uid", "recordId", "source_url"]),
    st.sampled_from(["near", "bm25", "my_score"]),
)
def test_check_names_the_fields_that_seem_to_hold_ids_and_scores(
    id_name: str, score_name: str
) -> None:
    rows = [
        {id_name: i, "blurb": t, "page": 1, "price": p, score_name: s}
        for (i, t, s), p in zip(ROWS, (3.5, 9.5, 1.5), strict=True)
    ]
    for inside in (
        rows,
        [{"metadata": row} for row in rows],
        [{"about": row, "blurb": row["blurb"]} for row in rows],
    ):
        advice = [
            json.loads(mend.partition("=")[2])["keywordEvidence"]["fields"] for mend in say(inside)
        ]
        prefix = "about." if "about" in inside[0] else ""
        assert advice == [{"id": prefix + id_name}, {"score": prefix + score_name}]
        config = {"keywordEvidence": {"fields": {"text": "blurb", **advice[0], **advice[1]}}}
        found = qtm.middleware(lambda query, rows=inside: rows, config=config).retrieve(QUESTION)
        assert {match.id for match in found.matches} == set("abc")
        assert {match.score for match in found.matches} == set(NUMBERS)


def test_check_says_where_to_name_a_field_if_none_seems_to_hold_them() -> None:
    ids, scores = say([{"blurb": text, "page": 1} for text in TEXTS])
    assert ids == "if a field holds them, name the field in keywordEvidence.fields.id"
    assert scores == "if a field holds them, name the field in keywordEvidence.fields.score"


def test_check_has_nothing_to_say_of_fields_if_ids_and_scores_are_read_or_passages_are_texts() -> (
    None
):
    assert say([{"id": i, "blurb": t, "score": s} for i, t, s in ROWS]) == ("", "")
    search = qtm.middleware(lambda query: TEXTS)
    assert [
        it.mend for it in search.check(QUESTION).findings if it.subject in ("ids", "scores")
    ] == ["", ""]
