"""Making a middleware, setting it for a file, a decorator, a block and a call, and asking it for transformations."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import qtmiddleware as qtm
from qtmiddleware.errors import ModelError
from qtmiddleware.protocols import Prompt
from qtmiddleware.testing import ScriptedModel
from tests.support.retrieval_world import (
    FOLLOW_UP,
    HISTORY,
    QUERY,
    Way,
    kinds,
    scripted,
    search,
    transforming,
)


def plain(query: str, top_k: int = 4) -> Any:
    return search(query, top_k)


# --- configuration --------------------------------------------------------------------------------


def test_a_file_configures_a_middleware(tmp_path: Path) -> None:
    path = tmp_path / "query-transform.config.json"
    path.write_text(json.dumps({"transformationType": "step_back", "topK": 7}))
    qm = qtm.QueryMiddleware(path, client=ScriptedModel(scripted))
    assert (qm.settings.transformation_type, qm.settings.top_k) == ("stepback", 7)
    assert kinds(qm.wrap(plain).retrieve(QUERY)) == ["original", "step_back"]
    assert (
        qtm.middleware(config=path)(plain)
        .retrieve(QUERY, config={"escalation": {"mode": "never"}})
        .status
        == "full"
    )


def asked_for(searched: Any, **options: Any) -> int:
    """The number of candidates one call asks for."""
    searched.calls.clear()
    searched.retrieve(QUERY, **options)
    ((_, top_k),) = searched.calls
    return int(top_k)


def candidates(number: int) -> dict[str, Any]:
    return {"keywordEvidence": {"candidates": number}}


@pytest.mark.parametrize("way", [Way("sync"), Way("async"), Way("threads")], ids=repr)
def test_the_call_goes_before_the_decorator(way: Way) -> None:
    searched = way.wrap(config=candidates(20))
    assert asked_for(searched) == 20
    assert asked_for(searched, config=candidates(22)) == 22
    assert asked_for(searched, config={"keyword_evidence": {"candidates": 23}}) == 23
    assert asked_for(searched, config={"limits": {"maxConcurrency": 2}}) == 20
    assert asked_for(searched, config="off") == 4
    with pytest.raises(qtm.ConfigError, match="preset must be one of"):
        asked_for(searched, config="of")
    assert asked_for(searched) == 20


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "client", [42, "gpt-4o-mini", object(), ScriptedModel], ids=lambda it: type(it).__name__
)
def test_what_is_no_client_is_refused(client: Any) -> None:
    with pytest.raises(qtm.ConfigError) as caught:
        qtm.QueryMiddleware(client=client)
    assert caught.value.path == "client"


class Closing(ScriptedModel):
    """Counts how often it was closed."""

    closed = aclosed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.aclosed += 1


async def test_a_middleware_closes_its_model_at_the_end_of_its_async_block() -> None:
    model = Closing(scripted)
    async with qtm.QueryMiddleware(client=model) as qm:
        await qm.wrap(plain).aretrieve(QUERY)
    assert model.aclosed == 1


# --- transform ------------------------------------------------------------------------------------


@pytest.fixture(params=["transform", "atransform"])
def transformed(request: pytest.FixtureRequest) -> Any:
    def ask(qm: qtm.QueryMiddleware, *args: Any, **kwargs: Any) -> Any:
        if request.param == "transform":
            return qm.transform(*args, **kwargs)
        return asyncio.run(qm.atransform(*args, **kwargs))

    return ask


def rewrite_of(prompt: Prompt) -> Any:
    if "bad" in prompt.query:
        return ModelError("refused")
    return {"rewrite": f"{prompt.query} in other words"}


def test_several_questions_keep_their_number_and_order(transformed: Any) -> None:
    queries = [f"What is number{number} about?" for number in range(20)]
    queries[3], queries[17] = "What is bad about it?", "Hello!"
    model = ScriptedModel(rewrite_of)
    qm = qtm.QueryMiddleware(transforming("rewrite", limits={"maxConcurrency": 4}), client=model)
    made = transformed(qm, queries)
    assert [it.rewrite for it in made] == [
        None if number in (3, 17) else f"{query} in other words"
        for number, query in enumerate(queries)
    ]
    assert made[3].notes == (("transform.rewrite", "refused"),)
    assert made[17].notes == ()
    assert len(model.prompts) == 19


def test_a_follow_up_is_transformed_with_its_history(transformed: Any) -> None:
    model = ScriptedModel(scripted)
    made = transformed(
        qtm.QueryMiddleware(transforming("all"), client=model), FOLLOW_UP, history=HISTORY
    )
    assert made.standalone == "What does Jaco eat?"
    first, *others = model.prompts
    assert first.mode == "standalone"
    # These are asked at the same time.
    assert sorted(prompt.mode for prompt in others) == ["decompose", "rewrite", "stepback"]
    assert {prompt.query for prompt in others} == {"What does Jaco eat?"}


@pytest.mark.parametrize("position", [0, 9])
@pytest.mark.parametrize("bad", ["", None, 7])
def test_a_question_that_is_none_is_refused_before_any_call(
    position: int, bad: Any, transformed: Any
) -> None:
    model = ScriptedModel(rewrite_of)
    qm = qtm.QueryMiddleware(transforming("rewrite", limits={"maxConcurrency": 2}), client=model)
    queries: list[Any] = ["What is it?"] * 10
    queries[position] = bad
    with pytest.raises(qtm.InvalidQuery):
        transformed(qm, queries)
    assert model.prompts == []
