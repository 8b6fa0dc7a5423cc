"""What is asked of a function, in which order, and what is made of one that fails."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.kit.evaluation import Question, SystemAnswer
from qtmiddleware.kit.playground.state import PageState
from qtmiddleware.kit.playground.tiers import Tiers
from qtmiddleware.testing import ScriptedModel
from tests.support import playground_app as app
from tests.support.retrieval_world import QUERY, scripted
from tests.support.waiting import PATIENCE


def ask(fn: Any, *names: str, question: str = QUERY) -> dict[str, SystemAnswer]:
    """The results of the tiers in *names* (default: those that are shown) by name."""
    tiers = fn if isinstance(fn, Tiers) else Tiers(fn)
    state = PageState(question=question, tiers=names or tiers.shown)
    return {answer.system: answer for answer in asyncio.run(tiers.ask(state)).systems}


def test_every_tier_of_the_documentation_can_be_asked() -> None:
    assert list(ask(Tiers(app.search, has_own_tier=True))) == ["off", "rules", "balanced", "yours"]
    text = (Path(__file__).parents[4] / "docs/choose-a-tier.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`.*?) \|", text, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    tiers = Tiers(app.search).all.values()
    presets = {name for tier in tiers for name in re.findall(r"preset (\w+)", tier.label)}
    names = presets | {tier.name for tier in tiers}
    assert {"off", "rules", "words", "balanced", "auto", "thorough", "hyde"} <= documented <= names


@pytest.mark.parametrize("examples", [(), (Question("1", "What does Jaco eat?"),)])
def test_the_same_question_gives_the_same_result_whatever_was_asked_before(
    examples: tuple[Question, ...], tmp_path: Path
) -> None:
    log = {"path": str(tmp_path / "queries.jsonl")}
    config = {"transformationType": "combined", "escalation": {"mode": "auto"}, "log": log}
    wrapped = qtm.QueryMiddleware(config, client=ScriptedModel(scripted)).wrap(app.plain)
    tiers = Tiers(wrapped, has_own_tier=True)
    tiers.warm_up(examples)

    def summarise() -> list[Any]:
        found = [answer.retrieval for answer in ask(tiers, *tiers.all).values()]
        return [
            ([(match.id, match.fused_score) for match in it.matches], it.trace.notes, it.confidence)
            for it in found
            if it
        ]

    first = summarise()
    for question in ("Jaco", "What is a heart?", "Who walks the dog?", "Is there any food?"):
        ask(tiers, *tiers.all, question=question)
    assert summarise() == first
    assert len(first) == len(tiers.all)
    # What is tried is in no query log.
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (app.raising, "no route to"),
        (app.hanging, "no answer within 0.3 seconds"),
        (app.odd, "None"),
    ],
)
@pytest.mark.filterwarnings("ignore::qtmiddleware.SetupWarning")
def test_a_function_that_fails_is_asked_once(fn: Any, error: str) -> None:
    answers = ask(Tiers(fn, timeout_seconds=0.3 if fn is app.hanging else PATIENCE))
    assert list(answers) == ["off"]
    assert str(answers["off"].error).startswith(error)


@pytest.mark.parametrize("name", ["off", "rules", "balanced", "decompose"])
def test_the_config_of_a_tier_gives_its_result(name: str) -> None:
    tiers = Tiers(app.search)
    model = ScriptedModel(scripted)
    middleware = qtm.QueryMiddleware(tiers.build_config(name), client=model)
    found = middleware.wrap(app.plain).retrieve(QUERY)
    shown = ask(tiers, "off", name)[name].matches
    assert [(it.id, it.fused_score) for it in found.matches] == [
        (it.id, it.fused_score) for it in shown
    ]
