"""How long Redis is waited for, before the model is asked and after it replied."""

from __future__ import annotations

from typing import Any

import pytest

from qtmiddleware.config.settings import CacheSettings, Settings
from qtmiddleware.protocols import Reply
from qtmiddleware.retrieval.learned import Learned
from qtmiddleware.retrieval.question import Question
from qtmiddleware.retrieval.request import Request
from qtmiddleware.retrieval.transform_stage import TransformStage
from qtmiddleware.runtime.cache import TransformationCache
from qtmiddleware.runtime.steps import Ask, Outcome, Recall, Together
from qtmiddleware.types import Deadline, Query, Trace
from tests.support.clock import Clock

QUERY = "What did Acme pay in 2023?"


class Shared:
    """A cache of other processes, which holds nothing."""

    wait_seconds = 0.0

    def get(self, *args: Any) -> None: ...

    def put(self, *args: Any) -> None: ...


@pytest.mark.parametrize("allowed_ms", [1, 50, 9_999])
@pytest.mark.parametrize("left", [0.02, 5.0, 60.0])
def test_redis_is_waited_for_as_long_as_it_may_take_and_not_longer_than_the_model(
    allowed_ms: int, left: float, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qtmiddleware.types.monotonic", clock)
    settings = Settings(
        transformation_type="rewrite", cache=CacheSettings(redis_timeout_ms=allowed_ms)
    )
    cache = TransformationCache(settings)
    cache.shared = Shared()  # type: ignore[assignment]
    request = Request(QUERY, (), settings, Learned(), cache, can_share_reply=False)
    question, query = Question(QUERY, (), settings), Query(QUERY, QUERY, QUERY)
    stage = TransformStage(question, query, request, Trace(), [], lambda: (), Deadline.after(left))
    flow = stage.run(Deadline.after(left))
    steps = [
        next(flow),
        flow.send([Outcome()]),
        flow.send([Outcome(Reply('{"rewrite": "sum paid by Acme in 2023"}'))]),
    ]
    waits = [
        (type(step.steps[0]), step.deadline.remaining())
        for step in steps
        if isinstance(step, Together)
    ]
    allowed = allowed_ms / 1_000
    assert waits == [
        (Recall, pytest.approx(min(allowed, left))),
        (Ask, pytest.approx(left)),
        (Recall, pytest.approx(allowed)),
    ]
    with pytest.raises(StopIteration) as stop:
        flow.send([Outcome()])
    assert stop.value.value.rewrite == "sum paid by Acme in 2023"
