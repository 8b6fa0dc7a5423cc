"""The JSON-lines record of every query."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtmiddleware import Hybrid, QueryMiddleware, preprocess
from qtmiddleware.preprocessing.text import split_terms
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import (
    Degradation,
    Key,
    Match,
    Passage,
    Ranking,
    Retrieval,
    Trace,
    Transformation,
    Variant,
)
from qtmiddleware.wrapping.query_log import QueryLog, TextWriter, build_record, hash_text
from tests.support.log_lines import log_lines

LABELS = {"title": "Health", "url": "https://example.org/1"}
SEED_KEYS = ["query_id", "timestamp", "queries", "retrieval_steps"]


def retrieval(
    query: str = "What about Jaco?",
    *,
    metadata: dict[str, Any] | None = None,
    text: str = "passage one",
    keys: tuple[Key, ...] = (("ns", "1"), ("ns", "2")),
    scores: tuple[Any, ...] = (0.9, 0.5),
) -> Retrieval:
    trace = Trace()
    trace.record_stage("search.original", 0.01)
    trace.finish()
    variants = (Variant("original", query), Variant("rewrite", f"{query} rewritten", 0.7))
    passages = [Passage(key, None, text=text, metadata={"text": text}) for key in keys]
    rankings = tuple(Ranking(it, keys, scores, passages) for it in variants)
    matches = tuple(
        Match(
            id=key[1].partition("\0")[0] or None,
            namespace=key[0],
            score=score,
            fused_score=score,
            text=text,
            metadata={"title": "Health", "url": "https://example.org/1", "text": text}
            if metadata is None
            else metadata,
            found_by=("original",),
        )
        for key, score in zip(keys, scores, strict=True)
    )
    return Retrieval(
        original_query=query,
        keywords="jaco",
        matches=matches,
        response=[{"text": text}],
        variants=variants,
        status="degraded",
        degradations=(Degradation("transform.rewrite", "timeout", "no answer"),),
        trace=trace,
        transformation=Transformation(rewrite=f"{query} rewritten"),
        rankings=rankings,
        fused=keys,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queries.jsonl"


def strings(value: Any) -> Iterator[str]:
    """Every string of a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from (name, *strings(entry))
    elif isinstance(value, list):
        for entry in value:
            yield from strings(entry)


# --- what a record holds --------------------------------------------------------------------------


def test_a_record_links_the_query_with_every_step_of_its_retrieval() -> None:
    made = retrieval()
    entry = build_record(made)
    assert list(entry)[:3] == SEED_KEYS[:3]
    assert set(SEED_KEYS) <= set(entry)
    assert entry["query_id"] == made.trace.query_id
    assert entry["queries"] == ["What about Jaco?"]
    assert entry["keywords"] == "jaco"
    rows = [{"id": "1", "namespace": "ns"}, {"id": "2", "namespace": "ns"}]
    scored = [{**row, "score": score} for row, score in zip(rows, (0.9, 0.5), strict=True)]
    assert entry["retrieval_steps"] == {
        "searches": [{"kind": "original", "found": scored}, {"kind": "rewrite", "found": scored}],
        "fusion": rows,
        "rerank": [],
        "final": [{**row, **LABELS} for row in scored],
    }
    assert entry["variants"] == [
        {"kind": "original", "text": "What about Jaco?", "weight": 1.0},
        {"kind": "rewrite", "text": "What about Jaco? rewritten", "weight": 0.7},
    ]
    assert entry["status"] == "degraded"
    assert entry["degradations"] == [["transform.rewrite", "timeout", "no answer"]]
    assert entry["trace"]["query_id"] == entry["query_id"]


STEPS: Final = ("initial_vector", "initial_bm25", "fusion", "rerank", "final")


@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_step_of_a_hybrid_search_stands_there_with_titles_and_scores(
    way: str, path: Path
) -> None:
    def found(**scores: float) -> Any:
        return lambda _query, _top_k: [
            {
                "id": it,
                "score": score,
                "text": f"text {it}",
                "metadata": {"title": it.upper(), "url": f"https://{it}"},
            }
            for it, score in scores.items()
        ]

    def judge(_: str, texts: Sequence[str]) -> list[float]:
        return [float(ord(it[-1])) for it in texts]

    config = {
        "transformationType": "rewrite",
        "log": {"path": str(path)},
        "rerank": {"enabled": True},
    }
    qm = QueryMiddleware(
        config, client=ScriptedModel({"rewrite": "illness of Jaco"}), reranker=judge
    )
    wrapped = qm.wrap(Hybrid(found(a=0.9, b=0.8, c=0.1), found(b=3.5, d=1.5)))
    made = (
        wrapped.retrieve("Is Jaco ill?")
        if way == "sync"
        else asyncio.run(wrapped.aretrieve("Is Jaco ill?"))
    )
    (entry,) = log_lines(path)
    steps = entry["retrieval_steps"]
    assert {it for it in steps if it != "searches"} == set(STEPS)
    for name in STEPS:
        assert steps[name], name
        for row in steps[name]:
            assert (row["title"], row["url"]) == (row["id"].upper(), f"https://{row['id']}")
            assert isinstance(row["score"], float)
    assert [(it["id"], it["score"]) for it in steps["initial_vector"]] == [
        ("a", 0.9),
        ("b", 0.8),
        ("c", 0.1),
    ]
    assert [(it["id"], it["score"]) for it in steps["initial_bm25"]] == [("b", 3.5), ("d", 1.5)]
    assert [it["score"] for it in steps["fusion"]] == [round(it, 6) for it in made.fused_scores]
    assert [(it["id"], it["score"]) for it in steps["rerank"]] == [
        (it, float(ord(it))) for it in "dcba"
    ]
    original, rewrite = steps["searches"]
    assert sorted(original) == ["found", "kind"]
    assert {name: rewrite[name] for name in STEPS[:2]} == {name: steps[name] for name in STEPS[:2]}
    assert not any("text a" in it for it in strings(entry))


# --- what it does not hold ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stem", ["1", "doc-7\0secret passage", "\0secret passage"], ids=["id", "document_id", "no_id"]
)
def test_no_passage_text_is_ever_recorded(stem: str) -> None:
    # A key holds the passage's text where there is no id, and after the id where that names a whole
    # document.
    entry = build_record(retrieval(text="secret passage", keys=(("ns", stem),), scores=(0.5,)))
    assert not any("secret passage" in it for it in strings(entry))


def test_metadata_is_not_recorded_but_for_a_title_a_url_and_a_source() -> None:
    metadata = {
        "title": "T",
        "url": "U",
        "source": "S",
        "ssn": "078-05-1120",
        "author": {"name": "N"},
    }
    (row, _) = build_record(retrieval(metadata=metadata))["retrieval_steps"]["final"]
    assert row == {
        "id": "1",
        "namespace": "ns",
        "title": "T",
        "url": "U",
        "source": "S",
        "score": 0.9,
    }


def raises(text: str) -> str:
    raise ValueError(f"no luck with {text}")


def recurses(text: str) -> str:
    return recurses(text)


@pytest.mark.parametrize(
    ("redact", "said"),
    [
        (raises, "raised ValueError"),
        (lambda text: None, "returned NoneType"),
        (lambda: "", "raised TypeError"),
    ],
)
def test_where_redact_fails_hashes_are_written_and_it_is_told_without_the_text(
    redact: Any, said: str, path: Path
) -> None:
    failure = QueryLog(path, redact=redact).append_record(retrieval())
    assert failure is not None
    assert f"redact function {said}" in failure.detail
    (entry,) = log_lines(path)
    assert entry["queries"] == [hash_text("What about Jaco?")] == [entry["variants"][0]["text"]]
    assert b"Jaco" not in path.read_bytes()
    assert "Jaco" not in failure.detail


@given(st.text(), st.text(min_size=1))
def test_no_keyword_outlives_the_word_it_was_made_of(before: str, secret: str) -> None:
    query = f"{before} {secret}"
    writer = TextWriter(lambda text: text.replace(secret, " "))
    if (left := writer.prepare_text(query)) != query:
        written = writer.prepare_keywords(preprocess(query), query)
        assert set(split_terms(written)) <= set(split_terms(left))


# --- odd values -----------------------------------------------------------------------------------


# --- the file -------------------------------------------------------------------------------------


def test_sixteen_threads_write_whole_lines(path: Path) -> None:
    log, together = QueryLog(path), Barrier(16)
    long = "x" * 20_000

    def write(number: int) -> None:
        together.wait()
        for turn in range(50):
            log.append_record(retrieval(f"{number}-{turn} {long}"))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    queries = {it["queries"][0].split()[0] for it in log_lines(path)}
    assert queries == {f"{number}-{turn}" for number in range(16) for turn in range(50)}


def test_a_line_that_was_cut_off_spoils_no_other(path: Path) -> None:
    # A full disk or a killed process leaves half a line behind.
    log = QueryLog(path)
    log.append_record(retrieval("first"))
    with path.open("ab") as file:
        file.write(b'{"query_id": "ab')
    log.append_record(retrieval("second"))
    log.append_record(retrieval("third"))
    first, half, *others, end = path.read_bytes().split(b"\n")
    assert half == b'{"query_id": "ab'
    assert [json.loads(line)["queries"] for line in (first, *others)] == [
        ["first"],
        ["second"],
        ["third"],
    ]
    assert end == b""
