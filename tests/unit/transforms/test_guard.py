"""A variant keeps what carries the meaning of the query, or it is repaired, or it is not searched."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware.config.settings import Settings
from qtmiddleware.preprocessing import find_protected_spans
from qtmiddleware.protocols import Reply
from qtmiddleware.transforms import build_prompts, parse_transformation
from qtmiddleware.transforms.guard import guard_transformation
from qtmiddleware.types import Message, Transformation
from tests.support.shared_data import RECORDED

Spans = Sequence[tuple[str, str]]
TABLES = json.loads(Path(__file__).with_name("guard.json").read_text(encoding="utf-8"))


def guarded(query: str, required_spans: Spans, **held: Any) -> Transformation:
    return guard_transformation(Transformation(**held), query=query, required_spans=required_spans)


def spans_of(query: str) -> Spans:
    return [(span.kind, span.text) for span in find_protected_spans(query)]


def expect(subtests: pytest.Subtests, query: str, spans: Spans, text: str, kept: Any) -> None:
    """See that *kept* is what is searched for the rewrite *text*."""
    with subtests.test(text):
        assert guarded(query, spans, rewrite=text).rewrite == kept


def test_what_means_the_same_is_kept_and_what_was_lost_is_put_back(
    subtests: pytest.Subtests,
) -> None:
    for kind, span, text in TABLES["same"]:
        expect(subtests, f"about {span} here", [(kind, span)], text, text)
    for query, word, text in TABLES["denied"]:
        expect(subtests, query, [("negation", word)], text, text)
    for query, text in TABLES["faithful"]:
        expect(subtests, query, spans_of(query), text, text)
    for query, text, repaired in TABLES["put_back"]:
        expect(subtests, query, spans_of(query), text, repaired)


def test_what_was_lost_is_put_back_in_every_field_and_noted_by_its_place(
    subtests: pytest.Subtests,
) -> None:
    rest = "and its users, revenue, errors, bugs, company, power and docs; what bar and C are"
    for kind, span, text, expected in TABLES["lost"]:
        with subtests.test(text):
            held = {"rewrite": text, "paraphrases": (text,), "standalone": text}
            found = guarded(f"about {span} {rest}", [(kind, span)], **held)
            assert {found.rewrite, *found.paraphrases, found.standalone} == {expected}
            note = f"repaired: {kind} 6:{6 + len(span)}"
            assert dict(found.notes) == dict.fromkeys(held, note)


def test_a_reply_that_lost_one_thing_of_the_question_is_repaired_or_dropped(
    subtests: pytest.Subtests,
) -> None:
    for query, text in TABLES["lost_one_thing"]:
        with subtests.test(text):
            held = {"rewrite": text, "standalone": text, "paraphrases": (text,)}
            found = guarded(query, spans_of(query), **held)
            assert text not in (found.rewrite, found.standalone, *found.paraphrases)
            assert {what.partition(":")[0] for _, what in found.notes} <= {"repaired", "dropped"}


def test_sub_queries_hold_the_spans_together() -> None:
    spans = [("name", "Acme"), ("name", "Bolt"), ("number", "2023"), ("negation", "not")]
    texts = ("revenue of Acme", "revenue of Bolt in that year did earn")
    found = guarded("did Acme not earn more than Bolt in 2023", spans, sub_queries=texts)
    assert found.sub_queries == ("revenue of Acme", "revenue of Bolt in that year did earn (2023)")
    assert found.notes == (("sub_queries", "repaired: number 36:40"),)


@pytest.mark.parametrize("text", ["nope", "the weather in Rome", "what to do about it"])
def test_a_text_without_a_word_of_the_question_does_not_get_its_names(text: str) -> None:
    query, spans = "Does Jaco have any health concerns?", [("name", "Jaco")]
    held = {"rewrite": text, "standalone": text, "paraphrases": (text,), "sub_queries": (text,)}
    found = guarded(query, spans, **held)
    assert found.is_empty
    assert dict(found.notes) == dict.fromkeys(held, "dropped: name 5:9")
    beside = guarded(query, spans, sub_queries=(text, "health of a dog"))
    assert beside.sub_queries == (text, "health of a dog (Jaco)")


@pytest.mark.parametrize(("query", "text", "stays"), TABLES["scripts"])
def test_a_text_in_another_script_is_dropped(query: str, text: str, stays: bool) -> None:
    held = dict.fromkeys(("standalone", "rewrite", "step_back", "hyde"), text)
    lists = dict.fromkeys(("sub_queries", "paraphrases"), (text,))
    found = guarded(query, [], **held, **lists)
    for name in (*held, *lists):
        assert found.texts(name) == ((text,) if stays else ())
    assert {what for _, what in found.notes} == (set() if stays else {"language_mismatch"})


def test_a_text_in_another_language_is_dropped_where_that_can_be_told() -> None:
    found = guard_transformation(
        Transformation(rewrite="what is that", step_back="qu'est-ce"),
        query="c'est quoi",
        required_spans=[],
        may_be_english=False,
    )
    assert (found.rewrite, found.step_back) == (None, "qu'est-ce")
    assert found.notes == (("rewrite", "language_mismatch"),)


@pytest.mark.parametrize(
    ("terms", "stay"), [(("Kubernetes", "部署"), True), (("cloud", "deployment"), False)]
)
def test_key_terms_of_another_script_stay_beside_those_of_the_query(terms: Any, stay: bool) -> None:
    found = guarded("云服务 部署", [], keywords=terms)
    assert found.keywords == (terms if stay else ())
    assert found.notes == (() if stay else (("keywords", "language_mismatch"),))


LETTERS = st.text(st.characters(categories=["L"], max_codepoint=0x24F), min_size=1, max_size=8)
SPANS = st.lists(
    st.tuples(st.just("identifier"), st.from_regex(r"[A-Z]{1,3}[-_]?[0-9]{2,5}", fullmatch=True))
    | st.tuples(st.just("quote"), LETTERS.map('"{}"'.format)),
    max_size=4,
)


@given(SPANS, st.text(max_size=60))
def test_whatever_is_left_holds_every_span(spans: Spans, text: str) -> None:
    query = " ".join(["about", *(span for _, span in spans)])
    kept = guarded(query, spans, rewrite=text).rewrite
    assert guarded(query, spans, rewrite=kept).rewrite == kept

    def plain(value: str) -> str:
        folded = unicodedata.normalize("NFKD", value.casefold())
        return "".join(char for char in folded if char.isalnum())

    assert kept is None or all(plain(span) in plain(kept) for _, span in spans)


def test_good_replies_pass_as_they_are() -> None:
    settings = Settings(transformation_type="combined")
    changed = total = 0
    for questions, recordings in RECORDED:
        rows = map(json.loads, questions.read_text(encoding="utf-8").splitlines())
        by_id = {row["_id"]: row for row in rows}
        for record in map(json.loads, recordings.read_text(encoding="utf-8").splitlines()):
            row = by_id[record.pop("_id")]
            query, turns = row["text"], row.get("metadata", {}).get("history", ())
            history = tuple(Message(**turn) for turn in turns)
            fields = {key: value for key, value in record.items() if key != "query" and value}
            (prompt,) = build_prompts(settings, query, history)
            found = parse_transformation(prompt, Reply(json.dumps(fields, ensure_ascii=False)))
            kept = guard_transformation(found, query=query, required_spans=spans_of(query))
            total += 1
            changed += any(getattr(kept, it) != record[it] for it in ("rewrite", "step_back"))
            assert kept.hyde == record["hyde"]
            notes = {what for _, what in kept.notes}
            assert not notes & {"language_mismatch", "dropped: unresolved reference"}
    assert total in (60 + 112, 60 + 112 + 650)
    assert changed <= 0.02 * total
