"""The query log: a JSON line per question with every step, and no text that must not be in it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from threading import Barrier
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qtmiddleware as qtm
from qtmiddleware.preprocessing.text import split_terms
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.wrapping.query_log import TextWriter, hash_text
from tests.support.log_lines import log_lines

QUESTION: Final = "Is Jaco ill?"
REWRITE: Final = "illness of Jaco"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queries.jsonl"


def middleware(path: Path, **options: Any) -> qtm.QueryMiddleware:
    config = {"transformationType": "rewrite", "log": str(path), **options.pop("config", {})}
    return qtm.QueryMiddleware(config, client=ScriptedModel({"rewrite": REWRITE}), **options)


def list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for inner in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from list_strings(inner)
    elif isinstance(value, str):
        yield value


@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_row_has_the_titles_and_scores_and_no_other_metadata(way: str, path: Path) -> None:
    def found(**scores: float) -> Any:
        metadata = {"title": "T", "url": "U", "source": "S", "ssn": "078-05-1120"}
        return lambda _query, _top_k: [
            {"id": it, "score": score, "text": f"text {it}", "metadata": metadata}
            for it, score in scores.items()
        ]

    qm = middleware(path, reranker=lambda _, texts: [*range(len(texts))], config={"rerank": True})
    wrapped = qm.wrap(qtm.Hybrid(found(a=0.9, b=0.8, c=0.1), found(b=3.5, d=1.5)))
    is_async = way == "async"
    made = asyncio.run(wrapped.aretrieve(QUESTION)) if is_async else wrapped.retrieve(QUESTION)
    (entry,) = log_lines(path)
    steps = entry["retrieval_steps"]
    original, rewrite = steps.pop("searches")
    assert set(steps) == {"initial_vector", "initial_bm25", "fusion", "rerank", "final"}
    for row in chain(*steps.values(), original["found"], rewrite["found"]):
        assert set(row) == {"id", "namespace", "title", "url", "source", "score"}
    assert [it["score"] for it in steps["initial_bm25"]] == [3.5, 1.5]
    assert [it["score"] for it in steps["fusion"]] == [round(it, 6) for it in made.fused_scores]
    assert [it["score"] for it in steps["rerank"]] == [3.0, 2.0, 1.0, 0.0]
    assert [it["id"] for it in steps["final"]] == [match.id for match in made.matches]
    assert rewrite["initial_vector"] == steps["initial_vector"]
    assert entry["query_id"] == entry["trace"]["query_id"] == made.trace.query_id
    assert (entry["status"], entry["keywords"]) == ("full", made.keywords)
    assert [it["weight"] for it in entry["variants"]] == [it.weight for it in made.variants]


# --- what it does not hold ------------------------------------------------------------------------

SECRET: Final = "secret passage on Jaco"


@pytest.mark.parametrize("name", ["id", "document_id", "none"])
def test_the_text_of_a_passage_is_recorded_only_if_the_settings_say_so(
    name: str, path: Path
) -> None:
    # A key holds the passage's text where there is no id, and after the id of a whole document.
    rows = [{name: "1", "text": SECRET, "score": 0.5}]
    for texts, count in (("questions", 0), ("all", 1), ("none", 0)):
        path.unlink(missing_ok=True)
        config = {"log": {"path": str(path), "texts": texts}}
        middleware(path, config=config).wrap(lambda query: rows)(QUESTION)
        (entry,) = log_lines(path)
        assert sum(SECRET in it for it in list_strings(entry)) == count
        assert (QUESTION in list_strings(entry)) == (texts != "none")


def raise_with_text(text: str) -> str:
    raise ValueError(f"no luck with {text}")


@pytest.mark.parametrize(
    ("redact", "said"),
    [(raise_with_text, "raised ValueError"), (lambda text: None, "returned NoneType")],
)
def test_where_redact_fails_hashes_are_written_and_it_is_told_without_the_text(
    redact: Any, said: str, path: Path
) -> None:
    found = middleware(path, redact=redact).wrap(lambda query: []).retrieve(QUESTION)
    (failure,) = found.degradations
    assert (failure.stage, failure.reason) == ("log", "failed")
    assert f"redact function {said}" in failure.detail
    (entry,) = log_lines(path)
    assert entry["queries"] == [hash_text(QUESTION)] == [entry["variants"][0]["text"]]
    assert "Jaco" not in path.read_text() + failure.detail


@given(st.text(), st.text(min_size=1))
def test_no_keyword_outlives_the_word_it_was_made_of(before: str, secret: str) -> None:
    query = f"{before} {secret}"
    writer = TextWriter(lambda text: text.replace(secret, " "))
    if (left := writer.prepare_text(query)) != query:
        written = writer.prepare_keywords(qtm.preprocess(query), query)
        assert set(split_terms(written)) <= set(split_terms(left))


# --- the file -------------------------------------------------------------------------------------


def test_sixteen_threads_write_whole_lines(path: Path) -> None:
    together = Barrier(16)
    search = qtm.QueryMiddleware({"log": str(path)}).wrap(lambda query: [])

    def write(number: int) -> None:
        together.wait()
        for turn in range(20):
            search(f"{number}-{turn} {'x' * 7_000}")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(write, range(16)))
    queries = {it["queries"][0].split()[0] for it in log_lines(path)}
    assert queries == {f"{number}-{turn}" for number in range(16) for turn in range(20)}
