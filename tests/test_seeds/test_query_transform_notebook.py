"""Seed 001: a notebook that transforms queries by a model's plain text, over vectors in a list, and judges the answers.

The notebook's own retrieval is written out again here, with numpy, and has to find the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from pytest_httpserver import HTTPServer

import qtmiddleware as qtm
from qtmiddleware.testing import ScriptedModel
from tests.support.command_line import Ended
from tests.support.model_server import failure
from tests.support.pdf_files import content, pdf
from tests.test_seeds.world import (
    PATIENT,
    Asked,
    Script,
    Service,
    cosine,
    embed,
    run_qtm,
    vector_of,
)

LLAMA: Final = "meta-llama/Llama-3.2-3B-Instruct"
BGE: Final = "BAAI/bge-en-icl"
QUESTION: Final = "What are the impacts of AI on job automation and employment?"
REWRITE: Final = (
    "What are the impacts of AI on employment, and which repetitive office work disappears?"
)
STEP_BACK: Final = "How do AI and automation change employment?"
SUB_QUERIES: Final = (
    "Which repetitive office work disappears before other work through AI?",
    "Which retraining courses open new careers as AI automates jobs?",
)

FACTS: Final = (
    "The impacts of AI on job automation and employment are debated by economists.",
    "AI had impacts on job automation and employment in banks and law firms.",
    "Repetitive office work disappears before skilled manual work does.",
    "Retraining courses open new careers to clerks within two years.",
    "Auditors of models are an occupation that nobody knew before.",
    "Coal was the fuel of the first factories in Manchester.",
    "The bakery opens at seven and closes at noon.",
)
ROWS: Final = [
    {"text": text, "metadata": {"index": at, "source": "AI.pdf"}} for at, text in enumerate(FACTS)
]


# What the notebook's model writes: plain text.
def numbered(queries: Sequence[str]) -> str:
    return "".join(f"{at}. {text}\n" for at, text in enumerate(queries, start=1))


NUMBERED: Final = numbered(SUB_QUERIES)
PLAIN: Final = {"rewrite": REWRITE, "stepback": STEP_BACK, "decompose": NUMBERED}


class PlainStore:
    """The notebook's store: vectors in a list, the nearest by cosine."""

    def __init__(self) -> None:
        self.vectors = [np.array(vector) for vector in embed(FACTS)]

    def similarity_search(self, query_embedding: Any, k: int = 5) -> list[dict[str, Any]]:
        asked = np.array(query_embedding)
        found = []
        for row, vector in zip(ROWS, self.vectors, strict=True):
            similarity = asked @ vector / (np.linalg.norm(asked) * np.linalg.norm(vector))
            found.append({**row, "similarity": float(similarity)})
        return sorted(found, key=lambda hit: -hit["similarity"])[:k]

    def search(self, query: str, top_k: int = 3) -> list[dict[str, Any]]:
        return self.similarity_search(vector_of(query), top_k)


def transformed_search(
    kind: str, top_k: int, sub_queries: Sequence[str] = SUB_QUERIES
) -> list[dict[str, Any]]:
    """The notebook's search: the transformed query in place of the question; two passages for each sub-query."""
    store = PlainStore()
    if kind == "none":
        return store.search(QUESTION, top_k)
    if kind != "decompose":
        return store.search(PLAIN[kind], top_k)
    best: dict[str, dict[str, Any]] = {}
    for hit in chain.from_iterable(store.search(query, 2) for query in sub_queries):
        kept = best.get(hit["text"])
        if kept is None or hit["similarity"] > kept["similarity"]:
            best[hit["text"]] = hit
    return sorted(best.values(), key=lambda hit: -hit["similarity"])[:top_k]


def parity() -> dict[str, Any]:
    """The settings under which the notebook's results come back."""
    return {
        "preprocess": False,
        "keywordEvidence": False,
        "llm": {"guard": False, "subQueryStyle": "aspects"},
        "fusion": {
            "method": "max",
            "weights": {"original": 0},
            "minSuccesses": 1,
            "subQueryTopK": 2,
        },
    }


def wrap(kind: str, reply: Any, **changed: Any) -> Any:
    """The notebook's store behind a middleware that transforms by *kind*."""
    client = ScriptedModel(reply) if isinstance(reply, str | dict) else reply
    config = {"transformationType": kind, **PATIENT, **changed}
    return qtm.QueryMiddleware(config, client=client).wrap(PlainStore().search)


# Plain-text replies


LABELLED: Final = {
    "rewrite": [
        f"  {REWRITE}\n",
        f"Rewritten query:\n{REWRITE}",
        f"**Rewritten query:** {REWRITE}",
        f'Rewritten Query: "{REWRITE}"',
        f"Sure! Here is the rewritten query:\n\n{REWRITE}",
    ],
    "stepback": [f"Step-back query: {STEP_BACK}", f"**Step-back query:**\n{STEP_BACK}"],
    "decompose": [
        opening + "\n".join(mark.format(at) + it for at, it in enumerate(SUB_QUERIES, 1)) + closing
        for mark in ("{}. ", "{}) ", "- ", "* ", "**{}.** ", "**Sub-query {}:** ", "\n  {}. ")
        for opening, closing in [("", ""), ("Here they are:\n\n", "\n\nI hope this helps!")]
    ],
}


@pytest.mark.parametrize("kind", LABELLED)
def test_plain_text_is_as_good_as_json_however_it_is_labelled(kind: str) -> None:
    as_json = {"rewrite": REWRITE, "step_back": STEP_BACK, "sub_queries": list(SUB_QUERIES)}
    expected = wrap(kind, as_json).retrieve(QUESTION)
    for reply in (PLAIN[kind], *LABELLED[kind]):
        found = wrap(kind, reply).retrieve(QUESTION)
        assert found.transformation == expected.transformation, reply
        assert (found.response, found.status) == (expected.response, "full")


# What is sent


def asked_for(host: HTTPServer, kind: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one request that a transformation of *kind* sends."""
    path = f"/notebook/{kind}/{len(json.dumps(config))}/v1"
    service = Service(host, path, Script((), PLAIN[kind]))
    config = {**config, "transformationType": kind}
    qtm.QueryMiddleware(config, client=service.client()).transform(QUESTION)
    (asked,) = service.completions
    return asked.body


def test_each_transformation_is_asked_for_at_its_own_temperature(host: HTTPServer) -> None:
    temperatures = {"rewrite": 0.0, "stepback": 0.1, "decompose": 0.2}
    config = {"transformationModel": LLAMA, "llm": {"temperatures": temperatures}}
    for kind, temperature in temperatures.items():
        assert asked_for(host, kind, config)["temperature"] == temperature


def test_each_transformation_may_have_a_system_prompt_of_ones_own(host: HTTPServer) -> None:
    own = {
        "rewrite": "Say it in full.",
        "stepback": "Ask more broadly.",
        "decompose": "Cut it up.",
    }
    for kind, prompt in own.items():
        system, user = asked_for(host, kind, {"llm": {"prompts": own}})["messages"]
        assert (system["role"], user["role"]) == ("system", "user")
        assert system["content"].startswith(prompt)
        assert (QUESTION in user["content"], QUESTION in system["content"]) == (True, False)


def test_a_call_may_name_its_own_model(host: HTTPServer) -> None:
    service = Service(host, "/notebook/models/v1", Script((), PLAIN["rewrite"]))
    search = wrap("rewrite", service.client())
    for model in (LLAMA, "another/model"):
        search.retrieve(QUESTION, config={"transformationModel": model})
    assert [it.body["model"] for it in service.completions] == [LLAMA, "another/model"]


def test_another_service_is_named_by_its_base_url(
    host: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(host, "/nebius/v1", Script((), PLAIN["rewrite"]))
    monkeypatch.setenv("OPENAI_API_KEY", "the-key")
    config = {"transformationType": "rewrite", "llm": {"baseUrl": service.url}, **PATIENT}
    with qtm.QueryMiddleware({**config, "transformationModel": LLAMA}) as middleware:
        assert middleware.transform(QUESTION).rewrite == REWRITE
    (asked,) = service.completions
    assert asked.body["model"] == LLAMA
    assert service.keys == ["Bearer the-key"]


def test_a_service_without_structured_replies_is_asked_for_text(host: HTTPServer) -> None:
    def reply(asked: Asked) -> Any:
        return failure(400, "response_format") if "response_format" in asked.body else NUMBERED

    service = Service(host, "/notebook/plain/v1", Script((), reply))
    found = wrap("decompose", service.client()).retrieve(QUESTION)
    assert tuple(found.transformation.sub_queries) == SUB_QUERIES
    assert found.status == "full"


def test_the_command_line_prints_the_three_forms_of_a_query(
    host: HTTPServer, tmp_path: Path, one_authority: str | None
) -> None:
    def reply(asked: Asked) -> str:
        fields = asked.body["response_format"]["json_schema"]["schema"]["properties"]
        by_field = {"sub_queries": NUMBERED, "rewrite": REWRITE, "step_back": STEP_BACK}
        return next(text for name, text in by_field.items() if name in fields)

    service = Service(host, "/notebook/printed/v1", Script((), reply))
    environment = {"QTM_LLM_BASE_URL": service.url, "SSL_CERT_FILE": one_authority or ""}
    ended = run_qtm("transform", "--type", "all", QUESTION, folder=tmp_path, **environment)
    assert ended.code == 0, ended.err
    assert all(text in ended.out for text in (REWRITE, STEP_BACK, *SUB_QUERIES))


# Retrieval


@pytest.mark.parametrize("kind", ["none", "rewrite", "stepback", "decompose"])
@pytest.mark.parametrize("top_k", [1, 3])
def test_the_notebooks_retrieval_gives_the_same_passages_and_scores(kind: str, top_k: int) -> None:
    search = wrap(kind, PLAIN.get(kind, ""), **parity())
    assert search(QUESTION, top_k=top_k) == transformed_search(kind, top_k)


@pytest.mark.parametrize(
    "sub_queries",
    [
        # Both find one passage, the second one with the better score.
        (
            "AI in banks and law firms",
            "What impacts had AI on job automation and employment in banks?",
            "When does the bakery open and close?",
        ),
        # The third passage of the first one is better than all of the second one's.
        (
            "Impacts of AI on job automation and employment; retraining courses open new careers to clerks",
            "When does the bakery open and close?",
        ),
    ],
)
def test_two_passages_for_each_sub_query_and_the_best_score_of_each_decide(
    sub_queries: Sequence[str],
) -> None:
    search = wrap("decompose", numbered(sub_queries), **parity())
    assert search(QUESTION, top_k=3) == transformed_search("decompose", 3, sub_queries)


@pytest.mark.parametrize("kind", ["none", "rewrite", "stepback", "decompose"])
def test_the_preset_seed_parity_is_these_settings(kind: str) -> None:
    middleware = qtm.QueryMiddleware("seed-parity", client=ScriptedModel(PLAIN.get(kind, "")))
    found = middleware.wrap(PlainStore().search).retrieve(
        QUESTION,
        top_k=3,
        config={"transformationType": kind, "fusion": {"subQueryTopK": 2}, **PATIENT},
    )
    assert found.response == transformed_search(kind, 3)


@pytest.mark.parametrize("kind", ["decompose", "combined"])
def test_the_aspects_of_a_broad_question_are_asked_for_and_all_searched(
    kind: str, host: HTTPServer
) -> None:
    service = Service(
        host, f"/notebook/aspects/{kind}/v1", Script((), {"sub_queries": SUB_QUERIES})
    )
    found = wrap(kind, service.client(), llm={"subQueryStyle": "aspects"}).retrieve(QUESTION)
    assert [it.text for it in found.variants if it.kind == "sub_query"] == list(SUB_QUERIES)
    (asked,) = service.completions
    assert "aspect" in asked.text
    assert "asks for one thing" not in asked.text


@pytest.mark.parametrize("name", ["stepback", "step_back", "step-back"])
def test_step_back_may_be_written_as_the_notebook_writes_it(name: str) -> None:
    found = wrap(name, STEP_BACK, **parity())(QUESTION, top_k=3)
    assert found == transformed_search("stepback", 3)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_each_sub_query_brings_as_many_passages_as_sub_query_top_k_says(most: int) -> None:
    settings = parity()
    settings["fusion"]["subQueryTopK"] = most
    found = wrap("decompose", NUMBERED, **settings).retrieve(QUESTION, top_k=3)
    lists = [it.keys for it in found.rankings if it.variant.kind == "sub_query"]
    assert [len(keys) for keys in lists] == [most, most]


def test_a_passage_found_twice_keeps_its_best_score() -> None:
    twice = [FACTS[2], f"{FACTS[2]} {FACTS[3]}"]
    found = wrap("decompose", numbered(twice), **parity())(QUESTION, top_k=3)
    assert [hit["text"] for hit in found].count(FACTS[2]) == 1
    assert found[0]["text"] == FACTS[2]
    assert found[0]["similarity"] == pytest.approx(1.0)


def test_results_carry_text_metadata_and_similarity_in_the_functions_own_shape() -> None:
    found = wrap("rewrite", REWRITE, **parity()).retrieve(QUESTION)
    assert [set(hit) for hit in found.response] == [{"text", "metadata", "similarity"}] * 3
    for hit, match in zip(found.response, found.matches, strict=True):
        assert (match.text, match.metadata) == (hit["text"], hit["metadata"])
        assert match.fused_score == pytest.approx(hit["similarity"])


@pytest.mark.parametrize("kind", PLAIN)
def test_an_empty_store_gives_an_empty_list_and_no_answer_is_made_up(kind: str) -> None:
    config = {"transformationType": kind, **PATIENT}
    middleware = qtm.QueryMiddleware(config, client=ScriptedModel(PLAIN[kind]))
    search = middleware.wrap(lambda query, top_k=3: [])
    assert search(QUESTION) == []
    given = search.answer(QUESTION)
    assert (given.found, PLAIN[kind] in given.text) == (False, False)


def embed_one(text: str) -> list[float]:
    assert isinstance(text, str)
    return vector_of(text)


@pytest.mark.parametrize("options", [{"embed": embed_one}, {"embed_many": embed}])
def test_texts_are_embedded_by_a_function_of_one_text_or_of_a_list(
    options: dict[str, Any],
) -> None:
    config = {"transformationType": "decompose", **parity()}
    middleware = qtm.QueryMiddleware(config, client=ScriptedModel(NUMBERED))
    search = middleware.wrap(PlainStore().similarity_search, **options)
    found = search(QUESTION, k=3)
    expected = transformed_search("decompose", 3)
    assert [hit["text"] for hit in found] == [hit["text"] for hit in expected]
    assert [hit["similarity"] for hit in found] == pytest.approx(
        [hit["similarity"] for hit in expected]
    )


# A PDF, its chunks and answers from them


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the notebook's files: a PDF of three pages, the questions and a config."""
    folder = tmp_path_factory.mktemp("notebook")
    pages = [FACTS[:3], FACTS[3:5], FACTS[5:]]
    (folder / "data").mkdir()
    (folder / "data" / "AI.pdf").write_bytes(pdf([content(*page) for page in pages]))
    entries = [{"question": QUESTION, "ideal_answer": IDEAL}, {"question": UNJUDGED}]
    (folder / "val.json").write_text(json.dumps(entries, indent=2), encoding="utf-8")
    config = {
        "topK": 4,
        "chunkSize": 90,
        "chunkOverlap": 0,
        "embeddingModel": f"openai/{BGE}",
        "dataPath": str(folder / "data"),
        "indexPath": str(folder / "index.sqlite"),
    }
    (folder / "mine.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


UNJUDGED: Final = "Which courses open new careers?"
IDEAL: Final = "Routine tasks go first, and training helps people to change their work."
SHORT: Final = "AI changes work [1]."


def answer(asked: Asked) -> str:
    """An answer out of the passages that matter, as far as they are there."""
    return " ".join([SHORT, *(f"{fact} [2]." for fact in FACTS[2:4] if fact in asked.text)])


@pytest.fixture(scope="module")
def service(host: HTTPServer, folder: Path) -> Iterator[Service]:
    """A service of models, with an index of the PDF by its vectors."""
    replies = {"rewrite": REWRITE, "step_back": STEP_BACK, "sub_queries": SUB_QUERIES}
    service = Service(host, "/judged/v1", Script(FACTS, replies, answer, IDEAL))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.environment().items():
            patch.setenv(name, value)
        qtm.ingest(config=folder / "mine.json")
    yield service
    service.released.set()


@pytest.fixture
def middleware(
    service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[qtm.QueryMiddleware]:
    """The index of the PDF, with the service as its model."""
    for name, value in service.environment().items():
        monkeypatch.setenv(name, value)
    with qtm.QueryMiddleware(folder / "mine.json") as middleware:
        yield middleware


def test_a_pdf_becomes_passages_that_name_their_source_and_page(
    middleware: qtm.QueryMiddleware,
) -> None:
    matches = middleware.retriever.retrieve(FACTS[3], top_k=50).matches
    assert {match.metadata["source"] for match in matches} == {"AI.pdf"}
    pages = {
        fact: match.metadata["page"]
        for match in matches
        for fact in FACTS
        if fact in str(match.text)
    }
    assert [pages[FACTS[at]] for at in (0, 3, 5)] == [1, 2, 3]
    assert sorted(match.metadata["chunk"] for match in matches) == list(range(len(matches)))


def test_the_embedding_model_of_the_service_makes_the_vectors(service: Service) -> None:
    assert {body["model"] for body in service.embedded} == {BGE}


def test_the_built_in_stores_scores_are_cosines(middleware: qtm.QueryMiddleware) -> None:
    found = middleware.retriever.retrieve(QUESTION, top_k=3)
    for match in found.matches:
        expected = cosine(vector_of(QUESTION), vector_of(str(match.text)))
        assert match.score == pytest.approx(expected, abs=1e-5)


def test_an_answer_tells_question_transformation_context_and_response(
    middleware: qtm.QueryMiddleware, service: Service
) -> None:
    given = middleware.retriever.answer(
        QUESTION, config={"transformationType": "rewrite", **PATIENT}
    )
    assert given.text == f"{SHORT} {FACTS[2]} [2]."
    assert (given.retrieval.original_query, given.transformation_type) == (QUESTION, "rewrite")
    assert given.context.startswith("PASSAGE 1:\n")
    assert all(match.text.strip() in given.context for match in given.matches if match.text)
    asked = service.of_kind("answer")[-1]
    assert asked.body["temperature"] == 0
    assert QUESTION in asked.text


# Answers compared

CRITERIA: Final = ("accuracy", "completeness", "relevance")
SYSTEMS: Final = ("off", "rewrite", "stepback", "decompose")


def compare(folder: Path, service: Service, authority: str | None, *arguments: str) -> Ended:
    environment = service.environment(SSL_CERT_FILE=authority or "")
    systems = ("--systems", ",".join(SYSTEMS), "--config", "mine.json")
    return run_qtm("compare", *arguments, *systems, folder=folder, **environment)


@pytest.fixture(scope="module")
def compared(folder: Path, service: Service, one_authority: str | None) -> list[dict[str, Any]]:
    """The questions of the notebook's file, compared and read as JSON; the second one has no ideal answer."""
    ended = compare(folder, service, one_authority, "--questions", "val.json", "--json")
    assert ended.code == 0, ended.err
    return list(json.loads(ended.out)["questions"])


@pytest.fixture
def judged(compared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return compared[0]


def verdicts_of(judged: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {verdict["system"]: verdict for verdict in judged["ranking"]["ranking"]}


def test_every_technique_answers_side_by_side(judged: Mapping[str, Any]) -> None:
    assert (judged["question"], judged["reference"]) == (QUESTION, IDEAL)
    answers = {row["system"]: row["answer"] for row in judged["systems"]}
    assert answers == {
        "off": SHORT,
        "rewrite": f"{SHORT} {FACTS[2]} [2].",
        "stepback": SHORT,
        "decompose": f"{SHORT} {FACTS[2]} [2]. {FACTS[3]} [2].",
    }


def test_each_answer_has_a_rank_scores_from_1_to_10_strengths_and_weaknesses(
    judged: Mapping[str, Any],
) -> None:
    verdicts = verdicts_of(judged)
    for name, (rank, score) in {
        "decompose": (1, 10),
        "rewrite": (2, 7),
        "off": (3, 4),
    }.items():
        assert verdicts[name]["rank"] == rank
        assert verdicts[name]["scores"] == dict.fromkeys(CRITERIA, score)
    assert verdicts["stepback"]["rank"] == 3
    assert set(verdicts["decompose"]["strengths"]) == {"right on 3 points"}
    assert set(verdicts["off"]["weaknesses"]) == {"leaves out 2 points"}
    # Each with what the letters stand for, once in each order.
    assert len(judged["ranking"]["reasons"]) == 2
    for reason in judged["ranking"]["reasons"]:
        assert reason.startswith("It names most causes. (")
        assert "is decompose" in reason


def test_one_question_with_its_reference_is_judged_for_people_to_read(
    folder: Path, service: Service, one_authority: str | None
) -> None:
    ended = compare(folder, service, one_authority, QUESTION, "--reference", IDEAL)
    assert ended.code == 0, ended.err
    for told in (
        "accuracy 10",
        "right on 3 points",
        "leaves out 2 points",
        "It names most causes.",
    ):
        assert told in ended.out
    assert "decompose > rewrite > off = stepback" in ended.out
    assert f"{SHORT} {FACTS[2]} [2]. {FACTS[3]} [2]." in ended.out


def test_without_an_ideal_answer_nobody_judges(
    compared: Sequence[dict[str, Any]], service: Service
) -> None:
    assert compared[1]["question"] == UNJUDGED
    assert compared[1]["reference"] is None
    assert compared[1]["ranking"] is None
    assert len(compared[1]["systems"]) == len(SYSTEMS)
    assert not any(UNJUDGED in asked.text for asked in service.of_kind("judgement"))
