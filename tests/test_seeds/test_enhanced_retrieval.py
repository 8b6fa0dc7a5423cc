"""Seed document 003: vectors and words fused, chunks with their context, a cross-encoder, lists of queries, a query log."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.model_server import ModelServer
from tests.test_seeds.world import DIMENSION, PATIENT, embed, run_qtm

QUERIES: Final = ("Machine Learning", "Neural Networks", "Supervised Learning")
REWRITTEN: Final = (
    "Machine Learning algorithms and techniques",
    "Neural Networks architecture and applications",
    "Supervised Learning methods and evaluation metrics",
)
REWRITES: Final = dict(zip(QUERIES, REWRITTEN, strict=True))
TITLES: Final = {
    "a": "Machine Learning",
    "b": "Neural Networks",
    "c": "Supervised Learning",
    "d": "Deep Learning",
}

Hits = list[dict[str, Any]]


def rewrite(prompt: Prompt) -> Any:
    return {"rewrite": REWRITES[prompt.query]}


class Searches:
    """Two searches over the same titles, with scores by id; *asked* holds what each was asked for."""

    def __init__(self, vectors: Mapping[str, float], words: Mapping[str, float]) -> None:
        self.asked: dict[str, tuple[str, int]] = {}
        self._scores = {"vectors": vectors, "words": words}

    def by_vectors(self, query: str, top_k: int) -> Hits:
        return self._search("vectors", query, top_k)

    def by_words(self, query: str, top_k: int) -> Hits:
        return self._search("words", query, top_k)

    def _search(self, kind: str, query: str, top_k: int) -> Hits:
        self.asked[kind] = (query, top_k)
        return [
            {
                "id": id_,
                "score": score,
                "text": f"An article on {TITLES.get(id_, id_)}.",
                "metadata": {
                    "title": TITLES.get(id_, id_),
                    "url": f"https://example.com/{id_}",
                },
            }
            for id_, score in self._scores[kind].items()
        ][:top_k]


def hybrid(searches: Searches, **options: Any) -> qtm.Hybrid:
    """Both searches in one, with the settings of the group ``hybrid``."""
    settings = qtm.Config.load({"hybrid": options} if options else {}, environ={}).settings
    return qtm.Hybrid(searches.by_vectors, searches.by_words, options=settings.hybrid)


def ids(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    return [hit["id"] for hit in hits]


@pytest.fixture
def searches() -> Searches:
    return Searches({"a": 0.9, "b": 0.8, "c": 0.7}, {"d": 9.0, "c": 6.0, "b": 5.0})


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """A folder of short documents, each about one thing."""
    folder = tmp_path / "articles"
    folder.mkdir()
    for number in range(30):
        text = f"Article {number} tells of apples and pears in the garden of house {number}."
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")
    (folder / "pump.txt").write_text("The pump QX-77 hums when its bearing is dry.", "utf-8")
    return folder


# --- both searches, fused by weights --------------------------------------------------------------


def test_passages_of_both_searches_are_fused_by_their_weighted_scores(
    searches: Searches,
) -> None:
    search = hybrid(searches, vectorWeight=0.5, bm25Weight=0.5)
    found = search("Which learning?", 4)
    # Scaled to 0 to 1 in each list: a 1, b .5, c 0 by vectors; d 1, c .25, b 0 by words.
    assert {hit["id"]: hit["score"] for hit in found} == pytest.approx(
        {"a": 0.5, "d": 0.5, "b": 0.25, "c": 0.125}
    )
    by_id = {hit["id"]: hit for hit in found}
    assert (by_id["b"]["vector_score"], by_id["b"]["bm25_score"]) == (0.8, 5.0)
    assert (by_id["a"]["bm25_score"], by_id["d"]["vector_score"]) == (None, None)


@pytest.mark.parametrize(
    ("vector_weight", "bm25_weight", "found"),
    [(0.9, 0.1, "abdc"), (0.1, 0.9, "dcab"), (1, 0, "abc"), (0, 1, "dcb")],
)
def test_the_greater_weight_decides_and_a_search_without_weight_is_left_out(
    searches: Searches, vector_weight: float, bm25_weight: float, found: str
) -> None:
    search = hybrid(searches, vectorWeight=vector_weight, bm25Weight=bm25_weight)
    assert "".join(ids(search("Which learning?", 4))) == found
    assert len(searches.asked) == (vector_weight > 0) + (bm25_weight > 0)


def test_at_least_one_search_needs_a_weight() -> None:
    with pytest.raises(ConfigError, match=r"hybrid\.vectorWeight"):
        qtm.Config.load({"hybrid": {"enabled": True, "vectorWeight": 0, "bm25Weight": 0}})


def test_ranks_take_the_place_of_scores_if_the_config_says_so(searches: Searches) -> None:
    search = hybrid(searches, method="rrf", vectorWeight=0.5, bm25Weight=0.5)
    scores = {hit["id"]: hit["score"] for hit in search("Which learning?", 4)}
    in_both = 0.5 / 62 + 0.5 / 63
    assert scores == pytest.approx({"b": in_both, "c": in_both, "a": 0.5 / 61, "d": 0.5 / 61})


def test_the_defaults_are_those_of_the_document_but_for_the_measured_weights() -> None:
    values = {name: value for name, value, _ in qtm.Config.load({}, environ={}).rows()}
    assert values["hybrid.searchTopK"] == 10
    assert values["hybrid.fusionTopK"] == 50
    assert values["rerank.rerankTopK"] == 20
    assert (values["hybrid.vectorWeight"], values["hybrid.bm25Weight"]) == (0.75, 0.25)


def test_the_names_of_the_document_are_read_as_they_are() -> None:
    given = {
        "hybrid": {
            "search_top_k": 3,
            "fusion_top_k": 7,
            "vector_weight": 0.5,
            "bm25_weight": 0.5,
        },
        "rerank": {"rerank_top_k": 5},
    }
    settings = qtm.Config.load(given, environ={}).settings
    assert (settings.hybrid.search_top_k, settings.hybrid.fusion_top_k) == (3, 7)
    assert (settings.hybrid.vector_weight, settings.hybrid.bm25_weight) == (0.5, 0.5)
    assert settings.rerank.rerank_top_k == 5


def many(count: int) -> Searches:
    """Two searches of which only that by vectors finds something: *count* passages."""
    return Searches({f"p{number:03}": 1 - number / count for number in range(count)}, {})


def test_a_call_without_a_number_gives_search_top_k_passages() -> None:
    assert len(hybrid(many(80))("Which learning?")) == 10
    assert len(hybrid(many(80), searchTopK=3)("Which learning?")) == 3
    assert len(hybrid(many(80), searchTopK=3)("Which learning?", 6)) == 6


def test_each_search_is_asked_for_fusion_top_k_candidates(searches: Searches) -> None:
    hybrid(searches)("Which learning?", 2)
    assert {count for _, count in searches.asked.values()} == {50}
    hybrid(searches, fusionTopK=7)("Which learning?", 2)
    assert {count for _, count in searches.asked.values()} == {7}


def test_vectors_get_the_question_and_words_get_its_keywords(searches: Searches) -> None:
    hybrid(searches)("What are Neural Networks?", 2)
    assert searches.asked["vectors"][0] == "What are Neural Networks?"
    assert searches.asked["words"][0] == qtm.preprocess("What are Neural Networks?")


def test_a_word_search_that_fails_leaves_the_passages_of_the_vectors(
    searches: Searches,
) -> None:
    def broken(query: str, top_k: int) -> Hits:
        raise OSError("down")

    assert ids(qtm.Hybrid(searches.by_vectors, broken)("Which learning?", 3)) == [
        "a",
        "b",
        "c",
    ]


def test_the_own_index_is_searched_by_words_only_if_the_config_says_so(
    articles: Path, tmp_path: Path
) -> None:
    # These vectors know nothing of the words, so that only the word search can find the pump.
    def flat(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 1.0 / (1 + ("garden" not in text))] for text in texts]

    base = {"indexPath": str(tmp_path / "index.sqlite"), "keywordEvidence": False}
    qtm.ingest(articles, config=base, embedder=flat)
    found = {}
    for enabled in (False, True):
        settings = {
            **base,
            "hybrid": {"enabled": enabled, "bm25Weight": 0.9, "vectorWeight": 0.1},
        }
        with qtm.QueryMiddleware(settings, embedder=flat) as middleware:
            found[enabled] = middleware.retriever("QX-77 bearing in a garden", 3)
    assert found[True][0]["metadata"]["source"].endswith("pump.txt")
    assert found[True][0]["bm25_score"] > 0
    assert not any(hit["metadata"]["source"].endswith("pump.txt") for hit in found[False])


class KeepingEmbedder:
    """Vectors of words; *texts* holds what was embedded."""

    name = "words"
    dimension = DIMENSION

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.texts.extend(texts)
        return embed(texts)


# --- chunks with their context --------------------------------------------------------------------


def test_each_chunk_gets_a_context_from_one_call_which_is_embedded_with_it(
    articles: Path, tmp_path: Path
) -> None:
    embedder = KeepingEmbedder()

    def describe(prompt: Prompt) -> Any:
        subject = "machinery of the mill" if "QX-77" in prompt.user else "a garden and its fruit"
        return {"context": f"This excerpt belongs to a report on the {subject}."}

    config = {"indexPath": str(tmp_path / "index.sqlite"), "contextualChunks": True}
    model = ScriptedModel(describe)
    report = qtm.ingest(articles, config=config, embedder=embedder, client=model)
    assert report.contexts == len(model.prompts) == 31
    assert {prompt.mode for prompt in model.prompts} == {"context"}
    text = "The pump QX-77 hums when its bearing is dry."
    context = "This excerpt belongs to a report on the machinery of the mill."
    assert f"{context}\n\n{text}" in embedder.texts

    with qtm.QueryMiddleware(config, embedder=embedder) as middleware:
        # Not one word of the question stands in the chunk itself.
        best = middleware.retriever("machinery mill", 1)[0]
    assert best["text"] == text
    assert best["metadata"]["context"] == context

    qtm.ingest(articles, config=config, embedder=embedder, client=model)
    assert len(model.prompts) == 31


def test_a_chunk_whose_context_fails_is_stored_without_one(articles: Path, tmp_path: Path) -> None:
    config = {"indexPath": str(tmp_path / "index.sqlite"), "contextualChunks": True}
    model = ScriptedModel(ModelError("unauthorized"))
    report = qtm.ingest(articles, config=config, embedder=embed, client=model)
    assert (report.contexts, report.contexts_failed) == (0, 31)
    with qtm.QueryMiddleware(config, embedder=embed) as middleware:
        best = middleware.retriever("pump QX-77 bearing", 1)[0]
    assert "QX-77" in best["text"]
    assert "context" not in best["metadata"]


# --- a cross-encoder ------------------------------------------------------------------------------


def rerank(searches: Searches, reranker: Any, top_k: int = 4, **settings: Any) -> qtm.Retrieval:
    config = {"rerank": {"enabled": True, **settings}, **PATIENT}
    search = qtm.QueryMiddleware(config, reranker=reranker).wrap(hybrid(searches))
    return search.retrieve("Which learning is it?", top_k)


def rank_backwards(question: str, texts: Sequence[str]) -> list[float]:
    """A scoring function of one's own, which likes the last one best."""
    return [float(place) for place, _ in enumerate(texts)]


def broken(question: str, texts: Sequence[str]) -> list[float]:
    raise OSError("no memory")


def test_a_scoring_function_of_ones_own_orders_the_fused_passages(searches: Searches) -> None:
    asked: list[tuple[str, int]] = []

    def score(question: str, texts: Sequence[str]) -> list[float]:
        asked.append((question, len(texts)))
        return [float("Supervised" in text) for text in texts]

    found = rerank(searches, score)
    assert asked == [("Which learning is it?", 4)]
    assert (found.matches[0].id, found.matches[0].rerank_score) == ("c", 1.0)
    assert found.status == "full"


class Encoder:
    """A cross-encoder of one's own."""

    name = "own"

    def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        return rank_backwards(query, texts)


@pytest.mark.parametrize("reranker", [rank_backwards, Encoder()], ids=["function", "object"])
@pytest.mark.parametrize(("settings", "count"), [({}, 20), ({"rerankTopK": 5}, 5)])
def test_only_rerank_top_k_candidates_are_scored(
    reranker: Any, settings: Mapping[str, Any], count: int
) -> None:
    found = rerank(many(60), reranker, 40, **settings)
    places = [*reversed(range(count)), *range(count, 40)]
    assert [match.id for match in found.matches] == [f"p{place:03}" for place in places]
    assert len(found.reranked) == count


def test_without_the_setting_no_reranker_is_asked(searches: Searches) -> None:
    found = rerank(searches, broken, enabled=False)
    assert (found.reranked, found.status) == ((), "full")


def test_a_reranker_that_fails_leaves_the_order_and_that_is_told(searches: Searches) -> None:
    plain = rerank(searches, broken, enabled=False)
    found = rerank(searches, broken)
    assert [match.id for match in found.matches] == [match.id for match in plain.matches]
    assert found.status == "degraded"
    assert [trouble.stage for trouble in found.degradations] == ["rerank"]


def test_a_model_by_name_without_its_package_is_told_with_the_command_that_installs_it(
    searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    found = rerank(searches, None, model="cross-encoder/ms-marco-MiniLM-L6-v2")
    assert found.matches
    assert found.status == "degraded"
    (trouble,) = found.degradations
    assert trouble.stage == "rerank"
    assert "pip install" in trouble.detail
    assert "models" in trouble.detail


# --- lists of queries -----------------------------------------------------------------------------


def rewriting(reply: Any = rewrite, **settings: Any) -> qtm.QueryMiddleware:
    config = {"transformationType": "rewrite", **PATIENT, **settings}
    return qtm.QueryMiddleware(config, client=ScriptedModel(reply))


def test_a_list_of_queries_is_rewritten_in_its_order_though_the_first_reply_comes_last() -> None:
    last_has_come = threading.Event()

    def reply(prompt: Prompt) -> Any:
        if prompt.query == QUERIES[0]:
            assert last_has_come.wait(60)
        if prompt.query == QUERIES[-1]:
            last_has_come.set()
        return rewrite(prompt)

    assert [it.rewrite for it in rewriting(reply).transform(list(QUERIES))] == list(REWRITTEN)


def test_a_query_whose_rewriting_fails_keeps_its_place_and_a_repeated_one_too() -> None:
    def reply(prompt: Prompt) -> Any:
        return ModelError("refused") if prompt.query == QUERIES[1] else rewrite(prompt)

    made = rewriting(reply).transform([*QUERIES, QUERIES[0]])
    assert [it.rewrite or "" for it in made] == [REWRITTEN[0], "", REWRITTEN[2], REWRITTEN[0]]
    assert made[1].notes


def test_a_list_of_queries_is_retrieved_each_by_its_own_question(searches: Searches) -> None:
    found = rewriting().wrap(hybrid(searches)).retrieve_many(list(QUERIES), top_k=2)
    assert [retrieval.original_query for retrieval in found] == list(QUERIES)
    for query, retrieval in zip(QUERIES, found, strict=True):
        assert [variant.text for variant in retrieval.variants] == [query, REWRITES[query]]
        assert retrieval.transformation.rewrite == REWRITES[query]
        assert len(retrieval.matches) == 2


def test_the_command_line_rewrites_several_queries_in_their_order(
    host: HTTPServer, tmp_path: Path
) -> None:
    def say(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return {"rewrite": next(REWRITES[query] for query in QUERIES if query in text)}

    server = ModelServer(host, say, path="/lists/v1")
    environment = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": server.url}
    ended = run_qtm("transform", "-t", "rewrite", *QUERIES, folder=tmp_path, **environment)
    assert ended.code == 0, ended.err
    places = [ended.out.index(text) for text in REWRITTEN]
    assert places == sorted(places)


# --- the query log --------------------------------------------------------------------------------


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def test_each_query_is_one_line_with_every_step_of_its_retrieval(
    searches: Searches, tmp_path: Path
) -> None:
    path = tmp_path / "rag_retrieve_log.jsonl"
    config = {"log": str(path), "rerank": True, **PATIENT}
    middleware = qtm.QueryMiddleware(config, reranker=rank_backwards)
    wrapped = middleware.wrap(hybrid(searches, vectorWeight=0.5, bm25Weight=0.5))
    found = wrapped.retrieve("Which learning is it?", 2)
    wrapped("And another one?", 2)
    first, second = read_log(path)
    assert first["queries"] == ["Which learning is it?"]
    assert second["queries"] == ["And another one?"]
    assert first["query_id"] != second["query_id"]
    assert datetime.fromisoformat(first["timestamp"])

    steps = first["retrieval_steps"]
    assert ids(steps["initial_vector"]) == ["a", "b", "c"]
    assert ids(steps["initial_bm25"]) == ["d", "c", "b"]
    assert sorted(ids(steps["fusion"])) == ["a", "b", "c", "d"]
    assert ids(steps["rerank"]) == [key[1] for key in found.reranked]
    assert ids(steps["final"]) == [match.id for match in found.matches]
    for step in ("initial_vector", "initial_bm25", "fusion", "rerank", "final"):
        for entry in steps[step]:
            assert entry["title"] == TITLES[entry["id"]], step
            assert entry["url"] == f"https://example.com/{entry['id']}", step
    assert [entry["score"] for entry in steps["initial_vector"]] == [0.9, 0.8, 0.7]
    assert [entry["score"] for entry in steps["initial_bm25"]] == [9.0, 6.0, 5.0]
    for step in ("fusion", "rerank"):
        scores = [entry["score"] for entry in steps[step]]
        assert scores == sorted(scores, reverse=True), step


def test_the_log_holds_the_question_and_how_it_was_rewritten(
    searches: Searches, tmp_path: Path
) -> None:
    path = tmp_path / "queries.jsonl"
    rewriting(log=str(path)).wrap(hybrid(searches)).retrieve_many(list(QUERIES), top_k=2)
    logged = {entry["queries"][0]: entry for entry in read_log(path)}
    assert set(logged) == set(QUERIES)
    for query, entry in logged.items():
        texts = {variant["kind"]: variant["text"] for variant in entry["variants"]}
        assert texts == {"original": query, "rewrite": REWRITES[query]}
        searched = [step["kind"] for step in entry["retrieval_steps"]["searches"]]
        assert searched == ["original", "rewrite"]


def test_nothing_is_logged_unless_a_file_is_named(
    searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    qtm.QueryMiddleware().wrap(hybrid(searches)).retrieve("Which learning?", 2)
    assert list(tmp_path.iterdir()) == []
