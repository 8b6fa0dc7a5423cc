from __future__ import annotations

from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ConfigError, ModelError
from qtmiddleware.kit.evaluation import Run, run_of
from qtmiddleware.protocols import Prompt, Reply
from qtmiddleware.testing import ScriptedModel
from qtmiddleware.types import Deadline, Retrieval
from tests.support.retrieval_world import QUERY, scripted, search


class Accounted(ScriptedModel):
    """Replies that say what they cost and how long they once took."""

    def complete(self, prompt: Prompt, deadline: Deadline) -> Reply:
        return Reply(super().complete(prompt, deadline).text, 100, 20, 2, 0.5, seconds=3.0)


def retrieved(transformation: str, model: Any, fn: Any = search) -> Retrieval:
    middleware = qtm.QueryMiddleware({"transformationType": transformation}, client=model)
    return middleware.wrap(fn).retrieve(QUERY, 4)  # type: ignore[no-any-return]


def test_a_run_holds_what_was_found_and_what_it_took() -> None:
    found = retrieved("rewrite", Accounted(scripted))
    run = run_of(found)
    assert run.ids == tuple(match.id for match in found.matches)
    assert (run.llm_calls, run.input_tokens, run.output_tokens, run.cost_usd) == (2, 100, 20, 0.5)
    assert run.variants == found.variants
    assert (run.searches, run.read_cost_usd) == (2, None)
    assert not run.degraded


def test_what_searches_cost_is_known_with_their_price() -> None:
    middleware = qtm.QueryMiddleware({"store": {"readPrice": 20}})
    assert run_of(middleware.wrap(search).retrieve(QUERY, 4)).read_cost_usd == pytest.approx(20e-6)


def test_the_time_of_replayed_replies_is_part_of_what_was_added() -> None:
    found = retrieved("all", Accounted(scripted))
    run = run_of(found)
    # Three prompts side by side.
    assert run.seconds_added == pytest.approx(3.0 + found.trace.added_ms / 1e3)


def test_what_was_degraded_says_so() -> None:
    assert run_of(retrieved("rewrite", ScriptedModel(ModelError("timeout")))).degraded


@pytest.mark.parametrize("row", [{"text": "no id"}, {"id": "", "text": "an empty one"}])
def test_a_passage_without_an_id_is_refused(row: dict[str, str]) -> None:
    found = retrieved(
        "none", ScriptedModel({}), lambda query, top_k: [{"id": "a", "text": "x"}, row]
    )
    with pytest.raises(ConfigError, match="no ids") as caught:
        run_of(found)
    assert caught.value.path == "fn"


def test_nothing_found_is_an_empty_run() -> None:
    assert run_of(retrieved("none", ScriptedModel({}), lambda query, top_k: [])).ids == ()


def test_no_searched_text_is_in_a_repr() -> None:
    assert "Jaco" not in repr(run_of(retrieved("rewrite", Accounted(scripted))))
    assert repr(Run(("a",))).startswith("Run(ids=('a',)")
