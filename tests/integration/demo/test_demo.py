"""The comparison that ships with the project, measured on its own text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from qtmiddleware.kit.demo import load_dataset, load_recorded_model
from qtmiddleware.kit.evaluation import Comparison
from qtmiddleware.kit.evaluation.bench import open_index
from qtmiddleware.kit.evaluation.compare import measure
from qtmiddleware.kit.evaluation.measures import TOP_K
from qtmiddleware.kit.evaluation.systems import USUAL, chosen, index_system
from qtmiddleware.providers.embedding import CallableEmbedder
from tests.support.command_line import Ended, qtm

__all__ = ["qtm"]
pytestmark = pytest.mark.thorough


ASSERTED = ("rules", "rewrite", "all", "balanced", "auto")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory, embedder: CallableEmbedder) -> Comparison:
    data = load_dataset()
    with open_index(data, tmp_path_factory.mktemp("demo"), embedder) as store:
        system = index_system(store, embedder, load_recorded_model(), top_k=TOP_K)
        return measure(system.with_each(chosen(ASSERTED)), data)


def test_no_default_does_worse_than_the_plain_search(comparison: Comparison) -> None:
    plain = comparison["off"].means["nDCG@10"]
    for name in ("rules", "balanced", "auto", "all"):
        assert comparison[name].means["nDCG@10"] > plain, name
    balanced = comparison["balanced"]
    assert balanced.helped_rate > 5 * balanced.hurt_rate
    assert 0 < comparison["auto"].llm_calls < balanced.llm_calls <= comparison.questions
    # The recorded rewrite of q21 speaks of "not at home" no more, where the question says "nobody".
    degraded = {score.name: score.degraded for score in comparison.systems if score.degraded}
    assert degraded == {"rewrite": 1}


def test_the_command_compares_every_system_on_a_plain_terminal(qtm: Callable[..., Ended]) -> None:
    ended = qtm("demo", "--questions", "6", "--json")
    assert "Replaying recorded replies" in ended.err
    found = json.loads(ended.out)
    assert (found["dataset"], found["questions"], found["baseline"]) == ("demo", 6, "off")
    calls = {system["name"]: system["llmCalls"] for system in found["systems"]}
    costs = {system["name"]: system["costUsd"] for system in found["systems"]}
    assert costs["rules"] == 0 < costs["balanced"]
    assert list(calls) == list(USUAL)
    assert (calls["off"], calls["rules"], calls["balanced"], calls["all"]) == (0, 0, 6, 18)
    ended = qtm("demo", "--questions", "2", COLUMNS="80")
    table = ended.out.partition("\n\n")[2].partition("\n\n")[0]
    assert [line.partition("  ")[0] for line in table.splitlines()[-len(USUAL) :]] == list(USUAL)
    assert max(map(len, table.splitlines())) <= 80
    assert "Step by step" in ended.out
