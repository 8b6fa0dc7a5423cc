"""Every scenario is written once as data and performed blocking, awaiting, and in threads of a running loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from qtmiddleware.errors import ModelError
from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    QUERY,
    WAYS,
    account,
    ids,
    kinds,
    reasons,
    scripted,
    search,
    transforming,
)


class Unlucky(Exception):
    """What a search raises that fails."""


@dataclass(frozen=True)
class Scenario:
    """One retrieval, what it costs and what comes of it; *fails* are words that make a search fail."""

    name: str
    config: Mapping[str, Any]
    kinds: tuple[str, ...]
    query: str = QUERY
    history: tuple[Mapping[str, str], ...] = ()
    script: Any = scripted
    fails: tuple[str, ...] = ()
    llm_calls: int = 1
    reasons: tuple[tuple[str, str], ...] = ()
    first: str = "health"


VARIANTS = ("rewrite", "hyde", "sub_query", "sub_query", "step_back")
DOWN = ModelError("unavailable")


def thorough(**settings: Any) -> dict[str, Any]:
    """Every variant of ``combined`` is searched."""
    return transforming("combined", limits={"maxSearches": 6}, **settings)


SCENARIOS = (
    Scenario("rules as text", {"preprocess": {"applyTo": "text"}}, ("original",), llm_calls=0),
    Scenario("step-back", transforming("stepback"), ("original", "step_back")),
    Scenario(
        "paraphrases",
        transforming("multi_query"),
        ("original", "paraphrase", "paraphrase", "paraphrase"),
    ),
    Scenario("keywords", transforming("keywords"), ("original",)),
    Scenario("thorough", thorough(), ("original", *VARIANTS)),
    Scenario(
        "follow-up",
        transforming("rewrite"),
        ("original", "standalone", "rewrite"),
        FOLLOW_UP,
        HISTORY,
        {"standalone": "What does Jaco eat?", "rewrite": "Which dry food does Jaco eat in a day?"},
        first="food",
    ),
    *(
        Scenario(
            f"fused by {method}",
            thorough(fusion={"method": method}),
            ("original", *VARIANTS),
        )
        for method in ("rrf", "max", "concat")
    ),
    Scenario(
        "without the original",
        transforming("rewrite", fusion={"weights": {"original": 0}}),
        ("original", "rewrite"),
        first="illness",
    ),
    Scenario(
        "all with the model down",
        transforming("all"),
        ("original",),
        script=DOWN,
        llm_calls=3,
        reasons=tuple(
            (f"transform.{mode}", "unavailable") for mode in ("rewrite", "stepback", "decompose")
        ),
    ),
    Scenario(
        "model is buggy",
        transforming("rewrite"),
        ("original",),
        script=RuntimeError("oops"),
        reasons=(("transform.rewrite", "unavailable"),),
    ),
    Scenario(
        "one search fails",
        thorough(),
        ("original", *VARIANTS),
        fails=("hips",),
        reasons=(("search.hyde", "failed"),),
    ),
    Scenario(
        "too few succeed",
        transforming("decompose"),
        ("original", "sub_query", "sub_query"),
        fails=("illness",),
        reasons=(("search.sub_query", "failed"), ("search", "too_few_successes")),
    ),
    Scenario(
        "auto does not ask",
        transforming("rewrite", escalation={"mode": "auto", "targetCallRate": 0.0}),
        ("original",),
        llm_calls=0,
    ),
    Scenario(
        "small talk",
        transforming("combined"),
        ("original",),
        "Thank you!",
        llm_calls=0,
        first="adoption",
    ),
    Scenario(
        "one at a time",
        transforming("all", limits={"maxConcurrency": 1}),
        ("original", "rewrite", "sub_query", "sub_query", "step_back"),
        llm_calls=3,
    ),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.name)
def test_every_way_of_asking_gives_the_same_retrieval(scenario: Scenario) -> None:
    def respond(query: str, top_k: int) -> list[dict[str, Any]]:
        if any(word in query for word in scenario.fails):
            raise Unlucky
        return search(query, top_k)

    told = []
    for way in WAYS:
        searched = way.wrap(respond, config=scenario.config, script=scenario.script)
        retrieval = searched.retrieve(scenario.query, top_k=3, history=scenario.history)
        assert tuple(kinds(retrieval)) == scenario.kinds
        assert tuple(reasons(retrieval)) == scenario.reasons
        assert retrieval.status == ("degraded" if scenario.reasons else "full")
        assert ids(retrieval)[0] == scenario.first
        assert retrieval.response == [match.raw for match in retrieval.matches]
        assert len(searched.model.prompts) == retrieval.trace.llm_calls == scenario.llm_calls
        # A new function may refuse as many passages as it is asked for: a variant that fails is
        # tried once more.
        tried_again = sum(
            stage == f"search.{kind}"
            for stage, _ in scenario.reasons
            for kind in set(scenario.kinds)
        )
        assert len(searched.calls) == retrieval.trace.searches == len(scenario.kinds) + tried_again
        told.append((account(retrieval), sorted(searched.calls)))
    assert told[0] == told[1] == told[2]
