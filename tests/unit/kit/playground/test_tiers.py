"""What is asked of a function, in which order, and what is made of one that fails."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError
from qtmiddleware.kit.evaluation import Question
from qtmiddleware.kit.playground.asked import PageState
from qtmiddleware.kit.playground.tiers import TierAnswer, Tiers
from qtmiddleware.testing import ScriptedModel
from tests.support import playground_app as app
from tests.support.retrieval_world import QUERY, scripted


def put(
    fn: Any, question: str = QUERY, tiers: tuple[str, ...] = (), **options: Any
) -> list[TierAnswer]:
    """What every tier finds, in the order it comes."""

    async def ask() -> list[TierAnswer]:
        opened = Tiers(fn, **options)
        asked = PageState(question=question, tiers=("raw", *tiers) if tiers else opened.shown)
        return [answer async for answer in opened.ask_tiers(asked)]

    return asyncio.run(ask())


def test_the_plain_list_comes_first_and_what_asks_a_model_last() -> None:
    answers = put(app.search, has_own_tier=True)
    assert [answer.tier.name for answer in answers] == ["raw", "rules", "yours", "combined"]
    assert all(answer.retrieval is not None and answer.problem == "" for answer in answers)


def test_every_tier_of_the_documentation_can_be_asked() -> None:
    text = (Path(__file__).parents[4] / "docs/choose-a-tier.md").read_text(encoding="utf-8")
    named = {
        name
        for row in re.findall(r"^\| (`\w+`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    names = {
        name
        for tier in Tiers(app.search).all
        for name in (tier.name, *re.findall(r"preset (\w+)", tier.label))
    }
    assert {"off", "rules", "words", "balanced", "auto", "thorough", "rewrite", "hyde"} <= named
    assert named <= names


def test_tiers_that_no_reply_covers_are_not_asked() -> None:
    covered = Tiers(app.search, has_recorded_reply=lambda question, history: question == QUERY)
    asked = PageState(question="Who?", tiers=("raw", "combined"))
    assert set(covered.list_skipped_tiers(asked)) == {
        tier.name for tier in covered.all if tier.asks_model
    }
    assert [answer.tier.name for answer in put_asked(covered, asked)] == ["raw"]
    assert covered.list_skipped_tiers(PageState(question=QUERY)) == ()


def summarise(answers: list[TierAnswer]) -> list[Any]:
    """All of an answer that a reader sees, but for times."""
    found = []
    for answer in sorted(answers, key=lambda it: it.tier.name):
        assert answer.retrieval is not None
        places = [(match.id, match.fused_score) for match in answer.retrieval.matches]
        trace = answer.retrieval.trace
        found.append((answer.tier.name, places, trace.decision, trace.notes, trace.searches))
    return found


@pytest.mark.parametrize("searches", [False, True])
def test_the_same_link_gives_the_same_answer_whatever_was_asked_before(*, searches: bool) -> None:
    wrapped = qtm.QueryMiddleware(
        {"transformationType": "combined", "escalation": {"mode": "auto"}},
        client=ScriptedModel(scripted),
    ).wrap(app.plain)
    tiers = Tiers(wrapped, has_own_tier=True, should_cache_replies=False)
    tiers.warm_up((Question("1", "What does Jaco eat?"),), should_search_examples=searches)
    asked = PageState(question=QUERY, tiers=tiers.names)
    first = summarise(put_asked(tiers, asked))
    for question in ("Jaco", "What is a heart?", "Who walks the dog?", "vet", "Is there any food?"):
        put_asked(tiers, PageState(question=question, tiers=tiers.names))
    assert summarise(put_asked(tiers, asked)) == first


def test_what_the_examples_show_of_a_function_is_known_to_every_question() -> None:
    tiers = Tiers(app.search)
    asked = PageState(question=QUERY, tiers=("raw", "rules"))
    tiers.warm_up((Question("1", "What does Jaco eat?"),), should_search_examples=True)
    learned = tiers._learned
    assert learned.passage_chars > 0
    assert not learned.is_new
    put_asked(tiers, asked)
    assert tiers._learned.passage_chars == learned.passage_chars


def test_without_a_model_the_free_tiers_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "QTM_LLM_BASE_URL", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    tiers = Tiers(qtm.QueryMiddleware().wrap(app.plain))
    assert tiers.names == ("raw", "rules")
    assert not tiers.has_model


def test_a_model_that_is_down_degrades_its_own_tiers_alone() -> None:
    answers = {answer.tier.name: answer for answer in put(app.down)}
    plain = answers["raw"].retrieval
    assert plain is not None
    for name, answer in answers.items():
        assert answer.retrieval is not None
        assert answer.retrieval.status == ("degraded" if answer.tier.asks_model else "full"), name
        assert len(answer.retrieval.matches) == len(plain.matches)


def test_of_a_function_that_raises_the_kind_is_told_and_no_key() -> None:
    (answer,) = put(app.raising)
    assert answer.problem.startswith("raised ConnectionError: no route")
    assert "sk-proj" not in answer.problem


def test_a_function_that_hangs_is_waited_for_no_longer_than_a_tier_may_take() -> None:
    (answer,) = put(app.hanging, timeout_seconds=0.3)
    assert answer.problem == "did not answer within 0.3 seconds and was stopped"


def test_a_result_that_nobody_can_read_is_asked_for_once() -> None:
    with pytest.warns(qtm.SetupWarning):
        (answer,) = put(app.odd)
    assert answer.retrieval is not None
    assert [it.reason for it in answer.retrieval.degradations] == ["unreadable"]


def test_eight_thousand_characters_are_a_question_and_more_are_passed_on() -> None:
    for length, reasons in ((8_000, []), (8_001, ["too_long"])):
        for answer in put(
            qtm.QueryMiddleware().wrap(app.plain),
            "Jaco " * 1_599 + "Jaco!" + "!" * (length - 8_000),
            ("rules",),
        ):
            assert answer.retrieval is not None
            assert [it.reason for it in answer.retrieval.degradations] == reasons


def test_weights_are_laid_over_each_tier_for_this_question_alone() -> None:
    async def ask() -> list[list[TierAnswer]]:
        tiers = Tiers(app.search)
        plain = PageState(question=QUERY, tiers=("raw", "rewrite"))
        heavy = PageState(
            question=QUERY,
            tiers=("raw", "rewrite"),
            settings={"fusion.weights.rewrite": 2.5, "topK": 2},
        )
        return [
            [answer async for answer in tiers.ask_tiers(asked)] for asked in (plain, heavy, plain)
        ]

    weights, counts = [], []
    for answers in asyncio.run(ask()):
        retrieval = answers[-1].retrieval
        assert retrieval is not None
        weights.append(next(it.weight for it in retrieval.variants if it.kind == "rewrite"))
        counts.append(len(retrieval.matches))
    assert weights == [0.6, 2.5, 0.6]
    assert counts == [4, 2, 4]


def test_who_stops_listening_leaves_nothing_running() -> None:
    model = ScriptedModel(scripted, seconds=600)
    running: list[asyncio.Task[Any]] = []

    async def ask() -> None:
        asked = PageState(question=QUERY, tiers=("raw", "rewrite", "decompose"))
        patient = {"limits": {"llmTimeoutMs": 600_000, "deadlineMs": 600_000}}
        answers = Tiers(qtm.QueryMiddleware(patient, client=model).wrap(app.plain)).ask_tiers(asked)
        await anext(answers)
        waiting = asyncio.create_task(anext(answers))  # type: ignore[arg-type]
        while not model.prompts:
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await answers.aclose()
        running.extend(asyncio.all_tasks() - {asyncio.current_task()})  # type: ignore[arg-type]

    asyncio.run(ask())
    assert running == []


@pytest.mark.parametrize("name", ["raw", "rules", "combined", "decompose"])
def test_the_config_that_is_shown_gives_what_is_shown(name: str) -> None:
    tiers = Tiers(app.search)
    tier = next(it for it in tiers.all if it.name == name)
    asked = PageState(
        question=QUERY, tiers=("raw", name), settings={"keywordEvidence.weight": 0.7, "topK": 3}
    )
    config = tiers.build_config_values(tier, asked)
    (shown,) = [it.retrieval for it in put_asked(tiers, asked) if it.tier.name == name]
    found = (
        qtm.QueryMiddleware(config, client=ScriptedModel(scripted))
        .wrap(app.plain)
        .retrieve(QUERY, 3)
    )
    assert shown is not None
    assert [(it.id, it.fused_score) for it in found.matches] == [
        (it.id, it.fused_score) for it in shown.matches
    ]


def put_asked(tiers: Tiers, asked: PageState) -> list[TierAnswer]:
    async def ask() -> list[TierAnswer]:
        return [answer async for answer in tiers.ask_tiers(asked)]

    return asyncio.run(ask())


def test_what_is_tried_stands_in_no_query_log(tmp_path: Any) -> None:
    path = tmp_path / "queries.jsonl"
    wrapped = qtm.QueryMiddleware({"log": {"path": str(path)}}).wrap(app.plain)
    put(wrapped, tiers=("rules",))
    assert not path.exists() or path.read_text() == ""


def test_settings_that_are_none_are_an_error() -> None:
    with pytest.raises(ConfigError):
        put_asked(
            Tiers(app.search),
            PageState(question=QUERY, tiers=("raw",), settings={"fusion.method": "best"}),
        )
