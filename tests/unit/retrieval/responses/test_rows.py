"""Rows of databases, with names and without, as the databases' own libraries return them."""

from __future__ import annotations

import copy
import pickle
import sqlite3
from collections import namedtuple
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.errors import ResponseShapeError
from qtmiddleware.retrieval.responses import (
    describe_missing_text_and_fix,
    get_raw_item,
    has_text,
    read_id,
    read_metadata,
    read_response,
    read_score,
    read_text,
    replace_score,
)
from qtmiddleware.types import DEFAULT_NAMESPACE as DEFAULT
from qtmiddleware.types import Variant
from tests.support.shapes_world import ENGINE, Chunk, PayloadHit, Row, sqlalchemy_rows, sqlite_rows

QUESTION = "Does Jaco have any health concerns?"
TEXTS = ["Cats sleep most of the day", "Jaco has no health concerns", "The fee is due in May"]
ROWS = [Row(*row) for row in zip("abc", TEXTS, (0.25, 0.28125, 0.75), strict=True)]


class DictRow(list[Any]):
    """A row of psycopg2's: a list that also knows its columns."""

    def keys(self) -> list[str]:
        return ["id", "content", "distance"]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.keys().index(key) if isinstance(key, str) else key)


class Record:
    """A row of asyncpg's or BigQuery's: no attributes, columns by name."""

    __slots__ = ("_fields_",)

    def __init__(self, **fields: Any) -> None:
        self._fields_ = fields

    def __getitem__(self, key: str) -> Any:
        return self._fields_[key]

    def keys(self) -> Any:
        return self._fields_.keys()


class MyRow(sqlite3.Row):
    """As people derive theirs, to read columns as attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


Scored = namedtuple("Scored", ["chunk", "near"])


def read(items: Sequence[Any], **options: Any) -> list[tuple[Any, ...]]:
    """The id, score and text of each of *items*, as a list of them is read."""
    config = qtm.Config.load({"keywordEvidence": {"fields": options}}).settings.keyword_evidence
    ranking = read_response(Variant("original", "q"), items, options=config).ranking
    ids = [read_id(item, config.id_field) for item in ranking.items]
    return [
        *zip(
            ids,
            ranking.scores,
            [read_text(it, config.text_field) for it in ranking.items],
            strict=True,
        )
    ]


EXPECTED = [(row.id, row.score, row.text) for row in ROWS]

NAMED_ROWS: dict[str, Any] = {
    "sqlite3": sqlite_rows(ROWS),
    "sqlite3, derived": sqlite_rows(ROWS, MyRow),
    "SQLAlchemy, columns": sqlalchemy_rows(ROWS, Chunk.id, Chunk.content),
    "SQLAlchemy, an object and a number": sqlalchemy_rows(ROWS, Chunk),
    "psycopg2": [DictRow(row) for row in ROWS],
    "asyncpg": [Record(id=row.id, content=row.text, distance=row.score) for row in ROWS],
    "a named tuple": ROWS,
    "a named tuple around an object": [
        Scored(row.Chunk, row.distance) for row in sqlalchemy_rows(ROWS, Chunk)
    ],
}


@pytest.mark.parametrize("rows", NAMED_ROWS.values(), ids=NAMED_ROWS)
def test_a_row_of_a_database_is_read_by_its_columns(rows: Any) -> None:
    assert read(rows) == EXPECTED


@pytest.mark.parametrize("rows", NAMED_ROWS.values(), ids=NAMED_ROWS)
def test_the_very_rows_of_a_database_come_back_in_another_order(rows: Any) -> None:
    response = qtm.middleware(lambda query: rows)(QUESTION)
    assert type(response) is list
    assert [id(row) for row in response] == [id(rows[place]) for place in (1, 0, 2)]
    found = qtm.middleware(lambda query: rows).retrieve(QUESTION)
    assert [id(match.raw) for match in found.matches] == [id(row) for row in response]
    assert found.status == "full"


def test_a_column_that_is_named_twice_is_the_first_of_them() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute("SELECT 'a' AS id, 'the text' AS text, 'b' AS id").fetchall()
    connection.close()
    assert read([row]) == [("a", None, "the text")]
    columns = (
        sa.literal("a").label("id"),
        sa.literal("the text").label("text"),
        sa.literal("b").label("id"),
    )
    with ENGINE.connect() as session:
        rows = session.execute(sa.select(*columns)).all()
    assert read(rows)[0][2] == "the text"


def test_a_row_whose_text_has_an_unusual_name_says_how_to_name_it() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        (row,) = connection.execute(
            "SELECT 'a' AS chunk_key, 'Jaco is well' AS blurb, 0.5 AS near"
        ).fetchall()
    connection.close()
    assert not has_text(row, None)
    assert (
        describe_missing_text_and_fix([row], None)[1]
        == 'set config={"keywordEvidence": {"fields": {"text": "blurb"}}}'
    )
    named = {"id": "chunk_key", "text": "blurb", "score": "near"}
    assert read([row], **named) == [("a", 0.5, "Jaco is well")]


def test_metadata_of_a_row_are_its_other_columns() -> None:
    assert [read_metadata(row) for row in sqlite_rows(ROWS[:1])] == [
        {"content": TEXTS[0], "distance": 0.25}
    ]


@pytest.mark.parametrize("rows", [NAMED_ROWS["sqlite3"], NAMED_ROWS["SQLAlchemy, columns"]])
def test_a_row_of_a_database_keeps_its_own_score_as_it_cannot_be_copied(rows: Any) -> None:
    assert replace_score(rows[0], 0.125) is rows[0]


def test_one_row_is_no_list_of_passages() -> None:
    class Pair(NamedTuple):
        title: str
        body: str

    for response in (
        Pair("Jaco is well", "and so is the cat"),
        sqlalchemy_rows(ROWS, Chunk.id, Chunk.content)[0],
    ):
        with pytest.raises(ResponseShapeError):
            read_response(Variant("original", "q"), response)
        assert qtm.middleware(lambda query, found=response: found)("Is the cat well?") is response


# --- plain tuples ---------------------------------------------------------------------------------


def columns(*values: Any) -> list[tuple[Any, ...]]:
    return list(zip(*values, strict=True))


IDS, NUMBERS, SCORES = ["a", "b", "c"], [1, 2, 3], [0.75, 0.71875, 0.25]
UUIDS = [UUID(int=number) for number in NUMBERS]
WORDS = ["cats", "Jaco", "fees"]
META = [{"page": number} for number in NUMBERS]
NONE: list[Any] = [None] * 3

PLAIN: dict[str, tuple[list[Any], Any, Any, Any]] = {
    "(id, text, score)": (columns(IDS, TEXTS, SCORES), IDS, SCORES, TEXTS),
    "(number, text, score)": (columns(NUMBERS, TEXTS, SCORES), ["1", "2", "3"], SCORES, TEXTS),
    "(uuid, text, score)": (columns(UUIDS, TEXTS, SCORES), list(map(str, UUIDS)), SCORES, TEXTS),
    "(id, word, score)": (columns(IDS, WORDS, SCORES), IDS, SCORES, WORDS),
    "(id, score, text)": (columns(IDS, SCORES, TEXTS), IDS, SCORES, TEXTS),
    "(id, text)": (columns(IDS, TEXTS), IDS, NONE, TEXTS),
    "(number, text)": (columns(NUMBERS, TEXTS), ["1", "2", "3"], NONE, TEXTS),
    "(text,)": (columns(TEXTS), NONE, NONE, TEXTS),
    "(text, id, score)": (columns(TEXTS, IDS, SCORES), NONE, SCORES, TEXTS),
    "(id, text, metadata, score)": (columns(IDS, TEXTS, META, SCORES), IDS, SCORES, TEXTS),
    "(id, metadata, score)": (
        columns(IDS, [{"text": text} for text in TEXTS], SCORES),
        IDS,
        SCORES,
        TEXTS,
    ),
    "(id, title, text, score)": (columns(IDS, WORDS, TEXTS, SCORES), IDS, SCORES, TEXTS),
    "(id, text, page, score)": (columns(IDS, TEXTS, NUMBERS, SCORES), IDS, SCORES, TEXTS),
    "(id, text, page)": (columns(IDS, TEXTS, NUMBERS), IDS, NONE, TEXTS),
    "(id, text, price, score)": (columns(IDS, TEXTS, [9.5, 2.5, 7.5], SCORES), IDS, SCORES, TEXTS),
    "(id, text, embedding, score)": (
        columns(IDS, TEXTS, [[0.5, 0.5]] * 3, SCORES),
        IDS,
        SCORES,
        TEXTS,
    ),
    "(score, text)": (columns(SCORES, TEXTS), NONE, SCORES, TEXTS),
    "(id, text, Decimal)": (
        columns(IDS, TEXTS, [Decimal("0.5"), Decimal("0.25"), Decimal(0)]),
        IDS,
        [0.5, 0.25, 0],
        TEXTS,
    ),
    "(id, text, distance)": (columns(IDS, TEXTS, SCORES[::-1]), IDS, SCORES[::-1], TEXTS),
    "(id, text or None, score)": (
        columns(IDS, [TEXTS[0], None, TEXTS[2]], SCORES),
        IDS,
        SCORES,
        [TEXTS[0], None, TEXTS[2]],
    ),
    "[id, text, score]": (list(map(list, columns(IDS, TEXTS, SCORES))), IDS, SCORES, TEXTS),
    # As they were read before.
    "(id, score)": (columns(IDS, SCORES), IDS, SCORES, NONE),
    "(number, score)": (columns(NUMBERS, SCORES), ["1", "2", "3"], SCORES, NONE),
    "(text, score)": (columns(TEXTS, SCORES), NONE, SCORES, TEXTS),
    "(id, score, metadata)": (columns(IDS, SCORES, META), IDS, SCORES, NONE),
    "(document, score)": (
        columns([{"id": i, "text": t} for i, t in zip(IDS, TEXTS, strict=True)], SCORES),
        IDS,
        SCORES,
        TEXTS,
    ),
}


@pytest.mark.parametrize(("rows", "ids", "scores", "texts"), PLAIN.values(), ids=PLAIN)
def test_the_types_in_a_list_of_plain_tuples_say_which_place_holds_what(
    rows: Any, ids: Any, scores: Any, texts: Any
) -> None:
    assert read(rows) == [*zip(ids, scores, texts, strict=True)]
    assert read(tuple(rows)) == [*zip(ids, scores, texts, strict=True)] or isinstance(rows[0], list)


@pytest.mark.parametrize("rows", [row[0] for row in PLAIN.values()], ids=PLAIN)
def test_plain_tuples_come_back_as_the_very_tuples_they_were(rows: Any) -> None:
    before = copy.deepcopy(rows)
    found = qtm.middleware(lambda query: rows).retrieve(QUESTION)
    assert type(found.response) is list
    assert {id(row) for row in found.response} == {id(row) for row in rows}
    assert [id(match.raw) for match in found.matches] == [id(row) for row in found.response]
    assert rows == before


def test_the_answer_among_plain_tuples_rises() -> None:
    rows = PLAIN["(id, text, score)"][0]
    assert qtm.middleware(lambda query: rows)(QUESTION)[0] is rows[1]


@pytest.mark.parametrize(
    "response",
    [
        ([1.5, 2.5, 3.5],),
        [(0.5, 0.25)],
        [(0.5, 0.25, 0.125)],
        [("a", 0.5, 0.25)],
        [("a", "the text", 0.5), ("b", "the text")],
        (TEXTS, WORDS),
        [TEXTS, WORDS],
        (TEXTS, WORDS, SCORES),
        ("an answer", TEXTS),
    ],
)
def test_tuples_and_lists_of_other_things_are_no_rows(response: Any) -> None:
    with pytest.raises(ResponseShapeError):
        read_response(Variant("original", "q"), response)
    assert qtm.middleware(lambda query: response)(QUESTION) is response


def test_a_copy_of_a_plain_tuple_with_another_score_is_a_tuple_with_that_score_alone() -> None:
    rows = PLAIN["(id, text, score)"][0]
    (item, *_) = read_response(Variant("original", "q"), rows).ranking.items
    copied = replace_score(item, 0.125)
    assert get_raw_item(copied) == ("a", TEXTS[0], 0.125)
    assert type(get_raw_item(copied)) is tuple
    assert get_raw_item(item) is rows[0]
    assert read_score(copied) == 0.125
    without = read_response(Variant("original", "q"), PLAIN["(id, text)"][0]).ranking.items[0]
    assert replace_score(without, 0.125) is without


def test_a_place_of_a_plain_tuple_can_be_named_by_its_number() -> None:
    faq = [
        (7, "What does it cost, and may I pay by card?", "Nothing at all.", 0.5),
        (8, "Is Jaco well?", "Yes.", 0.25),
    ]
    assert read(faq) == [("7", 0.5, faq[0][1]), ("8", 0.25, faq[1][1])]
    assert read(faq, text="2") == [("7", 0.5, "Nothing at all."), ("8", 0.25, "Yes.")]
    assert read(faq, id="1", text="2", score="0") == [(row[1], row[0], row[2]) for row in faq]


def test_read_and_write_of_a_shape_of_your_own_see_the_very_tuples() -> None:
    response = {"deep": {"found": PLAIN["(id, text, score)"][0]}}
    search = qtm.middleware(
        lambda query: response,
        read=lambda found: found["deep"]["found"],
        write=lambda found, items: {"deep": {"found": tuple(items)}},
    )
    rows = response["deep"]["found"]
    found = search(QUESTION)["deep"]["found"]
    assert [id(row) for row in found] == [id(rows[place]) for place in (1, 0, 2)]


def test_a_plain_tuple_that_was_read_can_be_pickled_and_copied() -> None:
    (item, *_) = read_response(
        Variant("original", "q"), PLAIN["(id, text, score)"][0]
    ).ranking.items
    for other in (pickle.loads(pickle.dumps(item)), copy.copy(item), copy.deepcopy(item)):
        assert (other, get_raw_item(other), other.key) == (item, get_raw_item(item), item.key)


def test_a_row_is_the_same_passage_whichever_of_its_texts_the_rest_of_the_list_makes_the_passage() -> (
    None
):
    faq = [(1, "How do I pay?", "By card, within a month of the day the bill was sent.", 0.5)]
    longer = [
        *faq,
        (
            2,
            "What if I cannot pay within a month of the day on which the bill was sent?",
            "Call us.",
            0.25,
        ),
    ]
    other = [(1, "How do I pay?", "By card, within a month of the day the bill was sent.", 0.125)]
    first, second, third = (
        read_response(Variant("original", "q"), rows).ranking for rows in (faq, longer, other)
    )
    assert first.keys[0] == second.keys[0] == third.keys[0]
    assert first.keys[0] == (
        DEFAULT,
        "1\0How do I pay?\0By card, within a month of the day the bill was sent.",
    )


# --- hits with nothing but a payload --------------------------------------------------------------


def test_a_hit_whose_text_is_in_its_payload_alone_is_read() -> None:
    hits = [PayloadHit(row.score, {"body": row.text}) for row in ROWS]
    assert read(hits) == [(None, row.score, row.text) for row in ROWS]
    found = qtm.middleware(lambda query: hits).retrieve(QUESTION)
    assert found.status == "full"
    assert found.response[0] is hits[1]


def test_a_hit_whose_text_has_an_unusual_name_in_its_payload_is_told_of() -> None:
    hits = [PayloadHit(row.score, {"blurb": row.text}) for row in ROWS]
    with pytest.warns(qtm.SetupWarning, match='"text": "blurb"'):
        found = qtm.middleware(lambda query: hits).retrieve(QUESTION)
    assert [(it.stage, it.reason) for it in found.degradations] == []
    assert {id(hit) for hit in found.response} == {id(hit) for hit in hits}
    config = {"keywordEvidence": {"fields": {"text": "blurb"}}}
    assert qtm.middleware(lambda query: hits, config=config)(QUESTION)[0] is hits[1]


def test_hits_without_id_and_text_are_the_same_passage_whatever_their_score() -> None:
    ranking = read_response(
        Variant("original", "q"),
        [PayloadHit(0.5, {"a_b": "x y"}), PayloadHit(0.25, {"a_b": "x y"})],
    )
    first, second = ranking.ranking.keys
    assert first == second


# --- whatever stands in a list --------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.sampled_from(TEXTS),
    st.decimals(),
    st.uuids(),
)
fields = st.dictionaries(
    st.sampled_from(["id", "text", "score", "dist", "metadata", "node", "x", "blurb"]), scalars
)
plain = st.lists(scalars | fields, max_size=5)
anything = st.one_of(
    scalars,
    fields,
    plain,
    plain.map(tuple),
    fields.map(lambda values: Record(**values)),
    st.builds(PayloadHit, scalars, fields),
    st.sampled_from(
        [*NAMED_ROWS["sqlite3"], *NAMED_ROWS["SQLAlchemy, an object and a number"], *ROWS]
    ),
    st.builds(object),
)
same_length = st.integers(1, 5).flatmap(
    lambda size: st.lists(st.tuples(*[scalars] * size), max_size=9)
)
alike = st.tuples(st.integers(), st.text(), st.floats() | st.none(), st.text() | fields)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.one_of(st.lists(anything, max_size=9), same_length, st.lists(alike, max_size=9)),
    config=st.sampled_from(
        [{}, {"scores": "fused"}, {"keywordEvidence": {"fields": {"score": "dist", "id": "x"}}}]
    ),
)
@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_whatever_stands_in_a_list_the_wrapped_function_returns_the_very_same_things(
    rows: list[Any], config: dict[str, Any]
) -> None:
    before = [repr(row) for row in rows]
    response = qtm.middleware(lambda query: rows, config=config)(QUESTION)
    assert type(response) is list
    assert len(response) == len(rows)
    if not config.get("scores"):
        assert sorted(map(id, response)) == sorted(map(id, rows))
    assert sorted(type(row).__name__ for row in response) == sorted(
        type(row).__name__ for row in rows
    )
    assert [repr(row) for row in rows] == before
